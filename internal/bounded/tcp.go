package bounded

import (
	"cmp"

	"github.com/lofamo/lofamo/internal/retransmit"
)

// handshakes is the value of Limits.Handshakes for a TCP listener that sets none: more than peers need.
const handshakes = 100

// ListenTCP listens at a TCP address, with limits. Its connections retransmit lost packets early.
func ListenTCP(addr string, o Options) (*Listener, error) {
	l, err := retransmit.Listen(addr)
	if err != nil {
		return nil, err
	}
	o.Limits.Handshakes = cmp.Or(o.Limits.Handshakes, handshakes)
	return Listen(l, o), nil
}

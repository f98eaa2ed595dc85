package bounded

import "github.com/lofamo/lofamo/internal/retransmit"

// ListenTCP listens at a TCP address, with limits. Its connections retransmit lost packets early.
func ListenTCP(addr string, o Options) (*Listener, error) {
	l, err := retransmit.Listen(addr)
	if err != nil {
		return nil, err
	}
	return Listen(l, o), nil
}

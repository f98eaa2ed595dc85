package direct

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Rail is a socket with the addresses of supervisors: a servicenet.Rail. The socket's owner runs and closes it.
type Rail struct {
	sock    *Socket
	targets map[string]netip.AddrPort
}

var _ servicenet.Rail = (*Rail)(nil)

// NewRail returns the rail over a socket to the supervisors given by id.
func NewRail(s *Socket, targets map[string]netip.AddrPort) *Rail {
	return &Rail{sock: s, targets: maps.Clone(targets)}
}

// Send implements servicenet.Rail.
func (r *Rail) Send(to string, b []byte) error {
	addr, ok := r.targets[to]
	switch {
	case !ok:
		return fmt.Errorf("send on the direct rail: supervisor %q: %w", to, servicenet.ErrNoTarget)
	case len(b) == 0:
		return fmt.Errorf("send on the direct rail to %s: %w", to, servicenet.ErrEmpty)
	}
	return r.sock.Send(addr, b)
}

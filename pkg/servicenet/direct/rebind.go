package direct

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Rebind opens the socket again on the same address, port and interface name, while Run goes on. It is for an
// interface that has come back under another index, to which the old socket is not bound, and for an address that has
// come back. Unread datagrams in the old socket are lost. If Rebind fails, the old socket stays in use, and the
// caller may try again.
func (s *Socket) Rebind() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return fmt.Errorf("rebind direct rail %s: %w", s.local, servicenet.ErrClosed)
	}
	old := s.cur.Load()
	if old == nil {
		return s.openLate()
	}
	fresh, err := s.beside(old)
	if err != nil {
		return fmt.Errorf("rebind direct rail %s: %w", s.local, err)
	}
	s.past += old.drops()
	s.use(fresh)
	s.rebinds.Add(1)
	if err := old.conn.Close(); err != nil {
		return fmt.Errorf("rebind direct rail %s: close the old socket: %w", s.local, err)
	}
	return nil
}

// beside opens an endpoint on the port of another one. The two share it for this moment only, so that
// no other process can get it meanwhile, and none can share it later.
func (s *Socket) beside(old *endpoint) (fresh *endpoint, err error) {
	if err := setInt(old.raw, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return nil, err
	}
	if fresh, err = open(s.bound, s.opts, true); err != nil {
		return nil, errors.Join(err, setInt(old.raw, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0))
	}
	if err := setInt(fresh.raw, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0); err != nil {
		return nil, errors.Join(err, fresh.conn.Close(), setInt(old.raw, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0))
	}
	return fresh, nil
}

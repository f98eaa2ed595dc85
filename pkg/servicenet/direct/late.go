package direct

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// absent reports whether err is Listen's error for an interface or address that does not exist.
func absent(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EADDRNOTAVAIL)
}

// Absent says why the socket of Options.Late is not open yet; nil: it is, or it is closed.
func (s *Socket) Absent() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() || s.cur.Load() != nil {
		return nil
	}
	return s.absent
}

// errAbsent returns Send's error while the socket is not open. PathError reports true. errAbsent does not wait for Rebind.
func (s *Socket) errAbsent() error {
	if s.closed.Load() {
		return net.ErrClosed
	}
	return fmt.Errorf("socket on %s: not open yet: %w", s.bound, unix.ENETDOWN)
}

// openLate is Rebind of a socket that is not open yet; s.mu is held.
func (s *Socket) openLate() error {
	ep, err := open(s.bound, s.opts, false)
	if err != nil {
		s.absent = err
		return fmt.Errorf("open direct rail %s: %w", s.local, err)
	}
	s.use(ep)
	s.rebinds.Add(1)
	close(s.opened)
	return nil
}

// awaitOpen waits until there is something to read from. It says no when the socket was closed before.
func (s *Socket) awaitOpen(ctx context.Context) bool {
	select {
	case <-s.opened:
	case <-ctx.Done():
	}
	return s.cur.Load() != nil
}

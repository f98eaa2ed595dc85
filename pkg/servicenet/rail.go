package servicenet

import "errors"

// Rail carries marshalled envelopes towards the supervisors. The Outbox decides which envelopes it carries and which
// rail to use; a rail only moves bytes.
//
// Send never blocks. b has 1 byte or more, and is the caller's again on return. to is a supervisor's id; rails that
// have no target (gossip, torus) ignore it. Success does not imply arrival: the outbox repeats lost envelopes. An
// error means that nothing was sent: one that wraps ErrTooLong, ErrNoTarget, ErrBusy or ErrClosed, or the kernel's.
// Send may be called from any goroutine.
//
// A rail counts the envelopes that it refuses or drops. All rails pass one contract suite: package railtest.
type Rail interface {
	Send(to string, b []byte) error
}

var (
	// ErrTooLong is wrapped when an envelope is longer than MaxDatagram, or than the rail's own limit.
	ErrTooLong = errors.New("longer than the rail carries")
	// ErrEmpty is wrapped when there is nothing to send: a mistake of the caller.
	ErrEmpty = errors.New("nothing to send")
	// ErrNoTarget is wrapped when the rail knows no supervisor of that id.
	ErrNoTarget = errors.New("unknown supervisor")
	// ErrBusy is wrapped when the rail has no room just now: a full queue, a budget used up. It says nothing against
	// the path.
	ErrBusy = errors.New("rail has no room now")
	// ErrClosed is wrapped after the rail was closed.
	ErrClosed = errors.New("rail is closed")
)

package gossip

import (
	"fmt"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Rail adapts a member to servicenet.Rail: it sends to all members, and the supervisors are among them. It is small:
// beyond a few envelopes a second Send refuses with an error that wraps ErrRateLimited, and so servicenet.ErrBusy.
// The member's owner closes it.
type Rail struct{ net *Net }

var _ servicenet.Rail = Rail{}

// NewRail returns the rail of a member.
func NewRail(n *Net) Rail { return Rail{net: n} }

// Send implements servicenet.Rail. It has no target.
func (r Rail) Send(_ string, b []byte) error {
	if err := r.net.Broadcast(b); err != nil {
		return fmt.Errorf("send on the gossip rail: %w", err)
	}
	return nil
}

// sizeError refuses a size that no datagram can have.
func sizeError(n int) error {
	reason := servicenet.ErrTooLong
	if n == 0 {
		reason = servicenet.ErrEmpty
	}
	return fmt.Errorf("broadcast: given %d bytes: want 1 to %d: %w", n, servicenet.MaxDatagram, reason)
}

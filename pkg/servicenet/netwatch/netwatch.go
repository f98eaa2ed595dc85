// Package netwatch reports when a service interface can carry traffic and when it cannot, as soon as the kernel
// knows: carrier, the administrator's switch, the interface itself and the address on it (seed 004 §IV-B.1). It
// starts a migration before any time-out does.
//
// It says nothing about the path behind the interface, and an interface that is up proves nothing: time-outs and
// acknowledgements apply as before. It watches the network namespace of its process.
//
// The decision is core's, which is a function of links and addresses; Run feeds it from rtnetlink.
// Nothing is polled: while nothing changes, nothing runs. The kernel itself may hold back a second
// carrier change of an interface within one second.
package netwatch

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Interface describes one rail.
type Interface struct {
	// Name is the interface's, as in SO_BINDTODEVICE; empty: whichever has the address.
	Name string
	// Addr is the local address. The unspecified one stands for any of its family.
	Addr netip.Addr
}

// Change says that a rail is up or down from now on. The first changes, one a rail and in order, give the state at
// the start.
type Change struct {
	Index int // in the list given to Run
	Up    bool
	Why   string // for people
}

// Waits before a lost subscription is renewed: the kernel drops one whose reader is late (ENOBUFS), and there may be
// no descriptors left.
const (
	minWait = 20 * time.Millisecond
	maxWait = time.Second
)

const (
	receiveBuffer = 1 << 20 // asked for in bytes, of each of the two subscriptions
	listTries     = 5       // retries of a list during which something changed
)

// errLost ends a session whose subscription has broken.
var errLost = errors.New("subscription lost")

// Run watches until the context ends, and returns nil then. report is called from one goroutine and must not block.
// It gets every change once, also changes while a subscription was lost, in so far as they still hold. Run returns an
// error for an invalid list, and for a kernel that does not support the subscription at all.
func Run(ctx context.Context, rails []Interface, report func(Change)) error {
	return run(ctx, rails, report, subscribe)
}

// feed is one subscription. Channels that are closed, and a word on trouble, say that it may have
// missed something.
type feed struct {
	links   <-chan netlink.LinkUpdate
	addrs   <-chan netlink.AddrUpdate
	trouble <-chan error
	list    func() ([]link, []address, error)
	close   func() // waits for the feed's goroutines
}

func run(ctx context.Context, rails []Interface, report func(Change), open func() (*feed, error)) error {
	for i, r := range rails {
		if !r.Addr.IsValid() {
			return fmt.Errorf("watch interfaces: rail %d: address: given none: want one, or an unspecified one", i)
		}
	}
	c := newCore(rails)
	wait := minWait
	for first := true; ; first = false {
		begun := time.Now()
		if err := session(ctx, c, report, open); err != nil && first && !errors.Is(err, errLost) {
			return fmt.Errorf("watch interfaces: %w", err)
		}
		if time.Since(begun) > maxWait {
			wait = minWait
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = min(2*wait, maxWait)
	}
}

// session lasts as long as one subscription.
func session(ctx context.Context, c *core, report func(Change), open func() (*feed, error)) error {
	f, err := open()
	if err != nil {
		return err
	}
	defer f.close()
	tell := func(changes []Change) {
		for _, ch := range changes {
			if ctx.Err() == nil {
				report(ch)
			}
		}
	}
	// After the subscription: events of the meantime wait there.
	links, addrs, err := f.list()
	if err != nil {
		return err
	}
	c.replace(links, addrs)
	tell(c.judge())
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-f.trouble:
			return fmt.Errorf("%w: %w", errLost, err)
		case u, ok := <-f.links:
			if !ok {
				return errLost
			}
			onLink(c, u)
		case u, ok := <-f.addrs:
			if !ok {
				return errLost
			}
			onAddr(c, u)
		}
		tell(c.judge())
	}
}

func onLink(c *core, u netlink.LinkUpdate) {
	switch {
	case u.Family == unix.AF_BRIDGE:
		// About a port of a bridge: a port that leaves its bridge is not an interface that has gone.
	case u.Header.Type == unix.RTM_DELLINK:
		c.dropLink(int(u.Index))
	case u.Link != nil:
		c.setLink(linkOf(u.Link))
	}
}

func onAddr(c *core, u netlink.AddrUpdate) {
	if p, ok := prefixOf(u.LinkAddress); ok {
		c.setAddr(address{index: u.LinkIndex, prefix: p}, u.NewAddr && usable(u.Flags))
	}
}

// usable holds for an address that a socket can be bound to: IPv6 looks first whether it is another's.
func usable(flags int) bool {
	if flags&unix.IFA_F_DADFAILED != 0 {
		return false
	}
	return flags&unix.IFA_F_TENTATIVE == 0 || flags&unix.IFA_F_OPTIMISTIC != 0
}

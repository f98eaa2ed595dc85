package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/agent/half"
)

// watchedInterface describes one rail.
type watchedInterface struct {
	// Name is the interface's, as in SO_BINDTODEVICE; empty: whichever has the address.
	Name string
	// Addr is the local address. The unspecified one stands for any of its family.
	Addr netip.Addr
}

// interfaceChange says that a rail is up or down from now on. The first changes, one for each rail and in order, give the
// initial state.
type interfaceChange struct {
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

// watchInterfaces reports when a service interface can carry traffic and when it cannot, as soon as the kernel
// knows: carrier, the administrator's switch, the interface itself and the address on it (seed 004 §IV-B.1). It
// starts a migration before any time-out does.
//
// It says nothing about the path behind the interface, and an interface that is up proves nothing: time-outs and
// acknowledgements apply as before. It watches the network namespace of its process.
//
// interfaceCore decides, as a function of links and addresses; watchInterfaces feeds it from rtnetlink.
// Nothing is polled: while nothing changes, nothing runs. The kernel itself may hold back a second
// carrier change of an interface within one second.
//
// It watches until the context ends, and returns nil then. report is called from one goroutine and must not block.
// report gets every change once, including changes during a lost subscription that still hold. watchInterfaces
// returns an error for an invalid list, and for a kernel that refuses the first subscription for good. After other
// errors it retries.
func watchInterfaces(ctx context.Context, rails []watchedInterface, report func(interfaceChange), log *slog.Logger) error {
	return run(ctx, rails, report, subscribeNetlink, log)
}

// netlinkFeed is one subscription. A closed channel, or an error on trouble, means that it may have missed
// something.
type netlinkFeed struct {
	links   <-chan netlink.LinkUpdate
	addrs   <-chan netlink.AddrUpdate
	trouble <-chan error
	list    func() ([]netLink, []address, error)
	close   func() // waits for the feed's goroutines
}

func run(ctx context.Context, rails []watchedInterface, report func(interfaceChange), open func() (*netlinkFeed, error),
	log *slog.Logger) error {
	for i, r := range rails {
		if !r.Addr.IsValid() {
			return fmt.Errorf("watch interfaces: rail %d: address: given none: want one, or an unspecified one", i)
		}
	}
	c := newInterfaceCore(rails)
	var failing half.Condition
	wait := minWait
	for first := true; ; first = false {
		begun := time.Now()
		f, err := beginNetlinkSession(ctx, c, report, open)
		if first && refusedForGood(err) {
			return fmt.Errorf("watch interfaces: %w", err)
		}
		failing.Set(log, "watch service interfaces", err)
		if err == nil {
			followNetlink(ctx, f, c, report, log)
			f.close()
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

// refusedForGood reports whether a subscription's error means that this kernel, or the process' confinement, allows none.
func refusedForGood(err error) bool {
	var errno unix.Errno
	return errors.As(err, &errno) && slices.Contains([]unix.Errno{unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EPERM, unix.EACCES}, errno)
}

// beginNetlinkSession subscribes, and reports the changes since the last session.
func beginNetlinkSession(ctx context.Context, c *interfaceCore, report func(interfaceChange),
	open func() (*netlinkFeed, error)) (*netlinkFeed, error) {
	f, err := open()
	if err != nil {
		return nil, err
	}
	// After the subscription: events of the meantime wait there.
	links, addrs, err := f.list()
	if err != nil {
		f.close()
		return nil, err
	}
	c.replace(links, addrs)
	reportChanges(ctx, c, report)
	return f, nil
}

// followNetlink reports changes until the subscription breaks or ctx ends.
func followNetlink(ctx context.Context, f *netlinkFeed, c *interfaceCore, report func(interfaceChange), log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-f.trouble:
			log.Debug("watch service interfaces: subscription lost", "err", err)
			return
		case u, ok := <-f.links:
			if !ok {
				return
			}
			onLink(c, u)
		case u, ok := <-f.addrs:
			if !ok {
				return
			}
			onAddr(c, u)
		}
		reportChanges(ctx, c, report)
	}
}

func reportChanges(ctx context.Context, c *interfaceCore, report func(interfaceChange)) {
	for _, ch := range c.judge() {
		if ctx.Err() == nil {
			report(ch)
		}
	}
}

func onLink(c *interfaceCore, u netlink.LinkUpdate) {
	switch {
	case u.Family == unix.AF_BRIDGE:
		// About a port of a bridge: a port that leaves its bridge is not an interface that has gone.
	case u.Header.Type == unix.RTM_DELLINK:
		c.dropLink(int(u.Index))
	case u.Link != nil:
		c.setLink(linkOf(u.Link))
	}
}

func onAddr(c *interfaceCore, u netlink.AddrUpdate) {
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

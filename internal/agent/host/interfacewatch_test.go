package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/netnstest"
)

const listPatience = time.Minute

// watched is a watcher that runs until the test ends.
type watched struct {
	t       *testing.T
	changes chan interfaceChange
}

func watch(t *testing.T, open func() (*netlinkFeed, error), rails ...watchedInterface) *watched {
	t.Helper()
	w := &watched{t, make(chan interfaceChange, 4096)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, rails, func(ch interfaceChange) { w.changes <- ch }, open, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(listPatience):
			t.Error("did not end with its context")
		}
	})
	return w
}

// want waits for the next change, which must be this one.
func (w *watched) want(index int, up bool, why string) {
	w.t.Helper()
	select {
	case got := <-w.changes:
		if got.Index != index || got.Up != up || !strings.Contains(got.Why, why) {
			w.t.Fatalf("got %+v; want rail %d, up %t, %q", got, index, up, why)
		}
	case <-time.After(listPatience):
		w.t.Fatalf("no change in %s; want rail %d, up %t, %q", listPatience, index, up, why)
	}
}

// lay lays the cable: a veth pair whose near end has the address. It waits until the kernel has updated the state of the
// near end, which takes a moment.
func lay(t *testing.T) {
	t.Helper()
	for _, l := range []string{
		"link add svc0 type veth peer name far0", "link set far0 up", "link set svc0 up", "addr add 10.77.0.1/24 dev svc0",
	} {
		netnstest.IP(t, l)
	}
	for end := time.Now().Add(listPatience); ; time.Sleep(5 * time.Millisecond) {
		l, err := netlink.LinkByName("svc0")
		if err != nil {
			t.Fatal(err)
		}
		if l.Attrs().OperState == netlink.OperUp {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("svc0 is %s after %s", l.Attrs().OperState, listPatience)
		}
	}
}

func TestInterfaceChangesAreReported(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	lay(t)
	w := watch(t, subscribeNetlink, netInterface("svc0", "10.77.0.1"), netInterface("", "10.77.0.1"), netInterface("later0", "0.0.0.0"),
		netInterface("", "127.0.0.1"))
	both := func(up bool, why string) {
		t.Helper()
		w.want(0, up, why)
		w.want(1, up, "")
	}
	both(true, "interface svc0 is up and has address 10.77.0.1")
	w.want(2, false, "interface later0 is not there")
	w.want(3, true, "")

	netnstest.IP(t, "link set svc0 down")
	both(false, "switched off")
	netnstest.IP(t, "link set svc0 up")
	both(true, "")

	netnstest.IP(t, "link set far0 down")
	both(false, "no carrier")
	netnstest.IP(t, "link set far0 up")
	both(true, "")

	netnstest.IP(t, "addr del 10.77.0.1/24 dev svc0")
	both(false, "address 10.77.0.1 is not on interface svc0")
	netnstest.IP(t, "addr add 10.77.0.1/32 dev svc0")
	both(true, "")

	netnstest.IP(t, "link del svc0")
	w.wantDown(0, 1)
	lay(t)
	w.wantUp(0, 1)

	// When a port leaves a bridge, the kernel announces a deleted link, of the bridge's family.
	netnstest.IP(t, "link add br0 type bridge")
	netnstest.IP(t, "link set svc0 master br0")
	netnstest.IP(t, "link set svc0 nomaster")

	netnstest.IP(t, "link add early0 type veth peer name far1")
	netnstest.IP(t, "link set far1 up")
	netnstest.IP(t, "link set early0 name later0")
	netnstest.IP(t, "addr add 10.78.0.1/24 dev later0")
	netnstest.IP(t, "link set later0 up")
	w.want(2, true, "interface later0 is up")
	netnstest.IP(t, "link set lo down")
	w.want(3, false, "switched off")
}

// wantDown and wantUp expect the changes of some rails in any order: links and addresses come by two subscriptions.
func (w *watched) wantDown(rails ...int) { w.t.Helper(); w.wantAll(false, rails) }
func (w *watched) wantUp(rails ...int)   { w.t.Helper(); w.wantAll(true, rails) }

func (w *watched) wantAll(up bool, rails []int) {
	w.t.Helper()
	left := map[int]bool{}
	for _, r := range rails {
		left[r] = true
	}
	for len(left) > 0 {
		select {
		case got := <-w.changes:
			if got.Up != up || !left[got.Index] {
				w.t.Fatalf("got %+v; want up %t of %v", got, up, left)
			}
			delete(left, got.Index)
		case <-time.After(listPatience):
			w.t.Fatalf("no change in %s; want up %t of %v", listPatience, up, left)
		}
	}
}

// TestFlappingEndsWithCurrentState: however quickly it goes, changes alternate and the last one is the truth.
func TestFlappingEndsWithCurrentState(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	lay(t)
	w := watch(t, subscribeNetlink, netInterface("svc0", "10.77.0.1"), netInterface("lo", "127.0.0.1"))
	w.want(0, true, "")
	w.want(1, true, "")
	for range 20 {
		netnstest.IP(t, "link set svc0 down")
		netnstest.IP(t, "link set svc0 up")
	}
	netnstest.IP(t, "link set svc0 down")
	netnstest.IP(t, "link set lo down") // the end
	up, downs := true, 0
	for {
		select {
		case ch := <-w.changes:
			if ch.Index == 1 {
				if up || downs == 0 {
					t.Errorf("%d times down, and up at the end: %t", downs, up)
				}
				return
			}
			if ch.Up == up {
				t.Fatalf("told twice in a row: %+v", ch)
			}
			if up = ch.Up; !up {
				downs++
			}
		case <-time.After(listPatience):
			t.Fatalf("no change in %s; %d times down", listPatience, downs)
		}
	}
}

// TestLostNetlinkEventsCauseNewListing: when the kernel has dropped an event, Run lists everything again, and reports the changes.
func TestLostNetlinkEventsCauseNewListing(t *testing.T) {
	for name, breaks := range map[string]func(f *fakeNetlinkFeed){
		"links end":     func(f *fakeNetlinkFeed) { close(f.links) },
		"addresses end": func(f *fakeNetlinkFeed) { close(f.addrs) },
		"trouble":       func(f *fakeNetlinkFeed) { f.trouble <- unix.ENOBUFS },
	} {
		t.Run(name, func(t *testing.T) {
			feeds := make(chan *fakeNetlinkFeed, 8)
			lists := make(chan []netLink, 8)
			refusals := make(chan error, 8)
			w := watch(t, func() (*netlinkFeed, error) {
				select {
				case err := <-refusals:
					return nil, err
				default:
				}
				f := newFakeNetlinkFeed(lists)
				feeds <- f
				return f.feed(), nil
			}, netInterface("eth0", "10.0.0.1"))
			lists <- []netLink{eth(2)}
			w.want(0, true, "")
			refusals <- errors.New("too many open files") // the second session does not begin
			breaks(<-feeds)
			lists <- []netLink{eth(3)}
			w.want(0, false, "replaced")
			w.want(0, true, "")
			f := <-feeds
			f.links <- netlink.LinkUpdate{IfInfomsg: infomsg(3, unix.AF_BRIDGE), Header: unix.NlMsghdr{Type: unix.RTM_DELLINK}}
			f.addrs <- netlink.AddrUpdate{LinkIndex: 3, LinkAddress: ipnet("10.0.0.1/24")}
			w.want(0, false, "address 10.0.0.1 is not on interface eth0")
			f.addrs <- netlink.AddrUpdate{LinkIndex: 3, LinkAddress: ipnet("10.0.0.1/24"), NewAddr: true, Flags: unix.IFA_F_DADFAILED}
			f.addrs <- netlink.AddrUpdate{LinkIndex: 3, LinkAddress: ipnet("10.0.0.1/24"), NewAddr: true}
			w.want(0, true, "")
			f.links <- netlink.LinkUpdate{IfInfomsg: infomsg(3, unix.AF_UNSPEC), Header: unix.NlMsghdr{Type: unix.RTM_DELLINK}}
			w.want(0, false, "not there")
		})
	}
}

type fakeNetlinkFeed struct {
	links   chan netlink.LinkUpdate
	addrs   chan netlink.AddrUpdate
	trouble chan error
	lists   <-chan []netLink
}

func newFakeNetlinkFeed(lists <-chan []netLink) *fakeNetlinkFeed {
	return &fakeNetlinkFeed{make(chan netlink.LinkUpdate), make(chan netlink.AddrUpdate), make(chan error), lists}
}

func (f *fakeNetlinkFeed) feed() *netlinkFeed {
	return &netlinkFeed{links: f.links, addrs: f.addrs, trouble: f.trouble, close: func() {}, list: func() ([]netLink, []address, error) {
		ls := <-f.lists
		var as []address
		for _, l := range ls {
			as = append(as, at(l.index, "10.0.0.1/24"))
		}
		return ls, as, nil
	}}
}

func infomsg(index int32, family uint8) (m nl.IfInfomsg) {
	m.Index, m.Family = index, family
	return m
}

func ipnet(s string) net.IPNet {
	p := netip.MustParsePrefix(s)
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// TestFailedFirstSessionIsRetried: trouble of a moment when the half starts, such as a lack of buffers or descriptors, must not switch off
// interface events for good.
func TestFailedFirstSessionIsRetried(t *testing.T) {
	for name, tc := range map[string]struct{ open, list error }{
		"no buffers":       {open: fmt.Errorf("subscribe to links: %w", unix.ENOBUFS)},
		"no descriptors":   {open: fmt.Errorf("subscribe to links: %w", unix.EMFILE)},
		"interrupted list": {list: fmt.Errorf("list links: %w", netlink.ErrDumpInterrupted)},
	} {
		t.Run(name, func(t *testing.T) {
			lists := make(chan []netLink, 1)
			lists <- []netLink{eth(2)}
			feed, tries := newFakeNetlinkFeed(lists).feed(), 0
			list := feed.list
			feed.list = func() ([]netLink, []address, error) {
				if tries <= 2 && tc.list != nil {
					return nil, nil, tc.list
				}
				return list()
			}
			w := watch(t, func() (*netlinkFeed, error) {
				if tries++; tries <= 2 && tc.open != nil {
					return nil, tc.open
				}
				return feed, nil
			}, netInterface("eth0", "10.0.0.1"))
			w.want(0, true, "")
		})
	}
}

func TestWatchInterfacesRefusals(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, errno := range []unix.Errno{unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EPERM, unix.EACCES} {
		refuse := func() (*netlinkFeed, error) { return nil, fmt.Errorf("subscribe to links: %w", errno) }
		if err := run(t.Context(), []watchedInterface{netInterface("eth0", "10.0.0.1")}, func(interfaceChange) {}, refuse, log); !errors.Is(err,
			errno) {
			t.Errorf("a kernel that refuses rtnetlink with %v: %v", errno, err)
		}
	}
	if err := watchInterfaces(t.Context(), []watchedInterface{netInterface("eth0", "10.0.0.1"), {Name: "eth1"}},
		func(interfaceChange) {}, log); err == nil ||
		!strings.Contains(err.Error(), "rail 1: address") {
		t.Errorf("no address: %v", err)
	}
}

func TestTentativeAddressIsNotUsable(t *testing.T) {
	for flags, want := range map[int]bool{
		0: true, unix.IFA_F_PERMANENT: true, unix.IFA_F_TENTATIVE: false, unix.IFA_F_TENTATIVE | unix.IFA_F_OPTIMISTIC: true,
		unix.IFA_F_DADFAILED: false, unix.IFA_F_DADFAILED | unix.IFA_F_TENTATIVE | unix.IFA_F_OPTIMISTIC: false,
	} {
		if got := usable(flags); got != want {
			t.Errorf("flags 0x%x: %t", flags, got)
		}
	}
}

func TestPrefixOf(t *testing.T) {
	for want, n := range map[string]net.IPNet{
		"10.0.0.1/24": {IP: net.IPv4(10, 0, 0, 1), Mask: net.CIDRMask(24, 32)}, // in its 16-byte form
		"fe80::1/64":  ipnet("fe80::1/64"),
	} {
		if p, ok := prefixOf(n); !ok || p.String() != want {
			t.Errorf("%v: %v, %t", n, p, ok)
		}
	}
	for _, bad := range []net.IPNet{{}, {IP: net.IP{1, 2, 3}, Mask: net.CIDRMask(8, 32)},
		{IP: net.IP{1, 2, 3, 4}, Mask: net.CIDRMask(64, 128)}} {
		if p, ok := prefixOf(bad); ok {
			t.Errorf("%v: %v", bad, p)
		}
	}
}

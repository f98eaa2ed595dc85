package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// subscribeNetlink subscribes to all changes of links and addresses.
func subscribeNetlink() (*netlinkFeed, error) {
	done := make(chan struct{})
	links, addrs := make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64)
	trouble := make(chan error, 1)
	onError := func(err error) {
		select {
		case trouble <- err:
		default: // one is enough
		}
	}
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{
		ErrorCallback: onError, ReceiveBufferSize: receiveBuffer,
	}); err != nil {
		close(done)
		return nil, fmt.Errorf("subscribe to links: %w", err)
	}
	if err := netlink.AddrSubscribeWithOptions(addrs, done, netlink.AddrSubscribeOptions{
		ErrorCallback: onError, ReceiveBufferSize: receiveBuffer,
	}); err != nil {
		close(done)
		drainNetlink(links)
		return nil, fmt.Errorf("subscribe to addresses: %w", err)
	}
	return &netlinkFeed{links: links, addrs: addrs, trouble: trouble, list: listInterfaces, close: func() {
		close(done)
		drainNetlink(links)
		drainNetlink(addrs)
	}}, nil
}

// drainNetlink lets a subscription's goroutine end.
func drainNetlink[T any](ch <-chan T) {
	for range ch {
	}
}

// listInterfaces returns the present links and addresses.
func listInterfaces() (links []netLink, addrs []address, err error) {
	for range listTries {
		if links, addrs, err = listInterfacesOnce(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return links, addrs, err
}

func listInterfacesOnce() ([]netLink, []address, error) {
	ls, err := netlink.LinkList()
	if err != nil {
		return nil, nil, fmt.Errorf("list links: %w", err)
	}
	links := make([]netLink, 0, len(ls))
	for _, l := range ls {
		links = append(links, linkOf(l))
	}
	as, err := netlink.AddrList(nil, unix.AF_UNSPEC)
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	var addrs []address
	for _, a := range as {
		if a.IPNet == nil || !usable(a.Flags) {
			continue
		}
		if p, ok := prefixOf(*a.IPNet); ok {
			addrs = append(addrs, address{index: a.LinkIndex, prefix: p})
		}
	}
	return links, addrs, nil
}

func linkOf(l netlink.Link) netLink {
	a := l.Attrs()
	return netLink{
		index: a.Index, name: a.Name, others: a.AltNames, admin: a.RawFlags&unix.IFF_UP != 0,
		// Some drivers report the state unknown: loopback, and some virtual ones.
		oper: a.OperState == netlink.OperUp || a.OperState == netlink.OperUnknown, state: a.OperState.String(),
	}
}

func prefixOf(n net.IPNet) (netip.Prefix, bool) {
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	ones, bits := n.Mask.Size()
	if a.Is4In6() && bits == 32 {
		a = a.Unmap()
	}
	p := netip.PrefixFrom(a, ones)
	return p, p.IsValid()
}

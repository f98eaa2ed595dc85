package host

import (
	"fmt"
	"net/netip"
	"slices"
)

// netLink is an interface as far as it matters here.
type netLink struct {
	index  int // the kernel's, never used again
	name   string
	others []string // alternative names
	admin  bool     // switched on
	oper   bool     // has its carrier, or does not know of one
	state  string   // operational state, for people
}

func (l netLink) named(name string) bool { return l.name == name || slices.Contains(l.others, name) }

// address is one on an interface that a socket can be bound to.
type address struct {
	index  int
	prefix netip.Prefix
}

// interfaceCore is the state of links and addresses, and the last reported state of the rails. It has no clock, socket or
// goroutine.
//
//	unknown ──► up ◄──► down
type interfaceCore struct {
	rails []interfaceRail
	links []netLink // by index
	addrs map[address]struct{}
}

type interfaceRail struct {
	want watchedInterface
	verdict
	told bool
}

// verdict is the state of a rail. on is the link of one that is up by its interface's name.
type verdict struct {
	up  bool
	on  int
	why downReason
}

// downReason is formatted only when it is reported, since most checks find no change.
type downReason struct {
	kind  downReasonKind
	state string
}

type downReasonKind uint8

const (
	isUp downReasonKind = iota + 1
	noInterface
	switchedOff
	noCarrier
	noAddress
	replaced
)

func newInterfaceCore(wants []watchedInterface) *interfaceCore {
	c := &interfaceCore{addrs: map[address]struct{}{}}
	for _, w := range wants {
		w.Addr = w.Addr.Unmap().WithZone("")
		c.rails = append(c.rails, interfaceRail{want: w})
	}
	return c
}

// replace applies a complete list.
func (c *interfaceCore) replace(links []netLink, addrs []address) {
	c.links = c.links[:0]
	clear(c.addrs)
	for _, l := range links {
		c.setLink(l)
	}
	for _, a := range addrs {
		c.setAddr(a, true)
	}
}

func (c *interfaceCore) setLink(l netLink) {
	i, found := c.find(l.index)
	if found {
		c.links[i] = l
	} else {
		c.links = slices.Insert(c.links, i, l)
	}
}

func (c *interfaceCore) find(index int) (int, bool) {
	return slices.BinarySearchFunc(c.links, index, func(l netLink, index int) int { return l.index - index })
}

func (c *interfaceCore) dropLink(index int) {
	if i, found := c.find(index); found {
		c.links = slices.Delete(c.links, i, i+1)
	}
	for a := range c.addrs {
		if a.index == index {
			delete(c.addrs, a)
		}
	}
}

func (c *interfaceCore) setAddr(a address, there bool) {
	if there {
		c.addrs[a] = struct{}{}
	} else {
		delete(c.addrs, a)
	}
}

// judge returns the changes since the last call, in the order of the rails.
func (c *interfaceCore) judge() []interfaceChange {
	var out []interfaceChange
	for i := range c.rails {
		r := &c.rails[i]
		v := c.verdictOn(r.want)
		if r.told && r.up && v.up && r.on != v.on {
			// Another interface of the same name: sockets are still bound to the one that has gone.
			out = append(out, interfaceChange{Index: i, Why: downReason{kind: replaced}.text(r.want)})
			r.told = false
		}
		if !r.told || r.up != v.up {
			out = append(out, interfaceChange{Index: i, Up: v.up, Why: v.why.text(r.want)})
		}
		r.verdict, r.told = v, true
	}
	return out
}

func (c *interfaceCore) verdictOn(want watchedInterface) verdict {
	if want.Name == "" {
		return c.anyInterface(want.Addr)
	}
	for _, l := range c.links {
		if l.named(want.Name) {
			v := c.onLink(l, want.Addr)
			if v.up {
				v.on = l.index
			}
			return v
		}
	}
	return verdict{why: downReason{kind: noInterface}}
}

// anyInterface looks for the address on any interface that is up. If none is, it returns the reason that is nearest
// to being up.
func (c *interfaceCore) anyInterface(addr netip.Addr) verdict {
	best := verdict{why: downReason{kind: noAddress}}
	for _, l := range c.links {
		v := c.onLink(l, addr)
		if v.up {
			return v
		}
		if c.has(l.index, addr) && (best.why.kind == noAddress || v.why.kind > best.why.kind) {
			best = v
		}
	}
	return best
}

func (c *interfaceCore) onLink(l netLink, addr netip.Addr) verdict {
	switch {
	case !l.admin:
		return verdict{why: downReason{kind: switchedOff}}
	case !l.oper:
		return verdict{why: downReason{kind: noCarrier, state: l.state}}
	case !c.has(l.index, addr):
		return verdict{why: downReason{kind: noAddress}}
	}
	return verdict{up: true, why: downReason{kind: isUp}}
}

// has reports whether the address is on the link. An address of 127.0.0.0/8 on a link stands for that whole network.
func (c *interfaceCore) has(index int, addr netip.Addr) bool {
	for a := range c.addrs {
		if a.index != index {
			continue
		}
		switch at := a.prefix.Addr(); {
		case at == addr,
			addr.IsUnspecified() && at.Is4() == addr.Is4(),
			addr.IsLoopback() && at.IsLoopback() && a.prefix.Contains(addr):
			return true
		}
	}
	return false
}

func (r downReason) text(want watchedInterface) string {
	addr := "address " + want.Addr.String()
	if want.Addr.IsUnspecified() {
		addr = "any address of the family of " + want.Addr.String()
	}
	ifc := "interface " + want.Name
	if want.Name == "" {
		ifc = "the interface of " + addr
	}
	switch r.kind {
	case isUp:
		if want.Name == "" {
			return addr + " is on an interface that is up"
		}
		return fmt.Sprintf("%s is up and has %s", ifc, addr)
	case noInterface:
		return ifc + " is not there"
	case switchedOff:
		return ifc + " is switched off"
	case noCarrier:
		return fmt.Sprintf("%s has no carrier (operational state %s)", ifc, r.state)
	case noAddress:
		if want.Name == "" {
			return addr + " is on no interface"
		}
		return fmt.Sprintf("%s is not on %s", addr, ifc)
	case replaced:
		return ifc + " was replaced by another one of that name"
	default:
		return ifc + ": no reason known" // a broken invariant, for people only
	}
}

package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/routing"
)

// validateLinks checks that each of the node's directions has exactly one link, and that no two sockets of this node
// share an address. Other directions may have an end without a peer. If dims is zero (not valid), it does not check which
// directions have links.
func (a Agent) validateLinks(p *problems, dims grid.Dims, directions []grid.Direction) {
	haveDims := dims != grid.Dims{}
	if !dims.Full() && a.Routing != routing.Chaos.String() {
		p.bad("routing", a.Routing, "%s: only it finds a way around the empty places of dims", routing.Chaos)
	}
	udp, peers := taken{}, taken{}
	udp.add(p, "service.listen", a.Service.Listen)
	udp.add(p, "service.gossipListen", a.Service.GossipListen)
	for i, s := range a.Service.Alternates {
		udp.add(p, fmt.Sprintf("service.alternates[%d].listen", i), s.Listen)
	}
	for _, name := range sortedKeys(a.Links) {
		field, l := "links."+name, a.Links[name]
		dir, err := grid.ParseDirection(name)
		switch {
		case err != nil:
			p.wrap(field, err)
		case a.Spare || l.Peer == "" && l.PeerNode == "" && !slices.Contains(directions, dir): // an end, for a torus that grows
		case haveDims && !dims.HasLink(dir):
			p.bad(field, "a link", "none: the %s torus has size 1 in that dimension", dims)
		case haveDims && !slices.Contains(directions, dir):
			p.bad(field, "a link", "none: in the %s torus no other node is on that line", dims)
		}
		if _, ok := p.listen(field+".local", l.Local); ok {
			udp.add(p, field+".local", l.Local)
		}
		a.validatePeer(p, field, l, haveDims && !slices.Contains(directions, dir))
		peers.add(p, field+".peer", l.Peer)
		p.iface(field+".interface", l.Interface)
	}
	udp.add(p, "netconsole.listen", a.Netconsole.Listen)
	if !haveDims {
		return
	}
	for i, name := range a.MaskedLinks {
		if dir, err := grid.ParseDirection(name); err != nil || !slices.Contains(directions, dir) {
			p.bad(fmt.Sprintf("maskedLinks[%d]", i), name, "a direction in which this node of the %s torus has a link", dims)
		}
	}
	for _, dir := range directions {
		if _, ok := a.Links[dir.String()]; !ok {
			p.bad("links."+dir.String(), "", "a link: this node of the %s torus has one in that direction", dims)
		}
	}
}

// validatePeer checks the other end of a link. end: the torus has no link in that direction, so there may be none.
func (a Agent) validatePeer(p *problems, field string, l LinkAddr, end bool) {
	named := l.Peer != "" || l.PeerNode != ""
	switch {
	case a.Spare && named:
		p.bad(field+".peer", strings.TrimSpace(l.Peer+" "+string(l.PeerNode)), "nothing: a spare learns its peers")
	case !a.Spare && (named || !end):
		p.remote(field+".peer", l.Peer)
	}
	if l.PeerNode != "" {
		p.name(field+".peerNode", string(l.PeerNode))
	}
}

// alternates checks the additional addresses after a first one. Each must name one host: a socket on all addresses
// would answer from any.
func (p *problems) alternates(first, firstAddr, list string, addrs []string) {
	if n := len(addrs); n > maxAlternates {
		p.bad(list, fmt.Sprintf("%d", n), "at most %d", maxAlternates)
	}
	seen := taken{}
	seen.add(p, first, firstAddr)
	for i, a := range addrs {
		field := fmt.Sprintf("%s[%d]", list, i)
		p.remote(field, a)
		seen.add(p, field, a)
	}
}

// taken names the second of two fields with one address and one protocol.
type taken map[netip.AddrPort]string

func (t taken) add(p *problems, field, v string) {
	ap, err := netip.ParseAddrPort(v)
	if err != nil {
		return // named already
	}
	if first, ok := t[ap]; ok {
		p.bad(field, v, "an address other than that of %s", first)
		return
	}
	t[ap] = field
}

// Package peers holds the supervisors' orders about the peers at the other ends of a node's links, and about a
// spare's place (seed 003 §5.2.3.2: all neighbours of a replaced node learn of its replacement).
//
//	as configured ──order──► as ordered ──newer order──► as ordered, or as configured again
//
// An order overrides the node's configuration, link by link: links that it does not name are as configured. It never
// changes an end of the node's own. It may also name the torus, in place of the configured one: a node that joins or
// leaves changes it. Orders have numbers, and a node refuses one that is not newer than the last. So
// an old order that arrives again, late or by another path, undoes nothing.
//
// It is pure: it keeps no file (internal/agent/storage does) and opens no link.
package peers

import (
	"cmp"
	"fmt"
	"net/netip"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Peer is the node at the other end of a link. Without a name there is no order about the link.
type Peer struct {
	Node    fault.NodeID
	Address netip.AddrPort // of its end; not valid: as configured
}

// State is a node's present order. Its zero value is a node without an order.
type State struct {
	Number uint64 // of the word, from 1: the store's revision that it is of; 0: they have not spoken
	Placed bool   // of a spare: it has a place
	Coord  grid.Coord
	Torus  grid.Dims // that the node holds in place of its configured one; zero: as configured
	Peers  [grid.NumDirections]Peer
}

// FromOrder reads an order that has passed the checks of package servicenet.
func FromOrder(o *lofamov1.PeerOrder) (State, error) {
	s := State{Number: o.GetNumber()}
	if o.GetCoord() != "" {
		c, err := grid.ParseCoord(o.GetCoord())
		if err != nil {
			return State{}, fmt.Errorf("peer order %d: coord: %w", s.Number, err)
		}
		s.Placed, s.Coord = true, c
	}
	if b := o.GetTorus(); len(b) > 0 {
		d, err := grid.FromBinary(b)
		if err != nil {
			return State{}, fmt.Errorf("peer order %d: %w", s.Number, err)
		}
		s.Torus = d
	}
	for _, p := range o.GetPeers() {
		d := grid.Direction(p.GetDirection())
		if !d.Valid() {
			return State{}, fmt.Errorf("peer order %d: direction: given %d: want 1 to %d", s.Number, p.GetDirection(), grid.NumDirections)
		}
		to := Peer{Node: fault.NodeID(p.GetNode())}
		if a := p.GetAddress(); a != "" {
			ap, err := netip.ParseAddrPort(a)
			if err != nil {
				return State{}, fmt.Errorf("peer order %d: address of link %s: %w", s.Number, d, err)
			}
			to.Address = ap
		}
		s.Peers[d.Index()] = to
	}
	return s, nil
}

// Order applies the supervisors' order, and returns the verdict. The age of two different orders of one number cannot
// be compared: the first one stays. An order with the present content, under a newer number, changes the number.
func (s State) Order(next State) (State, chanmask.Verdict) {
	switch {
	case next.Number < s.Number || next.Number == 0:
		return s, chanmask.Stale
	case next == s:
		return s, chanmask.Known
	case next.Number == s.Number:
		return s, chanmask.Stale
	}
	return next, chanmask.Taken
}

// Says reports whether two states are equal except for their numbers.
func (s State) Says(o State) bool {
	s.Number = o.Number
	return s == o
}

// Place is the coordinate in words, as messages have it; empty: none.
func (s State) Place() string {
	if !s.Placed {
		return ""
	}
	return s.Coord.String()
}

// TorusName is the short name of the ordered torus, as messages have it; empty: none.
func (s State) TorusName() string {
	if s.Torus == (grid.Dims{}) {
		return ""
	}
	return s.Torus.Short()
}

// In returns the torus that the node holds, which is the configured one unless an order names another.
func (s State) In(configured grid.Dims) grid.Dims {
	return cmp.Or(s.Torus, configured)
}

// Proto renders peers by direction, those that have a name.
func Proto(all [grid.NumDirections]Peer) []*lofamov1.Peer {
	var out []*lofamov1.Peer
	for i, d := range grid.Directions() {
		p := all[i]
		if p.Node == "" && !p.Address.IsValid() {
			continue
		}
		q := &lofamov1.Peer{Direction: uint32(d), Node: string(p.Node)}
		if p.Address.IsValid() {
			q.Address = p.Address.String()
		}
		out = append(out, q)
	}
	return out
}

// Over returns the peers at the other ends: those of the order, and otherwise those of the configuration.
func (s State) Over(configured [grid.NumDirections]Peer) [grid.NumDirections]Peer {
	for i, p := range s.Peers {
		if p.Node == "" {
			continue
		}
		if !p.Address.IsValid() {
			p.Address = configured[i].Address
		}
		configured[i] = p
	}
	return configured
}

// String is for logs: "place 1,0,1, torus 2x2x2, X+ spare-0 at 10.0.0.9:7001", or "as configured".
func (s State) String() string {
	out := ""
	if s.Placed {
		out = "place " + s.Coord.String()
	}
	if name := s.TorusName(); name != "" {
		if out != "" {
			out += ", "
		}
		out += "torus " + name
	}
	for i, d := range grid.Directions() {
		if p := s.Peers[i]; p.Node != "" {
			if out != "" {
				out += ", "
			}
			out += fmt.Sprintf("%s %s", d, p.Node)
			if p.Address.IsValid() {
				out += " at " + p.Address.String()
			}
		}
	}
	return cmp.Or(out, "as configured")
}

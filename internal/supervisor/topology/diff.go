package topology

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Change is one thing in which two topologies differ.
type Change struct {
	Node fault.NodeID // empty: the whole
	Text string       // in words
}

// String returns the change in words.
func (c Change) String() string { return c.Text }

// Diff returns the changes from one topology to another: first those of the whole, then node by node in the new
// order, then the removed nodes.
func Diff(from, to *Topology) []Change {
	var out []Change
	add := func(id fault.NodeID, format string, args ...any) {
		out = append(out, Change{id, fmt.Sprintf(format, args...)})
	}
	ordinary := from.Ordinary() && to.Ordinary()
	switch {
	case from.Dims == to.Dims:
	case ordinary:
		add("", "the nodes' neighbours change")
	default:
		add("", "dims: %s becomes %s", from.Dims, to.Dims)
	}
	if !slices.Equal(from.DomainLabels, to.DomainLabels) {
		add("", "domain labels: %s becomes %s", strings.Join(from.DomainLabels, ", "), strings.Join(to.DomainLabels, ", "))
	}
	before := make(map[grid.Coord]fault.NodeID)
	for _, n := range from.Placed() {
		before[n.Coord] = n.ID
	}
	for _, n := range to.Nodes {
		old, ok := from.Node(n.ID)
		text := placeChange(old, ok, n, before)
		if text != "" && ordinary {
			text = part(old, ok, n)
		}
		if text != "" {
			add(n.ID, "node %s: %s", n.ID, text)
		}
		if text := labelChange(old.Labels, n.Labels); text != "" {
			add(n.ID, "node %s: %s", n.ID, text)
		}
		if !slices.Equal(old.Service, n.Service) {
			add(n.ID, "node %s: service: %s becomes %s", n.ID, addresses(old.Service), addresses(n.Service))
		} else if old.Proved != n.Proved && ok {
			add(n.ID, "node %s: service addresses proved: %t", n.ID, n.Proved)
		}
	}
	for _, n := range from.Nodes {
		if _, ok := to.Node(n.ID); !ok {
			was := " (" + n.place() + ")"
			if ordinary {
				was = ""
			}
			add(n.ID, "node %s: removed%s", n.ID, was)
		}
	}
	return out
}

func placeChange(old Node, known bool, n Node, before map[grid.Coord]fault.NodeID) string {
	instead := ""
	if was, ok := before[n.Coord]; ok && !n.Spare && was != n.ID {
		instead = fmt.Sprintf(" in place of %s", was)
	}
	switch {
	case !known && n.Spare:
		return "added as a spare"
	case !known:
		return fmt.Sprintf("added at %s%s", n.Coord, instead)
	case old.Spare && n.Spare || !old.Spare && !n.Spare && old.Coord == n.Coord:
		return ""
	case n.Spare:
		return fmt.Sprintf("leaves %s and is a spare now", old.Coord)
	case old.Spare:
		return fmt.Sprintf("the spare takes %s%s", n.Coord, instead)
	}
	return fmt.Sprintf("moves from %s to %s%s", old.Coord, n.Coord, instead)
}

// part describes a change of place to readers without a torus: whether the node takes part, or has others beside it.
func part(old Node, known bool, n Node) string {
	switch {
	case !known && n.Spare:
		return "enrolled"
	case n.Spare:
		return "takes no part any more"
	case !known || old.Spare:
		return "takes part"
	}
	return "has other neighbours"
}

func labelChange(from, to map[string]string) string {
	keys := maps.Clone(from)
	if keys == nil {
		keys = make(map[string]string)
	}
	maps.Copy(keys, to)
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		was, had := from[key]
		is, has := to[key]
		switch {
		case !had:
			parts = append(parts, fmt.Sprintf("label %s=%s is new", key, is))
		case !has:
			parts = append(parts, fmt.Sprintf("label %s=%s is removed", key, was))
		case was != is:
			parts = append(parts, fmt.Sprintf("label %s=%s becomes %s=%s", key, was, key, is))
		}
	}
	return strings.Join(parts, ", ")
}

func addresses(list []netip.AddrPort) string {
	if len(list) == 0 {
		return "none"
	}
	var out []string
	for _, a := range list {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}

// Moved returns the ids of nodes whose place differs between the topologies, or that are in only one topology;
// spares have no place. The known state of a component does not apply at another place.
func Moved(from, to *Topology) []fault.NodeID {
	var out []fault.NodeID
	for _, n := range from.Placed() {
		if m, ok := to.Node(n.ID); !ok || m.Spare || m.Coord != n.Coord {
			out = append(out, n.ID)
		}
	}
	return out
}

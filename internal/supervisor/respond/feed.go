package respond

import (
	"cmp"
	"slices"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// feed turns versions of the committed map into events for the engine, each change once. It is not safe for
// concurrent use.
type feed struct {
	topo   *topology.Topology
	newest view.Map
	nodes  KnownNodes
	groups map[string]awareness.GroupStatus
}

func newFeed() feed {
	return feed{nodes: KnownNodes{}, groups: map[string]awareness.GroupStatus{}}
}

// changes returns the events of a version of the map. It ignores a version older than the newest one, including its
// topology. e knows the evidence for the faults.
func (f *feed) changes(in mapped, e *response.Engine) []response.Event {
	if in.m.Revision < f.newest.Revision {
		return nil
	}
	var out []response.Event
	first := f.topo == nil
	if t := in.m.Topology(); t != f.topo {
		f.topo, in.all = t, true
		out = append(out, topologyOf(in.m))
		out = append(out, f.dropGone(in.m)...)
	}
	if in.all {
		for rank := range in.m.Len() {
			out = append(out, f.node(in.m, rank, e)...)
		}
	} else {
		for _, id := range in.changed {
			if rank, ok := in.m.Rank(id); ok {
				out = append(out, f.node(in.m, rank, e)...)
			}
		}
	}
	f.newest = in.m
	return append(out, f.groupChanges(in.m, first)...)
}

// dropGone ends the faults of nodes that no longer have a place.
func (f *feed) dropGone(m view.Map) []response.Event {
	var out []response.Event
	for id, was := range f.nodes {
		if _, ok := m.Rank(id); ok {
			continue
		}
		for _, old := range was.faults {
			out = append(out, ended(old, time.Time{}))
		}
		delete(f.nodes, id)
	}
	slices.SortFunc(out, func(a, b response.Event) int {
		x, y := a.(response.FaultChanged), b.(response.FaultChanged)
		return compare(x.Fault, y.Fault)
	})
	return out
}

// node returns the changes of one node.
func (f *feed) node(m view.Map, rank int, e *response.Engine) []response.Event {
	if f.nodes.has(m.ID(rank), m.NodeRevision(rank)) { // avoids unpacking the node
		return nil
	}
	return f.nodes.Changes(m.At(rank), e)
}

// groupChanges returns the changes of the standing group faults, with the evidence of their members. stood says that the groups are
// older than this feed's view of the map.
func (f *feed) groupChanges(m view.Map, stood bool) []response.Event {
	var out []response.Event
	stand := make(map[string]bool, len(m.Groups))
	for _, g := range m.Groups {
		stand[g.ID] = true
		was, told := f.groups[g.ID]
		if told && was.State == g.State && was.Cause == g.Cause && was.Of == g.Of && was.Since.Equal(g.Since) &&
			slices.Equal(was.Members, g.Members) {
			continue
		}
		f.groups[g.ID] = g
		changed := groupOf(g)
		changed.At = heard(m, g.Members)
		out = append(out, response.GroupChanged{Group: changed, Stood: stood})
	}
	var gone []string
	for id := range f.groups {
		if !stand[id] {
			gone = append(gone, id)
		}
	}
	slices.Sort(gone)
	for _, id := range gone {
		g := groupOf(f.groups[id])
		g.State = fault.Normal
		delete(f.groups, id)
		out = append(out, response.GroupChanged{Group: g})
	}
	return out
}

// MaxMembers bounds the members of a group fault whose evidence is gathered.
const MaxMembers = 64

// heard returns the arrival of the newest committed evidence for members of a group fault; zero: there is none.
func heard(m view.Map, members []fault.NodeID) (at time.Time) {
	for _, id := range members[:min(len(members), MaxMembers)] {
		rank, ok := m.Rank(id)
		if !ok {
			continue
		}
		for _, e := range m.At(rank).Faults {
			if e.Component == fault.ComponentNode && e.At.After(at) {
				at = e.At
			}
		}
	}
	return at
}

func groupOf(g awareness.GroupStatus) response.Group {
	return response.Group{ID: g.ID, Kind: g.Kind.String(), State: g.State, Cause: g.Cause, Members: g.Members, Of: g.Of, Since: g.Since}
}

// reset returns a full map for a new leader: the given one, or a newer one that arrived meanwhile. open are the
// targets of open responses, whose faults it always includes.
func (f *feed) reset(m view.Map, open map[response.Target]bool) response.Led {
	old := f.nodes
	if f.newest.Revision > m.Revision {
		m = f.newest
	}
	*f = newFeed()
	f.topo, f.newest = m.Topology(), m
	var led response.Led
	for rank := range m.Len() {
		f.nodes.Lead(&led, m.At(rank), m.NodeRevision(rank), old, open)
	}
	for _, g := range m.Groups {
		f.groups[g.ID] = g
		led.Groups = append(led.Groups, groupOf(g))
	}
	return led
}

func compare(a, b response.Fault) int {
	return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Component, b.Component))
}

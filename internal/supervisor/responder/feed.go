package responder

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

// feed turns versions of the committed map into what the engine is told: each change once. It is for one goroutine.
//
// The components of a node that is UNKNOWN are told of only where they stood in another state before: of a cluster that starts cold
// nothing else is known than that its nodes are UNKNOWN.
type feed struct {
	topo   *topology.Topology
	newest view.Map
	nodes  map[fault.NodeID]toldNode
	groups map[string]awareness.GroupStatus
}

// toldNode is what the engine was told of a node.
type toldNode struct {
	revision uint64
	epoch    fault.Epoch
	faults   []response.Fault // not NORMAL, by component
}

func newFeed() feed {
	return feed{nodes: map[fault.NodeID]toldNode{}, groups: map[string]awareness.GroupStatus{}}
}

// faultsOf are the components of a node that are not NORMAL. keep says of which it has to be told though they are UNKNOWN as the node is.
func faultsOf(st awareness.NodeStatus, keep func(fault.Component) bool) []response.Fault {
	var out []response.Fault
	if st.State != fault.Normal {
		out = append(out, response.Fault{
			Node: st.ID, Component: fault.ComponentNode, State: st.State, Cause: st.Cause, Since: st.Since, Inferred: st.Inferred, Unreachable: st.Unreachable,
		})
	}
	for _, c := range st.Components {
		if c.State == fault.Normal || c.State == fault.Unknown && st.State == fault.Unknown && !keep(c.Component) {
			continue
		}
		out = append(out, response.Fault{Node: st.ID, Component: c.Component, State: c.State, Cause: c.Cause, Since: c.Since, Flapping: c.Flapping})
	}
	return out
}

// same says whether two faults say the same, whatever they rest on.
func same(a, b response.Fault) bool {
	return a.State == b.State && a.Cause == b.Cause && a.Since.Equal(b.Since) && a.Inferred == b.Inferred && a.Unreachable == b.Unreachable && a.Flapping == b.Flapping
}

func (n toldNode) of(c fault.Component) (response.Fault, bool) {
	for _, f := range n.faults {
		if f.Component == c {
			return f, true
		}
	}
	return response.Fault{}, false
}

// changes are the events of a version of the map. One that is older than what was told says nothing, not even who there is. e knows what the faults rest on.
func (f *feed) changes(in mapped, e *response.Engine) []response.Event {
	if in.m.Revision < f.newest.Revision {
		return nil
	}
	var out []response.Event
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
	return append(out, f.groupChanges(in.m.Groups)...)
}

// dropGone ends the faults of nodes that have no place any more.
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

// ended is the end of a fault, at a time that may not be known.
func ended(f response.Fault, at time.Time) response.FaultChanged {
	return response.FaultChanged{Fault: response.Fault{Node: f.Node, Component: f.Component, State: fault.Normal, Cause: fault.CauseNone, Since: at}}
}

// node are the changes of one node.
func (f *feed) node(m view.Map, rank int, e *response.Engine) []response.Event {
	id, revision := m.ID(rank), m.NodeRevision(rank)
	was, known := f.nodes[id]
	if known && revision <= was.revision {
		return nil
	}
	st := m.At(rank).Status
	now := toldNode{revision: revision, epoch: st.HostEpoch, faults: faultsOf(st, func(c fault.Component) bool { _, told := was.of(c); return told })}
	f.nodes[id] = now
	var out []response.Event
	if now.epoch > was.epoch {
		out = append(out, response.Booted{Node: id, Epoch: now.epoch})
	}
	for _, n := range now.faults {
		old, told := was.of(n.Component)
		if told && same(old, n) {
			continue
		}
		if told && old.State == n.State {
			n.Evidence, _ = e.Evidence(n.Target())
		}
		out = append(out, response.FaultChanged{Fault: n, Stood: !known})
	}
	for _, old := range was.faults {
		if _, stands := now.of(old.Component); !stands {
			out = append(out, ended(old, since(st, old.Component)))
		}
	}
	return out
}

// since is when the state of a component began.
func since(st awareness.NodeStatus, c fault.Component) time.Time {
	for _, s := range st.Components {
		if s.Component == c {
			return s.Since
		}
	}
	return st.Since
}

// groupChanges are those of the group faults that stand.
func (f *feed) groupChanges(groups []awareness.GroupStatus) []response.Event {
	var out []response.Event
	stand := make(map[string]bool, len(groups))
	for _, g := range groups {
		stand[g.ID] = true
		was, told := f.groups[g.ID]
		if told && was.State == g.State && was.Cause == g.Cause && was.Of == g.Of && was.Since.Equal(g.Since) && slices.Equal(was.Members, g.Members) {
			continue
		}
		f.groups[g.ID] = g
		out = append(out, response.GroupChanged{Group: groupOf(g)})
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

func groupOf(g awareness.GroupStatus) response.Group {
	return response.Group{ID: g.ID, Kind: g.Kind.String(), State: g.State, Cause: g.Cause, Members: g.Members, Of: g.Of, Since: g.Since}
}

// reset is the whole of a map, for who begins to lead: of the one given, or of what came meanwhile, if that is newer. open are targets of responses: of their faults it is told in any case.
func (f *feed) reset(m view.Map, open map[response.Target]bool) response.Led {
	old := f.nodes
	if f.newest.Revision > m.Revision {
		m = f.newest
	}
	*f = newFeed()
	f.topo, f.newest = m.Topology(), m
	var led response.Led
	for rank := range m.Len() {
		st := m.At(rank).Status
		was := old[st.ID]
		n := toldNode{revision: m.NodeRevision(rank), epoch: st.HostEpoch, faults: faultsOf(st, func(c fault.Component) bool {
			_, told := was.of(c)
			return told || open[response.Target{Node: st.ID, Component: c}]
		})}
		f.nodes[st.ID] = n
		led.Faults = append(led.Faults, n.faults...)
		if n.epoch > 0 {
			led.Epochs = append(led.Epochs, response.Booted{Node: st.ID, Epoch: n.epoch})
		}
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

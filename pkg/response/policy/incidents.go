package policy

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Periods of the replayed incidents: the defaults of the supervisors.
const (
	replayDigestPeriod  = 500 * time.Millisecond
	replayChallengeTime = 100 * time.Millisecond
)

// incidentFold reconstructs the incidents of a recording, which has only the changes of the map.
type incidentFold struct {
	ledger *awareness.Incidents
	nodes  map[fault.NodeID]*awareness.NodeStatus
	groups map[string]awareness.GroupStatus
}

// withIncidents returns the events with the incidents that the leader would have made of them. At each time they follow the
// events of that time, since a leader commits them together.
func withIncidents(events []Recorded, o *ReplayOptions, end time.Time) ([]Recorded, error) {
	f, err := newIncidentFold(events[0].At, o)
	if err != nil {
		return nil, err
	}
	var out []Recorded
	for last := (time.Time{}); ; {
		at := f.ledger.Wake()
		if !at.After(last) {
			at = time.Time{}
		}
		if len(events) > 0 {
			at = fault.Earliest(at, events[0].At)
		}
		if at.IsZero() || at.After(end) {
			break
		}
		last = at
		var u awareness.IncidentUpdate
		for len(events) > 0 && !events[0].At.After(at) {
			f.learn(events[0].Event, &u)
			out, events = append(out, events[0]), events[1:]
		}
		for _, id := range slices.Sorted(maps.Keys(f.groups)) {
			u.Groups = append(u.Groups, f.groups[id])
		}
		if len(f.ledger.Update(at, u).Changed) > 0 {
			out = append(out, Recorded{at, f.roots()})
		}
	}
	return append(out, events...), nil
}

func newIncidentFold(start time.Time, o *ReplayOptions) (*incidentFold, error) {
	f := &incidentFold{nodes: map[fault.NodeID]*awareness.NodeStatus{}, groups: map[string]awareness.GroupStatus{}}
	ids, labels := map[grid.Coord]fault.NodeID{}, map[fault.NodeID]map[string]string{}
	for _, n := range o.Topology.Nodes {
		if n.Spare {
			continue
		}
		ids[n.Coord], labels[n.ID] = n.ID, n.Labels
		f.nodes[n.ID] = &awareness.NodeStatus{ID: n.ID, Coord: n.Coord, State: fault.Normal}
	}
	cfg := awareness.IncidentsOf("replay", awareness.Config{Dims: o.Topology.Dims, IDs: ids, Labels: labels, Supervisor: "replay",
		DomainLabels: o.Config.DomainLabels, DigestPeriod: replayDigestPeriod, ChallengeNode: replayChallengeTime})
	var err error
	f.ledger, err = awareness.NewIncidents(cfg, start, nil, nil)
	return f, err
}

// learn takes a change of the map into the next update. It ignores nodes that the topology does not have.
func (f *incidentFold) learn(ev response.Event, u *awareness.IncidentUpdate) {
	var changed []fault.NodeID
	switch ev := ev.(type) {
	case response.GroupChanged:
		g := ev.Group
		changed = slices.Concat(f.groups[g.ID].Members, g.Members)
		kind, err := awareness.ParseGroupKind(g.Kind)
		if delete(f.groups, g.ID); err == nil && g.State != fault.Normal {
			f.groups[g.ID] = awareness.GroupStatus{ID: g.ID, Kind: kind, State: g.State, Cause: g.Cause, Members: g.Members, Of: g.Of,
				Since: g.Since}
		}
	case response.FaultChanged:
		if st := f.nodes[ev.Node]; st != nil {
			changeNode(st, &ev.Fault)
		}
		changed = []fault.NodeID{ev.Node}
	}
	for _, id := range changed {
		st := f.nodes[id]
		if st == nil {
			continue
		}
		st.Inferred = f.inferred(st)
		u.Nodes = slices.DeleteFunc(u.Nodes, func(n awareness.NodeStatus) bool { return n.ID == id })
		u.Nodes = append(u.Nodes, *st)
	}
}

// inferred reports whether a node that is not known to be FAILED belongs to a group of dead nodes: no live witness sees it,
// or it died before the recording began.
func (f *incidentFold) inferred(st *awareness.NodeStatus) bool {
	if st.State == fault.Failed {
		return false
	}
	for _, g := range f.groups {
		if g.Cause == fault.CauseNode && slices.Contains(g.Members, st.ID) {
			return true
		}
	}
	return false
}

func changeNode(st *awareness.NodeStatus, to *response.Fault) {
	if to.Component == fault.ComponentNode {
		st.State, st.Cause, st.Since = to.State, to.Cause, to.Since
		return
	}
	st.Components = slices.Clone(st.Components)
	i, known := slices.BinarySearchFunc(st.Components, to.Component, func(c awareness.ComponentStatus, to fault.Component) int {
		return int(c.Component) - int(to)
	})
	if !known {
		st.Components = slices.Insert(st.Components, i, awareness.ComponentStatus{Component: to.Component})
	}
	c := &st.Components[i]
	c.State, c.Cause, c.Since = to.State, to.Cause, to.Since
}

// roots returns the incidents that are not CLOSED, as the responder gives them to the engine.
func (f *incidentFold) roots() response.IncidentsChanged {
	out := response.IncidentsChanged{Roots: map[response.Target]string{}, Ends: map[response.Target]response.Target{},
		Parts: map[response.Target]string{}, Standing: map[string]uint32{}}
	all := f.ledger.All()
	slices.SortStableFunc(all, func(a, b *awareness.Incident) int { return cmp.Compare(b.State, a.State) }) // OPEN ones count last
	for _, in := range all {
		if in.State == awareness.IncidentClosed {
			continue
		}
		out.Standing[in.ID] = 0
		for _, c := range in.Consequences {
			out.Parts[response.Target{Node: c.Node, Component: c.Component}] = in.ID
		}
		if in.State != awareness.IncidentOpen {
			continue
		}
		root := response.Target{Node: in.Root.Node, Component: in.Root.Component, Group: in.Root.Group}
		out.Roots[root] = in.ID
		if d, link := in.Root.Component.LinkDirection(); link && in.Peer != "" {
			out.Ends[root] = response.Target{Node: in.Peer, Component: fault.Link(d.Opposite())}
		}
	}
	return out
}

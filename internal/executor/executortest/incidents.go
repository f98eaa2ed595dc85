package executortest

import (
	"fmt"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// IDs of the incidents that PlayIncidents plays.
const (
	DeadNode = "abcd-aaaaaaaa"
	CutCable = "abcd-bbbbbbbb"
	DeadRack = "abcd-cccccccc"
)

// PlayIncidents plays the faults of three incidents through the engine, whose policies have the condition fault.incident != "": a
// dead node with its links, a cable that is cut at both ends, and a rack whose nodes die one by one. The executor carries out
// every attempt. Each incident must notify once; the caller counts at the receiver.
func PlayIncidents(t *testing.T, x executor.Executor, kind response.Kind, parameters map[string]string) {
	t.Helper()
	p := player{t: t, x: x, now: time.Unix(1_800_000_000, 0).UTC(), roots: map[response.Target]string{}, parts: map[response.Target]string{}}
	cfg := response.Default()
	var err error
	if p.e, err = response.New(cfg); err != nil {
		t.Fatal(err)
	}
	topo := response.TopologyChanged{Dims: grid.Dims{X: 4, Y: 4, Z: 4}}
	for rank := range topo.Dims.Nodes() {
		at := topo.Dims.At(rank)
		topo.Nodes = append(topo.Nodes, response.NodeInfo{ID: fault.DefaultNodeID(at), Coord: at})
	}
	var policies []*response.Policy
	for _, groups := range []bool{false, true} {
		policies = append(policies, &response.Policy{Name: fmt.Sprintf("groups-%t", groups), Digest: "1", Mode: response.Enforce, Groups: groups,
			Incidents: true, Match: rootCauses(groups),
			Steps: []response.Step{{Name: "tell", Kind: kind, Parameters: parameters, Timeout: 10 * time.Second}}})
	}
	p.step(topo)
	p.step(response.PoliciesChanged{Policies: policies})
	p.step(response.Led{Token: 1})
	p.now = p.now.Add(2 * cfg.Grace)
	p.step(response.Tick{})

	node := response.Target{Node: "n1-1-1", Component: fault.ComponentNode}
	p.roots[node] = DeadNode
	p.dies(node.Node, DeadNode)
	end, other := response.Target{Node: "n3-3-3", Component: fault.Link(grid.XPlus)}, response.Target{Node: "n0-3-3",
		Component: fault.Link(grid.XMinus)}
	p.roots[end], p.ends = CutCable, map[response.Target]response.Target{end: other}
	p.fails(end)
	p.fails(other)
	p.folds()
	rack := response.Group{ID: "label/rack=r2", Kind: "LABEL", State: fault.Failed, Cause: fault.CauseNode, Of: 3}
	for i, id := range []fault.NodeID{"n2-0-0", "n2-2-0", "n2-0-2"} { // the first is the root cause until the map finds the group fault
		if i == 0 {
			p.roots[response.Target{Node: id, Component: fault.ComponentNode}] = DeadRack
		}
		p.dies(id, DeadRack)
		rack.Members = append(rack.Members, id)
	}
	delete(p.roots, response.Target{Node: "n2-0-0", Component: fault.ComponentNode})
	p.roots[response.Target{Group: rack.ID}] = DeadRack
	rack.Since, rack.At = p.now, p.now
	p.step(response.GroupChanged{Group: rack})
	p.folds()
	p.now = p.now.Add(time.Hour)
	p.step(response.Tick{})
}

// rootCauses matches the root causes of incidents: of groups, or of nodes and their parts.
type rootCauses bool

func (groups rootCauses) Match(s *response.Subject) (bool, error) {
	return s.Incident != "" && (s.Group != nil) == bool(groups), nil
}
func (groups rootCauses) May(c fault.Component, _ fault.State) bool { return (c == 0) == bool(groups) }
func (rootCauses) Thresholds() []time.Duration                      { return nil }

// player is an engine whose effects an executor carries out at once.
type player struct {
	t     *testing.T
	e     *response.Engine
	x     executor.Executor
	now   time.Time
	roots map[response.Target]string
	parts map[response.Target]string
	ends  map[response.Target]response.Target
}

// step feeds an event to the engine, and the results of the attempts that follow.
func (p *player) step(ev response.Event) {
	p.t.Helper()
	for _, f := range p.e.Step(p.now, ev).Effects {
		r := p.x.Do(p.t.Context(), executor.Job{Effect: f, Cluster: "test", Policy: "policy",
			Fault: executor.Fault{State: fault.Failed, Cause: fault.CauseNode, Since: p.now}})
		if r.Outcome != response.Succeeded {
			p.t.Errorf("%s of %s, incident %s: outcome %d, %s", f.Kind, f.Target, f.Incident, r.Outcome, r.Detail)
		}
		p.step(response.Result{Attempt: f.Attempt, Outcome: r.Outcome, Detail: r.Detail})
	}
}

func (p *player) fails(at response.Target) {
	p.t.Helper()
	p.step(response.FaultChanged{Fault: response.Fault{Node: at.Node, Component: at.Component, State: fault.Failed, Cause: fault.CauseNode,
		Since: p.now, Evidence: response.Evidence{At: p.now, Kind: fault.KindVotes, Witnesses: []string{"a/dnp", "b/dnp"}}}})
}

// dies makes a node, its halves and its links FAILED.
func (p *player) dies(id fault.NodeID, incident string) {
	p.t.Helper()
	dims := grid.Dims{X: 4, Y: 4, Z: 4}
	parts := []response.Target{{Node: id, Component: fault.ComponentNode}, {Node: id, Component: fault.ComponentHost},
		{Node: id, Component: fault.ComponentDNP}}
	for rank := range dims.Nodes() {
		if at := dims.At(rank); fault.DefaultNodeID(at) == id {
			for _, d := range grid.Directions() {
				to, _ := dims.Neighbour(at, d)
				parts = append(parts, response.Target{Node: fault.DefaultNodeID(to), Component: fault.Link(d.Opposite())})
			}
		}
	}
	for _, part := range parts {
		p.parts[part] = incident
		p.fails(part)
	}
	p.folds()
	p.now = p.now.Add(time.Second)
	p.step(response.Tick{})
}

// folds tells the engine the present incidents.
func (p *player) folds() {
	p.t.Helper()
	ev := response.IncidentsChanged{Roots: map[response.Target]string{}, Parts: map[response.Target]string{},
		Ends: p.ends, Standing: map[string]uint32{}}
	for at, id := range p.parts {
		if p.roots[at] == "" {
			ev.Parts[at] = id
		}
	}
	for at, id := range p.roots {
		ev.Roots[at], ev.Standing[id] = id, 0
	}
	p.step(ev)
}

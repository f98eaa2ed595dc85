package response

import (
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Outside is evidence of another program that a policy requires: a condition of the node in Kubernetes, as
// node-problem-detector sets. It changes no verdict: it decides only whether a policy acts on a fault of the map. There it
// counts as one more witness, beside at least one of ours.
type Outside struct {
	Condition string
	Status    string        // True, False or Unknown
	For       time.Duration // for how long it has had that status at least
}

// OutsideCondition is a condition of a node that another program has set.
type OutsideCondition struct {
	Type   string
	Status string
	Since  time.Time // of its last transition; zero: not known
	Beat   time.Time // its last heartbeat
}

// OutsideChanged lists the conditions of nodes from now on, of those nodes that have any.
type OutsideChanged struct {
	// All: Nodes is complete. Otherwise the conditions of all other nodes are unchanged.
	All   bool
	Nodes map[fault.NodeID][]OutsideCondition
	// Unknown: no conditions are known from now on. Policies that require any wait.
	Unknown bool
}

func (OutsideChanged) event() {}

// Limits of outside conditions.
const (
	// MaxOutside limits the conditions that a policy requires.
	MaxOutside = 4
	// OutsideAge is the age of a heartbeat from which a condition no longer counts: its program may have ended.
	OutsideAge = 10 * time.Minute
	// outsideAhead is how far another program's clock may be ahead.
	outsideAhead = time.Minute
	// outsideWait is the pause of a response while no conditions are known.
	outsideWait = 10 * time.Second
)

// outsideChanged looks again at the faults and responses of the nodes whose conditions have changed.
func (e *Engine) outsideChanged(ev OutsideChanged) {
	e.outsideKnown = !ev.Unknown
	if ev.All || ev.Unknown {
		e.outside = map[fault.NodeID][]OutsideCondition{}
	}
	for id, conditions := range ev.Nodes {
		e.outside[id] = conditions
		if len(conditions) == 0 {
			delete(e.outside, id)
		}
	}
	if !e.outsideUsed {
		return
	}
	if ev.All || ev.Unknown {
		e.lookAtAll()
		return
	}
	for id := range ev.Nodes {
		for c := fault.ComponentNode; c.Valid(); c++ {
			if t := (Target{Node: id, Component: c}); e.world.faults[t].State != 0 {
				e.dirty[t] = true
			}
		}
		for _, r := range e.ofNode(id) {
			e.touched[r.ID] = true
		}
	}
}

// outsideHolds reports whether all outside conditions of a policy hold for a node. If not, and time alone can change that, at
// is when.
func (e *Engine) outsideHolds(p *Policy, node fault.NodeID) (holds bool, at time.Time, missing string) {
	holds = true
	for _, want := range p.Outside {
		ok, later := e.outsideHolding(want, node)
		if ok {
			continue
		}
		if later.IsZero() { // no time brings all of them
			return false, time.Time{}, want.text()
		}
		holds, at, missing = false, fault.Later(at, later), want.text()
	}
	return holds, at, missing
}

func (e *Engine) outsideHolding(want Outside, node fault.NodeID) (ok bool, at time.Time) {
	for _, c := range e.outside[node] {
		if c.Type != want.Condition || c.Status != want.Status || !c.Fresh(e.now) {
			continue
		}
		if want.For == 0 {
			return true, time.Time{}
		}
		if c.Since.IsZero() {
			return false, time.Time{}
		}
		at := c.Since.Add(want.For)
		return !at.After(e.now), at
	}
	return false, time.Time{}
}

// Fresh reports whether a condition's heartbeat still counts.
func (c OutsideCondition) Fresh(now time.Time) bool {
	return now.Sub(c.Beat) <= OutsideAge && c.Beat.Sub(now) <= outsideAhead
}

func (o Outside) text() string {
	if o.For == 0 {
		return fmt.Sprintf("outside condition %s=%s", o.Condition, o.Status)
	}
	return fmt.Sprintf("outside condition %s=%s for %s", o.Condition, o.Status, o.For)
}

// gateOutside requires the outside conditions of the policy.
func (e *Engine) gateOutside(r *Response, _ *StepRecord) block {
	p := e.policyOf(r)
	if p == nil || len(p.Outside) == 0 {
		return block{}
	}
	if !e.outsideKnown { // the leader has just begun
		return block{reason: ReasonUnmatched, until: e.now.Add(outsideWait), quiet: true}
	}
	if ok, _, missing := e.outsideHolds(p, r.Target.Node); !ok {
		return block{reason: ReasonUnmatched, detail: missing}
	}
	return block{}
}

// vouched reports whether the policy requires outside conditions, which hold when a step begins. Their programs may lie, and any
// program with the right to write the status of nodes can set them. So they open no gate for steps that end work, and none without a
// neighbour.
func (e *Engine) vouched(r *Response) bool {
	p := e.policyOf(r)
	return p != nil && len(p.Outside) > 0
}

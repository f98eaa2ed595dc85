package response

import (
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Outside is evidence of another program that a policy requires: a condition of the node in Kubernetes, as
// node-problem-detector sets, or a report of its management controller. It changes no verdict: it decides only whether a
// policy acts on a fault of the map. There it counts as one more witness, beside at least one of ours.
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

// Source is the origin of outside conditions. Zero is none, and invalid.
type Source uint8

// The sources.
const (
	FromKubernetes  Source = iota + 1 // the conditions of nodes in Kubernetes
	FromControllers                   // the management controllers of nodes, read by the executor process
	sources
)

// Valid reports whether s is a source.
func (s Source) Valid() bool { return s > 0 && s < sources }

// String returns the source for people.
func (s Source) String() string {
	switch s {
	case FromKubernetes:
		return "Kubernetes"
	case FromControllers:
		return "management controllers"
	default:
		return fmt.Sprintf("source %d", uint8(s))
	}
}

// Conditions from management controllers. No other source can set them, and management controllers set no others.
const (
	// NodePoweredOff is True or False as the node's management controller reports it, and Unknown without a plain answer.
	NodePoweredOff = "lofamo.io/NodePoweredOff"
	// ControllerSilent is True if the node's management controller does not answer.
	ControllerSilent = "lofamo.io/ControllerSilent"
	// HardwareCritical is True if the controller calls the node's hardware critical, False if it calls it better, and Unknown
	// otherwise.
	HardwareCritical = "lofamo.io/HardwareCritical"
	// PowerFeedSuspected is True while a node and its controller are both silent, if the controller has answered before.
	PowerFeedSuspected = "lofamo.io/PowerFeedSuspected"
)

// ControllerConditions returns the types of conditions that come from management controllers.
func ControllerConditions() []string {
	return []string{NodePoweredOff, ControllerSilent, HardwareCritical, PowerFeedSuspected}
}

// sourceOf returns the only source of a condition.
func sourceOf(condition string) Source {
	if slices.Contains(ControllerConditions(), condition) {
		return FromControllers
	}
	return FromKubernetes
}

// Unconfigured returns the configuration key that makes a source available, or "" if the source is configured.
type Unconfigured func(Source) (key string)

// Sources returns the sources of a policy's outside conditions, sorted.
func (p *Policy) Sources() []Source {
	var out []Source
	for _, want := range p.Outside {
		out = append(out, sourceOf(want.Condition))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Warnings returns a sentence for each outside condition of a policy that no configured source can report: the policy starts no response.
// Without f every source counts as configured.
func (p *Policy) Warnings(f Unconfigured) []string {
	if f == nil {
		return nil
	}
	var out []string
	for _, want := range p.Outside {
		s := sourceOf(want.Condition)
		if key := f(s); key != "" {
			out = append(out, fmt.Sprintf("the policy starts no response: it requires condition %s, whose source (%s) is not configured: set %s",
				want.Condition, s, key))
		}
	}
	return out
}

// OutsideChanged lists the conditions of nodes from now on, of those nodes that have any. It leaves those of other sources
// unchanged.
type OutsideChanged struct {
	Source Source
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
	if !ev.Source.Valid() {
		return
	}
	e.outsideKnown[ev.Source] = !ev.Unknown
	if ev.All || ev.Unknown || e.outside[ev.Source] == nil {
		e.outside[ev.Source] = map[fault.NodeID][]OutsideCondition{}
	}
	of := e.outside[ev.Source]
	for id, conditions := range ev.Nodes {
		of[id] = conditions
		if len(conditions) == 0 {
			delete(of, id)
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
	for _, c := range e.outside[sourceOf(want.Condition)][node] {
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
	for _, want := range p.Outside {
		if !e.outsideKnown[sourceOf(want.Condition)] { // the leader has just begun
			return block{reason: ReasonUnmatched, until: e.now.Add(outsideWait), quiet: true}
		}
	}
	if ok, at, missing := e.outsideHolds(p, r.Target.Node); !ok {
		return block{reason: ReasonUnmatched, detail: missing, until: at}
	}
	return block{}
}

// vouched reports whether the policy requires outside conditions, which hold when a step begins. Their programs may lie, and any
// program with the right to write the status of nodes can set them. So they open no gate for steps that end work, and none without a
// neighbour. Of a management controller only the plain report that the node is powered off vouches for a fault. Silence is no
// witness.
func (e *Engine) vouched(r *Response) bool {
	p := e.policyOf(r)
	return p != nil && slices.ContainsFunc(p.Outside, func(o Outside) bool {
		return sourceOf(o.Condition) == FromKubernetes || o.Condition == NodePoweredOff && o.Status == "True"
	})
}

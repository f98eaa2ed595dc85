package response_test

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// requiring returns a policy that acts only if another program supports the fault.
func requiring(t *testing.T, name string) *response.Policy {
	t.Helper()
	p := *testPolicies(t)[name]
	p.Outside = []response.Outside{{Condition: "KernelDeadlock", Status: "True", For: 30 * time.Second}}
	return &p
}

// conditions are those of one node.
func conditions(node fault.NodeID, status string, since, beat time.Time) response.OutsideChanged {
	return response.OutsideChanged{Source: response.FromKubernetes, Nodes: map[fault.NodeID][]response.OutsideCondition{node: {
		{Type: "Other", Status: "True", Since: since, Beat: beat},
		{Type: "KernelDeadlock", Status: status, Since: since, Beat: beat},
	}}}
}

// TestPolicyWaitsForOutsideCondition: a policy that requires an outside condition acts as soon as the condition has held for
// long enough, and not on another status, another node, a stale heartbeat or one from the future.
func TestPolicyWaitsForOutsideCondition(t *testing.T) {
	for name, tc := range map[string]struct {
		ev  response.OutsideChanged
		at  time.Duration // when it acts
		not bool          // it never acts
	}{
		"it holds already":     {ev: conditions("n0-0-0", "True", start.Add(-time.Hour), start)},
		"it holds later":       {ev: conditions("n0-0-0", "True", start.Add(-10*time.Second), start), at: 20 * time.Second},
		"another status":       {ev: conditions("n0-0-0", "False", start.Add(-time.Hour), start), not: true},
		"another node":         {ev: conditions("n0-0-1", "True", start.Add(-time.Hour), start), not: true},
		"a stale heartbeat":    {ev: conditions("n0-0-0", "True", start.Add(-time.Hour), start.Add(-response.OutsideAge-1)), not: true},
		"one from the future":  {ev: conditions("n0-0-0", "True", start.Add(-time.Hour), start.Add(time.Hour)), not: true},
		"an unknown beginning": {ev: conditions("n0-0-0", "True", time.Time{}, start), not: true},
		"nothing":              {ev: response.OutsideChanged{Source: response.FromKubernetes, All: true}, not: true},
	} {
		l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2}, requiring(t, "drain"))
		l.lead()
		l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
		if len(l.flying)+len(l.e.Responses()) > 0 {
			t.Errorf("%s: the policy acts before anything is known", name)
		}
		_ = l.step(tc.ev)
		if tc.at > 0 {
			l.until(start.Add(tc.at - time.Second))
			if len(l.flying) > 0 {
				t.Errorf("%s: too early", name)
			}
			l.until(start.Add(tc.at))
		}
		if (len(l.flying) == 0) != tc.not {
			t.Errorf("%s: %d steps", name, len(l.flying))
		}
	}
}

// TestOutsideConditionThatGoesEndsResponse: before its next step a response checks the condition again. While nothing is
// known, as after a change of the leader, it waits.
func TestOutsideConditionThatGoesEndsResponse(t *testing.T) {
	l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2}, requiring(t, "drain"))
	l.lead()
	_ = l.step(conditions("n0-0-0", "True", start.Add(-time.Hour), start))
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
	if len(l.flying) != 1 {
		t.Fatalf("%d steps: want the cordon", len(l.flying))
	}
	_ = l.step(response.OutsideChanged{Source: response.FromKubernetes, Unknown: true})
	l.land(response.Succeeded, "")
	if len(l.flying) != 0 || len(l.e.Responses()) != 1 {
		t.Fatalf("%d steps while nothing is known: want none", len(l.flying))
	}
	_ = l.step(conditions("n0-0-0", "True", start.Add(-time.Hour), start))
	if len(l.flying) != 1 {
		t.Fatalf("%d steps: want the drain", len(l.flying))
	}
	l.land(response.Unchanged, "")
	_ = l.step(conditions("n0-0-0", "False", start, start))
	l.until(start.Add(time.Hour))
	if len(l.flying) != 0 {
		t.Errorf("the drain is repeated without the condition")
	}
}

// TestBegunResponseContinuesOnceOutsideConditionHasHeld: a condition that went and came back holds again after its time, and no other
// event tells a response between two steps.
func TestBegunResponseContinuesOnceOutsideConditionHasHeld(t *testing.T) {
	p := requiring(t, "drain")
	p.Outside[0].For = 5 * time.Minute
	l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2}, p)
	l.lead()
	_ = l.step(conditions("n0-0-0", "True", start.Add(-time.Hour), start))
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
	if len(l.flying) != 1 {
		t.Fatalf("%d steps: want the cordon", len(l.flying))
	}
	_ = l.step(conditions("n0-0-0", "True", start, start)) // it was False for a moment
	l.land(response.Succeeded, "")
	if len(l.flying) != 0 {
		t.Fatalf("%d steps: want none before the condition has held for 5 minutes", len(l.flying))
	}
	l.until(start.Add(5*time.Minute - time.Second))
	if len(l.flying) != 0 {
		t.Error("the drain begins too early")
	}
	l.until(start.Add(5 * time.Minute))
	if len(l.flying) != 1 {
		t.Errorf("%d steps: want the drain after 5 minutes", len(l.flying))
	}
}

// TestOutsideConditionIsOneWitness: beside a neighbour it makes up for the second witness, where a step ends no work. It makes up
// neither for the neighbour nor for its failure domain.
func TestOutsideConditionIsOneWitness(t *testing.T) {
	for _, tc := range []struct {
		by     []string
		single bool
		rack   bool // the neighbour is in the node's rack
		ends   bool // the step ends work
		acts   bool
	}{
		{by: []string{"n1-0-0/dnp"}, single: true, acts: true},
		{by: []string{"n1-0-0/dnp"}, acts: true},
		{by: []string{"n1-0-0/dnp"}, single: true, rack: true},
		{by: []string{"n1-0-0/dnp"}, single: true, ends: true},
		{by: []string{"n1-0-0/dnp"}, ends: true},
		{by: []string{"supervisor/s1"}},
		{by: []string{"supervisor/s1"}, single: true},
		{by: []string{"n0-0-0/dnp"}, single: true},
		{},
	} {
		for _, vouched := range []bool{false, true} {
			cfg := quick()
			cfg.StormDelay = 0
			p := *testPolicies(t)["drain"]
			if vouched {
				p = *requiring(t, "drain")
			}
			if tc.ends {
				p.Steps = p.Steps[1:]
			}
			l := newLab(t, cfg, grid.Dims{X: 2, Y: 2, Z: 2}, &p)
			for i, n := range l.topo.Nodes {
				if tc.rack && (n.ID == "n0-0-0" || n.ID == "n1-0-0") {
					l.topo.Nodes[i].Labels = map[string]string{"rack": "r1"}
				}
			}
			l.lead()
			_ = l.step(conditions("n0-0-0", "True", start.Add(-time.Hour), start))
			f := l.own("n0-0-0", fault.ComponentMemory, fault.Failed)
			f.Evidence = response.Evidence{At: start, Witnesses: tc.by, SingleWitness: tc.single}
			l.set(f)
			if acts := len(l.flying) > 0; acts != (tc.acts && vouched) {
				t.Errorf("%+v, outside %t: acts %t", tc, vouched, acts)
			}
		}
	}
}

// TestControllersAreTheirOwnSource: Kubernetes cannot set the conditions of management controllers, a source that is lost takes only its
// own conditions away, and an unknown source sets nothing.
func TestControllersAreTheirOwnSource(t *testing.T) {
	off := func(s response.Source) response.OutsideChanged {
		return response.OutsideChanged{Source: s, All: true, Nodes: map[fault.NodeID][]response.OutsideCondition{"n0-0-0": {
			{Type: response.NodePoweredOff, Status: "True", Since: start.Add(-time.Hour), Beat: start},
			{Type: "KernelDeadlock", Status: "True", Since: start.Add(-time.Hour), Beat: start}}}}
	}
	p := requiring(t, "drain")
	p.Outside = append(p.Outside, response.Outside{Condition: response.NodePoweredOff, Status: "True"})
	for name, tc := range map[string]struct {
		events []response.Event
		acts   bool
	}{
		"both sources":         {[]response.Event{off(response.FromKubernetes), off(response.FromControllers)}, true},
		"Kubernetes sets both": {[]response.Event{off(response.FromKubernetes)}, false},
		"controllers set both": {[]response.Event{off(response.FromControllers)}, false},
		"the controllers are lost": {[]response.Event{off(response.FromKubernetes), off(response.FromControllers),
			response.OutsideChanged{Source: response.FromControllers, Unknown: true}}, false},
		"Kubernetes is lost and comes back": {[]response.Event{off(response.FromControllers), off(response.FromKubernetes),
			response.OutsideChanged{Source: response.FromKubernetes, Unknown: true}, off(response.FromKubernetes)}, true},
		"no source":         {[]response.Event{off(0), off(response.FromControllers)}, false},
		"an unknown source": {[]response.Event{off(response.FromKubernetes), off(77)}, false},
	} {
		l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2}, p)
		l.lead()
		for _, ev := range tc.events {
			_ = l.step(ev)
		}
		l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
		if acts := len(l.flying) > 0; acts != tc.acts {
			t.Errorf("%s: acts %t", name, acts)
		}
	}
}

// TestControllerVouchesOnlyByPlainWord: beside one neighbour, the report "powered off" is the second witness of a step that ends no work.
// Every other condition of a controller is none. Without a neighbour nothing acts.
func TestControllerVouchesOnlyByPlainWord(t *testing.T) {
	for _, tc := range []struct {
		condition, status string
		by                []string
		acts              bool
	}{
		{response.NodePoweredOff, "True", []string{"n1-0-0/dnp"}, true},
		{response.NodePoweredOff, "False", []string{"n1-0-0/dnp"}, false},
		{response.NodePoweredOff, "Unknown", []string{"n1-0-0/dnp"}, false},
		{response.ControllerSilent, "True", []string{"n1-0-0/dnp"}, false},
		{response.HardwareCritical, "True", []string{"n1-0-0/dnp"}, false},
		{response.PowerFeedSuspected, "True", []string{"n1-0-0/dnp"}, false},
		{response.NodePoweredOff, "True", []string{"supervisor/s1"}, false},
		{response.NodePoweredOff, "True", nil, false},
	} {
		cfg := quick()
		cfg.StormDelay = 0
		p := *testPolicies(t)["drain"]
		p.Outside = []response.Outside{{Condition: tc.condition, Status: tc.status}}
		l := newLab(t, cfg, grid.Dims{X: 2, Y: 2, Z: 2}, &p)
		l.lead()
		_ = l.step(response.OutsideChanged{Source: response.FromControllers, All: true, Nodes: map[fault.NodeID][]response.OutsideCondition{
			"n0-0-0": {{Type: tc.condition, Status: tc.status, Since: start, Beat: start}}}})
		f := l.own("n0-0-0", fault.ComponentMemory, fault.Failed)
		f.Evidence = response.Evidence{At: start, Witnesses: tc.by, SingleWitness: true}
		l.set(f)
		if acts := len(l.flying) > 0; acts != tc.acts {
			t.Errorf("%+v: acts %t", tc, acts)
		}
	}
}

package response_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestConfigNamesEveryBadField(t *testing.T) {
	if err := response.Default().Validate(); err != nil {
		t.Fatal(err)
	}
	err := response.Config{BreakerPercent: 60, Approvals: 3, DomainLabels: []string{"rack", "rack", "a b"}, RetryAfter: time.Minute}.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"MaxNodes: given 0: want 1 to 1048576", "MaxPercent: given 0: want 1 to 100", "MaxPerDomain", "MaxPerPlane", "Rate: given 0",
		"NotifyRate", "RateWindow: given 0s: want 1s or more",
		"BreakerPercent: given 60: want 1 to 50", "BreakerNodes", "BreakerWindow", "MaxEvidenceAge", "LookAgain",
		"Approvals: given 3: want 0 to 2", "ApprovalTime",
		"RetryMost: given 0s: want 1m0s or more", "RecurrenceWindow", "MaxActive", `DomainLabels[1]: given "rack"`,
		`DomainLabels[2]: given "a b"`, `OptOutLabel: given ""`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in\n%v", want, err)
		}
	}
	if _, err := response.New(response.Config{}); err == nil {
		t.Error("New takes limits that allow nothing")
	}
}

// TestUnreadableRecordsStopEngine: a leader that cannot read the committed records, or is not the newest, does nothing at all.
func TestUnreadableRecordsStopEngine(t *testing.T) {
	pols := testPolicies(t)
	for name, rec := range map[string]response.Record{
		"token": &response.Breaker{Token: 2},
		"id":    &response.Response{},
		"state": &response.Response{ID: "r"},
		"mode":  &response.Response{ID: "r", State: response.Done},
		"step":  &response.Response{ID: "r", State: response.Done, Mode: response.Enforce},
		"kind": &response.Response{ID: "r", State: response.Done, Mode: response.Enforce,
			Steps: []response.StepRecord{{State: response.Acted}}},
		"1 of 1, running": &response.Response{ID: "r", State: response.Running, Mode: response.Enforce, Step: 1,
			Steps: []response.StepRecord{{Step: response.Step{Kind: response.KubernetesCordon}, State: response.Acted}}},
		"nothing": nil,
	} {
		l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2}, pols["drain"])
		e, err := response.New(l.cfg)
		if err != nil {
			t.Fatal(err)
		}
		e.Step(start, l.topo)
		e.Step(start, response.SupervisorsChanged{Supervisors: l.sups})
		e.Step(start, response.PoliciesChanged{Policies: l.pols})
		out := e.Step(start, response.Led{Token: 1, Records: []response.Record{rec}})
		if out.Err == nil || name != "nothing" && !strings.Contains(out.Err.Error(), name) {
			t.Errorf("%s: %v", name, out.Err)
		}
		out = e.Step(start, response.FaultChanged{Fault: l.own("n0-0-0", fault.ComponentMemory, fault.Failed)})
		if len(out.Records)+len(out.Effects)+len(out.Decisions) > 0 || !out.Wake.IsZero() {
			t.Errorf("%s: and yet %+v", name, out)
		}
		if out := e.Step(start, response.Asked{Subject: "alice", Verb: response.CloseBreaker}); out.Err == nil {
			t.Errorf("%s: a person is listened to", name)
		}
	}
}

// TestFollowerDecidesNothing: a replica that does not lead decides nothing, but counts recurrences for the time when it
// leads.
func TestFollowerDecidesNothing(t *testing.T) {
	pols := testPolicies(t)
	e, err := response.New(quick())
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2}, pols["drain"])
	l.e = e
	for _, ev := range []response.Event{l.topo, response.PoliciesChanged{Policies: l.pols},
		response.FaultChanged{Fault: l.own("n0-0-0", fault.ComponentMemory, fault.Failed)}, response.Tick{}} {
		if out := e.Step(start, ev); len(out.Records)+len(out.Effects)+len(out.Decisions)+len(out.Look) > 0 || !out.Wake.IsZero() {
			t.Errorf("%T: %+v", ev, out)
		}
	}
	if err := l.ask("alice", response.CloseBreaker, ""); err == nil {
		t.Error("a follower takes orders")
	}
}

// TestLostLeaderIsSilent: a leader that has lost its lease begins nothing and ignores results.
func TestLostLeaderIsSilent(t *testing.T) {
	pols := testPolicies(t)
	l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2}, pols["drain"])
	l.lead()
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
	if len(l.flying) != 1 {
		t.Fatalf("%d effects: want the cordon", len(l.flying))
	}
	l.leads = false
	l.step(response.Lost{})
	l.land(response.Succeeded, "")
	l.until(start.Add(time.Hour))
	if len(l.flying) > 0 || len(l.e.Responses()) > 0 {
		t.Errorf("%d effects, %d responses", len(l.flying), len(l.e.Responses()))
	}
}

// TestForgetsOldRecords: the record of a closed response is kept for a while, and then released.
func TestForgetsOldRecords(t *testing.T) {
	pols := testPolicies(t)
	cfg := quick()
	l := newLab(t, cfg, grid.Dims{X: 2, Y: 2, Z: 2}, pols["tell"])
	l.lead()
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Sick))
	l.land(response.Succeeded, "")
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Normal))
	l.land(response.Succeeded, "")
	if len(l.store) != 1 || len(l.e.Responses()) != 0 {
		t.Fatalf("%d records, %d open", len(l.store), len(l.e.Responses()))
	}
	l.now = l.now.Add(cfg.Keep)
	l.lead()
	if len(l.store) != 1 {
		t.Fatal("forgotten before its time")
	}
	l.now = l.now.Add(2 * time.Minute)
	l.step(response.Tick{})
	if len(l.store) != 0 {
		t.Errorf("%d records are left", len(l.store))
	}
}

// TestDefaultPoliciesDoNothing: the default policies only observe, whichever component fails.
func TestDefaultPoliciesDoNothing(t *testing.T) {
	l := newLab(t, quick(), grid.Dims{X: 4, Y: 4, Z: 4}, defaultPolicies(t)...)
	would := map[string]bool{}
	l.on = func(out response.Output) {
		for _, d := range out.Decisions {
			if d.Act == response.Observes {
				would[d.Policy] = true
			}
		}
	}
	l.lead()
	for i, c := range fault.Components() {
		id := l.topo.Nodes[i*3].ID
		for _, s := range []fault.State{fault.Sick, fault.Failed, fault.Normal, fault.Failed, fault.Normal, fault.Failed} {
			f := l.own(id, c, s)
			f.Evidence.Kind, f.Evidence.Own, f.Evidence.Witnesses = fault.KindVotes, false, []string{string(id) + "/dnp", "supervisor/s1"}
			l.set(f)
			l.step(response.IncidentsChanged{Roots: map[response.Target]string{f.Target(): "abcd-aaaaaaaa"}})
			l.until(l.now.Add(7 * time.Minute))
		}
	}
	l.groups["row/Y=1,Z=1"] = response.Group{ID: "row/Y=1,Z=1", Kind: "ROW", State: fault.Failed, Cause: fault.CauseNode,
		Members: []fault.NodeID{"n0-1-1", "n1-1-1"}, Since: l.now, At: l.now}
	l.step(response.GroupChanged{Group: l.groups["row/Y=1,Z=1"]})
	l.step(response.IncidentsChanged{Roots: map[response.Target]string{{Group: "row/Y=1,Z=1"}: "abcd-bbbbbbbb"}})
	l.until(l.now.Add(time.Hour))
	if len(l.flying) > 0 || l.e.UnderResponse() > 0 {
		t.Errorf("%+v", l.flying)
	}
	for _, p := range l.pols {
		if !would[p.Name] {
			t.Errorf("%s would never have acted", p.Name)
		}
	}
}

// TestBreakerFromMap: a leader that starts in a storm recognises it from the map. A leader that starts with a
// cluster that no replica has ever seen does not mistake it for a storm.
func TestBreakerFromMap(t *testing.T) {
	dims := grid.Dims{X: 4, Y: 4, Z: 2}
	for name, tc := range map[string]struct {
		state    fault.State
		inferred bool
		ago      time.Duration
		open     bool
	}{
		"a storm":                   {state: fault.Failed, ago: time.Minute, open: true},
		"sick":                      {state: fault.Sick, ago: time.Minute, open: true},
		"sick as they start":        {state: fault.Sick, ago: time.Second},
		"sick, by a clock ahead":    {state: fault.Sick, ago: -time.Hour, open: true},
		"inferred dead":             {state: fault.Unknown, inferred: true, ago: time.Minute, open: true},
		"a cold start":              {state: fault.Unknown, ago: time.Minute},
		"dead for longer than that": {state: fault.Failed, ago: time.Hour},
	} {
		l := newLab(t, quick(), dims, testPolicies(t)["drain"])
		l.newborn = true
		for _, n := range l.topo.Nodes[:10] {
			f := l.own(n.ID, fault.ComponentNode, tc.state)
			f.Since, f.Inferred = start.Add(-tc.ago), tc.inferred
			l.faults[f.Target()] = f
		}
		l.lead()
		if open := l.e.Breaker().Open; open != tc.open {
			t.Errorf("%s: open %t", name, open)
		}
		_, stored := l.store["breaker"]
		if stored != tc.open {
			t.Errorf("%s: committed %t", name, stored)
		}
	}
}

// TestRecurrenceCountsWithinWindow checks that recurrence counts beginnings within the window, each once.
func TestRecurrenceCountsWithinWindow(t *testing.T) {
	b := []byte(`
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: third}
spec:
  mode: enforce
  match: fault.component == "dnp" && fault.state == "FAILED" && fault.recurrence >= 3
  steps: [{name: cordon, executor: kubernetes.cordon}]
`)
	l := newLab(t, quick(), grid.Dims{X: 4, Y: 4, Z: 4}, parsed(t, b)...)
	l.lead()
	flap := func() {
		l.set(l.own("n0-0-0", fault.ComponentDNP, fault.Normal))
		l.until(l.now.Add(time.Minute))
		f := l.own("n0-0-0", fault.ComponentDNP, fault.Failed)
		l.set(f)
		l.set(f) // the same fault again
	}
	flap()
	l.until(l.now.Add(25 * time.Hour))
	flap()
	flap()
	if len(l.flying) > 0 {
		t.Fatal("acts on the second within the window")
	}
	flap()
	if len(l.flying) != 1 {
		t.Errorf("%d effects on the third: want 1", len(l.flying))
	}
}

// TestFlappingFaultCausesFewAttempts: for an hour, a fault comes and goes every 20 s, and each attempt at a step fails. Responses that stay
// open, because a step is to be undone, and responses that are closed in between make about one attempt in five minutes.
func TestFlappingFaultCausesFewAttempts(t *testing.T) {
	for name, text := range map[string]string{
		"open": `
  steps: [{name: cordon, executor: kubernetes.cordon}, {name: drain, executor: kubernetes.drain}]
  undo: {onRecovery: true, after: 2h}`,
		"closed": `
  steps: [{name: tell, executor: webhook.notify, parameters: {target: desk}}]`,
		"escalating": `
  steps:
  - {name: label, executor: kubernetes.label, parameters: {key: a, value: b}, onFailure: next}
  - {name: tell, executor: webhook.notify, parameters: {target: desk}}`,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, quick(), grid.Dims{X: 4, Y: 4, Z: 4}, parsed(t, []byte(`
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: flap}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"`+text))...)
			l.lead()
			attempts := map[response.Kind]int{}
			l.on = func(out response.Output) {
				for _, f := range out.Effects {
					attempts[f.Kind]++
				}
			}
			for range 180 {
				l.set(l.own("n1-0-0", fault.ComponentMemory, fault.Failed))
				if attempts[response.KubernetesCordon] == 1 && attempts[response.KubernetesDrain] == 0 {
					l.land(response.Succeeded, "")
				}
				l.until(l.now.Add(10 * time.Second))
				if name != "open" {
					l.land(response.Unchanged, "refused")
				}
				l.set(l.own("n1-0-0", fault.ComponentMemory, fault.Normal))
				l.land(response.Unchanged, "stopped")
				l.until(l.now.Add(10 * time.Second))
			}
			for kind, n := range attempts {
				if n > 25 || n < 10 && kind != response.KubernetesCordon {
					t.Errorf("%d attempts at %s: want 10 to 25", n, kind)
				}
			}
			if len(attempts) == 0 {
				t.Error("no attempts")
			}
		})
	}
}

// TestLooksAgainAtAnotherState: evidence of one state does not apply to the next. The engine requests evidence again at
// once, however recent its last request was.
func TestLooksAgainAtAnotherState(t *testing.T) {
	l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2}, parsed(t, []byte(`
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: tell}
spec:
  mode: enforce
  match: fault.component == "memory"
  steps:
  - {name: tell, executor: kubernetes.event, parameters: {reason: Memory}}
  - {name: again, executor: kubernetes.event, parameters: {reason: Memory}}
`))...)
	e, err := response.New(l.cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range []response.Event{l.topo, response.SupervisorsChanged{Supervisors: l.sups},
		response.PoliciesChanged{Policies: l.pols}, response.Led{Token: 1}} {
		e.Step(start, ev)
	}
	at := start.Add(l.cfg.Grace)
	for _, tc := range []struct {
		state fault.State
		looks int
	}{{fault.Sick, 1}, {fault.Sick, 0}, {fault.Failed, 1}, {fault.Failed, 0}} {
		f := l.own("n0-0-0", fault.ComponentMemory, tc.state)
		f.Evidence.At = time.Time{}
		if out := e.Step(at, response.FaultChanged{Fault: f}); len(out.Look) != tc.looks {
			t.Errorf("%s: asked for %v", tc.state, out.Look)
		}
		e.Step(at, response.Seen{Target: f.Target(), Evidence: response.Evidence{Kind: fault.KindSelf}}) // unknown time
		at = at.Add(time.Millisecond)
	}
}

// TestBreakerByOwnClock: a replica that followed a storm measures it by its own clock when it leads, because the
// previous leader's clock may have been hours off. A replica that began to follow during the storm only has the times
// in the map.
func TestBreakerByOwnClock(t *testing.T) {
	dims := grid.Dims{X: 4, Y: 4, Z: 2}
	for name, tc := range map[string]struct {
		off          time.Duration // deviation of the other leader's clock
		stood, later bool
		open         bool
	}{
		"as ours":                            {open: true},
		"an hour behind":                     {off: -time.Hour, open: true},
		"an hour ahead":                      {off: time.Hour, open: true},
		"ahead, and long ago by ours":        {off: time.Hour, later: true},
		"behind, and it stood before":        {off: -time.Hour, stood: true},
		"as ours, and it stood before":       {stood: true, open: true},
		"ahead, and it stood before: as now": {off: time.Hour, stood: true, open: true},
	} {
		l := newLab(t, quick(), dims, testPolicies(t)["drain"])
		e, err := response.New(quick())
		if err != nil {
			t.Fatal(err)
		}
		var faults []response.Fault
		for _, n := range l.topo.Nodes[:10] {
			f := l.own(n.ID, fault.ComponentNode, fault.Failed)
			f.Since = start.Add(tc.off)
			faults = append(faults, f)
			e.Step(start, response.FaultChanged{Fault: f, Stood: tc.stood})
		}
		at := start.Add(time.Minute)
		if tc.later {
			at = start.Add(time.Hour / 2)
		}
		e.Step(at, l.topo)
		e.Step(at, response.PoliciesChanged{Policies: l.pols})
		e.Step(at, response.Led{Token: 1, Faults: faults})
		if open := e.Breaker().Open; open != tc.open {
			t.Errorf("%s: open %t, want %t", name, open, tc.open)
		}
	}
}

// TestFirstStartIsNoStorm: nodes without any earlier report are counted from their first NORMAL on.
func TestFirstStartIsNoStorm(t *testing.T) {
	l := newLab(t, quick(), grid.Dims{X: 4, Y: 4, Z: 2}, testPolicies(t)["drain"])
	e, err := response.New(quick())
	if err != nil {
		t.Fatal(err)
	}
	state := func(s fault.State) (all []response.Fault) {
		for _, n := range l.topo.Nodes[:20] {
			f := l.own(n.ID, fault.ComponentNode, s)
			f.Since = start
			all = append(all, f)
		}
		return all
	}
	become := func(s fault.State, stood bool) {
		for _, f := range state(s) {
			e.Step(start, response.FaultChanged{Fault: f, Stood: stood})
		}
	}
	e.Step(start.Add(-time.Minute), l.topo)
	e.Step(start, response.PoliciesChanged{Policies: l.pols})
	e.Step(start, response.Led{Token: 1, Faults: state(fault.Unknown)[:10]})
	for _, f := range state(fault.Unknown)[10:] { // of a second half that the store did not have
		e.Step(start, response.FaultChanged{Fault: f, Stood: true})
	}
	for _, s := range []fault.State{fault.Sick, fault.Failed, fault.Sick} {
		if become(s, false); e.Breaker().Open {
			t.Fatalf("the breaker opened when nodes that start became %s: %s", s, e.Breaker().Detail)
		}
	}
	become(fault.Normal, false)
	if become(fault.Sick, false); !e.Breaker().Open {
		t.Error("the breaker stayed closed when 20 of 32 nodes that had been NORMAL became SICK")
	}
}

// TestNodesThatStartLateAreNoStorm: after a power cut, nodes of a map that was NORMAL are silent or dead until they start, and then SICK
// for some seconds. A supervisor that started just now does not count them, also if it leads again. It counts nodes that it has seen start,
// and dead nodes that the leader has heard. One that has followed the map for longer counts all.
func TestNodesThatStartLateAreNoStorm(t *testing.T) {
	dims := grid.Dims{X: 4, Y: 4, Z: 2}
	for name, tc := range map[string]struct {
		state   fault.State
		noLife  bool
		starts  bool          // this replica has seen the nodes start
		newborn bool          // this replica starts just now
		age     time.Duration // of this replica
		after   time.Duration // from the start of the nodes until they are bad
		open    bool
	}{
		"silent":                                  {state: fault.Unknown},
		"silent, and long after":                  {state: fault.Unknown, age: 5 * time.Minute, open: true},
		"never heard":                             {state: fault.Failed, noLife: true},
		"never heard, and long after":             {state: fault.Failed, noLife: true, age: 5 * time.Minute, open: true},
		"heard":                                   {state: fault.Failed, open: true},
		"silent after its start":                  {state: fault.Unknown, starts: true, open: true},
		"not heard after its start":               {state: fault.Failed, noLife: true, starts: true, open: true},
		"SICK as it starts":                       {state: fault.Sick, starts: true},
		"SICK a minute later":                     {state: fault.Sick, starts: true, after: time.Minute, open: true},
		"SICK as the replica starts":              {state: fault.Sick, newborn: true},
		"SICK a minute after the replica's start": {state: fault.Sick, newborn: true, after: time.Minute, open: true},
		"SICK, and never started":                 {state: fault.Sick, open: true},
		"SICK as it starts, long after":           {state: fault.Sick, starts: true, age: 5 * time.Minute, open: true},
	} {
		l := newLab(t, quick(), dims, testPolicies(t)["drain"])
		l.newborn = tc.newborn
		l.lead()
		l.until(start.Add(tc.age))
		for _, n := range l.topo.Nodes[:20] {
			if tc.starts {
				l.step(response.Booted{Node: n.ID, Epoch: l.epochs[n.ID] + 1})
			}
		}
		l.until(l.now.Add(tc.after))
		for _, n := range l.topo.Nodes[:20] {
			f := l.own(n.ID, fault.ComponentNode, tc.state)
			f.NoLife = tc.noLife
			l.set(f)
		}
		for _, n := range l.topo.Nodes[:20] { // their neighbours start, and accuse them
			if tc.state == fault.Unknown {
				l.set(l.own(n.ID, fault.ComponentNode, fault.Failed))
			}
		}
		again := response.Led{Token: 9, Faults: slices.Collect(maps.Values(l.faults)), Records: slices.Collect(maps.Values(l.store))}
		l.e.Step(l.now, response.Lost{})
		l.e.Step(l.now, again)
		if open := l.e.Breaker().Open; open != tc.open {
			t.Errorf("%s: open %t, want %t: %s", name, open, tc.open, l.e.Breaker().Detail)
		}
	}
}

// TestNodesThatWereSickAsTheyStartedCountLater: a node that stays SICK after its start is not left out for ever.
func TestNodesThatWereSickAsTheyStartedCountLater(t *testing.T) {
	l := newLab(t, quick(), grid.Dims{X: 4, Y: 4, Z: 2}, testPolicies(t)["drain"])
	l.newborn = true
	l.lead()
	set := func(s fault.State) {
		for _, n := range l.topo.Nodes[:20] {
			l.set(l.own(n.ID, fault.ComponentNode, s))
		}
	}
	set(fault.Unknown) // until they start
	l.until(start.Add(2 * quick().BreakerWindow))
	set(fault.Sick)
	l.until(l.now.Add(quick().BreakerWindow))
	if l.e.Breaker().Open {
		t.Fatalf("the breaker opened for nodes that were SICK as they started: %s", l.e.Breaker().Detail)
	}
	if set(fault.Failed); !l.e.Breaker().Open {
		t.Error("the breaker stayed closed when 20 of 32 nodes died that had been SICK since their start")
	}
}

// TestBreakerStaysClosedWhileNothingEnforces: there is nothing to hold back. It opens with the first enforced policy while
// the storm lasts.
func TestBreakerStaysClosedWhileNothingEnforces(t *testing.T) {
	l := newLab(t, quick(), grid.Dims{X: 4, Y: 4, Z: 2}, testPolicies(t)["drain"])
	var observed []*response.Policy
	for _, p := range l.pols {
		q := *p
		q.Mode = response.ObserveOnly
		observed = append(observed, &q)
	}
	for name, wait := range map[string]time.Duration{"during the storm": time.Minute, "long after": time.Hour} {
		e, err := response.New(quick())
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range []response.Event{l.topo, response.PoliciesChanged{Policies: observed}, response.Led{Token: 1}} {
			e.Step(start, ev)
		}
		for _, n := range l.topo.Nodes[:20] {
			e.Step(start, response.FaultChanged{Fault: l.own(n.ID, fault.ComponentNode, fault.Failed)})
		}
		if e.Breaker().Open {
			t.Errorf("the breaker opened though nothing is enforced: %s", e.Breaker().Detail)
		}
		e.Step(start.Add(wait), response.PoliciesChanged{Policies: l.pols})
		if open := e.Breaker().Open; open != (name == "during the storm") {
			t.Errorf("a policy is enforced %s: open %t", name, open)
		}
	}
}

const told = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: tell}
spec:
  mode: enforce
  match: fault.component == "memory"
  steps:
  - {name: tell, executor: kubernetes.event, parameters: {reason: Memory}}
`

const toldOfGroup = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: tell}
spec:
  mode: enforce
  target: Group
  match: fault.group == "ROW"
  steps:
  - {name: alert, executor: alertmanager, parameters: {severity: critical}}
`

// withoutEvidence returns an engine with a fault that matches its policy but has no known evidence, and the output of
// the step that reported the fault.
func withoutEvidence(t *testing.T) (e *response.Engine, f response.Fault, out response.Output) {
	t.Helper()
	return withEvidence(t, response.Evidence{})
}

// withEvidence is withoutEvidence for a fault that was committed with evidence.
func withEvidence(t *testing.T, ev response.Evidence) (e *response.Engine, f response.Fault, out response.Output) {
	t.Helper()
	l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2}, parsed(t, []byte(told))...)
	e, err := response.New(l.cfg)
	if err != nil {
		t.Fatal(err)
	}
	f = l.own("n0-0-0", fault.ComponentMemory, fault.Failed)
	f.Evidence = ev
	for _, ev := range []response.Event{l.topo, response.SupervisorsChanged{Supervisors: l.sups},
		response.PoliciesChanged{Policies: l.pols}, response.Led{Token: 1}, response.FaultChanged{Fault: f}} {
		out = e.Step(start, ev)
	}
	return e, f, out
}

// TestLooksAgainSoon: the engine repeats an unsuccessful request for evidence soon, and then less and less often: the
// deciding evidence may have been only a moment behind the map.
func TestLooksAgainSoon(t *testing.T) {
	e, f, out := withoutEvidence(t)
	if len(out.Look) != 1 {
		t.Fatalf("asked for %v", out.Look)
	}
	at := start
	var waits []time.Duration
	for range 10 {
		wake := e.Step(at, response.Seen{Target: f.Target()}).Wake
		out = e.Step(wake, response.Tick{})
		waits = append(waits, wake.Sub(at))
		if at = wake; at.Sub(start) < 100*time.Millisecond && len(out.Records)+len(out.Decisions) > 0 {
			t.Errorf("after %v it is said already: %+v", waits, out.Decisions)
		}
		if len(out.Look) != 1 {
			t.Fatalf("after %v asked for %v", waits, out.Look)
		}
	}
	for i, w := range waits {
		if i == 0 && w > 2*time.Millisecond || i > 0 && w != min(2*waits[i-1], quick().LookAgain) {
			t.Errorf("asked again after %v", waits)
			break
		}
	}
	out = e.Step(at, response.Seen{Target: f.Target(),
		Evidence: response.Evidence{At: at, Kind: fault.KindSelf, Own: true, Witnesses: []string{"n0-0-0/host"}}})
	if len(out.Effects) != 1 {
		t.Errorf("effects %v once there is evidence", out.Effects)
	}
}

// TestEvidenceForAnotherStateIsIgnored: an answer for the state before or after the known one decides nothing.
func TestEvidenceForAnotherStateIsIgnored(t *testing.T) {
	e, f, _ := withoutEvidence(t)
	seen := response.Seen{Target: f.Target(), State: fault.Sick,
		Evidence: response.Evidence{At: start, Kind: fault.KindSelf, Own: true, Witnesses: []string{"n0-0-0/host"}}}
	if out := e.Step(start, seen); len(out.Effects) != 0 {
		t.Errorf("effects %v of evidence for SICK", out.Effects)
	}
	if ev, _ := e.Evidence(f.Target()); !ev.At.IsZero() {
		t.Errorf("kept %+v", ev)
	}
	seen.State = fault.Failed
	if out := e.Step(start, seen); len(out.Effects) != 1 {
		t.Errorf("effects %v of evidence for FAILED, want 1", out.Effects)
	}
}

// TestEvidenceOfCommittedFault: evidence in the change needs no request, unless another leader's clock was ahead.
func TestEvidenceOfCommittedFault(t *testing.T) {
	for ahead, effects := range map[time.Duration]int{0: 1, -time.Second: 1, time.Second: 0, -time.Hour: 0} {
		_, _, out := withEvidence(t, response.Evidence{At: start.Add(ahead), Kind: fault.KindSelf, Own: true, Witnesses: []string{"n0-0-0/host"}})
		if len(out.Effects) != effects || len(out.Look) != 1-effects {
			t.Errorf("%v ahead: effects %v, asked for %v", ahead, out.Effects, out.Look)
		}
	}
}

// TestEvidenceOfCommittedGroup: the same holds for the evidence of a group fault.
func TestEvidenceOfCommittedGroup(t *testing.T) {
	for ahead, effects := range map[time.Duration]int{0: 1, -time.Second: 1, time.Second: 0, time.Hour: 0} {
		l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2}, parsed(t, []byte(toldOfGroup))...)
		e, err := response.New(l.cfg)
		if err != nil {
			t.Fatal(err)
		}
		g := response.Group{ID: "row/Y=1,Z=1", Kind: "ROW", State: fault.Failed, Cause: fault.CauseNode,
			Members: []fault.NodeID{"n0-1-1", "n1-1-1"}, Of: 2, Since: start, At: start.Add(ahead)}
		var out response.Output
		for _, ev := range []response.Event{l.topo, response.SupervisorsChanged{Supervisors: l.sups},
			response.PoliciesChanged{Policies: l.pols}, response.Led{Token: 1}, response.GroupChanged{Group: g}} {
			out = e.Step(start, ev)
		}
		if len(out.Effects) != effects || len(out.Look) != 1-effects {
			t.Errorf("%v ahead: effects %v, asked for %v", ahead, out.Effects, out.Look)
		}
	}
}

// TestEventOfGroupIsOnManagedMember: the object of a node that chose its name may be another machine's. Alerts name all members.
func TestEventOfGroupIsOnManagedMember(t *testing.T) {
	for step, want := range map[string][]fault.NodeID{
		"alertmanager, parameters: {severity: critical}": {"n0-1-1", "n1-1-1"}, "kubernetes.event, parameters: {reason: Row}": {"n1-1-1"},
	} {
		pols := parsed(t, []byte(strings.Replace(toldOfGroup, "alertmanager, parameters: {severity: critical}", step, 1)))
		l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2}, pols...)
		for i, n := range l.topo.Nodes {
			if n.ID == "n0-1-1" {
				l.topo.Nodes[i].Labels = map[string]string{fault.ManagedLabel: "false"}
			}
		}
		e, err := response.New(l.cfg)
		if err != nil {
			t.Fatal(err)
		}
		var out response.Output
		for _, ev := range []response.Event{l.topo, response.SupervisorsChanged{Supervisors: l.sups}, response.PoliciesChanged{Policies: l.pols},
			response.Led{Token: 1}, response.GroupChanged{Group: response.Group{ID: "row/Y=1,Z=1", Kind: "ROW", State: fault.Failed,
				Cause: fault.CauseNode, Members: []fault.NodeID{"n0-1-1", "n1-1-1"}, Of: 2, Since: start, At: start}}} {
			out = e.Step(start, ev)
		}
		if len(out.Effects) != 1 || !slices.Equal(out.Effects[0].Members, want) {
			t.Errorf("%s: effects %+v: want one with members %v", step, out.Effects, want)
		}
	}
}

// TestUnansweredEvidenceRequestIsRecorded: if requests stay unanswered, the engine soon records why it waits.
func TestUnansweredEvidenceRequestIsRecorded(t *testing.T) {
	e, _, out := withoutEvidence(t)
	at := start
	for len(out.Decisions) == 0 || out.Decisions[0].Reason != response.ReasonEvidenceAge {
		if len(out.Effects) > 0 || out.Wake.IsZero() || at.Sub(start) > time.Second {
			t.Fatalf("after %v nothing is said: %+v", at.Sub(start), out)
		}
		at = out.Wake
		out = e.Step(at, response.Tick{})
	}
	if at.Sub(start) < 100*time.Millisecond {
		t.Errorf("said after %v", at.Sub(start))
	}
}

// TestRecoveryWaitSaysUntilWhen: the response tells people when its effects will be undone.
func TestRecoveryWaitSaysUntilWhen(t *testing.T) {
	l := newLab(t, quick(), grid.Dims{X: 4, Y: 4, Z: 4}, testPolicies(t)["drain"])
	l.lead()
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
	l.land(response.Succeeded, "") // the cordon
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Normal))
	l.land(response.Unchanged, "") // the drain
	want := "the fault has to be gone for 5m0s, until " + l.now.Add(5*time.Minute).UTC().Format(response.UntilLayout)
	all := l.e.Responses()
	if len(all) != 1 {
		t.Fatalf("%d responses, want 1", len(all))
	}
	if r := all[0]; r.Reason != response.ReasonRecoveryWait || r.Detail != want {
		t.Errorf("%s, %s, %q: want %q", r.State, r.Reason, r.Detail, want)
	}
	// The fault comes back and ends again: the wait begins again.
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
	l.now = l.now.Add(2 * time.Second)
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Normal))
	l.land(response.Unchanged, "") // the drain again
	want = "the fault has to be gone for 5m0s, until " + l.now.Add(5*time.Minute).UTC().Format(response.UntilLayout)
	if r := l.e.Responses()[0]; r.Reason != response.ReasonRecoveryWait || r.Detail != want {
		t.Errorf("%s, %s, %q: want %q", r.State, r.Reason, r.Detail, want)
	}
}

// TestWaitSaysNewestUntil: a response waits for the storm delay, and its fault becomes younger; then for the grace of one leader
// and of the next. It states the new time, in its record too, and the audit has one refusal for each reason.
func TestWaitSaysNewestUntil(t *testing.T) {
	cfg := response.Default()
	l := newLab(t, cfg, grid.Dims{X: 4, Y: 4, Z: 4}, testPolicies(t)["drain"])
	refused := 0
	l.on = func(out response.Output) {
		for _, d := range out.Decisions {
			if d.Act == response.Refuses {
				refused++
			}
		}
	}
	expect := func(reason response.Reason, until time.Time) {
		t.Helper()
		want := "until " + until.UTC().Format(response.UntilLayout)
		r := l.e.Responses()[0]
		committed := l.store[r.Key()].(*response.Response)
		if r.Reason != reason || r.Detail != want || committed.Detail != want {
			t.Errorf("%s, %q, committed %q: want %s, %q", r.Reason, r.Detail, committed.Detail, reason, want)
		}
	}
	l.lead()
	l.until(l.now.Add(time.Minute))
	for range 2 {
		l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
		expect(response.ReasonStormDelay, l.now.Add(cfg.StormDelay))
		l.now = l.now.Add(5 * time.Second)
	}
	for range 2 {
		l.lead()
		expect(response.ReasonGrace, l.now.Add(cfg.Grace))
		l.now = l.now.Add(5 * time.Second)
	}
	if refused != 2 {
		t.Errorf("the audit has %d refusals: want 2", refused)
	}
}

// TestDeniedAttemptEndsWithLeader: a person denies a response while an executor sends its alert, and the leader is replaced before the
// result. No step is shown as under way for ever.
func TestDeniedAttemptEndsWithLeader(t *testing.T) {
	l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2}, testPolicies(t)["reset"])
	l.lead()
	l.set(l.own("n0-0-0", fault.ComponentHost, fault.Failed))
	l.until(start.Add(time.Minute + time.Second))
	if len(l.flying) != 1 {
		t.Fatalf("%v: want the alert", l.flying)
	}
	if err := l.ask("operator/ann", response.Deny, l.flying[0].Response); err != nil {
		t.Fatal(err)
	}
	l.lead()
	if r := l.e.Responses()[0]; r.State != response.Expired || r.Steps[0].State != response.Interrupted {
		t.Errorf("response %s, alert %s: want it expired, and the alert interrupted", r.State, r.Steps[0].State)
	}
}

// TestNotificationUnderWayAtDenialCounts: a person denies a response while its alert is being sent. The alert that was sent is kept,
// and is not sent again after a retry.
func TestNotificationUnderWayAtDenialCounts(t *testing.T) {
	for _, tc := range []struct {
		outcome response.Outcome
		want    response.StepState
		changed bool
		again   int // alerts after a retry
	}{
		{response.Succeeded, response.Acted, true, 0},
		{response.Unchanged, response.Pending, false, 1},
		{response.NotKnown, response.Interrupted, true, 1},
	} {
		l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2}, testPolicies(t)["reset"])
		l.lead()
		l.set(l.own("n0-0-0", fault.ComponentHost, fault.Failed))
		l.until(start.Add(time.Minute + time.Second))
		if len(l.flying) != 1 || l.flying[0].Kind != response.Alertmanager {
			t.Fatalf("%v: want the alert", l.flying)
		}
		id := l.flying[0].Response
		if err := l.ask("operator/ann", response.Deny, id); err != nil {
			t.Fatal(err)
		}
		l.land(tc.outcome, "")
		r := l.e.Responses()[0]
		if s := r.Steps[0]; r.State != response.Expired || r.Reason != response.ReasonDenied || s.State != tc.want || s.Changed != tc.changed {
			t.Errorf("outcome %d: response %s (%s), alert %s, changed %t: want it denied, and the alert %s", tc.outcome, r.State, r.Reason, s.State,
				s.Changed, tc.want)
		}
		if err := l.ask("operator/ann", response.Retry, id); err != nil {
			t.Fatal(err)
		}
		l.until(l.now.Add(time.Minute))
		if len(l.flying) != tc.again {
			t.Errorf("outcome %d: %d alerts after the retry: want %d", tc.outcome, len(l.flying), tc.again)
		}
	}
}

// TestQuorumThatIsSafeAgainLetsResponseContinue: a response on a supervisor's node waits while another supervisor's node is dead. It begins
// when that node is back, though no supervisor has changed: only the node's agent was dead.
func TestQuorumThatIsSafeAgainLetsResponseContinue(t *testing.T) {
	l := newLab(t, quick(), grid.Dims{X: 3, Y: 2, Z: 2}, testPolicies(t)["drain"])
	l.sups = []response.SupervisorInfo{{ID: "a", Node: "n0-0-0", Alive: true}, {ID: "b", Node: "n1-0-0", Alive: true},
		{ID: "c", Node: "n2-0-0", Alive: true}}
	l.lead()
	l.set(l.own("n0-0-0", fault.ComponentHost, fault.Failed))
	l.set(l.own("n1-0-0", fault.ComponentMemory, fault.Failed))
	l.until(start.Add(time.Hour))
	if r := l.e.Responses()[0]; len(l.flying) > 0 || r.Reason != response.ReasonQuorum {
		t.Fatalf("%d steps, %s: want it to wait for the quorum", len(l.flying), r.Reason)
	}
	l.set(l.own("n0-0-0", fault.ComponentHost, fault.Normal))
	if len(l.flying) != 1 {
		t.Errorf("%d steps: want the cordon, because the supervisors' quorum is safe again", len(l.flying))
	}
}

// TestOldRecordsOfResponsesThatDidNotActAreDropped: of closed responses that have done nothing, or only notified, a leader keeps the
// newest records up to a bound. Those of responses that acted are kept for Keep.
func TestOldRecordsOfResponsesThatDidNotActAreDropped(t *testing.T) {
	const bound, over, acted = 20_000, 10, 5
	l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2})
	add := func(id string, at time.Time, k response.Kind, attempt int) {
		r := &response.Response{ID: id, Policy: "p", Target: response.Target{Node: "n0-0-0", Component: fault.ComponentHost},
			State: response.Expired, Mode: response.ObserveOnly, Closed: at,
			Steps: []response.StepRecord{{Step: response.Step{Name: "a", Kind: k}, State: response.Pending, Attempt: attempt}}}
		l.store[r.Key()] = r
	}
	for i := range acted {
		add(fmt.Sprintf("acted-%d", i), start.Add(-2*time.Hour), response.KubernetesCordon, 1)
	}
	for i := range bound + over {
		kind, attempt := response.KubernetesCordon, 0
		if i%2 == 0 {
			kind, attempt = response.WebhookNotify, 1
		}
		add(fmt.Sprintf("idle-%05d", i), start.Add(-time.Hour+time.Duration(i)*time.Millisecond), kind, attempt)
	}
	l.lead()
	l.now = l.now.Add(2 * time.Minute)
	l.step(response.Tick{})
	gone := 0
	for i := range over {
		if l.store[(&response.Response{ID: fmt.Sprintf("idle-%05d", i)}).Key()] == nil {
			gone++
		}
	}
	n := 0
	for _, rec := range l.store {
		if _, ok := rec.(*response.Response); ok {
			n++
		}
	}
	if n != bound+acted || gone != over {
		t.Errorf("%d records, and %d of the oldest %d are gone: want %d, all", n, gone, over, bound+acted)
	}
}

// scripted returns a lab in which the command of a policy with two steps runs, of at most 4 attempts.
func scripted(t *testing.T, onFailure string) *lab {
	t.Helper()
	l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2}, parsed(t, []byte(`apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: script-then-ticket}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  steps:
  - {name: script, executor: command, parameters: {command: reseat}, retries: 3, onFailure: `+onFailure+`}
  - {name: ticket, executor: webhook.notify, parameters: {target: desk}}
`))...)
	l.lead()
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
	if len(l.flying) != 1 || l.flying[0].Kind != response.Command {
		t.Fatalf("%v: want the command", l.flying)
	}
	return l
}

// TestFailedCommandEndsItsStep: after a command that ended with an error, onFailure applies at once, in spite of retries. A gate that has
// closed meanwhile and a new leader do not change that.
func TestFailedCommandEndsItsStep(t *testing.T) {
	for _, onFailure := range []string{"stop", "next"} {
		for name, between := range map[string]func(l *lab){
			"plain": func(*lab) {},
			"halted": func(l *lab) {
				l.mark("n0-0-0")
				l.mark()
			},
			"answer to a new leader": func(l *lab) { l.lead() },
		} {
			t.Run(onFailure+"/"+name, func(t *testing.T) {
				l := scripted(t, onFailure)
				between(l)
				l.land(response.Partly, "reseat: exit code 1: no such slot")
				l.until(l.now.Add(time.Hour))
				r := l.e.Responses()[0]
				if s := r.Steps[0]; s.State != response.StepFailed || !s.Changed || s.Attempt != 1 {
					t.Errorf("the command is %s after %d attempts, changed %t: want it failed after one, and changed", s.State, s.Attempt, s.Changed)
				}
				if onFailure == "stop" {
					wantResponse(t, l, response.Failed, response.ReasonStepFailed)
				} else if len(l.flying) != 1 || l.flying[0].Kind != response.WebhookNotify {
					t.Errorf("%v, the response is %s (%s: %s): want the ticket", l.flying, r.State, r.Reason, r.Detail)
				}
			})
		}
	}
}

// TestRetryRunsFailedCommandAgain: a person's retry runs the command again, which checks nothing. The node counts as changed even if the
// new attempts change nothing.
func TestRetryRunsFailedCommandAgain(t *testing.T) {
	l := scripted(t, "stop")
	l.land(response.Partly, "exit code 1")
	if err := l.ask("operator/ann", response.Retry, l.e.Responses()[0].ID); err != nil {
		t.Fatal(err)
	}
	for attempt := 2; attempt <= 5; attempt++ {
		l.until(l.now.Add(6 * time.Minute))
		if len(l.flying) != 1 || l.flying[0].Attempt.Attempt != attempt || l.flying[0].Recheck {
			t.Fatalf("%+v: want attempt %d, without a check", l.flying, attempt)
		}
		l.land(response.Unchanged, "busy")
		if !l.e.Responses()[0].Steps[0].Changed || l.e.UnderResponse() != 1 {
			t.Errorf("attempt %d: the node does not count as changed", attempt)
		}
	}
	l.until(l.now.Add(time.Hour))
	wantResponse(t, l, response.Failed, response.ReasonStepFailed)
}

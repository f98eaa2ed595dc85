package response_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

const cordonAndTell = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: cordon}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  steps: [{name: cordon, executor: kubernetes.cordon}]
---
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: tell}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  steps: [{name: tell, executor: kubernetes.condition, parameters: {type: LofamoFault, reason: Memory}}]
`

// crowded returns a leader with the maximum number of waiting responses and a backlog behind them: nodes of which the
// first is not held up.
func crowded(t testing.TB, dims grid.Dims, active, nodes int) *lab {
	t.Helper()
	cfg := quick()
	cfg.MaxActive, cfg.MaxNodes, cfg.MaxPercent, cfg.NotifyRate = active, 1, 100, 1
	l := newLab(t, cfg, dims, parsed(t, []byte(cordonAndTell))...)
	l.lead()
	l.twin = nil
	for _, n := range l.topo.Nodes[:nodes] {
		l.e.Step(l.now, response.FaultChanged{Fault: l.own(n.ID, fault.ComponentMemory, fault.Failed)})
	}
	return l
}

// TestConditionsIgnoreCaps: a condition is set at once for every fault, however many responses wait for a cap, and
// independent of notifyRate. As room becomes free, faults of the backlog follow in order.
func TestConditionsIgnoreCaps(t *testing.T) {
	l := crowded(t, grid.Dims{X: 4, Y: 4, Z: 4}, 3, 0)
	told, cordoned := []fault.NodeID{}, []fault.NodeID{}
	l.on = func(out response.Output) {
		for _, f := range out.Effects {
			if f.Kind == response.KubernetesCondition {
				told = append(told, f.Target.Node)
			} else if !f.Undo {
				cordoned = append(cordoned, f.Target.Node)
			}
		}
	}
	for _, n := range l.topo.Nodes[:20] {
		l.set(l.own(n.ID, fault.ComponentMemory, fault.Failed))
		l.land(response.Succeeded, "")
	}
	if len(told) != 20 || len(cordoned) != 1 {
		t.Fatalf("%d of 20 conditions, %d cordons: want 20 and 1", len(told), len(cordoned))
	}
	waiting := 0
	for _, r := range l.e.Responses() {
		if r.Reason == response.ReasonMaxNodes {
			waiting++
		}
	}
	if waiting != 3 {
		t.Fatalf("%d wait for a place: want 3", waiting)
	}
	for i := range 19 {
		l.set(l.own(cordoned[len(cordoned)-1], fault.ComponentMemory, fault.Normal))
		l.land(response.Succeeded, "")
		if want := l.topo.Nodes[i+1].ID; cordoned[len(cordoned)-1] != want {
			t.Fatalf("%s is cordoned after %d were freed: want %s, which has waited for longest", cordoned[len(cordoned)-1], i+1, want)
		}
	}
}

// TestNotificationsAreLimited checks that notifications to people are limited as before.
func TestNotificationsAreLimited(t *testing.T) {
	cfg := quick()
	cfg.NotifyRate = 2
	l := newLab(t, cfg, grid.Dims{X: 2, Y: 2, Z: 2}, parsed(t,
		[]byte(strings.NewReplacer("kubernetes.condition", "alertmanager", "{type: LofamoFault, reason: Memory}",
			"{severity: info}").Replace(cordonAndTell)))[1:]...)
	l.lead()
	for _, n := range l.topo.Nodes[:4] {
		l.set(l.own(n.ID, fault.ComponentMemory, fault.Failed))
	}
	if len(l.flying) != 2 {
		t.Errorf("%d alerts: want 2", len(l.flying))
	}
}

// TestCrowdIsCheap checks that a change costs the same with 100 faults or 10,000 faults in the backlog, and that freed
// room admits one of them at the cost of one.
func TestCrowdIsCheap(t *testing.T) {
	cost := func(nodes int) float64 {
		l := crowded(t, grid.Dims{X: 25, Y: 25, Z: 20}, 50, nodes)
		id, i := l.topo.Nodes[nodes].ID, 0
		return testing.AllocsPerRun(100, func() {
			state := fault.Failed
			if i++; i%2 == 0 {
				state = fault.Normal
			}
			l.now = l.now.Add(time.Millisecond)
			l.e.Step(l.now, response.FaultChanged{Fault: l.own(id, fault.ComponentMemory, state)})
		})
	}
	if few, many := cost(100), cost(10_000); many > few+5 {
		t.Errorf("%v allocations a change with 10,000 faults waiting, %v with 100: want as many", many, few)
	}
}

// BenchmarkCrowd measures one change of one node, which leads to a notification and a place in the backlog, while 2,000
// responses wait for room and 18,000 faults stand behind them.
func BenchmarkCrowd(b *testing.B) {
	l := crowded(b, grid.Dims{X: 50, Y: 50, Z: 40}, 2000, 20_000)
	for i := 0; b.Loop(); i++ {
		state := fault.Failed
		if i%2 == 1 {
			state = fault.Normal
		}
		l.now = l.now.Add(time.Millisecond)
		l.e.Step(l.now, response.FaultChanged{Fault: l.own(l.topo.Nodes[20_000+i/2%80_000].ID, fault.ComponentMemory, state)})
	}
}

// TestNamesAreUnique: two leaders with the same token belong to two stores and give their responses different ids. A
// leader that leads twice under its own token reuses no id, even without a salt.
func TestNamesAreUnique(t *testing.T) {
	ids := map[string]bool{}
	store := map[string]response.Record{}
	lead := func(salt string, keep bool) {
		l := newLab(t, quick(), grid.Dims{X: 2, Y: 2, Z: 2}, parsed(t, []byte(cordonAndTell))...)
		if keep {
			l.store = store
		}
		e, err := response.New(l.cfg)
		if err != nil {
			t.Fatal(err)
		}
		l.e, l.token = e, 7
		led := response.Led{Token: 7, Salt: salt}
		for _, r := range l.store {
			led.Records = append(led.Records, r)
		}
		for _, ev := range []response.Event{l.topo, response.SupervisorsChanged{Supervisors: l.sups},
			response.PoliciesChanged{Policies: l.pols}, led} {
			_, l.leads = ev.(response.Led)
			if err := l.step(ev); err != nil {
				t.Fatal(err)
			}
		}
		node := l.topo.Nodes[len(ids)%8].ID
		l.set(l.own(node, fault.ComponentMemory, fault.Failed))
		for _, f := range l.flying {
			if ids[f.Response] {
				t.Errorf("salt %q: %s is the name of two", salt, f.Response)
			}
			ids[f.Response] = true
			if salt != "" && !strings.HasSuffix(f.Response, "-"+salt) {
				t.Errorf("%s is without the salt %s", f.Response, salt)
			}
		}
		store = l.store
	}
	lead("a2b3c", false)
	lead("d4e5f", false)
	lead("", false)
	lead("", true)
	if want := 8; len(ids) != want { // a condition and a cordon each
		t.Errorf("%d names: want %d", len(ids), want)
	}
}

// TestKeepsForCooldown: if a policy's cooldown exceeds the other retention times, its responses' records are kept for
// the cooldown, so that the next leader knows about it.
func TestKeepsForCooldown(t *testing.T) {
	cfg := quick()
	cfg.Keep, cfg.Cooldown = 2*time.Hour, 0
	l := newLab(t, cfg, grid.Dims{X: 2, Y: 2, Z: 2}, parsed(t,
		[]byte(strings.Replace(cordonAndTell, "  steps:", "  guards: {cooldown: 10h}\n  undo: {onRecovery: true, after: 0s}\n  steps:",
			1)))[:1]...)
	l.lead()
	fail := func() {
		l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
		l.land(response.Succeeded, "")
		l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Normal))
		l.land(response.Succeeded, "")
	}
	fail()
	l.until(l.now.Add(9 * time.Hour))
	l.step(response.Tick{}) // old records are forgotten
	l.lead()
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
	if len(l.flying) > 0 {
		t.Fatalf("%+v within the cool-down of 10 h", l.flying)
	}
	l.until(l.now.Add(2 * time.Hour))
	if len(l.flying) != 1 {
		t.Errorf("%d effects after it: want 1", len(l.flying))
	}
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Normal))
	l.land(response.Succeeded, "")
	l.until(l.now.Add(12 * time.Hour))
	l.step(response.Tick{})
	if n := len(l.store); n > 1 {
		t.Errorf("%d records are kept: want at most the last", n)
	}
}

// TestRecordHasRequiredApprovals checks that the record contains the required number of approvals, whether the policy or the
// limits require them.
func TestRecordHasRequiredApprovals(t *testing.T) {
	cfg := quick()
	cfg.Approvals = 2
	for kind, want := range map[string]int{"kubernetes.drain": 2, "kubernetes.cordon": 0} {
		l := newLab(t, cfg, grid.Dims{X: 2, Y: 2, Z: 2}, parsed(t, []byte(strings.Replace(cordonAndTell, "kubernetes.cordon", kind, 1)))[:1]...)
		l.lead()
		l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
		if all := l.e.Responses(); len(all) != 1 || all[0].Guards.Approvals != want {
			t.Errorf("%s: %s, want %d approvals", kind, fmt.Sprint(all), want)
		}
	}
}

// TestFirstIsServedFirst: if two policies match a fault, it needs two places. The first fault gets both before the next
// one gets any.
func TestFirstIsServedFirst(t *testing.T) {
	cfg := quick()
	cfg.MaxActive, cfg.MaxPercent, cfg.MaxPerPlane, cfg.MaxPerDomain = 2, 100, 8, 8
	cordon, _, _ := strings.Cut(cordonAndTell, "---")
	l := newLab(t, cfg, grid.Dims{X: 2, Y: 2, Z: 2}, parsed(t,
		[]byte(cordon+"---"+strings.NewReplacer("name: cordon}", "name: cordon-too}", ` == "memory"`,
			` in ["memory", "power"]`).Replace(cordon)))...)
	l.lead()
	for _, id := range []fault.NodeID{"n1-1-1", "n0-1-0", "n0-0-0"} {
		l.set(l.own(id, fault.ComponentMemory, fault.Failed))
	}
	var begun []string
	l.on = func(out response.Output) {
		for _, f := range out.Effects {
			begun = append(begun, f.Target.String())
		}
	}
	for range 4 {
		if len(l.flying) == 0 {
			t.Fatalf("begun in the order %s, and nothing is under way: %v", begun, l.e.Responses())
		}
		first := l.flying[0]
		l.flying = l.flying[1:]
		l.answer(first, response.Succeeded, "") // room for one
	}
	if got, want := strings.Join(begun, " "), "n0-1-0/memory n0-1-0/memory n0-0-0/memory n0-0-0/memory"; got != want {
		t.Errorf("begun in the order %s: want %s", got, want)
	}
}

// TestRoomUnderBreaker: an open breaker only prevents responses that begin with more than a notification. The others
// are admitted as there is room. When the breaker closes, the prevented ones are admitted as well.
func TestRoomUnderBreaker(t *testing.T) {
	cfg := quick()
	cfg.MaxActive, cfg.BreakerNodes, cfg.BreakerPercent = 1, 4, 5
	l := newLab(t, cfg, grid.Dims{X: 4, Y: 4, Z: 4}, parsed(t, []byte(`
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: warned}
spec:
  mode: enforce
  match: fault.component == "memory"
  steps: [{name: tell, executor: kubernetes.event, parameters: {reason: Memory}}, {name: cordon, executor: kubernetes.cordon}]
---
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: cordon}
spec:
  mode: enforce
  match: fault.component == "host"
  steps: [{name: cordon, executor: kubernetes.cordon}]
`))...)
	l.lead()
	has := func(what string, id fault.NodeID) {
		t.Helper()
		if open := l.e.Responses(); len(open) != 1 || open[0].Target.Node != id {
			t.Fatalf("%s: open are %v: want one for %s", what, open, id)
		}
	}
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
	l.set(l.own("n1-0-0", fault.ComponentMemory, fault.Failed))
	for i := range 4 {
		l.set(l.own(fault.DefaultNodeID(grid.Coord{X: i, Y: 3}), fault.ComponentNode, fault.Failed))
	}
	if !l.e.Breaker().Open {
		t.Fatal("the breaker is closed")
	}
	l.set(l.own("n2-0-0", fault.ComponentHost, fault.Failed))
	l.land(response.Succeeded, "")
	has("open", "n0-0-0")
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Normal))
	l.land(response.Succeeded, "")
	has("there is room", "n1-0-0")
	l.set(l.own("n1-0-0", fault.ComponentMemory, fault.Normal))
	if open := l.e.Responses(); len(open) != 0 {
		t.Fatalf("%v is proposed while the breaker is open", open)
	}
	for i := range 4 {
		l.set(l.own(fault.DefaultNodeID(grid.Coord{X: i, Y: 3}), fault.ComponentNode, fault.Normal))
	}
	l.until(l.now.Add(cfg.BreakerWindow + time.Second))
	if err := l.ask("operator/ann", response.CloseBreaker, ""); err != nil {
		t.Fatal(err)
	}
	has("closed", "n2-0-0")
}

package response_test

import (
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestLeaderWithAnotherClock: a response has ended, and another replica leads, whose clock differs. Cooldown and rate limit then end
// later by the difference, but at most one whole time after the takeover, or earlier by the difference.
func TestLeaderWithAnotherClock(t *testing.T) {
	const limit = 30 * time.Minute
	for _, tc := range []struct {
		name     string
		cooldown bool          // else the rate limit holds the next response back
		off      time.Duration // of the next leader's clock
		want     time.Duration // from the takeover to the next response
	}{
		{"cooldown, same clock", true, 0, limit},
		{"cooldown, behind", true, -20 * time.Minute, limit},
		{"cooldown, days behind", true, -48 * time.Hour, limit},
		{"cooldown, ahead", true, 20 * time.Minute, 10 * time.Minute},
		{"cooldown, days ahead", true, 48 * time.Hour, 0},
		{"rate, same clock", false, 0, limit},
		{"rate, days behind", false, -48 * time.Hour, limit},
		{"rate, ahead", false, 20 * time.Minute, 10 * time.Minute},
	} {
		cfg, next := quick(), fault.NodeID("n0-0-0")
		if cfg.Cooldown = limit; !tc.cooldown {
			cfg.Rate, cfg.RateWindow, next = 1, limit, "n1-1-1"
		}
		cordon := strings.Replace(cordonAndTell, "  steps:", "  undo: {onRecovery: true, after: 0s}\n  steps:", 1)
		l := newLab(t, cfg, grid.Dims{X: 4, Y: 4, Z: 4}, parsed(t, []byte(cordon))[:1]...)
		l.lead()
		for _, s := range []fault.State{fault.Failed, fault.Normal} {
			l.set(l.own("n0-0-0", fault.ComponentMemory, s))
			l.land(response.Succeeded, "")
		}
		l.now = l.now.Add(tc.off)
		l.lead()
		takeover := l.now
		l.set(l.own(next, fault.ComponentMemory, fault.Failed))
		if len(l.flying) == 0 && tc.want > 0 {
			l.until(takeover.Add(tc.want - time.Second))
			if len(l.flying) > 0 {
				t.Errorf("%s: the next response has begun %s after the takeover: want %s", tc.name, tc.want-time.Second, tc.want)
			}
			l.until(takeover.Add(tc.want + time.Second))
		}
		if len(l.flying) != 1 {
			t.Errorf("%s: %d effects %s after the takeover: want 1", tc.name, len(l.flying), tc.want)
		}
	}
}

// TestFaultAgeByOwnClock: a replica that followed the beginning of a fault measures its age by its own clock. The clock of the leader
// that committed the fault may be hours off. A replica that began to follow later only has the time in the map, and ignores a time in
// the future.
func TestFaultAgeByOwnClock(t *testing.T) {
	const delay = 2 * time.Minute
	for _, tc := range []struct {
		name  string
		off   time.Duration // of the committing leader's clock
		stood bool          // before this replica followed the map
		want  time.Duration // from the beginning to the first effect
	}{
		{"same clock", 0, false, delay},
		{"an hour behind", -time.Hour, false, delay},
		{"an hour ahead", time.Hour, false, delay},
		{"same clock, stood before", 0, true, delay},
		{"ahead, stood before", time.Hour, true, delay},
		{"behind, stood before", -time.Hour, true, 10 * time.Second},
	} {
		for _, policy := range []string{"reset", "drain", "rack"} { // by fault.duration, the storm delay, and the age of a group
			cfg, pol, c := quick(), testPolicies(t)[policy], fault.ComponentMemory
			switch policy {
			case "reset":
				pol, c = parsed(t, []byte(aged))[0], fault.ComponentHost
			case "drain":
				cfg.StormDelay = delay
			case "rack":
				pol = parsed(t, []byte(aged))[1]
			}
			l := newLab(t, cfg, grid.Dims{X: 4, Y: 4, Z: 4}, pol)
			l.e, l.twin, l.store = must(response.New(cfg)), must(response.New(cfg)), map[string]response.Record{}
			led := response.Led{Token: 1}
			l.token = 1
			if policy == "rack" {
				g := response.Group{ID: "g1", Kind: "LABEL", State: fault.Failed, Cause: fault.CauseNode, Since: start.Add(tc.off), At: start,
					Of: 2, Members: []fault.NodeID{"n0-0-0", "n0-1-0"}}
				led.Groups = append(led.Groups, g)
				l.step(response.GroupChanged{Group: g, Stood: tc.stood})
			} else {
				f := l.own("n0-0-0", c, fault.Failed)
				f.Since = start.Add(tc.off)
				led.Faults = append(led.Faults, f)
				l.step(response.FaultChanged{Fault: f, Stood: tc.stood})
			}
			l.now = start.Add(10 * time.Second)
			for _, ev := range []response.Event{l.topo, response.SupervisorsChanged{Supervisors: l.sups},
				response.PoliciesChanged{Policies: l.pols}} {
				l.step(ev)
			}
			l.leads = true
			l.step(led)
			if tc.want > 10*time.Second {
				l.until(start.Add(tc.want - time.Second))
				if len(l.flying) > 0 {
					t.Errorf("%s, %s: an effect %s after the beginning: want %s", tc.name, policy, tc.want-time.Second, tc.want)
				}
			}
			l.until(start.Add(tc.want + time.Second))
			if len(l.flying) == 0 {
				t.Errorf("%s, %s: no effect %s after the beginning", tc.name, policy, tc.want+time.Second)
			}
		}
	}
}

// aged are policies that depend on times: the age of a fault and of a group fault, recurrences, and approvals.
const aged = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: host}
spec:
  mode: enforce
  match: fault.component == "host" && fault.state == "FAILED" && fault.duration >= duration("2m") && fault.recurrence == 1
  steps: [{name: cordon, executor: kubernetes.cordon}]
---
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: rack}
spec:
  mode: enforce
  target: Group
  match: fault.group == "LABEL" && fault.duration >= duration("2m") && fault.recurrence == 1
  steps: [{name: alert, executor: alertmanager, parameters: {severity: critical}}]
---
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: again}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED" && fault.recurrence >= 2
  steps: [{name: cordon, executor: kubernetes.cordon}]
---
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: approved}
spec:
  mode: enforce
  match: fault.component == "host" && fault.state == "FAILED"
  guards: {approvals: 1}
  steps: [{name: cordon, executor: kubernetes.cordon}]
`

// TestBreakerCountsFutureFaultsAsNow: a new leader finds nodes that went bad by a clock a day ahead. They count for one breaker window
// after the takeover, like nodes that go bad then.
func TestBreakerCountsFutureFaultsAsNow(t *testing.T) {
	l := newLab(t, quick(), grid.Dims{X: 4, Y: 4, Z: 2}, testPolicies(t)["drain"])
	for _, n := range l.topo.Nodes[:2] {
		f := l.own(n.ID, fault.ComponentNode, fault.Failed)
		f.Since = start.Add(24 * time.Hour)
		l.faults[f.Target()] = f
	}
	l.lead()
	for i, n := range l.topo.Nodes[2:10] {
		l.until(start.Add(time.Duration(i+1) * 10 * time.Minute))
		l.set(l.own(n.ID, fault.ComponentNode, fault.Failed))
		if l.e.Breaker().Open {
			t.Fatalf("open at node %d: %s", i+1, l.e.Breaker().Detail)
		}
	}
}

// TestRecurrenceByOwnClock: faults recur by the clock of the replica that counts them. A committed time in the future hides no later
// fault, and a time in the past makes no two faults of one.
func TestRecurrenceByOwnClock(t *testing.T) {
	for _, off := range []time.Duration{0, -48 * time.Hour, 48 * time.Hour} {
		l := newLab(t, quick(), grid.Dims{X: 4, Y: 4, Z: 4}, parsed(t, []byte(aged))[2])
		l.lead()
		for i, since := range []time.Time{start.Add(off), start.Add(time.Minute)} {
			l.until(start.Add(time.Duration(i) * time.Minute))
			f := l.own("n0-0-0", fault.ComponentMemory, fault.Failed)
			f.Since = since
			l.set(f)
			if len(l.flying) != i {
				t.Errorf("%s off: %d effects at fault %d: want %d", off, len(l.flying), i+1, i)
			}
			l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Normal))
		}
	}
}

func must(e *response.Engine, err error) *response.Engine {
	if err != nil {
		panic(err)
	}
	return e
}

// TestOpenResponseUnderAnotherClock: a response waits, and another replica leads, whose clock differs. The wait for an approval, for a
// reset to be seen and for a step to help begins again. If the new leader's clock is ahead, an undo comes
// earlier by the difference. If it is behind, the undo comes at most one full wait after the takeover.
func TestOpenResponseUnderAnotherClock(t *testing.T) {
	pols, approved := testPolicies(t), parsed(t, []byte(aged))[3]
	reset := func(l *lab) { // an executor reports the reset of a node that was FAILED before
		l.set(l.own("n0-0-0", fault.ComponentNode, fault.Failed))
		l.set(l.own("n0-0-0", fault.ComponentPower, fault.Failed))
		l.land(response.Succeeded, "")
	}
	for _, tc := range []struct {
		name  string
		pol   *response.Policy
		begin func(*lab)
		off   time.Duration // of the next leader's clock
		want  time.Duration // from the takeover to the end of the wait
		over  func(*response.Response) bool
	}{
		{"undo, days behind", pols["drain"], drained, -48 * time.Hour, 5 * time.Minute, undoing},
		{"undo, ahead", pols["drain"], drained, time.Minute, 4 * time.Minute, undoing},
		{"approval, same clock", approved, asking, 0, response.Default().ApprovalTime, expired},
		{"approval, days behind", approved, asking, -48 * time.Hour, response.Default().ApprovalTime, expired},
		{"approval, days ahead", approved, asking, 48 * time.Hour, response.Default().ApprovalTime, expired},
		{"reset, same clock", pols["reset-again"], reset, 0, 15 * time.Minute, second},
		{"reset, days behind", pols["reset-again"], reset, -48 * time.Hour, 15 * time.Minute, second},
		{"reset, ahead", pols["reset-again"], reset, 20 * time.Minute, 15 * time.Minute, second},
		{"wait, same clock", pols["escalate"], restarted, 0, time.Minute, second},
		{"wait, days behind", pols["escalate"], restarted, -48 * time.Hour, time.Minute, second},
		{"wait, ahead", pols["escalate"], restarted, 20 * time.Minute, time.Minute, second},
	} {
		l := newLab(t, quick(), grid.Dims{X: 4, Y: 4, Z: 4}, tc.pol)
		l.lead()
		tc.begin(l)
		l.now = l.now.Add(tc.off)
		takeover := l.now
		l.lead()
		over := func() bool { return len(l.e.Responses()) == 0 || tc.over(l.e.Responses()[0]) }
		l.until(takeover.Add(tc.want - time.Second))
		l.refresh()
		if over() {
			t.Errorf("%s: the wait is over %s after the takeover: want %s", tc.name, tc.want-time.Second, tc.want)
		}
		l.until(takeover.Add(tc.want + time.Second))
		if !over() {
			t.Errorf("%s: the wait is not over %s after the takeover: %+v", tc.name, tc.want+time.Second, l.e.Responses()[0])
		}
	}
}

// drained drains a node whose fault then ends.
func drained(l *lab) {
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
	l.land(response.Succeeded, "")
	l.land(response.Succeeded, "")
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Normal))
}

// asking makes a response wait for approvals.
func asking(l *lab) {
	l.set(l.own("n0-0-0", fault.ComponentHost, fault.Failed))
}

// restarted makes a response give its first step time to help.
func restarted(l *lab) {
	l.set(l.own("n0-0-0", fault.ComponentDNP, fault.Failed))
	l.land(response.Succeeded, "")
}

func undoing(r *response.Response) bool { return r.Undoing }

func expired(r *response.Response) bool { return r.State == response.Expired }

func second(r *response.Response) bool { return r.Steps[1].Attempt > 0 }

// refresh repeats all faults with the time of this leader's clock.
func (l *lab) refresh() {
	l.t.Helper()
	for _, f := range l.faults {
		f.Evidence.At = l.now
		l.set(f)
	}
}

// TestNewLeaderCountsNewestAccusation: one node alone accuses two others, the second one long before the first. The breaker counts the
// accuser until the newer accusation leaves its window.
func TestNewLeaderCountsNewestAccusation(t *testing.T) {
	cfg := quick()
	cfg.BreakerNodes, cfg.BreakerPercent = 3, 1
	l := newLab(t, cfg, grid.Dims{X: 4, Y: 4, Z: 4}, testPolicies(t)["drain"])
	bad := func(id fault.NodeID, ago time.Duration, accusers ...fault.NodeID) response.Fault {
		f := l.own(id, fault.ComponentNode, fault.Failed)
		f.Since, f.Accusers = l.now.Add(-ago), accusers
		return f
	}
	for _, f := range []response.Fault{bad("n0-0-0", time.Second, "n3-3-3"), bad("n0-0-1", cfg.BreakerWindow-10*time.Second, "n3-3-3"),
		bad("n1-0-0", time.Second)} {
		l.faults[f.Target()] = f
	}
	l.lead()
	l.now = l.now.Add(20 * time.Second)
	l.set(bad("n2-0-0", 0))
	if !l.e.Breaker().Open {
		t.Error("the breaker is closed: three nodes are to blame within its window")
	}
}

package awareness

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// rackOf64 labels 64 nodes of an 8x8x4 torus, none of them beside another.
func rackOf64(t *testing.T) (l *ledger, rack []fault.NodeID) {
	t.Helper()
	l = newLedger(t, grid.Dims{X: 8, Y: 8, Z: 4})
	l.cfg.Labels, l.cfg.DomainLabels = make(map[fault.NodeID]map[string]string), []string{"rack"}
	for id, st := range l.nodes {
		n := (st.Coord.X + st.Coord.Y + st.Coord.Z) % 4
		l.cfg.Labels[id] = map[string]string{"rack": fmt.Sprint("r", n)}
		if n == 1 {
			rack = append(rack, id)
		}
	}
	slices.Sort(rack)
	l.lead()
	return l, rack
}

// one fails unless exactly one incident was ever opened, and returns it.
func (l *ledger) one() Incident {
	l.Helper()
	list := l.list()
	if len(list) != 1 || len(l.kept) != 1 {
		l.Fatalf("after %s: %d incidents, %d of them not CLOSED: want one", l.now.Sub(ledgerStart), len(l.kept), len(list))
	}
	return list[0]
}

// TestRackOf64IsOneIncidentAtAnyTime: the nodes of a rack die in any order, the group fault is found at the end, and
// the leader changes halfway. No commit has a second incident.
func TestRackOf64IsOneIncidentAtAnyTime(t *testing.T) {
	for seed := range uint64(8) {
		l, rack := rackOf64(t)
		rnd := rand.New(rand.NewPCG(seed, 64))
		rnd.Shuffle(len(rack), func(i, j int) { rack[i], rack[j] = rack[j], rack[i] })
		var id string
		for i, n := range rack {
			l.kill(string(n))
			l.update(time.Duration(rnd.IntN(50)) * time.Millisecond)
			if in := l.one(); id == "" {
				id = in.ID
			} else if in.ID != id || in.Root.Node != rack[0] {
				t.Fatalf("%d nodes are dead: %+v: want incident %s of %s", i+1, in, id, rack[0])
			}
			if i == len(rack)/2 {
				l.lead()
				l.one()
			}
		}
		slices.Sort(rack)
		l.groups = []GroupStatus{{ID: "label/rack=r1", Kind: GroupLabel, State: fault.Failed, Cause: fault.CauseNode, Members: rack,
			Of: len(rack), Since: l.now, Rule: "label"}}
		l.update(240 * time.Millisecond)
		if in := l.one(); in.ID != id || in.Root.Group != "label/rack=r1" || in.Count < 64*22 || len(in.Merged) != 0 {
			t.Errorf("%+v: want incident %s of the rack", in, id)
		}
		l.update(time.Minute)
		if in := l.one(); in.ID != id || in.State != IncidentOpen {
			t.Errorf("%+v: want incident %s, OPEN", in, id)
		}
	}
}

// TestIndependentFaultsWaitForNoLongerThanSettle: two nodes of a rack die, and the rack lives. The second has its own
// incident soon, with the ID that another leader would derive, and the first keeps its own.
func TestIndependentFaultsWaitForNoLongerThanSettle(t *testing.T) {
	for _, leads := range []bool{false, true} {
		l, rack := rackOf64(t)
		a, b := string(rack[0]), string(rack[1])
		l.kill(a)
		l.update(0)
		first := l.one()
		l.update(300 * time.Millisecond)
		l.kill(b)
		l.update(0)
		died := l.now
		if in := l.one(); in.ID != first.ID || in.Count != 22+23 || in.Summary != "node "+a+" is FAILED, with another new fault: why "+a {
			t.Errorf("%+v", in)
		}
		l.update(l.cfg.Settle / 2)
		if leads {
			l.lead() // the wait restarts: the new leader does not know when it began
		}
		l.one()
		l.update(l.cfg.Settle)
		list := l.has("OPEN "+a+"/node 22", "OPEN "+b+"/node 22")
		if list[0].ID != first.ID || list[1].SplitFrom != "" || !list[1].Since.Equal(died) || list[1].Verdict.Reason != "why "+b ||
			list[0].Summary != first.Summary {
			t.Errorf("%+v", list)
		}
		l.kept = make(map[string]Incident)
		l.now = l.now.Add(time.Minute)
		l.lead()
		if again := l.has("OPEN "+a+"/node 22", "OPEN "+b+"/node 22"); again[1].ID != list[1].ID {
			t.Errorf("%+v: want ID %s", again[1], list[1].ID)
		}
	}
}

// TestFaultsThatNeverEndToBeginDoNotWaitForEver: a node of the same rack dies every half Settle.
func TestFaultsThatNeverEndToBeginDoNotWaitForEver(t *testing.T) {
	l, rack := rackOf64(t)
	since := make(map[fault.NodeID]time.Time)
	for _, n := range rack[:32] {
		l.kill(string(n))
		since[n] = l.now
		l.update(l.cfg.Settle / 2)
		for id, at := range since {
			own := slices.ContainsFunc(l.list(), func(in Incident) bool { return in.Root.Node == id })
			if late := l.now.Sub(at); late > maxHeld*l.cfg.Settle+l.cfg.Settle/2 && !own {
				t.Fatalf("%s has no incident after %s", id, late)
			}
		}
	}
	l.update(l.cfg.Settle)
	if got := len(l.list()); got != 32 {
		t.Errorf("%d incidents: want one for each of 32 dead nodes", got)
	}
}

// TestOnlyFaultsThatMayBeAGroupWait: a sensor, an old fault, and faults of different kinds and places open their own at once.
func TestOnlyFaultsThatMayBeAGroupWait(t *testing.T) {
	l, _ := rackOf64(t)
	l.kill("n0-0-1")
	l.update(time.Minute)
	l.set("n0-0-1", "temperature", fault.Sick, fault.CauseSensor, "own-word") // hidden by its node
	l.set("n0-1-0", "temperature", fault.Sick, fault.CauseSensor, "own-word")
	l.set("n0-1-1", "link/X+", fault.Failed, fault.CauseLink, "near-end")
	l.set("n0-2-1", "link/Z+", fault.Failed, fault.CauseLink, "near-end")
	l.kill("n4-4-2") // neither beside the dead one, nor in a plane or rack with it
	l.update(0)
	l.has("OPEN n0-0-1/node 22", "OPEN n0-1-0/temperature 0", "OPEN n0-1-1/link/X+ 0", "OPEN n0-2-1/link/Z+ 0", "OPEN n4-4-2/node 22")
}

// TestSickServiceNetworksWaitForTheirGroup: a failed switch makes the service networks of a rack SICK, one after the other, and
// then FAILED. The leader changes in between.
func TestSickServiceNetworksWaitForTheirGroup(t *testing.T) {
	l, rack := rackOf64(t)
	for i, n := range rack {
		l.set(string(n), "service-network", fault.Sick, fault.CauseServiceNetwork, "own-word")
		l.update(20 * time.Millisecond)
		l.one()
		if i == len(rack)/2 {
			l.lead()
			l.one()
		}
	}
	for _, n := range rack {
		l.set(string(n), "service-network", fault.Failed, fault.CauseServiceNetwork, "described")
	}
	l.groups = []GroupStatus{{ID: "label/rack=r1/SERVICE_NETWORK", Kind: GroupLabel, State: fault.Failed, Cause: fault.CauseServiceNetwork,
		Members: rack, Of: len(rack), Since: l.now, Rule: "label"}}
	l.update(time.Minute)
	if in := l.one(); in.Root.Group != "label/rack=r1/SERVICE_NETWORK" {
		t.Errorf("%+v: want the incident of the switch", in)
	}
}

// TestNothingElseWaitsBelowASickServiceNetwork: a dead half of the same rack has its incident at once.
func TestNothingElseWaitsBelowASickServiceNetwork(t *testing.T) {
	l, rack := rackOf64(t)
	l.set(string(rack[0]), "service-network", fault.Sick, fault.CauseServiceNetwork, "own-word")
	l.update(20 * time.Millisecond)
	l.set(string(rack[1]), "host", fault.Failed, fault.CauseHost, "watchdog")
	l.update(0)
	l.has("OPEN "+string(rack[0])+"/service-network 0", "OPEN "+string(rack[1])+"/host 0")
	l.set(string(rack[2]), "host", fault.Failed, fault.CauseHost, "watchdog") // it waits below the other half
	l.set(string(rack[3]), "service-network", fault.Sick, fault.CauseServiceNetwork, "own-word")
	l.update(0)
	if list := l.list(); len(list) != 2 || list[0].Count+list[1].Count != 2 {
		t.Errorf("%+v: want no further incident yet", list)
	}
}

// TestFirstOfSeveralThatRecoversLeavesTheOthersOpen: the root causes that waited below it open their incidents at once.
func TestFirstOfSeveralThatRecoversLeavesTheOthersOpen(t *testing.T) {
	l, rack := rackOf64(t)
	a, b := string(rack[0]), string(rack[1])
	l.kill(a)
	l.kill(b)
	l.update(0)
	l.one()
	l.heal(a)
	l.update(100 * time.Millisecond)
	l.has("RECOVERING "+a+"/node 22", "OPEN "+b+"/node 22")
}

// TestCablesOfAPlaneWaitForTheirBundle: the cables between two planes are cut one by one.
func TestCablesOfAPlaneWaitForTheirBundle(t *testing.T) {
	l := newLedger(t, cube)
	var plane []fault.NodeID
	for id, st := range l.nodes {
		if st.Coord.X == 1 {
			plane = append(plane, id)
		}
	}
	slices.Sort(plane)
	for _, n := range plane {
		l.set(string(n), "link/X+", fault.Failed, fault.CauseLink, "near-end")
		l.update(20 * time.Millisecond)
		l.set("n2"+string(n)[2:], "link/X-", fault.Failed, fault.CauseLink, "near-end")
		l.update(20 * time.Millisecond)
		l.one()
	}
	l.groups = []GroupStatus{{ID: "plane/X=1/LINK", Kind: GroupPlane, State: fault.Failed, Cause: fault.CauseLink, Members: plane, Of: 9,
		Since: l.now, Rule: "bundle"}}
	l.update(100 * time.Millisecond)
	if in := l.one(); in.Root.Group != "plane/X=1/LINK" || in.Count != 18 {
		t.Errorf("%+v", in)
	}
}

// TestHalfThatReturnsBeforeItsRackIsNoNewIncident: a node leaves the group fault while its DNP half is still FAILED. A
// half that stays dead becomes an incident later, and names the incident that it was a part of.
func TestHalfThatReturnsBeforeItsRackIsNoNewIncident(t *testing.T) {
	l, rack := rackOf64(t)
	for _, n := range rack {
		l.kill(string(n))
	}
	group := GroupStatus{ID: "label/rack=r1", Kind: GroupLabel, State: fault.Failed, Cause: fault.CauseNode, Members: rack,
		Of: len(rack), Since: l.now, Rule: "label"}
	l.groups = []GroupStatus{group}
	l.update(time.Second)
	in := l.one()
	for _, n := range rack[:2] {
		l.heal(string(n))
		l.set(string(n), "dnp", fault.Failed, fault.CauseDNP, "other-half")
		l.set(string(n), "node", fault.Sick, fault.CauseDNP, "other-half")
	}
	group.Members = rack[2:]
	l.groups = []GroupStatus{group}
	l.update(time.Second)
	if now := l.one(); now.ID != in.ID || now.Root != in.Root {
		t.Errorf("%+v: want the incident of %+v", now, in)
	}
	l.heal(string(rack[0]))
	l.update(l.cfg.Recover)
	own := string(rack[1]) + "/dnp"
	list := l.list()
	if len(list) != 2 || list[0].ID != in.ID || list[1].Root.String() != own || list[1].SplitFrom != in.ID {
		t.Errorf("%+v: want %s and one of %s", list, in.ID, own)
	}
}

// TestDeadDNPBehindABundleIsAnIncident: the map still counts the cable to it as one of the bundle.
func TestDeadDNPBehindABundleIsAnIncident(t *testing.T) {
	l := newLedger(t, cube)
	var plane []fault.NodeID
	for id, st := range l.nodes {
		if st.Coord.X == 1 {
			plane = append(plane, id)
		}
	}
	slices.Sort(plane)
	for _, n := range plane {
		l.set(string(n), "link/X+", fault.Failed, fault.CauseLink, "near-end")
	}
	l.groups = []GroupStatus{{ID: "plane/X=1/LINK", Kind: GroupPlane, State: fault.Failed, Cause: fault.CauseLink, Members: plane, Of: 9,
		Since: l.now, Rule: "bundle"}}
	l.update(time.Second)
	l.has("OPEN plane/X=1/LINK 9")
	l.set("n2-0-0", "dnp", fault.Failed, fault.CauseDNP, "other-half")
	l.set("n1-0-0", "link/X+", fault.Failed, fault.CauseDNP, "peer-dead")
	l.update(time.Second)
	l.has("OPEN n2-0-0/dnp 1", "OPEN plane/X=1/LINK 8")
}

// TestNodeThatDiesInAFailedServiceNetworkIsAnIncident: for a moment the map still counts the dead node among the members.
func TestNodeThatDiesInAFailedServiceNetworkIsAnIncident(t *testing.T) {
	l, rack := rackOf64(t)
	for _, n := range rack {
		l.set(string(n), "service-network", fault.Failed, fault.CauseServiceNetwork, "own-word")
	}
	l.groups = []GroupStatus{{ID: "label/rack=r1/SERVICE_NETWORK", Kind: GroupLabel, State: fault.Failed, Cause: fault.CauseServiceNetwork,
		Members: rack, Of: len(rack), Since: l.now, Rule: "label"}}
	l.update(time.Second)
	l.has("OPEN label/rack=r1/SERVICE_NETWORK 64")
	dead := string(rack[0])
	l.kill(dead)
	l.update(0)
	l.groups = []GroupStatus{l.groups[0]}
	l.groups[0].Members = rack[1:]
	l.update(maxHeld * l.cfg.Settle)
	l.has("OPEN label/rack=r1/SERVICE_NETWORK 63", "OPEN "+dead+"/node 22")
}

// TestOldFaultHostsNoNewOneAfterAChangeOfLeader: yesterday's dead node of a rack explains nothing that begins today.
func TestOldFaultHostsNoNewOneAfterAChangeOfLeader(t *testing.T) {
	l, rack := rackOf64(t)
	a, b := string(rack[0]), string(rack[1])
	l.kill(a)
	l.update(24 * time.Hour)
	l.lead()
	l.kill(b)
	l.update(0)
	l.has("OPEN "+a+"/node 22", "OPEN "+b+"/node 22")
}

// TestFlappingPartDoesNotProlongTheWait: a sensor of a member flaps for a minute, and so does a cable of the rack. A node that
// then dies has its own incident at once.
func TestFlappingPartDoesNotProlongTheWait(t *testing.T) {
	l, rack := rackOf64(t)
	last := string(rack[63])
	for _, n := range rack[:63] {
		l.kill(string(n))
	}
	l.groups = []GroupStatus{{ID: "label/rack=r1", Kind: GroupLabel, State: fault.Failed, Cause: fault.CauseNode, Members: rack[:63],
		Of: 64, Since: l.now, Rule: "label"}}
	l.update(0)
	l.one()
	dead := string(rack[0])
	for i := range 120 {
		s, c := fault.Failed, fault.CauseHost
		if i%2 == 1 {
			s, c = fault.Normal, fault.CauseNone
		}
		l.set(dead, "temperature", s, fault.CauseSensor, "own-word")
		l.set(last, "host", s, c, "near-end")
		l.update(l.cfg.Settle / 2)
	}
	l.kill(last)
	l.update(0)
	if !slices.ContainsFunc(l.list(), func(in Incident) bool { return in.Root.String() == last+"/node" }) {
		t.Errorf("%+v: want an incident of %s", l.list(), last)
	}
}

// TestCriticalFaultDoesNotWaitBelowAWarning: a node dies beside a dead half in the same rack.
func TestCriticalFaultDoesNotWaitBelowAWarning(t *testing.T) {
	l, rack := rackOf64(t)
	half, dead, third := string(rack[0]), string(rack[1]), string(rack[2])
	l.set(half, "host", fault.Failed, fault.CauseHost, "near-end")
	l.update(100 * time.Millisecond)
	l.kill(dead)
	l.update(0)
	list := l.has("OPEN "+half+"/host 0", "OPEN "+dead+"/node 22")
	if list[0].Severity != IncidentWarning || list[1].Severity != IncidentCritical {
		t.Errorf("%+v", list)
	}
	l.kill(third)
	l.update(0)
	l.has("OPEN "+half+"/host 0", "OPEN "+dead+"/node 45") // the third waits below the equally grave one
}

// TestFaultThatEndsWhileItWaitsHasItsIncident: a node of a rack dies beside another one, and returns before the wait is over.
func TestFaultThatEndsWhileItWaitsHasItsIncident(t *testing.T) {
	l, rack := rackOf64(t)
	a, b := string(rack[0]), string(rack[1])
	l.kill(a)
	l.update(300 * time.Millisecond)
	l.kill(b)
	died := l.now
	l.update(100 * time.Millisecond)
	l.one()
	l.heal(b)
	l.update(100 * time.Millisecond)
	in := l.has("OPEN "+a+"/node 22", "RECOVERING "+b+"/node 22")[1]
	if want := ClusterTag("test") + "-" + digest("test", b+"/node", died.Format(time.RFC3339Nano))[:8]; in.ID != want ||
		!in.Since.Equal(died) || !in.Until.Equal(l.now) || in.Severity != IncidentCritical || in.Version != 1 ||
		in.Summary != "node "+b+" is FAILED: why "+b || in.Verdict.Rule != "quorum" || in.SplitFrom != "" {
		t.Errorf("%+v: want ID %s", in, want)
	}
	l.update(time.Minute)
	l.has("OPEN " + a + "/node 22")
	if done := l.kept[in.ID]; done.State != IncidentClosed {
		t.Errorf("%+v: want it CLOSED", done)
	}
}

// TestNewLeaderKeepsStragglersOfARecoveringRack: halves and sensors that outlive their node's part in a group fault stay in its
// incident under the next leader as well, and name it when they leave.
func TestNewLeaderKeepsStragglersOfARecoveringRack(t *testing.T) {
	for _, part := range []struct {
		component, rule string
		state           fault.State
		cause           fault.Cause
	}{{"temperature", "own-word", fault.Sick, fault.CauseSensor}, {"dnp", "other-half", fault.Failed, fault.CauseDNP}} {
		l, rack := rackOf64(t)
		rack = rack[:4]
		for _, n := range rack {
			l.kill(string(n))
		}
		group := GroupStatus{ID: "label/rack=r1", Kind: GroupLabel, State: fault.Failed, Cause: fault.CauseNode, Members: rack,
			Of: len(rack), Since: l.now, Rule: "label"}
		l.groups = []GroupStatus{group}
		l.update(time.Minute)
		in := l.one()
		straggler := string(rack[0])
		l.heal(straggler)
		l.set(straggler, part.component, part.state, part.cause, part.rule)
		group.Members = rack[1:]
		l.groups = []GroupStatus{group}
		l.update(time.Second)
		l.one()
		// The stored list is cut: this one is among the first.
		kept := l.kept[in.ID]
		kept.Consequences = append([]Consequence{{fault.NodeID(straggler), mustComponent(t, part.component), part.state, part.cause, part.rule}},
			kept.Consequences[:MaxConsequences-1]...)
		l.kept[in.ID] = kept
		l.lead()
		l.one()
		l.update(l.cfg.Recover)
		list := l.list()
		if len(list) != 2 || list[1].Root.String() != straggler+"/"+part.component || list[1].SplitFrom != in.ID {
			t.Errorf("%s: %+v: want an incident that names %s", part.component, list, in.ID)
		}
	}
}

func mustComponent(t *testing.T, name string) fault.Component {
	t.Helper()
	c, err := fault.ParseComponent(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

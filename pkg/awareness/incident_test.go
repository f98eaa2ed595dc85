package awareness

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// ledger drives Incidents with a map that a test edits.
type ledger struct {
	*testing.T
	*Incidents
	cfg    IncidentConfig
	now    time.Time
	nodes  map[fault.NodeID]*NodeStatus
	groups []GroupStatus
	kept   map[string]Incident
}

var ledgerStart = time.Unix(1_700_000_000, 0).UTC()

func newLedger(t *testing.T, dims grid.Dims) *ledger {
	t.Helper()
	l := &ledger{T: t, now: ledgerStart, nodes: make(map[fault.NodeID]*NodeStatus), kept: make(map[string]Incident)}
	l.build(dims)
	l.lead()
	return l
}

// build makes the nodes of a torus, all NORMAL.
func (l *ledger) build(dims grid.Dims) {
	ids := make(map[grid.Coord]fault.NodeID)
	for rank := range dims.Nodes() {
		at := dims.At(rank)
		id := fault.NodeID(fmt.Sprintf("n%d-%d-%d", at.X, at.Y, at.Z))
		ids[at] = id
		st := &NodeStatus{ID: id, Coord: at, State: fault.Normal, Cause: fault.CauseNone, Since: ledgerStart}
		for c := fault.ComponentHost; c < fault.ComponentBus; c++ {
			st.Components = append(st.Components, ComponentStatus{Component: c, State: fault.Normal, Cause: fault.CauseNone, Since: ledgerStart})
		}
		l.nodes[id] = st
	}
	l.cfg = IncidentsOf("test", Config{Dims: dims, IDs: ids, Supervisor: "s1", DigestPeriod: 500 * time.Millisecond})
}

// lead restores the committed incidents, as a new leader does.
func (l *ledger) lead() {
	l.Helper()
	var saved []Incident
	for _, in := range l.kept {
		saved = append(saved, in)
	}
	var nodes []NodeStatus
	for _, st := range l.nodes {
		nodes = append(nodes, *st)
	}
	var err error
	if l.Incidents, err = NewIncidents(l.cfg, l.now, saved, nodes); err != nil {
		l.Fatal(err)
	}
	l.update(0)
}

// set changes one component of a node.
func (l *ledger) set(node, component string, s fault.State, cause fault.Cause, rule string) {
	l.Helper()
	st := l.nodes[fault.NodeID(node)]
	if st == nil {
		l.Fatalf("no node %s", node)
	}
	c, err := fault.ParseComponent(component)
	if err != nil {
		l.Fatal(err)
	}
	if c == fault.ComponentNode {
		st.State, st.Cause, st.Rule, st.Since, st.Reason = s, cause, rule, l.now, "why "+node
		return
	}
	p := &st.Components[c-fault.ComponentHost]
	p.State, p.Cause, p.Rule, p.Since, p.Reason = s, cause, rule, l.now, "why "+component
	p.Evidence = []EvidenceStatus{{Kind: fault.KindSelf, Observer: node + "/host", At: l.now, State: s}}
}

// kill makes the map show a dead node.
func (l *ledger) kill(node string) {
	st := l.nodes[fault.NodeID(node)]
	l.set(node, "node", fault.Failed, fault.CauseNode, "quorum")
	for _, c := range st.Components {
		if c.Component == fault.ComponentHost || c.Component == fault.ComponentDNP {
			l.set(node, c.Component.String(), fault.Failed, fault.CauseNode, "quorum")
		} else {
			l.set(node, c.Component.String(), fault.Unknown, fault.CauseNone, "node-dead")
		}
	}
	for _, d := range grid.Directions() {
		at, _ := l.cfg.Dims.Neighbour(st.Coord, d)
		if peer := l.cfg.IDs[at]; l.nodes[peer].State != fault.Failed {
			l.set(string(peer), "link/"+d.Opposite().String(), fault.Failed, fault.CauseNode, "peer-dead")
		}
	}
}

// heal makes a node and the links to it NORMAL.
func (l *ledger) heal(node string) {
	st := l.nodes[fault.NodeID(node)]
	l.set(node, "node", fault.Normal, fault.CauseNone, "speaks")
	for _, c := range st.Components {
		l.set(node, c.Component.String(), fault.Normal, fault.CauseNone, "own-word")
	}
	for _, d := range grid.Directions() {
		at, _ := l.cfg.Dims.Neighbour(st.Coord, d)
		if peer := l.nodes[l.cfg.IDs[at]]; peer.State != fault.Failed {
			l.set(string(peer.ID), "link/"+d.Opposite().String(), fault.Normal, fault.CauseNone, "far-end")
		}
	}
}

// update commits the map after some time, and at every moment before it that the incidents asked for.
func (l *ledger) update(after time.Duration) {
	l.Helper()
	for end := l.now.Add(after); ; {
		due := l.Wake()
		if due.IsZero() || due.After(end) || !due.After(l.now) {
			l.now = end
			break
		}
		l.now = due
		l.commit()
	}
	l.commit()
}

func (l *ledger) commit() {
	var u IncidentUpdate
	for _, st := range l.nodes {
		u.Nodes = append(u.Nodes, *st)
		for _, c := range st.Components {
			u.Changes = append(u.Changes, Change{Node: st.ID, Component: c.Component, From: fault.Normal, To: c.State})
		}
	}
	u.Groups = l.groups
	out := l.Update(l.now, u)
	for _, in := range out.Changed {
		if was, ok := l.kept[in.ID]; ok && in.Version != was.Version+1 {
			l.Errorf("incident %s goes from version %d to %d", in.ID, was.Version, in.Version)
		}
		l.kept[in.ID] = *in
	}
	for _, id := range out.Gone {
		delete(l.kept, id)
	}
}

// list returns the committed incidents that are not CLOSED, by root.
func (l *ledger) list() (list []Incident) {
	for _, in := range l.kept {
		if in.State != IncidentClosed {
			list = append(list, in)
		}
	}
	slices.SortFunc(list, func(a, b Incident) int { return strings.Compare(a.Root.String(), b.Root.String()) })
	return list
}

// has compares the committed incidents that are not CLOSED, as "STATE root folded".
func (l *ledger) has(want ...string) []Incident {
	l.Helper()
	var have []string
	list := l.list()
	for _, in := range list {
		have = append(have, fmt.Sprintf("%s %s %d", in.State, in.Root, in.Count))
	}
	if !slices.Equal(have, want) {
		l.Fatalf("after %s: incidents %q: want %q", l.now.Sub(ledgerStart), have, want)
	}
	return list
}

var cube = grid.Dims{X: 3, Y: 3, Z: 3}

func TestDeadNodeIsOneIncidentUntilItsLinksAreBack(t *testing.T) {
	l := newLedger(t, cube)
	l.has()
	l.kill("n1-1-1")
	l.update(time.Second)
	in := l.has("OPEN n1-1-1/node 22")[0] // two halves, 8 parts, 6 links, 6 links to it
	if in.Severity != IncidentCritical || in.Cause != fault.CauseNode || in.Verdict.Reason != "why n1-1-1" || in.Verdict.Supervisor != "s1" ||
		len(in.Verdict.Witnesses) == 0 || in.Summary != "node n1-1-1 is FAILED: why n1-1-1" {
		t.Errorf("%+v", in)
	}
	l.cfg.Supervisor = "s2"
	l.lead()
	if again := l.has("OPEN n1-1-1/node 22")[0]; again.ID != in.ID || again.Version != in.Version {
		t.Errorf("another leader has %+v: want %+v", again, in)
	}
	l.heal("n1-1-1")
	l.set("n1-1-1", "dnp", fault.Failed, fault.CauseDNP, "both-halves")
	l.set("n1-1-1", "node", fault.Sick, fault.CauseDNP, "both-halves")
	l.update(time.Second)
	if now := l.has("RECOVERING n1-1-1/node 1")[0]; now.ID != in.ID || !now.Until.IsZero() {
		t.Errorf("%+v", now)
	}
	l.heal("n1-1-1")
	l.update(time.Second)
	l.has("RECOVERING n1-1-1/node 1")
	l.update(2 * time.Second)
	l.has()
	if done := l.kept[in.ID]; done.State != IncidentClosed || done.Until.IsZero() || len(l.kept) != 1 {
		t.Errorf("%+v of %d", done, len(l.kept))
	}
}

func TestCableIsOneIncident(t *testing.T) {
	l := newLedger(t, cube)
	l.set("n1-0-0", "link/X-", fault.Failed, fault.CauseLink, "near-end")
	l.update(time.Second)
	in := l.has("OPEN n1-0-0/link/X- 0")[0]
	if in.Peer != "n0-0-0" || in.Severity != IncidentWarning || in.Fault != fault.Failed || in.Verdict.Reason != "why link/X-" {
		t.Errorf("%+v", in)
	}
	l.set("n0-0-0", "link/X+", fault.Failed, fault.CauseLink, "near-end")
	l.update(time.Second)
	if now := l.has("OPEN n0-0-0/link/X+ 1")[0]; now.ID != in.ID || now.Peer != "n1-0-0" { // the lower end, if both see it at once
		t.Errorf("%+v", now)
	}
}

func TestFaultThatBecomesUnknownStands(t *testing.T) {
	l := newLedger(t, cube)
	l.set("n0-0-0", "temperature", fault.Sick, fault.CauseSensor, "own-word")
	l.update(time.Second)
	in := l.has("OPEN n0-0-0/temperature 0")[0]
	l.set("n0-0-0", "temperature", fault.Unknown, fault.CauseNone, "unheard")
	l.update(time.Minute)
	l.lead()
	l.update(time.Minute)
	if now := l.has("OPEN n0-0-0/temperature 0")[0]; now.ID != in.ID {
		t.Errorf("%+v", now)
	}
	l.nodes["n0-0-0"].Rule = RuleRevoked
	l.update(0)
	l.update(time.Minute)
	l.has()
}

// TestFaultOfAReturnedHalfJoinsItsIncident: a restarted DNP half reports its core as SICK before its neighbours report that
// they hear the half again. The dead half's incident does not yet contain the core.
func TestFaultOfAReturnedHalfJoinsItsIncident(t *testing.T) {
	l := newLedger(t, grid.Dims{X: 4, Y: 4, Z: 4})
	neighbours := []string{"n2-1-1", "n0-1-1"}
	link := func(s fault.State, cause fault.Cause) {
		l.set(neighbours[0], "link/X-", s, cause, "peer-dead")
		l.set(neighbours[1], "link/X+", s, cause, "peer-dead")
	}
	l.set("n1-1-1", "dnp", fault.Failed, fault.CauseDNP, "watchdog")
	link(fault.Failed, fault.CauseDNP)
	l.update(0)
	id := l.has("OPEN n1-1-1/dnp 2")[0].ID

	l.set("n1-1-1", "dnp", fault.Normal, fault.CauseNone, "speaks")
	l.set("n1-1-1", "dnp-core", fault.Sick, fault.CauseDNP, "own-word")
	l.set("n1-1-1", "memory", fault.Sick, fault.CauseHost, "own-word") // a part of the host half: the DNP half's incident does not explain it
	l.update(20 * time.Millisecond)
	if list := l.has("OPEN n1-1-1/dnp 3", "OPEN n1-1-1/memory 0"); list[0].ID != id {
		t.Fatalf("incident %s: want %s", list[0].ID, id)
	}

	link(fault.Normal, fault.CauseNone)
	l.set("n1-1-1", "memory", fault.Normal, fault.CauseNone, "own-word")
	l.update(20 * time.Millisecond)
	l.has("RECOVERING n1-1-1/dnp 1", "RECOVERING n1-1-1/memory 0")
	l.set("n1-1-1", "dnp-core", fault.Normal, fault.CauseNone, "own-word")
	l.update(0)
	l.update(l.cfg.Quiet)
	l.has()
}

// TestReturnedHalfExplainsNoLaterFault: a neighbour that nobody hears never withdraws its report of a dead half. Only faults that
// begin soon after the half's return belong to its death, and no cable does.
func TestReturnedHalfExplainsNoLaterFault(t *testing.T) {
	l := newLedger(t, grid.Dims{X: 4, Y: 4, Z: 4})
	l.set("n1-1-1", "dnp", fault.Failed, fault.CauseDNP, "watchdog")
	l.set("n2-1-1", "link/X-", fault.Failed, fault.CauseDNP, "peer-dead")
	l.update(0)
	l.set("n1-1-1", "dnp", fault.Normal, fault.CauseNone, "speaks")
	l.update(time.Second)
	l.set("n1-1-1", "link/Y+", fault.Failed, fault.CauseLink, "near-end")
	l.update(0)
	l.has("OPEN n1-1-1/dnp 1", "OPEN n1-1-1/link/Y+ 0")
	l.update(l.cfg.Recover)
	l.lead()
	l.set("n1-1-1", "dnp-core", fault.Sick, fault.CauseDNP, "own-word")
	l.update(0)
	if list := l.has("OPEN n1-1-1/dnp 1", "OPEN n1-1-1/dnp-core 0", "OPEN n1-1-1/link/Y+ 0"); list[1].SplitFrom != "" {
		t.Errorf("%+v: want one that is split from no other", list[1])
	}
}

// TestSickHalfExplainsNoPartOfItsOwn: a half that is SICK, not FAILED, does not explain the faults of its parts.
func TestSickHalfExplainsNoPartOfItsOwn(t *testing.T) {
	l := newLedger(t, grid.Dims{X: 4, Y: 4, Z: 4})
	l.set("n1-1-1", "host", fault.Sick, fault.CauseHost, "late")
	l.update(time.Second)
	l.set("n1-1-1", "memory", fault.Failed, fault.CauseHost, "own-word")
	l.update(0)
	l.has("OPEN n1-1-1/host 0", "OPEN n1-1-1/memory 0")
}

func TestSickPartMergesIntoItsDeadNode(t *testing.T) {
	l := newLedger(t, cube)
	l.set("n0-0-0", "temperature", fault.Sick, fault.CauseSensor, "own-word")
	l.update(time.Second)
	in := l.has("OPEN n0-0-0/temperature 0")[0]
	l.kill("n0-0-0")
	l.update(time.Second)
	if now := l.has("OPEN n0-0-0/node 22")[0]; now.ID != in.ID || now.Severity != IncidentCritical {
		t.Errorf("%+v", now)
	}
}

func TestRackMergesAndSplitsByOldestID(t *testing.T) {
	l := newLedger(t, cube)
	rack := []fault.NodeID{"n0-0-0", "n1-1-1", "n2-2-2"}
	ids := make(map[fault.NodeID]string)
	for _, id := range rack {
		l.kill(string(id))
		l.update(100 * time.Millisecond)
		for _, in := range l.kept {
			if in.Root.Node == id {
				ids[id] = in.ID
			}
		}
	}
	l.has("OPEN n0-0-0/node 22", "OPEN n1-1-1/node 22", "OPEN n2-2-2/node 22")
	l.groups = []GroupStatus{{ID: "label/rack=r1", Kind: GroupLabel, State: fault.Failed, Cause: fault.CauseNode, Members: rack, Of: 3,
		Since: l.now, Rule: "label"}}
	l.update(time.Second)
	in := l.has("OPEN label/rack=r1 69")[0]
	if in.ID != ids["n0-0-0"] || len(in.Merged) != 2 || !in.Since.Equal(ledgerStart) || len(in.Consequences) != MaxConsequences {
		t.Errorf("%+v", in)
	}
	if was := l.kept[ids["n1-1-1"]]; was.State != IncidentClosed || was.MergedInto != in.ID {
		t.Errorf("%+v", was)
	}
	l.lead()
	l.has("OPEN label/rack=r1 69")

	l.heal("n0-0-0")
	l.groups = nil
	l.update(time.Second)
	l.has("RECOVERING label/rack=r1 46")
	l.update(10 * time.Second)
	for _, now := range l.has("OPEN n1-1-1/node 22", "OPEN n2-2-2/node 22") {
		switch now.Root.Node {
		case "n1-1-1": // what was merged into it goes on in it
			if now.ID != in.ID {
				t.Errorf("%+v", now)
			}
		default:
			if now.ID != ids["n2-2-2"] || now.MergedInto != "" || now.Reopened != 1 {
				t.Errorf("%+v", now)
			}
		}
	}
}

func TestBadPortsFoldTheirCables(t *testing.T) {
	l := newLedger(t, cube)
	for _, d := range []string{"X+", "Y+", "Z+"} {
		l.set("n1-1-1", "link/"+d, fault.Failed, fault.CauseLink, "near-end")
		l.update(50 * time.Millisecond)
	}
	l.has("OPEN n1-1-1/link/X+ 0", "OPEN n1-1-1/link/Y+ 0", "OPEN n1-1-1/link/Z+ 0")
	l.set("n1-1-1", "node", fault.Sick, fault.CauseLink, "near-end")
	l.update(50 * time.Millisecond)
	l.has("OPEN n1-1-1/node 3")
}

func TestPartitionIsOneIncident(t *testing.T) {
	l := newLedger(t, cube)
	l.groups = []GroupStatus{{ID: "partition/0,0,0", Kind: GroupPartition, State: fault.Unknown, Cause: fault.CauseNone,
		Members: []fault.NodeID{"n0-0-0", "n1-0-0"}, Of: 2, Since: l.now, Rule: "partition"}}
	l.update(time.Second)
	if in := l.has("OPEN partition/0,0,0 2")[0]; in.Fault != fault.Unknown || in.Severity != IncidentCritical {
		t.Errorf("%+v", in)
	}
	l.groups = nil
	l.update(0)
	l.update(3 * time.Second)
	l.has()
}

func TestClosedIncidentsAreBounded(t *testing.T) {
	l := newLedger(t, cube)
	l.cfg.KeepClosed = 3
	l.lead()
	for range 5 {
		l.set("n0-0-0", "memory", fault.Failed, fault.CauseMemory, "own-word")
		l.update(time.Second)
		l.set("n0-0-0", "memory", fault.Normal, fault.CauseNone, "own-word")
		l.update(0)
		l.update(time.Minute)
	}
	if len(l.kept) != 3 {
		t.Errorf("%d incidents are kept: want 3", len(l.kept))
	}
	l.update(keepFor)
	l.set("n0-0-0", "memory", fault.Failed, fault.CauseMemory, "own-word")
	l.update(time.Second)
	if len(l.kept) != 1 {
		t.Errorf("%d incidents are kept: want the open one", len(l.kept))
	}
}

// TestUpgradeOpensIncidentsForFaultsThatStand: a first leader of this version finds faults without incidents. Any leader
// derives the same IDs from them.
func TestUpgradeOpensIncidentsForFaultsThatStand(t *testing.T) {
	var ids []string
	for range 2 {
		l := newLedger(t, cube)
		l.kill("n1-1-1")
		l.update(time.Second)
		first := l.has("OPEN n1-1-1/node 22")[0]
		l.kept = make(map[string]Incident)
		l.now = l.now.Add(time.Hour)
		l.lead()
		again := l.has("OPEN n1-1-1/node 22")[0]
		if again.ID != first.ID || !again.Since.Equal(first.Since) || !ValidIncidentID(again.ID) ||
			!strings.HasPrefix(again.ID, ClusterTag("test")+"-") {
			t.Errorf("%+v: want the ID and since of %+v", again, first)
		}
		ids = append(ids, again.ID)
	}
	if ids[0] != ids[1] {
		t.Errorf("IDs %q differ", ids)
	}
}

// TestGroupThatReplacesAnotherKeepsTheIncident: a row is part of a plane once more of its nodes are dead. The same fault goes
// on, although the map names another group, and nodes that died in between have incidents of their own.
func TestGroupThatReplacesAnotherKeepsTheIncident(t *testing.T) {
	for _, between := range []bool{false, true} {
		l := newLedger(t, cube)
		row := []fault.NodeID{"n0-0-0", "n1-0-0", "n2-0-0"}
		for _, id := range row {
			l.kill(string(id))
		}
		group := func(id string, kind GroupKind, members []fault.NodeID, of int) GroupStatus {
			return GroupStatus{ID: id, Kind: kind, State: fault.Failed, Cause: fault.CauseNode, Members: members, Of: of, Since: l.now, Rule: "row"}
		}
		l.groups = []GroupStatus{group("row/Y=0,Z=0", GroupRow, row, 3)}
		l.update(time.Second)
		in := l.has("OPEN row/Y=0,Z=0 63")[0]

		plane := slices.Clone(row)
		for _, id := range []fault.NodeID{"n0-1-0", "n1-1-0", "n2-1-0", "n0-2-0", "n1-2-0", "n2-2-0"} {
			l.kill(string(id))
			plane = append(plane, id)
		}
		if between {
			l.update(0)
			l.has("OPEN row/Y=0,Z=0 171")
			l.update(l.cfg.Settle)
			l.has("OPEN n0-1-0/node 18", "OPEN n0-2-0/node 18", "OPEN n1-1-0/node 18", "OPEN n1-2-0/node 18", "OPEN n2-1-0/node 18",
				"OPEN n2-2-0/node 18", "OPEN row/Y=0,Z=0 57")
		}
		l.lead()
		l.groups = []GroupStatus{group("plane/Z=0", GroupPlane, plane, 9)}
		l.update(time.Second)
		now := l.has("OPEN plane/Z=0 171")[0]
		if now.ID != in.ID || now.Reopened != 0 || !now.Since.Equal(in.Since) || !now.Until.IsZero() {
			t.Errorf("after the row: %+v: want ID %s, OPEN all the time", now, in.ID)
		}
		for id, other := range l.kept {
			if id != in.ID && (other.State != IncidentClosed || other.MergedInto != in.ID) {
				t.Errorf("%+v: want it merged into %s", other, in.ID)
			}
		}
	}
}

// TestNewGroupBesideAnEndedOneIsAnotherIncident: a group fault that shares no member with one that has ended does not continue it.
func TestNewGroupBesideAnEndedOneIsAnotherIncident(t *testing.T) {
	l := newLedger(t, cube)
	rows := [][]fault.NodeID{{"n0-0-0", "n1-0-0", "n2-0-0"}, {"n0-1-0", "n1-1-0", "n2-1-0"}}
	dies := func(y int) {
		for _, id := range rows[y] {
			l.kill(string(id))
		}
		l.groups = []GroupStatus{{ID: fmt.Sprintf("row/Y=%d,Z=0", y), Kind: GroupRow, State: fault.Failed, Cause: fault.CauseNode,
			Members: rows[y], Of: 3, Since: l.now, Rule: "row"}}
	}
	dies(0)
	l.update(time.Second)
	in := l.has("OPEN row/Y=0,Z=0 63")[0]
	for _, id := range rows[0] {
		l.heal(string(id))
	}
	dies(1) // its links to the first row were consequences of that
	l.update(time.Second)
	if now := l.has("RECOVERING row/Y=0,Z=0 63", "OPEN row/Y=1,Z=0 63"); now[1].ID == in.ID {
		t.Errorf("%+v", now)
	}
}

// TestCableNamesAnEndThatIsNotNormal: only the receiver sees errors on a link. Policies and people look for that end.
func TestCableNamesAnEndThatIsNotNormal(t *testing.T) {
	l := newLedger(t, cube)
	l.set("n0-1-0", "link/Y-", fault.Sick, fault.CauseLink, "own-word")
	l.update(time.Second)
	in := l.has("OPEN n0-1-0/link/Y- 0")[0]
	if in.Peer != "n0-0-0" || in.Coord != (grid.Coord{Y: 1}) || in.Fault != fault.Sick || in.Verdict.Reason != "why link/Y-" ||
		in.Summary != "link/Y- of n0-1-0 to n0-0-0 is SICK: why link/Y-" {
		t.Errorf("%+v", in)
	}
	same := func(want string) Incident {
		t.Helper()
		now := l.has(want)[0]
		if now.ID != in.ID || !now.Since.Equal(in.Since) || now.Reopened != 0 {
			t.Errorf("%+v: want the incident of %+v", now, in)
		}
		return now
	}
	l.update(time.Hour)
	l.set("n0-0-0", "link/Y+", fault.Sick, fault.CauseLink, "own-word")
	l.update(time.Second)
	same("OPEN n0-1-0/link/Y- 1") // the name stays while it is true
	l.lead()
	same("OPEN n0-1-0/link/Y- 1")
	l.set("n0-1-0", "link/Y-", fault.Normal, fault.CauseNone, "own-word")
	l.update(time.Second)
	if now := same("OPEN n0-0-0/link/Y+ 0"); now.Peer != "n0-1-0" || now.Coord != (grid.Coord{}) {
		t.Errorf("%+v", now)
	}
	l.kill("n0-1-0")
	l.update(time.Second)
	same("OPEN n0-1-0/node 22")
}

// TestLostIncidentOfACableGetsItsID: whichever of its ends is bad by then.
func TestLostIncidentOfACableGetsItsID(t *testing.T) {
	l := newLedger(t, cube)
	l.set("n0-1-0", "link/Y-", fault.Sick, fault.CauseLink, "own-word")
	l.update(time.Second)
	in := l.has("OPEN n0-1-0/link/Y- 0")[0]
	l.set("n0-0-0", "link/Y+", fault.Sick, fault.CauseLink, "own-word")
	l.kept = make(map[string]Incident)
	l.lead()
	if again := l.has("OPEN n0-0-0/link/Y+ 1")[0]; again.ID != in.ID || !again.Since.Equal(in.Since) {
		t.Errorf("%+v: want the ID and since of %+v", again, in)
	}
}

// TestBadPortsBesideAGraverFaultStayOneIncident: a NIC that takes three cables may take the service network as well.
func TestBadPortsBesideAGraverFaultStayOneIncident(t *testing.T) {
	l := newLedger(t, cube)
	for _, d := range []string{"X+", "Y+", "Z+"} {
		l.set("n1-1-1", "link/"+d, fault.Failed, fault.CauseLink, "near-end")
	}
	l.set("n1-1-1", "node", fault.Sick, fault.CauseLink, "near-end")
	l.update(time.Second)
	in := l.has("OPEN n1-1-1/node 3")[0]
	l.set("n1-1-1", "service-network", fault.Failed, fault.CauseServiceNetwork, "own-word")
	l.set("n1-1-1", "node", fault.Sick, fault.CauseServiceNetwork, "own-word")
	for range 2 {
		l.update(time.Minute)
		if now := l.has("OPEN n1-1-1/node 3", "OPEN n1-1-1/service-network 0"); now[0].ID != in.ID || now[0].Cause != fault.CauseLink {
			t.Errorf("%+v: want the incident of %+v", now[0], in)
		}
		l.lead()
	}
	l.kept = make(map[string]Incident)
	l.lead()
	now := l.has("OPEN n1-1-1/node 3", "OPEN n1-1-1/service-network 0")[0]
	if now.Verdict.Reason != "why link/X+" || now.Cause != fault.CauseLink {
		t.Errorf("%+v", now)
	}
}

// TestOneCableBesideAGraverFaultIsNotBadPorts, nor are the cables of two neighbours with bad ports of their own.
func TestOneCableBesideAGraverFaultIsNotBadPorts(t *testing.T) {
	l := newLedger(t, cube)
	for _, n := range [][2]string{{"n0-0-0", "link/X+"}, {"n1-1-0", "link/Y-"}} { // both lead to n1-0-0
		l.set(n[0], n[1], fault.Failed, fault.CauseLink, "near-end")
		l.set(n[0], "link/Z+", fault.Failed, fault.CauseLink, "near-end")
		l.set(n[0], "node", fault.Sick, fault.CauseLink, "near-end")
	}
	l.set("n1-0-0", "link/X-", fault.Failed, fault.CauseLink, "near-end")
	l.set("n1-0-0", "link/Y+", fault.Failed, fault.CauseLink, "near-end")
	l.set("n1-0-0", "service-network", fault.Failed, fault.CauseServiceNetwork, "own-word")
	l.set("n1-0-0", "node", fault.Sick, fault.CauseServiceNetwork, "own-word")
	l.update(time.Second)
	l.has("OPEN n0-0-0/node 3", "OPEN n1-0-0/service-network 0", "OPEN n1-1-0/node 3")
	l = newLedger(t, cube)
	l.set("n1-1-1", "link/X+", fault.Failed, fault.CauseLink, "near-end")
	l.set("n1-1-1", "service-network", fault.Failed, fault.CauseServiceNetwork, "own-word")
	l.set("n1-1-1", "node", fault.Sick, fault.CauseServiceNetwork, "own-word")
	l.update(time.Second)
	l.has("OPEN n1-1-1/link/X+ 0", "OPEN n1-1-1/service-network 0")
}

// TestNewLeaderKnowsTheNodesOfALargeGroup: it restores 64 consequences only, and these are the nodes.
func TestNewLeaderKnowsTheNodesOfALargeGroup(t *testing.T) {
	l := newLedger(t, grid.Dims{X: 8, Y: 8, Z: 2})
	var members []fault.NodeID
	for id, st := range l.nodes {
		if st.Coord.Z == 0 && st.Coord.X < 6 {
			members = append(members, id)
		}
	}
	slices.Sort(members)
	for _, id := range members {
		l.kill(string(id))
	}
	l.groups = []GroupStatus{{ID: "label/rack=r1", Kind: GroupLabel, State: fault.Failed, Cause: fault.CauseNode, Members: members,
		Of: len(members), Since: l.now, Rule: "label"}}
	l.update(time.Second)
	in := l.list()[0]
	if in.Root.Group == "" || len(l.list()) != 1 {
		t.Fatalf("%+v", l.list())
	}
	l.groups = nil
	for _, id := range members[:40] {
		l.heal(string(id))
	}
	l.lead() // between the two halves of the recovery
	if now := l.list(); len(now) != 1 || now[0].ID != in.ID || now[0].State != IncidentRecovering {
		t.Errorf("%d incidents, the first %+v: want %s, RECOVERING", len(now), now[0], in.ID)
	}
}

// TestIDDoesNotDependOnTheLeadersClock: a new leader whose clock is behind derives the same ID from the committed time.
func TestIDDoesNotDependOnTheLeadersClock(t *testing.T) {
	l := newLedger(t, cube)
	l.update(time.Hour)
	l.kill("n1-1-1")
	l.update(time.Second)
	in := l.has("OPEN n1-1-1/node 22")[0]
	l.kept = make(map[string]Incident)
	l.now = l.now.Add(-time.Minute)
	l.lead()
	if again := l.has("OPEN n1-1-1/node 22")[0]; again.ID != in.ID || again.Since.After(l.now) {
		t.Errorf("%+v: want ID %s and a time before %s", again, in.ID, l.now)
	}
}

// TestSummaryNamesTheStateOfItsReason: the verdict of a link that has improved is still about its worst state.
func TestSummaryNamesTheStateOfItsReason(t *testing.T) {
	l := newLedger(t, cube)
	l.set("n0-0-0", "link/X+", fault.Failed, fault.CauseLink, "near-end")
	l.update(time.Second)
	in := l.has("OPEN n0-0-0/link/X+ 0")[0]
	l.set("n0-0-0", "link/X+", fault.Sick, fault.CauseLink, "own-word")
	l.set("n1-0-0", "link/X-", fault.Sick, fault.CauseLink, "own-word")
	l.update(time.Second)
	if now := l.has("OPEN n0-0-0/link/X+ 1")[0]; now.Summary != in.Summary || now.Fault != fault.Failed {
		t.Errorf("summary %q of a %s fault: want %q", now.Summary, now.Fault, in.Summary)
	}
}

// TestEscalationIsCounted: an incident escalates when its severity rises or its root cause grows, and not when it recovers,
// moves to an equal part, or gets another leader.
func TestEscalationIsCounted(t *testing.T) {
	l := newLedger(t, cube)
	count := func(what string, want int) {
		t.Helper()
		l.update(100 * time.Millisecond)
		list := l.list()
		if len(list) != 1 || list[0].Escalations != want || (want > 0) == list[0].Escalated.IsZero() {
			t.Fatalf("%s: %+v: want one incident with %d escalations", what, list, want)
		}
	}
	l.set("n1-1-1", "memory", fault.Sick, fault.CauseMemory, "own-word")
	count("a SICK memory", 0)
	l.set("n1-1-1", "memory", fault.Failed, fault.CauseMemory, "own-word")
	count("it fails", 0)
	l.set("n1-1-1", "host", fault.Failed, fault.CauseHost, "near-end")
	count("its half is dead", 1)
	l.lead()
	count("another leader", 1)
	l.kill("n1-1-1")
	count("its node is dead", 2)
	at := l.list()[0].Escalated
	l.lead()
	l.update(time.Second)
	if in := l.list()[0]; !in.Escalated.Equal(at) {
		t.Errorf("escalated %s: want %s", in.Escalated, at)
	}
	l.groups = []GroupStatus{{ID: "row/Y=1,Z=1", Kind: GroupRow, State: fault.Failed, Cause: fault.CauseNode,
		Members: []fault.NodeID{"n0-1-1", "n1-1-1", "n2-1-1"}, Of: 3, Since: l.now}}
	count("its row is dead", 3)
	l.groups = nil
	count("the row is no more", 3)
}

// TestSeverityRisesWithMerge: an incident that merges a graver one escalates.
func TestSeverityRisesWithMerge(t *testing.T) {
	l := newLedger(t, cube)
	l.set("n0-1-1", "link/X+", fault.Failed, fault.CauseLink, "near-end")
	l.update(time.Second)
	l.kill("n1-1-1")
	l.update(time.Second)
	in := l.list()
	if len(in) != 1 || in[0].Root.String() != "n1-1-1/node" || in[0].Severity != IncidentCritical || in[0].Escalations != 1 {
		t.Errorf("%+v: want the link's incident, now with the node as its root cause, escalated once", in)
	}
}

// TestManyIncidentsShareFoldings: while many incidents stand, several updates share one folding, and at Wake every
// incident agrees with its fault.
func TestManyIncidentsShareFoldings(t *testing.T) {
	l := newLedger(t, grid.Dims{X: 8, Y: 8, Z: 8})
	for rank := range manyStanding + 1 {
		l.set(string(l.cfg.IDs[l.cfg.Dims.At(rank)]), "memory", fault.Sick, fault.CauseMemory, "self")
	}
	l.update(0)
	if got := len(l.standing); got != manyStanding+1 {
		t.Fatalf("%d incidents stand, want %d at once", got, manyStanding+1)
	}
	pause := foldingPause(manyStanding+1, 0)
	for i, node := range []string{"n7-7-7", "n5-5-5"} {
		l.set(node, "host", fault.Failed, fault.CauseHost, "quorum")
		l.update(pause / 4)
		if got := len(l.standing); got != manyStanding+1 {
			t.Errorf("%d incidents stand after change %d, want %d: the folding is put off", got, i, manyStanding+1)
		}
		if want := ledgerStart.Add(pause); !l.Wake().Equal(want) {
			t.Errorf("Wake is %v after change %d, want %v", l.Wake(), i, want)
		}
	}
	l.update(pause / 2)
	if got := len(l.standing); got != manyStanding+3 {
		t.Errorf("%d incidents stand at Wake, want %d", got, manyStanding+3)
	}
	for rank := range l.cfg.Dims.Nodes() {
		l.heal(string(l.cfg.IDs[l.cfg.Dims.At(rank)]))
	}
	for range 4 {
		l.update(max(pause, l.Wake().Sub(l.now)))
	}
	l.has()
}

// TestManyFoldedPartsShareFoldings: the pause follows from the parts, also if they all lead to one incident.
func TestManyFoldedPartsShareFoldings(t *testing.T) {
	l := newLedger(t, grid.Dims{X: 8, Y: 8, Z: 8})
	var plane []fault.NodeID
	for rank := range l.cfg.Dims.Nodes() {
		if at := l.cfg.Dims.At(rank); at.Z < 3 {
			plane = append(plane, l.cfg.IDs[at])
			l.kill(string(l.cfg.IDs[at]))
		}
	}
	l.groups = []GroupStatus{{ID: "label/rack=r1", Kind: GroupLabel, State: fault.Failed, Cause: fault.CauseNode, Members: plane,
		Of: len(plane), Since: l.now, Rule: "label"}}
	l.update(0)
	l.one()
	if l.parts <= manyParts {
		t.Fatalf("%d parts were folded: want more than %d", l.parts, manyParts)
	}
	pause := foldingPause(1, l.parts)
	l.set("n7-7-6", "memory", fault.Failed, fault.CauseMemory, "own-word")
	l.update(pause / 2)
	l.one()
	if want := ledgerStart.Add(pause); !l.Wake().Equal(want) {
		t.Errorf("Wake is %v: want %v", l.Wake(), want)
	}
	l.update(pause / 2)
	if got := len(l.list()); got != 2 {
		t.Errorf("%d incidents after the pause of %s: want 2", got, pause)
	}
	for _, c := range []struct {
		standing, parts int
		want            time.Duration
	}{{manyStanding, manyParts, 0}, {200, 0, 20 * time.Millisecond}, {1, 24000, 240 * time.Millisecond}, {200, 3000, 50 * time.Millisecond}} {
		if got := foldingPause(c.standing, c.parts); got != c.want {
			t.Errorf("pause %s with %d incidents and %d parts: want %s", got, c.standing, c.parts, c.want)
		}
	}
}

// TestBlipsAreOneIncident: a node that falls silent for a second, ten times within minutes, is one incident that counts its returns. An
// acknowledgement therefore lasts.
func TestBlipsAreOneIncident(t *testing.T) {
	l := newLedger(t, cube)
	l.cfg.Quiet = time.Minute
	l.lead()
	for range 10 {
		l.kill("n1-1-1")
		l.update(time.Second)
		l.heal("n1-1-1")
		l.update(30 * time.Second)
	}
	in := l.has("RECOVERING n1-1-1/node 22")[0]
	if in.Reopened != 9 || in.Escalations != 0 {
		t.Errorf("%+v: want 9 returns and no escalation", in)
	}
	l.update(time.Minute)
	l.has()
	l.kill("n1-1-1")
	l.update(time.Second)
	if later := l.has("OPEN n1-1-1/node 22")[0]; later.ID == in.ID || later.Reopened != 0 {
		t.Errorf("%+v: want a new incident, because the node has been well for a minute", later)
	}
}

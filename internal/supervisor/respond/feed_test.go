package respond

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var day = time.Date(2027, 1, 15, 8, 0, 0, 0, time.UTC)

// said renders events as text.
func said(events []response.Event) string {
	var out []string
	for _, ev := range events {
		switch ev := ev.(type) {
		case response.FaultChanged:
			out = append(out, fmt.Sprintf("%s %s", ev.Target(), ev.State))
		case response.GroupChanged:
			out = append(out, fmt.Sprintf("%s %s %d", ev.ID, ev.State, len(ev.Members)))
		case response.Booted:
			out = append(out, fmt.Sprintf("%s epoch %d", ev.Node, ev.Epoch))
		case response.TopologyChanged:
			out = append(out, fmt.Sprintf("%d nodes", len(ev.Nodes)))
		default:
			out = append(out, fmt.Sprintf("%T", ev))
		}
	}
	return strings.Join(out, ", ")
}

// mapVersions builds versions of a map of two nodes, a and b.
type mapVersions struct {
	b        *view.Builder
	revision uint64
}

func newMaps() *mapVersions {
	names := view.NewNames(grid.Dims{X: 2, Y: 1, Z: 1}, map[grid.Coord]fault.NodeID{{}: "a", {X: 1}: "b"})
	return &mapVersions{b: view.NewBuilder(names, day)}
}

// set sets the state of a node and its memory. The other components get the node's state.
func (m *mapVersions) set(id fault.NodeID, epoch fault.Epoch, node, memory fault.State) view.Map {
	m.revision++
	at := grid.Coord{}
	if id == "b" {
		at.X = 1
	}
	st := awareness.NodeStatus{ID: id, Coord: at, State: node, Cause: fault.CauseNone, Since: day, HostEpoch: epoch}
	for c := fault.ComponentHost; c.Valid(); c++ {
		if _, link := c.LinkDirection(); !link {
			s := node
			if c == fault.ComponentMemory {
				s = memory
			}
			st.Components = append(st.Components, awareness.ComponentStatus{Component: c, State: s, Cause: fault.CauseNone, Since: day})
		}
	}
	m.b.Set(view.Entry{Status: st, Revision: m.revision})
	return m.b.Map(m.revision)
}

func TestFeedReportsChangesOnce(t *testing.T) {
	e, err := response.New(response.Default())
	must(t, err)
	f, m := newFeed(), newMaps()
	normal, failed, unknown := fault.Normal, fault.Failed, fault.Unknown
	first := m.b.Map(0)
	older := m.set("a", 1, normal, normal)
	for _, tc := range []struct {
		what    string
		m       view.Map
		changed []fault.NodeID
		want    string
	}{
		// For a node without evidence the feed reports only UNKNOWN.
		{"at first", first, nil, "2 nodes, a/node UNKNOWN, b/node UNKNOWN"},
		{"the same again", first, []fault.NodeID{"a", "b"}, ""},
		{"a is heard", older, []fault.NodeID{"a"}, "a epoch 1, a/node NORMAL"},
		{"memory fails", m.set("a", 1, normal, failed), []fault.NodeID{"a"}, "a/memory FAILED"},
		{"an older map", older, []fault.NodeID{"a"}, ""},
		// The feed still reports earlier faults: they have not ended.
		{"a is not heard", m.set("a", 1, unknown, unknown), []fault.NodeID{"a"}, "a/node UNKNOWN, a/memory UNKNOWN"},
		{"a boots", m.set("a", 2, normal, normal), []fault.NodeID{"a"}, "a epoch 2, a/node NORMAL, a/memory NORMAL"},
		{"a stranger", m.b.Map(m.revision), []fault.NodeID{"z"}, ""},
	} {
		if got := said(f.changes(mapped{m: tc.m, changed: tc.changed, all: tc.changed == nil}, e)); got != tc.want {
			t.Errorf("%s: %q: want %q", tc.what, got, tc.want)
		}
	}
	group := awareness.GroupStatus{ID: "row/Y=0", Kind: awareness.GroupRow, State: failed, Cause: fault.CauseNode,
		Members: []fault.NodeID{"a", "b"}, Of: 2, Since: day}
	m.b.SetGroup(group)
	m.revision++
	seen := f.changes(mapped{m: m.b.Map(m.revision), changed: []fault.NodeID{}}, e)
	if got := said(seen); got != "row/Y=0 FAILED 2" || seen[0].(response.GroupChanged).Stood {
		t.Errorf("a group: %q", got)
	}
	other := newFeed() // it begins after the group fault
	for _, ev := range other.changes(mapped{m: m.b.Map(m.revision), all: true}, e) {
		if g, ok := ev.(response.GroupChanged); ok && !g.Stood {
			t.Errorf("%s stood before this feed began", g.ID)
		}
	}
	m.b.DropGroup(group.ID)
	m.revision++
	if got := said(f.changes(mapped{m: m.b.Map(m.revision), changed: []fault.NodeID{}}, e)); got != "row/Y=0 NORMAL 2" {
		t.Errorf("its end: %q", got)
	}
}

// A new leader begins with the newest map and always receives the faults of open responses.
func TestNewLeaderGetsFaultsOfOpenResponses(t *testing.T) {
	e, err := response.New(response.Default())
	must(t, err)
	f, m := newFeed(), newMaps()
	older := m.set("a", 1, fault.Unknown, fault.Unknown)
	open := map[response.Target]bool{{Node: "a", Component: fault.ComponentMemory}: true}
	led := f.reset(older, open)
	if len(led.Faults) != 3 || led.Faults[1].Component != fault.ComponentMemory || len(led.Epochs) != 1 {
		t.Errorf("%+v", led)
	}
	newer := m.set("b", 3, fault.Normal, fault.Failed)
	f.changes(mapped{m: newer, changed: []fault.NodeID{"b"}}, e)
	led = f.reset(older, nil)
	if f.newest.Revision != newer.Revision || len(led.Epochs) != 2 {
		t.Errorf("%d: %+v", f.newest.Revision, led)
	}
	if got := f.changes(mapped{m: newer, all: true}, e); got != nil {
		t.Errorf("told twice: %q", said(got))
	}
}

// The feed reports at once that a node is FAILED by a single witness, and the end of that mark: a reset counts as
// successful once several witnesses see the node go down.
func TestFeedReportsSingleWitness(t *testing.T) {
	e, err := response.New(response.Default())
	must(t, err)
	st := awareness.NodeStatus{ID: "a", State: fault.Failed, Cause: fault.CauseNode, Since: day, SingleWitness: true}
	marks := func(evs []response.Event) (out []bool) {
		for _, ev := range evs {
			if c, ok := ev.(response.FaultChanged); ok && c.Component == fault.ComponentNode {
				out = append(out, c.Evidence.SingleWitness)
			}
		}
		return out
	}
	told := KnownNodes{}
	if got := marks(told.Changes(view.Entry{Status: st, Revision: 1}, e)); !slices.Equal(got, []bool{true}) {
		t.Errorf("a single witness: told %t", got)
	}
	var led response.Led
	KnownNodes{}.Lead(&led, view.Entry{Status: st}, 1, told, nil)
	if len(led.Faults) != 1 || !led.Faults[0].Evidence.SingleWitness {
		t.Errorf("who begins to lead is told %+v", led.Faults)
	}
	e.Step(day, led)
	if got := marks(told.Changes(view.Entry{Status: st, Revision: 2}, e)); got != nil {
		t.Errorf("nothing new: told %t", got)
	}
	st.SingleWitness = false
	if got := marks(told.Changes(view.Entry{Status: st, Revision: 3}, e)); !slices.Equal(got, []bool{false}) {
		t.Errorf("a quorum: told %t", got)
	}
}

// A map that waits in the queue when a term begins may be older than the term's first map. The feed ignores it,
// including its topology.
func TestFeedOlderTopology(t *testing.T) {
	e, err := response.New(response.Default())
	must(t, err)
	before := view.NewBuilder(view.NewNames(grid.Dims{X: 1, Y: 1, Z: 1}, map[grid.Coord]fault.NodeID{{}: "a"}), day).Map(1)
	f, m := newFeed(), newMaps()
	m.revision = 5
	f.changes(mapped{m: before, all: true}, e)
	f.reset(m.set("b", 1, fault.Normal, fault.Normal), nil)
	for _, in := range []mapped{{m: before, all: true}, {m: before, changed: []fault.NodeID{"a"}}} {
		if got := said(f.changes(in, e)); got != "" {
			t.Errorf("an older map says %q", got)
		}
	}
	if got := said(f.changes(mapped{m: m.set("b", 1, fault.Failed, fault.Failed), changed: []fault.NodeID{"b"}}, e)); !strings.HasPrefix(got,
		"b/node FAILED") {
		t.Errorf("b fails: %q", got)
	}
}

func TestQueueMergesMaps(t *testing.T) {
	q, m := queue{signal: make(chan struct{}, 1)}, newMaps()
	for i := range maxMaps + 2 {
		id := fault.NodeID("a")
		if i == maxMaps {
			id = "b"
		}
		q.putMap(m.set(id, 1, fault.Normal, fault.Normal), []fault.NodeID{id})
	}
	_, got := q.take()
	if last := got[len(got)-1]; len(got) != maxMaps || last.m.Revision != maxMaps+2 || !last.all && len(last.changed) < 2 {
		t.Errorf("%d versions, the last of revision %d: %+v", len(got), last.m.Revision, last.changed)
	}
}

// A fault carries the evidence of its record. A record without evidence, as earlier versions wrote it, leaves gathered
// evidence in place, and never replaces newer evidence.
func TestFaultCarriesEvidenceOfItsRecord(t *testing.T) {
	e, err := response.New(response.Default())
	must(t, err)
	record := func(revision uint64, state fault.State, since time.Time, list ...view.FaultEvidence) view.Entry {
		return view.Entry{Revision: revision, Faults: list, Status: awareness.NodeStatus{ID: "a", State: fault.Normal, Cause: fault.CauseNone,
			Components: []awareness.ComponentStatus{{Component: fault.ComponentMemory, State: state, Cause: fault.CauseMemory, Since: since}}}}
	}
	evidence := func(state fault.State, at time.Time) view.FaultEvidence {
		return view.FaultEvidence{Component: fault.ComponentMemory, State: state,
			Evidence: response.Evidence{At: at, Kind: fault.KindSelf, Witnesses: []string{"a/host"}, Own: true}}
	}
	told, target := KnownNodes{}, response.Target{Node: "a", Component: fault.ComponentMemory}
	for _, tc := range []struct {
		name   string
		in     view.Entry
		seen   time.Time // when evidence is gathered afterwards; zero: not
		wanted time.Time
	}{
		{"committed", record(1, fault.Sick, day, evidence(fault.Sick, day)), day.Add(time.Minute), day},
		{"gathered since", record(2, fault.Sick, day.Add(1), evidence(fault.Sick, day.Add(time.Second))), time.Time{}, day.Add(time.Minute)},
		{"no record of it", record(3, fault.Sick, day.Add(2)), time.Time{}, day.Add(time.Minute)},
		{"for another state", record(4, fault.Failed, day.Add(3), evidence(fault.Sick, day.Add(time.Hour))), time.Time{}, time.Time{}},
		{"newer", record(5, fault.Failed, day.Add(4), evidence(fault.Failed, day.Add(2*time.Minute))), time.Time{}, day.Add(2 * time.Minute)},
	} {
		changes := told.Changes(tc.in, e)
		if len(changes) != 1 {
			t.Fatalf("%s: %q: want one change", tc.name, said(changes))
		}
		got := changes[0].(response.FaultChanged)
		if !got.Evidence.At.Equal(tc.wanted) || got.Evidence.Own != !tc.wanted.IsZero() {
			t.Errorf("%s: evidence %+v: want that of %s", tc.name, got.Evidence, tc.wanted)
		}
		e.Step(day.Add(time.Hour), got)
		if !tc.seen.IsZero() {
			e.Step(day.Add(time.Hour), response.Seen{Target: target, State: fault.Sick, Evidence: evidence(fault.Sick, tc.seen).Evidence})
		}
	}
}

// The evidence for a group fault is as new as the newest record of its members.
func TestGroupCarriesEvidenceOfItsMembers(t *testing.T) {
	b := view.NewBuilder(view.NewNames(grid.Dims{X: 2, Y: 1, Z: 1}, map[grid.Coord]fault.NodeID{{}: "a", {X: 1}: "b"}), day)
	for i, id := range []fault.NodeID{"a", "b"} {
		at := day.Add(time.Duration(i) * time.Second)
		b.Set(view.Entry{Revision: 1, Status: awareness.NodeStatus{ID: id, Coord: grid.Coord{X: i}, State: fault.Failed, Cause: fault.CauseNode},
			Faults: []view.FaultEvidence{{Component: fault.ComponentNode, State: fault.Failed, Evidence: response.Evidence{At: at}}}})
	}
	b.SetGroup(awareness.GroupStatus{ID: "row/Y=0,Z=0", State: fault.Failed, Members: []fault.NodeID{"a", "b", "gone"}, Of: 2})
	f := newFeed()
	changes := f.groupChanges(b.Map(1), true)
	if len(changes) != 1 {
		t.Fatalf("%q: want one change", said(changes))
	}
	if g := changes[0].(response.GroupChanged); !g.At.Equal(day.Add(time.Second)) {
		t.Errorf("evidence of %s: want %s", g.At, day.Add(time.Second))
	}
}

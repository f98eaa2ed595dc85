package responder

import (
	"fmt"
	"reflect"
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

// maps builds versions of a map of two nodes, a and b.
type maps struct {
	b        *view.Builder
	revision uint64
}

func newMaps() *maps {
	names := view.NewNames(grid.Dims{X: 2, Y: 1, Z: 1}, map[grid.Coord]fault.NodeID{{}: "a", {X: 1}: "b"})
	return &maps{b: view.NewBuilder(names, day)}
}

// set sets the state of a node and its memory. The other components get the node's state.
func (m *maps) set(id fault.NodeID, epoch fault.Epoch, node, memory fault.State) view.Map {
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

func TestFeed(t *testing.T) {
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
	group := awareness.GroupStatus{ID: "row/Y=0", Kind: awareness.GroupRow, State: failed, Cause: fault.CauseNode, Members: []fault.NodeID{"a", "b"}, Of: 2, Since: day}
	m.b.SetGroup(group)
	m.revision++
	if got := said(f.changes(mapped{m: m.b.Map(m.revision), changed: []fault.NodeID{}}, e)); got != "row/Y=0 FAILED 2" {
		t.Errorf("a group: %q", got)
	}
	m.b.DropGroup(group.ID)
	m.revision++
	if got := said(f.changes(mapped{m: m.b.Map(m.revision), changed: []fault.NodeID{}}, e)); got != "row/Y=0 NORMAL 2" {
		t.Errorf("its end: %q", got)
	}
}

// A new leader begins with the newest map and always receives the faults of open responses.
func TestFeedReset(t *testing.T) {
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
func TestToldOfSingleWitness(t *testing.T) {
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
	told := Told{}
	if got := marks(told.Changes(st, 1, e)); !slices.Equal(got, []bool{true}) {
		t.Errorf("a single witness: told %t", got)
	}
	var led response.Led
	Told{}.Lead(&led, st, 1, told, nil)
	if len(led.Faults) != 1 || !led.Faults[0].Evidence.SingleWitness {
		t.Errorf("who begins to lead is told %+v", led.Faults)
	}
	e.Step(day, led)
	if got := marks(told.Changes(st, 2, e)); got != nil {
		t.Errorf("nothing new: told %t", got)
	}
	st.SingleWitness = false
	if got := marks(told.Changes(st, 3, e)); !slices.Equal(got, []bool{false}) {
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
	if got := said(f.changes(mapped{m: m.set("b", 1, fault.Failed, fault.Failed), changed: []fault.NodeID{"b"}}, e)); !strings.HasPrefix(got, "b/node FAILED") {
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

func TestGather(t *testing.T) {
	now := day.Add(time.Hour)
	life := func(id fault.NodeID) time.Time {
		return map[fault.NodeID]time.Time{"a": day, "n1": now.Add(-2 * time.Second), "n2": now.Add(-time.Second)}[id]
	}
	ev := func(k fault.Kind, by string, s fault.State) awareness.EvidenceStatus {
		return awareness.EvidenceStatus{Kind: k, Observer: by, At: day, State: s}
	}
	comp := func(c fault.Component, s fault.State, cause fault.Cause, list ...awareness.EvidenceStatus) awareness.ComponentStatus {
		return awareness.ComponentStatus{Component: c, State: s, Cause: cause, Evidence: list}
	}
	silent := fault.KindSilence
	for name, tc := range map[string]struct {
		st   awareness.NodeStatus
		c    fault.Component
		want response.Evidence
	}{
		"what the node has measured is as new as its last word": {
			awareness.NodeStatus{ID: "a", State: fault.Sick, Components: []awareness.ComponentStatus{
				comp(fault.ComponentMemory, fault.Sick, fault.CauseMemory, ev(fault.KindSelf, "a/host", fault.Sick), ev(fault.KindSelf, "a/dnp", fault.Normal)),
			}},
			fault.ComponentMemory, response.Evidence{At: day, Kind: fault.KindSelf, Own: true, Witnesses: []string{"a/host"}},
		},
		"a dead node: its neighbours, of whom the newest counts, each half; not the count of their votes": {
			awareness.NodeStatus{ID: "a", State: fault.Failed, Cause: fault.CauseNode, Components: []awareness.ComponentStatus{
				comp(fault.ComponentHost, fault.Failed, fault.CauseNode, ev(fault.KindVotes, "supervisor/s1", fault.Failed),
					ev(silent, "n1/dnp", fault.Failed), ev(silent, "n2/dnp", fault.Failed), ev(silent, "n2/dnp", fault.Failed), ev(fault.KindSelf, "a/host", fault.Normal)),
				comp(fault.ComponentMemory, fault.Failed, fault.CauseMemory, ev(fault.KindSelf, "a/host", fault.Failed)),
			}},
			fault.ComponentNode, response.Evidence{At: now, Kind: fault.KindVotes, Witnesses: []string{"n1/dnp", "n2/dnp"}},
		},
		"the supervisors' own challenge is a witness, and misses an answer now": {
			awareness.NodeStatus{ID: "a", State: fault.Sick, SingleWitness: true, Components: []awareness.ComponentStatus{
				comp(fault.ComponentHost, fault.Failed, fault.CauseHost, ev(fault.KindChallenge, "supervisor/s1", fault.Failed), ev(silent, "n1/dnp", fault.Failed)),
			}},
			fault.ComponentHost, response.Evidence{At: now, Kind: fault.KindChallenge, Witnesses: []string{"supervisor/s1", "n1/dnp"}, SingleWitness: true},
		},
		"UNKNOWN": {
			awareness.NodeStatus{ID: "a", State: fault.Unknown, Components: []awareness.ComponentStatus{
				comp(fault.ComponentHost, fault.Unknown, fault.CauseNone, ev(fault.KindDigest, "supervisor/s1", fault.Unknown), ev(fault.KindSelf, "a/host", fault.Normal)),
			}},
			fault.ComponentNode, response.Evidence{At: now, Kind: fault.KindDigest, Witnesses: []string{"supervisor/s1"}},
		},
		"nothing": {awareness.NodeStatus{ID: "a", State: fault.Failed}, fault.ComponentMemory, response.Evidence{}},
	} {
		if got := Gather(tc.st, tc.c, life, now); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v: want %+v", name, got, tc.want)
		}
	}
}

// A neighbour's statement about its own end of a link is evidence on the link. It is never the accused's own
// statement, whatever its kind.
func TestNeighbourSelfStatementIsNotOwnWord(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	half := [2]time.Time{now.Add(-time.Minute), now.Add(-time.Second)}
	link := fault.Link(grid.XPlus)
	status := func(c fault.Component, list ...awareness.EvidenceStatus) awareness.NodeStatus {
		return awareness.NodeStatus{
			ID: "a", State: fault.Sick, Cause: c.Cause(), Life: half[1], HalfLife: half,
			Components: []awareness.ComponentStatus{{Component: c, State: fault.Failed, Cause: c.Cause(), Evidence: list}},
		}
	}
	says := func(k fault.Kind, observer string) awareness.EvidenceStatus {
		return awareness.EvidenceStatus{Kind: k, Observer: observer, State: fault.Failed, At: now.Add(-time.Hour)}
	}
	for name, tc := range map[string]struct {
		st   awareness.NodeStatus
		own  bool
		port bool
		life time.Time
	}{
		"SELF of the far end":                          {status(link, says(fault.KindSelf, "b/host")), false, false, half[1]},
		"ERROR_RATIO of the far end, the own watchdog": {status(link, says(fault.KindErrorRatio, "b/host"), says(fault.KindWatchdog, "a/dnp")), false, false, half[1]},
		"silence at the own port":                      {status(link, says(fault.KindSilence, "a/host"), says(fault.KindSelf, "b/host")), false, true, half[1]},
		"the own host's memory":                        {status(fault.ComponentMemory, says(fault.KindSelf, "a/host")), true, false, half[1]},
		"the watchdog of the other half":               {status(fault.ComponentHost, says(fault.KindWatchdog, "a/dnp")), false, false, half[0]},
		"silence towards a host":                       {status(fault.ComponentHost, says(fault.KindSilence, "a/dnp")), false, false, half[0]},
		"a dead DNP":                                   {status(fault.ComponentDNP, says(fault.KindWatchdog, "a/host")), false, false, half[1]},
	} {
		for _, c := range []fault.Component{tc.st.Components[0].Component, fault.ComponentNode} {
			ev := Gather(tc.st, c, func(fault.NodeID) time.Time { return now }, now)
			if ev.Own != tc.own || ev.Port != tc.port || !ev.Life.Equal(tc.life) {
				t.Errorf("%s, as evidence on %s: own %t, port %t, life %s: want %t, %t, %s", name, c, ev.Own, ev.Port, ev.Life, tc.own, tc.port, tc.life)
			}
		}
	}
}

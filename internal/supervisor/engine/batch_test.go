package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestWaitingChangesAreBounded: while the store blocks, the engine keeps the newest state of each component and the
// number of its changes.
func TestWaitingChangesAreBounded(t *testing.T) {
	h := start(t, memstore.New(10_000), func(c *Config) { c.BatchOps = 1 })
	h.report(1, true, fault.ComponentPower, fault.Normal)
	awaitEvents(t, h, 1)
	unblock := h.store.Block()
	defer unblock()
	const n = 2000
	states := []fault.State{fault.Sick, fault.Normal}
	for i := range n { // the last is NORMAL
		for !h.reportDigest(fault.Seq(i+2), fault.ComponentMemory, states[i%2]) {
			h.node(t, "n1-0-0") // lets the engine run
		}
	}
	h.taken(t)
	unblock()
	if _, err := h.Write(t.Context(), store.Write{}); err != nil { // waiting batches are committed first
		t.Fatal(err)
	}
	events, _, err := h.store.Events(t.Context(), 0, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(events) > 50*maxSealed {
		t.Errorf("%d events of %d changes", len(events), n)
	}
	last, told := lofamov1.State_STATE_UNSPECIFIED, false
	for _, ev := range events {
		if ev.GetComponent() == "memory" {
			last, told = ev.GetTo(), told || strings.Contains(ev.GetReason(), "changes before it were not committed")
		}
	}
	if last != lofamov1.State_NORMAL || !told {
		t.Errorf("the last event is %s; merged changes are told of: %t", last, told)
	}
	if term := h.term.Load(); len(term.touched) != 0 {
		t.Errorf("%d nodes are taken for not committed", len(term.touched))
	}
}

// TestChangeThatWasTakenBackIsNoEvent merges changes of a component, and of a half's starvation, with later ones.
func TestChangeThatWasTakenBackIsNoEvent(t *testing.T) {
	const normal, sick, failed = fault.Normal, fault.Sick, fault.Failed
	type seen struct {
		state fault.State
		awareness.Aspect
	}
	of := func(st fault.State, c fault.Cause) seen { return seen{st, awareness.Aspect{Cause: c}} }
	for _, tc := range []struct {
		name  string
		seen  []seen // the first is committed
		event bool
	}{
		{"to NORMAL", []seen{of(normal, 0), of(sick, fault.CauseHost), of(normal, 0)}, false},
		{"to SICK", []seen{of(sick, fault.CauseHost), of(failed, fault.CauseNode), of(sick, fault.CauseHost)}, false},
		{"twice", []seen{of(sick, fault.CauseHost), of(failed, fault.CauseNode), of(sick, fault.CauseDNP), of(sick, fault.CauseHost)}, false},
		{"to another state", []seen{of(normal, 0), of(failed, fault.CauseHost), of(sick, fault.CauseHost)}, true},
		{"to another cause", []seen{of(sick, fault.CauseHost), of(normal, 0), of(sick, fault.CauseDNP)}, true},
		{"to one witness", []seen{of(failed, fault.CauseNode), of(normal, 0), {failed, awareness.Aspect{Cause: fault.CauseNode,
			SingleWitness: true}}}, true},
		{"to unreachable", []seen{of(fault.Unknown, 0), of(normal, 0), {fault.Unknown, awareness.Aspect{Flag: "unreachable"}}}, true},
	} {
		var changes []timedChange
		for i, now := range tc.seen[1:] {
			changes = append(changes, timedChange{Change: awareness.Change{Node: "n0-0-0", Component: fault.ComponentNode, Latency: -1,
				From: tc.seen[i].state, To: now.state, Cause: now.Cause, SingleWitness: now.SingleWitness, Flag: now.Flag, Was: tc.seen[i].Aspect}})
		}
		if got := merged(t, changes); len(got) > 1 || len(got) == 1 != tc.event {
			t.Errorf("%s: %v: want an event: %t", tc.name, got, tc.event)
		}
	}
	for values, want := range map[string]string{"begin": "begin", "end": "end", "begin end": "", "end begin": "", "begin end begin": "begin",
		"end begin end": "end", "begin end begin end": ""} {
		var changes []timedChange
		for v := range strings.FieldsSeq(values) {
			s := &starvation{node: "n0-0-0", half: fault.HalfHost, published: v == "end"}
			if v == "begin" {
				s.time = &lofamov1.ProcessorTime{Starved: true}
			}
			changes = append(changes, timedChange{starved: s})
		}
		got := merged(t, changes)
		if len(got) > 1 || len(got) == 1 != (want != "") || len(got) == 1 && got[0].GetEnded() != (want == "end") {
			t.Errorf("starvation %s: %v: want %q", values, got, want)
		}
	}
}

// merged merges batches of one change and returns the events.
func merged(t *testing.T, changes []timedChange) []*lofamov1.Event {
	t.Helper()
	b := newBatch()
	for _, c := range changes {
		later := newBatch()
		later.changes = []timedChange{c}
		b.merge(later)
	}
	out, err := b.render(time.Now(), view.NewNames(grid.Dims{X: 1, Y: 1, Z: 1}, map[grid.Coord]fault.NodeID{{}: "n0-0-0"}))
	if err != nil {
		t.Fatal(err)
	}
	return out.Events
}

// reportDigest submits a digest. It returns false if there was no room.
func (h *harness) reportDigest(seq fault.Seq, c fault.Component, st fault.State) bool {
	id := fault.ReportID{Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}, Epoch: 2, Seq: seq}
	return h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathDirect,
		List: []fault.Report{{ID: id, Digest: true, Observations: []fault.Observation{
			{Node: "n1-0-0", Component: c, State: st, Kind: fault.KindSelf},
		}}}}})
}

// TestGroupsAndWarningsAreRestored: a new leader restores the committed group faults and warnings, except those of nodes that the
// torus no longer has.
func TestGroupsAndWarningsAreRestored(t *testing.T) {
	st := memstore.New(100)
	put := func(key string, m proto.Message) store.KV {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return store.KV{Key: key, Value: b}
	}
	group := func(id string, members ...string) store.KV {
		return put(store.GroupKey(id), &lofamov1.Group{
			Id: id, Kind: lofamov1.GroupKind_ROW, State: lofamov1.State_FAILED, Cause: lofamov1.Cause_NODE, Members: members, Of: 2,
		})
	}
	warning := func(node fault.NodeID) store.KV {
		return put(store.WarningKey(node, fault.ComponentTemperature, fault.QuantityTemperature),
			&lofamov1.Warning{Component: "temperature", Quantity: "temperature", Value: 60, Threshold: 80})
	}
	h := start(t, st, nil)
	if _, err := h.Write(t.Context(), store.Write{Puts: []store.KV{
		group("row/Y=0,Z=0", "n0-0-0", "n1-0-0", "gone"), group("row/Y=9,Z=0", "gone"), warning("n1-0-0"), warning("gone"),
	}}); err != nil {
		t.Fatal(err)
	}
	next := start(t, st, nil)
	m, err := next.Map(t.Context())
	if err != nil || len(m.Groups) != 1 || len(m.Groups[0].Members) != 2 || len(m.Warnings) != 1 || m.Warnings[0].Node != "n1-0-0" {
		t.Fatalf("groups %+v, warnings %+v, %v", m.Groups, m.Warnings, err)
	}
	if e, _ := m.Find("n1-0-0"); len(e.Status.Groups) != 1 {
		t.Errorf("n1-0-0 is a member of %v", e.Status.Groups)
	}
}

// TestLaunchedBatchIsNotRetained: the queue of waiting batches holds no batch that left it. A batch has the full state of
// thousands of nodes.
func TestLaunchedBatchIsNotRetained(t *testing.T) {
	batches := []*batch{newBatch(), newBatch(), newBatch()}
	queue := slices.Clone(batches)
	tm := &term{e: New(Config{}, nil), sealed: queue}
	work := make(chan *batch, 1)
	for i, want := range batches {
		tm.launch(work)
		if b := <-work; b != want || len(tm.sealed) != len(batches)-1-i || slices.Contains(queue, b) {
			t.Errorf("batch %d: %d wait: want the oldest in flight, and the queue without it", i, len(tm.sealed))
		}
	}
}

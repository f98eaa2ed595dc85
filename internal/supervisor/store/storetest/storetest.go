// Package storetest is the contract of the supervisor's store, as tests that both the store in memory and the one on
// etcd pass.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Store is the interface under test.
type Store interface {
	Load(ctx context.Context) (store.Snapshot, error)
	Nodes(ctx context.Context) ([]*lofamov1.Node, uint64, error)
	Events(ctx context.Context, after uint64, limit int, keep func(*lofamov1.Event) bool) ([]*lofamov1.Event, uint64, error)
	Bounds(ctx context.Context) (store.Bounds, error)
	EventsFrom(ctx context.Context, number uint64, limit int) (uint64, []*lofamov1.Event, error)
	Revision(ctx context.Context) (uint64, error)
	Watch(ctx context.Context, after uint64) <-chan store.Update
	Confirm(ctx context.Context, fence store.Fence) (store.Standing, error)
	Writer(fence store.Fence, meta store.Meta, snap store.Snapshot) (store.Committer, error)
	LastDiagnosis(ctx context.Context) (*lofamov1.DiagnosisReport, error)
	LastProcedure(ctx context.Context) (*lofamov1.ProcedureReport, error)
	LastOrdered(ctx context.Context) (*store.Ordered, error)
	PolicyRuns(ctx context.Context) ([]store.PolicyRun, error)
}

// KeepEvents is the number of events that the store under test must keep.
const KeepEvents = 50

// Harness is a store under test.
type Harness struct {
	Store    Store
	Campaign func() store.Fence // makes the caller the leader and deposes the previous one
	Compact  func(rev uint64)
	// Slack is the number of events by which the history may exceed KeepEvents.
	Slack int
}

// wait bounds every wait of these tests.
const wait = time.Minute

var meta = store.Meta{Cluster: "test", Dims: "2x2x2"}

// Run runs the contract, each test on a separate store.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Harness)
	}{
		{"empty", testEmpty},
		{"commit and load", testCommit},
		{"fence", testFence},
		{"confirm", testConfirm},
		{"guards", testGuards},
		{"refused", testRefused},
		{"above", testAbove},
		{"reports", testReports},
		{"damaged reports", testDamagedReports},
		{"foreign", testForeign},
		{"watch", testWatch},
		{"watch from now", testWatchFromNow},
		{"compaction", testCompaction},
		{"events", testEvents},
		{"later version", testLater},
		{"retention", testRetention},
		{"history", testHistory},
		{"large batch", testLarge},
		{"topology", testTopology},
		{"large labels", testLargeLabels},
		{"maintenance", testMaintenance},
		{"forgotten node", testForgotten},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

func event(n int, node string) *lofamov1.Event {
	return &lofamov1.Event{Node: node, Component: "host", To: lofamov1.State_FAILED, Reason: fmt.Sprint("event ", n)}
}

func lead(t *testing.T, h Harness) store.Committer {
	t.Helper()
	fence := h.Campaign()
	snap, err := h.Store.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := h.Store.Writer(fence, meta, snap)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func commit(t *testing.T, w store.Committer, b store.Batch) uint64 {
	t.Helper()
	rev, err := w.Commit(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func testEmpty(t *testing.T, h Harness) {
	snap, err := h.Store.Load(t.Context())
	if err != nil || snap.Meta != nil || len(snap.Nodes)+len(snap.Inbox) != 0 {
		t.Fatalf("an empty store holds %+v, %v", snap, err)
	}
	rev, err := h.Store.Revision(t.Context())
	if err != nil || rev < snap.Revision {
		t.Fatalf("revision %d after %d, %v", rev, snap.Revision, err)
	}
}

func testCommit(t *testing.T, h Harness) {
	w := lead(t, h)
	pos := store.InboxPosition{Origin: fault.Origin{Node: "n0-0-0", Half: fault.HalfDNP}, Epoch: 3, Highest: 70,
		Window: [4]uint64{5, 0, 1, 0}, Digest: 72}
	rev := commit(t, w, store.Batch{
		Events: []*lofamov1.Event{event(1, "n0-0-0"), event(2, "n1-0-0")},
		Nodes:  []*lofamov1.Node{{Id: "n0-0-0", State: lofamov1.State_SICK}, {Id: "n1-0-0", State: lofamov1.State_FAILED}},
		Inbox:  []store.InboxPosition{pos},
	})
	rev2 := commit(t, w, store.Batch{Nodes: []*lofamov1.Node{{Id: "n0-0-0", State: lofamov1.State_NORMAL}}})
	if rev2 <= rev {
		t.Errorf("revision %d after %d", rev2, rev)
	}
	snap, err := h.Store.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []*lofamov1.Node{
		{Id: "n0-0-0", State: lofamov1.State_NORMAL, Revision: rev2}, {Id: "n1-0-0", State: lofamov1.State_FAILED, Revision: rev},
	}
	if len(snap.Nodes) != 2 || !proto.Equal(snap.Nodes[0], want[0]) || !proto.Equal(snap.Nodes[1], want[1]) {
		t.Errorf("nodes %v, want %v", snap.Nodes, want)
	}
	if len(snap.Inbox) != 1 || snap.Inbox[0] != pos {
		t.Errorf("inbox %+v, want %+v", snap.Inbox, pos)
	}
	if snap.Revision < rev2 || snap.Meta == nil || *snap.Meta != meta {
		t.Errorf("revision %d, meta %v", snap.Revision, snap.Meta)
	}
	nodes, at, err := h.Store.Nodes(t.Context())
	if err != nil || at < rev2 || len(nodes) != 2 || !proto.Equal(nodes[0], want[0]) {
		t.Errorf("Nodes: %v at %d, %v", nodes, at, err)
	}
}

func testFence(t *testing.T, h Harness) {
	old := lead(t, h)
	commit(t, old, store.Batch{Events: []*lofamov1.Event{event(1, "a")}})
	next := lead(t, h)
	if _, err := old.Commit(t.Context(), store.Batch{Events: []*lofamov1.Event{event(2, "a")}}); !errors.Is(err, store.ErrNotLeader) {
		t.Fatalf("a deposed leader commits: %v", err)
	}
	commit(t, next, store.Batch{Events: []*lofamov1.Event{event(3, "a")}})
	if _, err := old.Commit(t.Context(), store.Batch{Events: []*lofamov1.Event{event(4, "a")}}); !errors.Is(err, store.ErrNotLeader) {
		t.Fatalf("a deposed leader commits: %v", err)
	}
	events, _, err := h.Store.Events(t.Context(), 0, 0, nil)
	if err != nil || len(events) != 2 || events[1].GetReason() != "event 3" {
		t.Errorf("events %v, %v", events, err)
	}
}

func testConfirm(t *testing.T, h Harness) {
	fence := h.Campaign()
	if at, err := h.Store.Confirm(t.Context(), fence); err != nil || at.Head != 0 || at.Revision == 0 {
		t.Errorf("before any commit: %+v, %v", at, err)
	}
	snap, err := h.Store.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := h.Store.Writer(fence, meta, snap)
	if err != nil {
		t.Fatal(err)
	}
	rev := commit(t, w, store.Batch{Events: []*lofamov1.Event{event(1, "a")}})
	if at, err := h.Store.Confirm(t.Context(), fence); err != nil || at.Head != rev || at.Revision < rev {
		t.Errorf("after the commit of %d: %+v, %v", rev, at, err)
	}
	h.Campaign()
	if _, err := h.Store.Confirm(t.Context(), fence); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("a deposed leader is confirmed: %v", err)
	}
}

// testGuards: a batch whose guard does not hold has no effect, and the leader continues.
func testGuards(t *testing.T, h Harness) {
	w := lead(t, h)
	key := store.Prefix + "test/key"
	put := func(value string, at uint64) (uint64, error) {
		return w.Commit(t.Context(), store.Write{
			Events: []*lofamov1.Event{event(1, value)}, Puts: []store.KV{{Key: key, Value: []byte(value)}}, Guards: []store.Guard{{Key: key,
				Revision: at}},
		}.Batch())
	}
	first, err := put("first", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := put("again", 0); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a guard that does not hold is passed over: %v", err)
	}
	if _, err := put("second", first); err != nil {
		t.Errorf("after a conflict: %v", err)
	}
	commit(t, w, store.Batch{Deletes: []string{key}})
	if _, err := put("third", 0); err != nil {
		t.Errorf("of a deleted key: %v", err)
	}
	events, _, err := h.Store.Events(t.Context(), 0, 0, nil)
	var names []string
	for _, ev := range events {
		names = append(names, ev.GetNode())
	}
	if err != nil || !slices.Equal(names, []string{"first", "second", "third"}) {
		t.Errorf("events %v, %v", names, err)
	}
	h.Campaign()
	if _, err := put("deposed", 0); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("a deposed leader gets %v", err)
	}
}

// testAbove: group faults and warnings with any names are readable until they are deleted.
func testAbove(t *testing.T, h Harness) {
	w := lead(t, h)
	group, err := proto.Marshal(&lofamov1.Group{Id: "label/rack=r7", Members: []string{"a", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	warning, err := proto.Marshal(&lofamov1.Warning{Component: "link/X+"})
	if err != nil {
		t.Fatal(err)
	}
	puts := []store.KV{
		{Key: store.GroupKey("label/rack=r7"), Value: group},
		{Key: store.WarningKey("n0", fault.Link(grid.XPlus), fault.QuantityCRCRatio), Value: warning},
	}
	commit(t, w, store.Batch{Puts: puts})
	snap, err := h.Store.Load(t.Context())
	if err != nil || len(snap.Groups) != 1 || len(snap.Groups[0].GetMembers()) != 2 || len(snap.Warnings) != 1 ||
		snap.Warnings[0].Node != "n0" || snap.Warnings[0].Warning.GetComponent() != "link/X+" {
		t.Fatalf("%v %v, %v", snap.Groups, snap.Warnings, err)
	}
	commit(t, w, store.Batch{Deletes: []string{puts[0].Key, puts[1].Key}})
	if snap, err = h.Store.Load(t.Context()); err != nil || len(snap.Groups)+len(snap.Warnings) > 0 {
		t.Errorf("%v %v, %v", snap.Groups, snap.Warnings, err)
	}
}

func testForeign(t *testing.T, h Harness) {
	commit(t, lead(t, h), store.Batch{Events: []*lofamov1.Event{event(1, "a")}})
	snap, err := h.Store.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Store.Writer(h.Campaign(), store.Meta{Cluster: "other", Dims: "2x2x2"}, snap)
	if !errors.Is(err, store.ErrForeign) {
		t.Errorf("another cluster's store is accepted: %v", err)
	}
}

// next returns the next update with events.
func next(t *testing.T, ch <-chan store.Update) store.Update {
	t.Helper()
	timeout := time.After(wait)
	for {
		select {
		case u, ok := <-ch:
			if !ok {
				t.Fatal("the watch ended")
			}
			if u.Err != nil || len(u.Events) > 0 {
				return u
			}
		case <-timeout:
			t.Fatal("no update")
		}
	}
}

func testWatch(t *testing.T, h Harness) {
	w := lead(t, h)
	first := commit(t, w, store.Batch{Events: []*lofamov1.Event{event(1, "a")}})
	second := commit(t, w, store.Batch{Events: []*lofamov1.Event{event(2, "a"), event(3, "b")}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ch := h.Store.Watch(ctx, first)
	u := next(t, ch)
	if u.Revision != second || len(u.Events) != 2 || u.Events[0].GetReason() != "event 2" || u.Events[1].GetRevision() != second {
		t.Errorf("update %+v, want events 2 and 3 of revision %d", u, second)
	}
	third := commit(t, w, store.Batch{Events: []*lofamov1.Event{event(4, "a")}})
	if u := next(t, ch); u.Revision != third || len(u.Events) != 1 {
		t.Errorf("update %+v, want event 4 of revision %d", u, third)
	}
	cancel()
	timeout := time.After(wait)
	for {
		select {
		case _, ok := <-ch:
			if !ok {
				return
			}
		case <-timeout:
			t.Fatal("the watch outlives its context")
		}
	}
}

func testWatchFromNow(t *testing.T, h Harness) {
	w := lead(t, h)
	commit(t, w, store.Batch{Events: []*lofamov1.Event{event(1, "a")}})
	ch := h.Store.Watch(t.Context(), 0)
	select {
	case u := <-ch:
		if u.Err != nil || len(u.Events) != 0 || u.Revision == 0 {
			t.Fatalf("a watch from now on begins with %+v, want a bookmark", u)
		}
	case <-time.After(wait):
		t.Fatal("no bookmark")
	}
	rev := commit(t, w, store.Batch{Events: []*lofamov1.Event{event(2, "a")}})
	if u := next(t, ch); u.Revision != rev {
		t.Errorf("update %+v, want event 2", u)
	}
}

func testCompaction(t *testing.T, h Harness) {
	w := lead(t, h)
	first := commit(t, w, store.Batch{Events: []*lofamov1.Event{event(1, "a")}})
	commit(t, w, store.Batch{Events: []*lofamov1.Event{event(2, "a")}})
	third := commit(t, w, store.Batch{Events: []*lofamov1.Event{event(3, "a")}})
	h.Compact(third)
	if u := next(t, h.Store.Watch(t.Context(), first)); !errors.Is(u.Err, store.ErrCompacted) {
		t.Errorf("a watch from a compacted revision gives %+v", u)
	}
	fourth := commit(t, w, store.Batch{Events: []*lofamov1.Event{event(4, "a")}})
	if u := next(t, h.Store.Watch(t.Context(), third)); u.Revision != fourth {
		t.Errorf("after compaction: %+v, want event 4", u)
	}
	if events, _, err := h.Store.Events(t.Context(), 0, 0, nil); err != nil || len(events) != 4 {
		t.Errorf("compaction took the history: %d events, %v", len(events), err)
	}
}

func testEvents(t *testing.T, h Harness) {
	w := lead(t, h)
	var revs []uint64
	for i := range 5 {
		revs = append(revs, commit(t, w, store.Batch{Events: []*lofamov1.Event{event(2*i, "a"), event(2*i+1, "b")}}))
	}
	check := func(name string, got []*lofamov1.Event, err error, want ...int) {
		t.Helper()
		ok := err == nil && len(got) == len(want)
		for i := 0; ok && i < len(want); i++ {
			ok = got[i].GetReason() == fmt.Sprint("event ", want[i]) && got[i].GetRevision() == revs[want[i]/2]
		}
		if !ok {
			t.Errorf("%s: %v, %v; want %v", name, got, err, want)
		}
	}
	got, rev, err := h.Store.Events(t.Context(), 0, 3, nil)
	check("newest three", got, err, 7, 8, 9)
	if rev < revs[4] {
		t.Errorf("list at revision %d, newest event at %d", rev, revs[4])
	}
	got, _, err = h.Store.Events(t.Context(), revs[3], 0, nil)
	check("after the fourth", got, err, 8, 9)
	got, _, err = h.Store.Events(t.Context(), 0, 2, func(e *lofamov1.Event) bool { return e.GetNode() == "b" })
	check("newest two of b", got, err, 7, 9)
}

// testLater: documents of a leader of a later version keep their unknown fields.
func testLater(t *testing.T, h Harness) {
	w := lead(t, h)
	later := protowire.AppendBytes(protowire.AppendTag(nil, 1500, protowire.BytesType), []byte("from a later version"))
	ev, node := event(1, "a"), &lofamov1.Node{Id: "a", State: lofamov1.State_FAILED}
	group, warning := &lofamov1.Group{Id: "row/X/0,0"}, &lofamov1.Warning{Component: "memory"}
	for _, m := range []proto.Message{ev, node, group, warning} {
		m.ProtoReflect().SetUnknown(later)
	}
	b := store.Batch{Events: []*lofamov1.Event{ev}, Nodes: []*lofamov1.Node{node}}
	for key, m := range map[string]proto.Message{
		store.GroupKey("row/X/0,0"): group, store.WarningKey("a", fault.ComponentMemory, fault.QuantityCRCRatio): warning,
	} {
		v, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		b.Puts = append(b.Puts, store.KV{Key: key, Value: v})
	}
	before := commit(t, w, store.Batch{Events: []*lofamov1.Event{event(0, "a")}})
	ch := h.Store.Watch(t.Context(), before)
	commit(t, w, b)
	check := func(what string, m proto.Message) {
		t.Helper()
		if got := m.ProtoReflect().GetUnknown(); !bytes.Equal(got, later) {
			t.Errorf("%s is read as %v: has %q of a later version, want %q", what, m, got, later)
		}
	}
	if u := next(t, ch); len(u.Events) != 1 {
		t.Errorf("watched: %+v", u)
	} else {
		check("the event that is watched", u.Events[0])
	}
	events, _, err := h.Store.Events(t.Context(), before, 0, nil)
	if err != nil || len(events) != 1 {
		t.Fatal(events, err)
	}
	check("the event", events[0])
	snap, err := h.Store.Load(t.Context())
	if err != nil || len(snap.Nodes) != 1 || len(snap.Groups) != 1 || len(snap.Warnings) != 1 {
		t.Fatal(snap, err)
	}
	check("the node", snap.Nodes[0])
	check("the group fault", snap.Groups[0])
	check("the warning", snap.Warnings[0].Warning)
}

func testRetention(t *testing.T, h Harness) {
	w := lead(t, h)
	total := 0
	for total < KeepEvents+h.Slack+40 {
		var b store.Batch
		for range 20 {
			b.Events = append(b.Events, event(total, "a"))
			total++
		}
		commit(t, w, b)
	}
	got, _, err := h.Store.Events(t.Context(), 0, 0, nil)
	if err != nil || len(got) < KeepEvents || len(got) > KeepEvents+h.Slack {
		t.Fatalf("%d events kept of %d, %v; want %d and at most %d more", len(got), total, err, KeepEvents, h.Slack)
	}
	if last := got[len(got)-1].GetReason(); last != fmt.Sprint("event ", total-1) {
		t.Errorf("the newest is %q", last)
	}
}

func testLarge(t *testing.T, h Harness) {
	var b store.Batch
	const nodes = 300
	for i := range nodes {
		id := fmt.Sprintf("n%03d", i)
		b.Events = append(b.Events, event(2*i, id), event(2*i+1, id))
		b.Nodes = append(b.Nodes, &lofamov1.Node{Id: id})
		b.Inbox = append(b.Inbox, store.InboxPosition{Origin: fault.Origin{Node: fault.NodeID(id), Half: fault.HalfHost}, Epoch: 1, Highest: 1})
	}
	ch := h.Store.Watch(t.Context(), 0)
	<-ch // the bookmark
	rev := commit(t, lead(t, h), b)
	seen := 0
	for seen < 2*nodes {
		u := next(t, ch)
		if u.Err != nil || u.Revision > rev {
			t.Fatalf("update %+v", u)
		}
		for _, ev := range u.Events {
			if ev.GetReason() != fmt.Sprint("event ", seen) {
				t.Fatalf("event %d is %q", seen, ev.GetReason())
			}
			seen++
		}
	}
	snap, err := h.Store.Load(t.Context())
	if err != nil || len(snap.Nodes) != nodes || len(snap.Inbox) != nodes {
		t.Errorf("%d nodes, %d positions, %v", len(snap.Nodes), len(snap.Inbox), err)
	}
}

// Events returns a batch of one event, numbered.
func Events(n int) store.Batch { return store.Batch{Events: []*lofamov1.Event{event(n, "a")}} }

package engine

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// withSpare returns the 2x2x1 torus of testConfig with a spare. With swap the spare takes the place of n1-0-0.
func withSpare(swap bool) *topology.Topology {
	dims := grid.Dims{X: 2, Y: 2, Z: 1}
	nodes := []topology.Node{{ID: "x", Spare: true, Labels: map[string]string{"rack": "r1"}}}
	for r := range dims.Nodes() {
		nodes = append(nodes, topology.Node{ID: fault.DefaultNodeID(dims.At(r)), Coord: dims.At(r)})
	}
	if swap {
		nodes[0].Spare, nodes[0].Coord = false, nodes[2].Coord
		nodes[2].Spare = true
	}
	return topology.New(dims, nodes, []string{"rack"}, 0)
}

func seeded(cfg *Config) { cfg.Seed, cfg.Marks = withSpare(false), view.NewMarks() }

// apply changes the topology.
func (h *harness) apply(ctx context.Context, to *topology.Topology) (uint64, error) {
	return h.Change(ctx, func(have store.Topology) ([]store.Write, error) {
		return store.TopologyWrites(have, to, view.TopologyEvents(have.Topology, to, "operator/someone", time.Now()))
	})
}

// TestFirstTopologyStays: the first leader stores its topology, and a leader with another configuration follows it.
func TestFirstTopologyStays(t *testing.T) {
	st := memstore.New(100)
	h := start(t, st, seeded)
	first := h.cfg.Names.Topology()
	if first.Revision == 0 || len(first.Spares()) != 1 {
		t.Fatalf("%+v", first)
	}
	h.stop()
	other := start(t, st, func(cfg *Config) {
		cfg.Seed, cfg.Marks = topology.New(grid.Dims{X: 1, Y: 1, Z: 1}, []topology.Node{{ID: "alone"}}, nil, 0), view.NewMarks()
		cfg.Names, cfg.Meta.Dims = view.NamesOf(cfg.Seed), "1x1x1"
	})
	if m, err := other.Map(t.Context()); err != nil || m.Len() != 4 || len(topology.Diff(first, other.cfg.Names.Topology())) != 0 {
		t.Errorf("%d nodes, %v: %v", m.Len(), err, topology.Diff(first, other.cfg.Names.Topology()))
	}
}

// TestTopologyIsOnceInMemory: the configuration, the names and the term of the next leader share one topology while all are equal.
func TestTopologyIsOnceInMemory(t *testing.T) {
	st := memstore.New(100)
	start(t, st, seeded).stop()
	h := start(t, st, func(cfg *Config) {
		seeded(cfg)
		cfg.Names = view.NamesOf(cfg.Seed)
	})
	seed, now := h.cfg.Seed, h.cfg.Names.Topology()
	term, err := h.Topology(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if now.Revision == 0 || &now.Nodes[0] != &seed.Nodes[0] || term.Topology != now {
		t.Errorf("revision %d: the names and the seed share their nodes: %t; the term and the names share the topology: %t", now.Revision,
			&now.Nodes[0] == &seed.Nodes[0], term.Topology == now)
	}
}

// TestSpareTakesPlace: a spare takes a place while reports arrive. No acknowledged or accepted report is lost,
// remaining nodes keep their state, new ones are UNKNOWN, and departed ones are forgotten.
func TestSpareTakesPlace(t *testing.T) {
	h := start(t, memstore.New(100), seeded)
	n0 := fault.Origin{Node: "n0-0-0", Half: fault.HalfHost}
	say := func(seq fault.Seq, st fault.State) {
		h.Submit(Input{
			Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{{
				ID:           fault.ReportID{Origin: n0, Epoch: 1, Seq: seq},
				Observations: []fault.Observation{{Node: n0.Node, Component: fault.ComponentMemory, State: st, Kind: fault.KindSelf}},
			}}},
			To: To{Addr: "127.0.0.1:1"}, Answerer: h.box, Arrived: time.Now(),
		})
	}
	say(1, fault.Sick)
	h.report(1, false, fault.ComponentMemory, fault.Sick)
	h.box.await(t, 2)

	unblock := h.store.Block()
	defer unblock()
	done := make(chan error, 1)
	say(2, fault.Normal) // in flight during the change
	h.taken(t)
	go func() {
		_, err := h.apply(t.Context(), withSpare(true))
		done <- err
	}()
	for deadline := time.Now().Add(wait); len(h.changing) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the change does not come")
		}
	}
	say(3, fault.Sick) // before or after the change: the next term takes it at the latest
	unblock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	h.box.await(t, 4)
	m, err := h.Map(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if x, ok := m.Find("x"); !ok || x.Status.State != fault.Unknown || x.Status.Coord != (grid.Coord{X: 1}) {
		t.Errorf("the spare in its place: %+v, %t", x.Status, ok)
	}
	if e, ok := m.Find("n0-0-0"); !ok || e.Status.State != fault.Sick {
		t.Errorf("the neighbour: %+v, %t", e.Status, ok)
	}
	if _, ok := m.Find("n1-0-0"); ok || h.cfg.Names.Known("n1-0-0") || !h.cfg.Names.Known("x") {
		t.Error("the node that left is still known")
	}
	snap, err := h.store.Load(t.Context())
	stored := func(id string) bool {
		return slices.ContainsFunc(snap.Nodes, func(n *lofamov1.Node) bool { return n.GetId() == id })
	}
	if err != nil || !stored("n0-0-0") || stored("n1-0-0") {
		t.Errorf("stored are %v, %v", snap.Nodes, err)
	}
	var told []string
	for _, ev := range awaitEvents(t, h, 5) {
		if ev.GetKind() == lofamov1.EventKind_TOPOLOGY_CHANGED {
			told = append(told, ev.GetNode()+" "+ev.GetCoord()+" "+ev.GetReason()+" "+ev.GetLabels()["rack"])
		}
	}
	if len(told) != 2 || told[0] != "x 1,0,0 node x: the spare takes 1,0,0 in place of n1-0-0 r1" ||
		told[1] != "n1-0-0  node n1-0-0: leaves 1,0,0 and is a spare now " {
		t.Errorf("%q", told)
	}
	// Change back: the former state of n1-0-0 is gone.
	if _, err := h.apply(t.Context(), withSpare(false)); err != nil {
		t.Fatal(err)
	}
	if e := h.node(t, "n1-0-0"); e.Status.State != fault.Unknown || e.Status.HostEpoch != 0 {
		t.Errorf("the node that came back: %+v", e.Status)
	}
}

// TestChangesOneByOne: each change sees the result of the one before. Concurrent readers and writers are not turned
// away.
func TestChangesOneByOne(t *testing.T) {
	h := start(t, memstore.New(1000), seeded)
	const n = 20
	errs := make(chan error, 3*n)
	for range n {
		go func() {
			_, err := h.Change(t.Context(), func(have store.Topology) ([]store.Write, error) {
				_, placed := h.cfg.Names.Coord("x")
				return store.TopologyWrites(have, withSpare(!placed), nil)
			})
			errs <- err
		}()
		go func() {
			_, err := h.Map(t.Context())
			errs <- err
		}()
		go func() {
			_, err := h.Write(t.Context(), store.Write{Puts: []store.KV{{Key: store.Prefix + "test", Value: []byte("x")}}})
			errs <- err
		}()
	}
	for range 3 * n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if _, placed := h.cfg.Names.Coord("x"); placed {
		t.Error("an even number of changes has left the spare in a place")
	}
}

func TestRefusedChangeKeepsTerm(t *testing.T) {
	h := start(t, memstore.New(100), seeded)
	wrong := errors.New("wrong")
	if _, err := h.Change(t.Context(), func(store.Topology) ([]store.Write, error) { return nil, wrong }); !errors.Is(err, wrong) {
		t.Errorf("%v", err)
	}
	if _, err := h.Change(t.Context(), func(store.Topology) ([]store.Write, error) { return nil, nil }); err != nil {
		t.Errorf("nothing: %v", err)
	}
	// A stale guard: the term continues.
	if _, err := h.Change(t.Context(), func(have store.Topology) ([]store.Write, error) {
		have.Topology = have.At(1)
		return store.TopologyWrites(have, withSpare(true), nil)
	}); !errors.Is(err, store.ErrConflict) {
		t.Errorf("%v", err)
	}
	h.report(1, false, fault.ComponentMemory, fault.Sick)
	h.box.await(t, 1)
	h.store.Campaign()
	if _, err := h.apply(t.Context(), withSpare(true)); !errors.Is(err, ErrNotLeading) {
		t.Errorf("a deposed leader: %v", err)
	}
	h.stop()
	for h.Leading() {
		time.Sleep(time.Millisecond)
	}
	if _, err := h.apply(t.Context(), withSpare(true)); !errors.Is(err, ErrNotLeading) {
		t.Errorf("nobody: %v", err)
	}
}

func marked(t *testing.T, node string, until time.Time) store.Write {
	t.Helper()
	m := &lofamov1.Maintenance{Node: node, Reason: "new fan", By: "operator/someone"}
	if !until.IsZero() {
		m.Until = timestamppb.New(until)
	}
	kv, err := store.MaintenancePut(m)
	if err != nil {
		t.Fatal(err)
	}
	return store.Write{Puts: []store.KV{kv}}
}

// TestMaintenanceMarkExpires: a mark ends by itself when it expires, and only then. A new leader knows the marks.
func TestMaintenanceMarkExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(100)
		h := start(t, st, seeded)
		for node, until := range map[string]time.Time{"n0-0-0": time.Now().Add(time.Hour), "n1-0-0": time.Now().Add(3 * time.Hour), "x": {}} {
			if _, err := h.Change(t.Context(), func(store.Topology) ([]store.Write, error) {
				return []store.Write{marked(t, node, until)},
					nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if h.cfg.Marks.Len() != 3 {
			t.Errorf("%d marks", h.cfg.Marks.Len())
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if h.cfg.Marks.Of("n0-0-0") != nil || h.cfg.Marks.Len() != 2 {
			t.Errorf("after two hours: %d marks", h.cfg.Marks.Len())
		}
		events, _, err := st.Events(t.Context(), 0, 0, nil)
		if err != nil || len(events) != 1 || !events[0].GetEnded() || events[0].GetMaintenance().GetReason() != "new fan" ||
			events[0].GetObserver() != "supervisor/s1" {
			t.Errorf("%v, %v", events, err)
		}
		h.stop()
		synctest.Wait()
		h = start(t, st, seeded)
		if h.cfg.Marks.Len() != 2 {
			t.Errorf("a new leader knows %d marks", h.cfg.Marks.Len())
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if h.cfg.Marks.Len() != 1 || h.cfg.Marks.Of("x") == nil {
			t.Errorf("after four hours: %d marks", h.cfg.Marks.Len())
		}
	})
}

func TestExpiredMarksEndInOrder(t *testing.T) {
	now := time.Now() // with a monotonic reading
	m := func(node string, in time.Duration) mark {
		return &lofamov1.Maintenance{Node: node, Until: timestamppb.New(now.Add(in))}
	}
	var x expiry
	a, b := m("a", time.Hour), m("b", 2*time.Hour)
	if over, wake := x.step(now, []mark{a, b, {Node: "c"}}); len(over) != 0 || !wake.Equal(now.Add(time.Hour)) {
		t.Errorf("%v, %v", over, wake)
	}
	if over, wake := x.step(now.Add(time.Hour), []mark{a, b}); len(over) != 1 || over[0] != a || !wake.Equal(now.Add(2*time.Hour)) {
		t.Errorf("%v, %v", over, wake)
	}
	// A prolonged mark counts from when the leader saw the prolongation.
	b = m("b", 3*time.Hour)
	if over, wake := x.step(now.Add(2*time.Hour), []mark{b}); len(over) != 0 || !wake.Equal(now.Add(3*time.Hour)) {
		t.Errorf("%v, %v", over, wake)
	}
	if over, wake := x.step(now.Add(9*time.Hour), nil); len(over) != 0 || !wake.IsZero() || len(x.ends) != 0 {
		t.Errorf("%v, %v", over, wake)
	}
}

// TestWarningOfGoneLinkEnds: the warning of a link ends with the link, also if the leader ends right after the change of the topology. It
// keeps no later leader from its term, and neither does a warning that this version does not understand.
func TestWarningOfGoneLinkEnds(t *testing.T) {
	for _, known := range []bool{true, false} { // by the leader that changes the topology
		st := memstore.New(100)
		h := start(t, st, seeded)
		put := func(w *lofamov1.Warning, key string) {
			b, err := proto.Marshal(w)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := h.Write(t.Context(), store.Write{Puts: []store.KV{{Key: key, Value: b}}}); err != nil {
				t.Fatal(err)
			}
		}
		w := awareness.WarningStatus{Node: "n0-1-0", Component: fault.Link(grid.XPlus), Quantity: fault.QuantityCRCRatio}
		key := store.WarningKey(w.Node, w.Component, w.Quantity)
		put(view.Warning(w), key)
		put(&lofamov1.Warning{Component: "temperature", Quantity: "of a later version"}, key+"later")
		if known {
			h.stop()
			h = start(t, st, seeded)
		}
		if _, err := h.Change(t.Context(), func(have store.Topology) ([]store.Write, error) {
			to, err := have.Leave([]fault.NodeID{"n1-1-0"}, true)
			if err != nil {
				return nil, err
			}
			return store.TopologyWrites(have, to, nil)
		}); err != nil {
			t.Fatal(err)
		}
		h.stop()
		h = start(t, st, seeded)
		if m, err := h.Map(t.Context()); err != nil || len(m.Warnings) != 0 {
			t.Errorf("known %t: warnings %v, %v: want none", known, m.Warnings, err)
		}
		snap, err := st.Load(t.Context())
		stays := slices.ContainsFunc(snap.Warnings, func(s store.Warning) bool { return s.Warning.GetQuantity() == w.Quantity.String() })
		if err != nil || stays {
			t.Errorf("known %t: stored warnings %v, %v", known, snap.Warnings, err)
		}
		events, _, err := st.Events(t.Context(), 0, 0, nil)
		ended := slices.ContainsFunc(events, func(ev *lofamov1.Event) bool {
			return ev.GetKind() == lofamov1.EventKind_WARNING_CHANGED && ev.GetEnded() && ev.GetComponent() == w.Component.String()
		})
		if err != nil || !ended {
			t.Errorf("known %t: no event of the warning's end: %v, %v", known, events, err)
		}
		h.stop()
	}
}

// TestGroupsAndWarningsOfLeftNodesEnd: group faults whose members are all gone, and warnings of a node that has left its
// place, end, and watchers receive the events.
func TestGroupsAndWarningsOfLeftNodesEnd(t *testing.T) {
	st := memstore.New(100)
	h := start(t, st, seeded)
	var w store.Write
	put := func(key string, m proto.Message) {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		w.Puts = append(w.Puts, store.KV{Key: key, Value: b})
	}
	group := func(id string, members ...fault.NodeID) {
		put(store.GroupKey(id), view.StoredGroup(awareness.GroupStatus{ID: id, Kind: awareness.GroupLabel, State: fault.Failed,
			Cause: fault.CauseNode, Members: members, Of: 2}))
	}
	warning := func(node fault.NodeID) {
		put(store.WarningKey(node, fault.ComponentTemperature, fault.QuantityTemperature), view.Warning(awareness.WarningStatus{
			Node: node, Component: fault.ComponentTemperature, Quantity: fault.QuantityTemperature,
		}))
	}
	group("label/rack=gone", "n1-0-0")
	group("label/rack=stays", "n1-0-0", "n0-0-0")
	warning("n1-0-0")
	warning("n0-0-0")
	if _, err := h.Write(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	h.stop()
	h = start(t, st, seeded) // its machine knows them
	if _, err := h.apply(t.Context(), withSpare(true)); err != nil {
		t.Fatal(err)
	}
	events := awaitEvents(t, h, 4)
	snap, err := h.store.Load(t.Context())
	if err != nil || len(snap.Groups) != 1 || snap.Groups[0].GetId() != "label/rack=stays" || len(snap.Warnings) != 1 ||
		snap.Warnings[0].Node != "n0-0-0" {
		t.Errorf("groups %v, warnings %v, %v", snap.Groups, snap.Warnings, err)
	}
	told := make(map[string]bool)
	for _, ev := range events {
		switch {
		case ev.GetGroup().GetState() == lofamov1.State_NORMAL && ev.GetFrom() == lofamov1.State_FAILED:
			told[ev.GetGroup().GetId()] = true
		case ev.GetKind() == lofamov1.EventKind_WARNING_CHANGED && ev.GetEnded():
			told[ev.GetNode()] = true
		}
	}
	if len(told) != 2 || !told["label/rack=gone"] || !told["n1-0-0"] {
		t.Errorf("told of %v", told)
	}
}

// TestRevocationWhileTermBegins: Submit accepts no list before the term runs.
func TestRevocationWhileTermBegins(t *testing.T) {
	asked := 0
	h := start(t, memstore.New(100), func(cfg *Config) {
		cfg.Revoked = func() awareness.Revoked {
			if asked++; asked == 1 {
				return awareness.Revoked{}
			}
			return awareness.Revoked{Nodes: map[fault.NodeID]time.Time{"n1-0-0": time.Now().Add(time.Hour)}}
		}
	})
	for deadline := time.Now().Add(wait); h.node(t, "n1-0-0").Status.Rule != awareness.RuleRevoked; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("its rule is %q: want %q", h.node(t, "n1-0-0").Status.Rule, awareness.RuleRevoked)
		}
	}
}

// TestQuestionToEndedTermIsNotAskedAgain: the next term never got the question, so the caller would wait for ever.
func TestQuestionToEndedTermIsNotAskedAgain(t *testing.T) {
	e := New(testConfig(newBox()), memstore.New(1))
	first, next := &term{e: e, done: make(chan struct{})}, &term{e: e, done: make(chan struct{})}
	asked := make(chan int)
	go func() {
		<-asked
		e.term.Store(next)
		close(first.done)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	if _, err := inquire(ctx, first, func(*questions) chan<- int { return asked }, 1, make(chan int)); !errors.Is(err, ErrNotLeading) {
		t.Errorf("%v: want %v", err, ErrNotLeading)
	}
}

// TestNextTermAnswersQuestion: a term ends before it takes a question. The caller waits for the answer of the next term, which takes it.
func TestNextTermAnswersQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(testConfig(newBox()), memstore.New(1))
		first, next := &term{e: e, done: make(chan struct{})}, &term{e: e, done: make(chan struct{})}
		asked, reply := map[*questions]chan int{&first.questions: make(chan int), &next.questions: make(chan int)}, make(chan int, 1)
		go func() {
			if a, err := inquire(t.Context(), first, func(q *questions) chan<- int { return asked[q] }, 1, reply); a != 2 || err != nil {
				t.Errorf("%d, %v: want the next term's answer", a, err)
			}
		}()
		synctest.Wait() // it waits for the first term
		e.term.Store(next)
		taken := make(chan int, 1)
		go func() { taken <- <-asked[&next.questions] }()
		synctest.Wait()
		close(first.done)
		synctest.Wait()
		reply <- 1 + <-taken
	})
}

// TestTopologyDoesNotWaitForChange: a reader gets the committed topology while a change of another one is under way.
func TestTopologyDoesNotWaitForChange(t *testing.T) {
	h := start(t, memstore.New(100), seeded)
	before := h.cfg.Names.Topology()
	unblock := h.store.Block()
	defer unblock()
	changed := make(chan error, 1)
	go func() {
		_, err := h.apply(t.Context(), withSpare(true))
		changed <- err
	}()
	for deadline := time.Now().Add(wait); h.commitBegan.Load() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no commit")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if got, err := h.Topology(ctx); err != nil || got.Revision != before.Revision {
		t.Errorf("during a change: %+v, %v: want revision %d", got.Topology, err, before.Revision)
	}
	unblock()
	if err := <-changed; err != nil {
		t.Fatal(err)
	}
	if got, err := h.Topology(t.Context()); err != nil || got.Revision <= before.Revision || !got.SamePlaces(withSpare(true)) {
		t.Errorf("after the change: %+v, %v", got.Topology, err)
	}
	h.stop()
	<-h.ended
	h.ended <- nil
	if _, err := h.Topology(t.Context()); !errors.Is(err, ErrNotLeading) {
		t.Errorf("after the term: %v: want %v", err, ErrNotLeading)
	}
}

// TestChangeWaitsForAbandonedOne: the caller of a change gave up while its commit was under way. The next change sees what that commit
// leaves.
func TestChangeWaitsForAbandonedOne(t *testing.T) {
	h := start(t, memstore.New(100), seeded)
	unblock := h.store.Block()
	defer unblock()
	mark := func(store.Topology) ([]store.Write, error) {
		return []store.Write{marked(t, "n1-0-0", time.Time{})}, nil
	}
	ctx, giveUp := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := h.Change(ctx, mark)
		failed <- err
	}()
	for deadline := time.Now().Add(wait); h.commitBegan.Load() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no commit")
		}
	}
	giveUp()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Fatalf("%v: want %v", err, context.Canceled)
	}
	saw, done := make(chan bool, 1), make(chan error, 1)
	go func() {
		_, err := h.Change(t.Context(), func(store.Topology) ([]store.Write, error) {
			saw <- h.cfg.Marks.Of("n1-0-0") != nil
			return nil, nil
		})
		done <- err
	}()
	var early bool
	select {
	case <-saw:
		early = true
	case <-time.After(50 * time.Millisecond): // long enough to run, if nothing holds it
	}
	unblock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if early || !<-saw {
		t.Error("a change does not see the one before it, whose caller gave up")
	}
}

// TestChangeThatPanicsFreesItsTurn: the server of the API survives the panic.
func TestChangeThatPanicsFreesItsTurn(t *testing.T) {
	h := start(t, memstore.New(100), seeded)
	func() {
		defer func() { _ = recover() }()
		_, _ = h.Change(t.Context(), func(store.Topology) ([]store.Write, error) { panic("a change") })
	}()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	if _, err := h.Change(ctx, func(store.Topology) ([]store.Write, error) { return nil, nil }); err != nil {
		t.Error(err)
	}
}

// TestMapIsNotShownBeforeItsMarks: a reader that has the map of a mark's revision has the mark too. Without it, a watch after that revision
// would never bring the mark.
func TestMapIsNotShownBeforeItsMarks(t *testing.T) {
	h := start(t, memstore.New(1000), seeded)
	const changes = 300
	revisions := make([]uint64, 0, changes) // by number of the mark
	type seen struct {
		revision uint64
		mark     int
	}
	const readers = 4
	all := make(chan []seen, readers)
	ctx, stop := context.WithCancel(t.Context())
	term := h.term.Load()
	for range readers {
		go func() {
			var list []seen
			for last := uint64(0); ; {
				m, err := term.published.reach(ctx, last+1, term.done)
				if err != nil {
					all <- list
					return
				}
				if n, err := strconv.Atoi(h.cfg.Marks.Of("n0-0-0").GetReason()); err == nil {
					list = append(list, seen{m.Revision, n})
				}
				last = m.Revision
			}
		}()
	}
	for i := range changes {
		kv, err := store.MaintenancePut(&lofamov1.Maintenance{Node: "n0-0-0", Reason: strconv.Itoa(i), By: "operator/someone"})
		if err != nil {
			t.Fatal(err)
		}
		revision, err := h.Change(t.Context(), func(store.Topology) ([]store.Write, error) { return []store.Write{{Puts: []store.KV{kv}}}, nil })
		if err != nil {
			t.Fatal(err)
		}
		revisions = append(revisions, revision)
	}
	stop()
	early := 0
	for range readers {
		for _, s := range <-all {
			if at, ok := slices.BinarySearch(revisions, s.revision); ok && s.mark < at {
				early++
			}
		}
	}
	if early > 0 {
		t.Errorf("%d readers have the map of a mark's revision without the mark", early)
	}
}

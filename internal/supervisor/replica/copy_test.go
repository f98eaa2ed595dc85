package replica

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func names2() *view.Names {
	return view.NewNames(grid.Dims{X: 2, Y: 1, Z: 1}, map[grid.Coord]fault.NodeID{{}: "a", {X: 1}: "b"})
}

// changes records the nodes that a copy reported as changed.
type changes struct {
	mu     sync.Mutex
	ids    []fault.NodeID
	newest view.Map
}

func (c *changes) add(m view.Map, ids []fault.NodeID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids, c.newest = append(c.ids, ids...), m
}

func (c *changes) groups() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.newest.Groups)
}

func (c *changes) has(id fault.NodeID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.ids, id)
}

// TestCopyFollowsStore on a real etcd: the initial state, and each change after it, with group faults and
// warnings that come and go.
func TestCopyFollowsStore(t *testing.T) {
	etcd := supervisortest.NewEtcd(t, 1)
	client := etcd.Members[0].Client()
	st := store.NewEtcd(client, store.Options{MaxOps: embedded.MaxTxnOps})
	put, err := client.Put(t.Context(), store.ElectionPrefix+"/1", "s1")
	if err != nil {
		t.Fatal(err)
	}
	w, err := st.Writer(store.Fence{Key: store.ElectionPrefix + "/1", Rev: put.Header.Revision}, store.Meta{}, store.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	commit := func(b store.Batch) uint64 {
		t.Helper()
		rev, err := w.Commit(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		return rev
	}
	node := func(id fault.NodeID, x int, s fault.State) *lofamov1.Node {
		return view.Stored(awareness.NodeStatus{ID: id, Coord: grid.Coord{X: x}, State: s, Cause: fault.CauseNone})
	}
	commit(store.Batch{Nodes: []*lofamov1.Node{node("a", 0, fault.Normal)}})

	told := new(changes)
	c := NewCopy(CopyConfig{Store: st, Names: names2(), Logger: slog.New(slog.DiscardHandler), OnChange: told.add})
	if _, ok := c.Map(); ok {
		t.Fatal("a copy before anything was read")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	reach := func(rev uint64) view.Map {
		t.Helper()
		var m view.Map
		supervisortest.Eventually(t, "the copy", func() bool {
			var ok bool
			m, ok = c.Map()
			return ok && m.Revision >= rev
		})
		return m
	}
	group, err := proto.Marshal(&lofamov1.Group{Id: "label/rack=r7", Kind: lofamov1.GroupKind_LABEL, State: lofamov1.State_FAILED,
		Members: []string{"a", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	warning, err := proto.Marshal(&lofamov1.Warning{Component: "link/X+", Quantity: "crc-ratio"})
	if err != nil {
		t.Fatal(err)
	}
	above := []store.KV{
		{Key: store.GroupKey("label/rack=r7"), Value: group},
		{Key: store.WarningKey("a", fault.Link(grid.XPlus), fault.QuantityCRCRatio), Value: warning},
	}
	m := reach(commit(store.Batch{
		Events: []*lofamov1.Event{{Node: "b"}}, Nodes: []*lofamov1.Node{node("b", 1, fault.Failed), node("c", 1, fault.Failed)}, Puts: above,
	}))
	a, _ := m.Find("a")
	b, _ := m.Find("b")
	if a.Status.State != fault.Normal || b.Status.State != fault.Failed || len(m.Groups) != 1 || len(m.Warnings) != 1 ||
		len(b.Status.Groups) != 1 || m.Stale {
		t.Errorf("a %s, b %s, groups %v, warnings %v", a.Status.State, b.Status.State, m.Groups, m.Warnings)
	}
	if !told.has("b") || told.has("c") {
		t.Errorf("told of %v", told.ids)
	}
	m = reach(commit(store.Batch{Deletes: []string{above[0].Key, above[1].Key, "/lofamo/v1/nodes/b"}}))
	if b, _ = m.Find("b"); b.Status.State != fault.Unknown || len(m.Groups)+len(m.Warnings) != 0 {
		t.Errorf("b %s, groups %v, warnings %v", b.Status.State, m.Groups, m.Warnings)
	}
	if _, ok := view.Map.Find(m, "c"); ok {
		t.Error("a node that the torus does not have")
	}
	reach(commit(store.Batch{Puts: above[:1]}))
	supervisortest.Eventually(t, "word of a commit of a group fault alone", func() bool { return told.groups() == 1 })
}

// broken is a store whose feed breaks after each update.
type broken struct {
	mu    sync.Mutex
	reads int
}

func (b *broken) MapNow(context.Context) (store.Snapshot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads++
	return store.Snapshot{Revision: uint64(10 * b.reads)}, nil
}

func (b *broken) FollowMap(context.Context, uint64) <-chan store.MapUpdate {
	ch := make(chan store.MapUpdate, 1)
	ch <- store.MapUpdate{Err: store.ErrCompacted}
	close(ch)
	return ch
}

func TestCopyIsReadAgainAfterBrokenFeed(t *testing.T) {
	c := NewCopy(CopyConfig{Store: &broken{}, Names: names2(), Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })
	supervisortest.Eventually(t, "a third reading", func() bool {
		m, ok := c.Map()
		return ok && m.Revision >= 30
	})
	cancel()
	wg.Wait()
}

// still is a store without updates.
type still struct{}

func (still) MapNow(context.Context) (store.Snapshot, error) { return store.Snapshot{Revision: 7}, nil }

func (still) FollowMap(context.Context, uint64) <-chan store.MapUpdate { return nil }

// TestFirstCopyTakesStoredTopologyAtOnce: a replica begins with the topology of its configuration, and reads the stored one a moment later.
// Its copy then has the nodes that have joined. Later changes of the topology share a reading.
func TestFirstCopyTakesStoredTopologyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := names2()
		c := NewCopy(CopyConfig{Store: still{}, Names: names, Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() { c.Run(ctx) })
		synctest.Wait()
		has := func(n int) bool {
			m, ok := c.Map()
			return ok && m.Len() == n
		}
		set := func(n int) {
			var nodes []topology.Node
			for x := range n {
				nodes = append(nodes, topology.Node{ID: fault.DefaultNodeID(grid.Coord{X: x}), Coord: grid.Coord{X: x}})
			}
			names.Set(topology.New(grid.Dims{X: n, Y: 1, Z: 1}, nodes, nil, uint64(n)))
		}
		set(4)
		if time.Sleep(2 * retryAfter); !has(4) {
			t.Error("the copy has not the nodes of the stored topology")
		}
		set(5)
		if time.Sleep(2 * retryAfter); has(5) {
			t.Error("the copy is read again at once: many nodes that join would each cost a reading")
		}
		if time.Sleep(topologyCheck); !has(5) {
			t.Error("the copy lacks a node that has joined")
		}
	})
}

package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// torus returns a topology of n nodes in a row, with a spare. edit changes a node.
func torus(n int, edit func(*topology.Node)) *topology.Topology {
	dims := grid.Dims{X: n, Y: 1, Z: 1}
	nodes := []topology.Node{{ID: "spare", Spare: true}}
	for r := range n {
		nodes = append(nodes, topology.Node{ID: fault.NodeID(fmt.Sprintf("n%d", r)), Coord: dims.At(r)})
	}
	for i := range nodes {
		if edit != nil {
			edit(&nodes[i])
		}
	}
	return topology.New(dims, nodes, []string{"rack"}, 0)
}

func storedTopology(t *testing.T, h Harness) store.Topology {
	t.Helper()
	snap, err := h.Store.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snap.Topology
}

// testTopology: small changes are made in place, large ones under a new generation. Either is atomic, and is refused
// if the topology has changed meanwhile. The function is long because it tests one history.
func testTopology(t *testing.T, h Harness) {
	w := lead(t, h)
	apply := func(from store.Topology, to *topology.Topology) (uint64, error) {
		t.Helper()
		writes, err := store.TopologyWrites(from, to, []*lofamov1.Event{{Kind: lofamov1.EventKind_TOPOLOGY_CHANGED}})
		if err != nil {
			t.Fatal(err)
		}
		var rev uint64
		for i, write := range writes {
			if write.ChangesTopology() != (i == len(writes)-1) {
				t.Errorf("write %d of %d: changes %t", i, len(writes), write.ChangesTopology())
			}
			if rev, err = w.Commit(t.Context(), write.Batch()); err != nil {
				return 0, err
			}
		}
		return rev, nil
	}
	// same checks that the stored topology is want, as of that revision.
	same := func(want *topology.Topology, rev uint64, generation uint64) store.Topology {
		t.Helper()
		got := storedTopology(t, h)
		if got.Topology == nil {
			t.Fatal("there is no topology")
		}
		if d := topology.Diff(got.Topology, want); len(d) > 0 || got.Revision != rev || got.Generation != generation {
			t.Fatalf("revision %d, generation %d: %v; want %d, %d and no difference", got.Revision, got.Generation, d, rev, generation)
		}
		return got
	}

	none := storedTopology(t, h)
	if none.Topology != nil {
		t.Fatalf("an empty store has %+v", none)
	}
	first := torus(300, nil)
	rev, err := apply(none, first)
	if err != nil {
		t.Fatal(err)
	}
	same(first, rev, 1)
	if _, err := apply(none, first); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a second first topology: %v", err)
	}
	have := same(first, rev, 1)

	swapped := torus(300, func(n *topology.Node) {
		switch n.ID {
		case "spare":
			n.Spare, n.Coord = false, grid.Coord{X: 7}
		case "n7":
			n.Spare = true
		}
	})
	if rev, err = apply(have, swapped); err != nil {
		t.Fatal(err)
	}
	same(swapped, rev, 1)
	if _, err := apply(have, first); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a change of an outdated value: %v", err)
	}
	have = same(swapped, rev, 1)

	labelled := torus(200, func(n *topology.Node) { n.Labels = map[string]string{"rack": "r1"} })
	if rev, err = apply(have, labelled); err != nil {
		t.Fatal(err)
	}
	have = same(labelled, rev, 2)
	if len(have.Garbage) == 0 {
		t.Error("the generation before is not named as garbage")
	}
	commit(t, w, store.Batch{Deletes: have.Garbage})
	if have = same(labelled, rev, 2); len(have.Garbage) != 0 {
		t.Errorf("garbage is left: %v", have.Garbage)
	}
	// Without the removed node, in place.
	fewer := topology.New(labelled.Dims, slices.DeleteFunc(slices.Clone(labelled.Nodes),
		func(n topology.Node) bool { return n.Spare }), []string{"power"}, 0)
	if rev, err = apply(have, fewer); err != nil {
		t.Fatal(err)
	}
	same(fewer, rev, 2)
}

// testLargeLabels: a change of few nodes whose labels exceed one transaction is made under a new generation.
func testLargeLabels(t *testing.T, h Harness) {
	w := lead(t, h)
	labels := make(map[string]string)
	for i := range fault.MaxLabels {
		labels[fmt.Sprintf("%0250d/%060d", 1, i)] = strings.Repeat("v", 60)
	}
	first, large := torus(47, nil), torus(47, func(n *topology.Node) { n.Labels = labels })
	for generation, to := range []*topology.Topology{first, large} {
		writes, err := store.TopologyWrites(storedTopology(t, h), to, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, write := range writes {
			size := 0
			for _, kv := range write.Puts {
				size += len(kv.Value)
			}
			if write.ChangesTopology() && size > 1<<20 {
				t.Errorf("the last write has %d bytes: want less than etcd takes", size)
			}
			commit(t, w, write.Batch())
		}
		got := storedTopology(t, h)
		if d := topology.Diff(got.Topology, to); len(d) > 0 || got.Generation != uint64(generation+1) {
			t.Errorf("generation %d: %d differences", got.Generation, len(d))
		}
	}
}

func testMaintenance(t *testing.T, h Harness) {
	w := lead(t, h)
	marks := func() []store.Mark {
		t.Helper()
		snap, err := h.Store.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return snap.Maintenance
	}
	kv, err := store.MaintenancePut(&lofamov1.Maintenance{Node: "n0", Reason: "new fan"})
	if err != nil {
		t.Fatal(err)
	}
	rev := commit(t, w, store.Batch{Puts: []store.KV{kv}})
	if got := marks(); len(got) != 1 || got[0].GetNode() != "n0" || got[0].GetReason() != "new fan" || got[0].Revision != rev {
		t.Errorf("%+v", got)
	}
	commit(t, w, store.Batch{Deletes: []string{store.MaintenanceKey("n0")}})
	if got := marks(); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// testForgotten: a node's document can be deleted, and so can its inbox positions.
func testForgotten(t *testing.T, h Harness) {
	w := lead(t, h)
	commit(t, w, store.Batch{Nodes: []*lofamov1.Node{{Id: "a"}, {Id: "b"}}})
	commit(t, w, store.Batch{Deletes: []string{store.NodeKey("a")}})
	snap, err := h.Store.Load(t.Context())
	if err != nil || len(snap.Nodes) != 1 || snap.Nodes[0].GetId() != "b" {
		t.Errorf("%+v, %v", snap.Nodes, err)
	}
	a, b := fault.Origin{Node: "a", Half: fault.HalfHost}, fault.Origin{Node: "a", Half: fault.HalfDNP}
	commit(t, w, store.Batch{Inbox: []store.InboxPosition{{Origin: a, Epoch: 1}, {Origin: b, Epoch: 1}}})
	commit(t, w, store.Batch{Deletes: []string{store.InboxKey(a)}})
	if snap, err = h.Store.Load(t.Context()); err != nil || len(snap.Inbox) != 1 || snap.Inbox[0].Origin != b {
		t.Errorf("%+v, %v", snap.Inbox, err)
	}
}

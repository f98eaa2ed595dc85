package engine

import (
	"slices"
	"testing"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestEvidenceIsInCommittedRecord: the record of a fault contains its evidence. That holds for batches that merge while
// the store is blocked, too. The record of a NORMAL component has none.
func TestEvidenceIsInCommittedRecord(t *testing.T) {
	h := start(t, memstore.New(1000), func(c *Config) { c.BatchOps = 1 })
	memory := func() *view.FaultEvidence {
		t.Helper()
		nodes, _, err := h.store.Nodes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			if n.GetId() == "n1-0-0" {
				e, err := view.Restore(n)
				if err != nil {
					t.Fatal(err)
				}
				for i := range e.Faults {
					if e.Faults[i].Component == fault.ComponentMemory {
						return &e.Faults[i]
					}
				}
			}
		}
		return nil
	}
	h.report(1, true, fault.ComponentMemory, fault.Normal)
	awaitEvents(t, h, 1)
	if got := memory(); got != nil {
		t.Fatalf("evidence of a NORMAL component: %+v", got)
	}
	unblock := h.store.Block()
	defer unblock()
	for i := range 5 * maxSealed { // the last is FAILED
		h.report(fault.Seq(i+2), false, fault.ComponentMemory, []fault.State{fault.Sick, fault.Failed}[i%2])
		h.taken(t)
	}
	unblock()
	if _, err := h.Write(t.Context(), store.Write{}); err != nil { // waiting batches are committed first
		t.Fatal(err)
	}
	got := memory()
	if got == nil || got.State != fault.Failed || !got.Own || !slices.Equal(got.Witnesses, []string{"n1-0-0/host"}) || got.At.IsZero() ||
		got.Life.IsZero() {
		t.Fatalf("evidence %+v", got)
	}
	m, err := h.Map(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	entry, _ := m.Find("n1-0-0")
	if i := slices.IndexFunc(entry.Faults, func(e view.FaultEvidence) bool { return e.Component == fault.ComponentMemory }); i < 0 ||
		entry.Faults[i].State != fault.Failed || !entry.Faults[i].At.Equal(got.At) {
		t.Errorf("evidence in the leader's map: %+v: want %+v", entry.Faults, got)
	}
}

// TestMergedBatchHasEvidenceOnlyOfFaults: the later of two merged batches decides on the evidence of its nodes.
func TestMergedBatchHasEvidenceOnlyOfFaults(t *testing.T) {
	sealed := func(faulty ...fault.NodeID) *batch {
		b := newBatch()
		for _, id := range []fault.NodeID{"n0-0-0", "n1-0-0", "n0-1-0"} {
			b.touchNode(id)
			b.statuses = append(b.statuses, awareness.NodeStatus{ID: id})
			if slices.Contains(faulty, id) {
				b.evidence[id] = []view.FaultEvidence{{Component: fault.ComponentMemory, State: fault.Failed}}
			}
		}
		return b
	}
	b := sealed("n0-0-0")
	b.merge(sealed("n1-0-0"))
	if len(b.evidence) != 1 || len(b.evidence["n1-0-0"]) != 1 {
		t.Errorf("evidence %+v: want that of n1-0-0 only", b.evidence)
	}
}

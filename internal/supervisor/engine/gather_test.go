package engine

import (
	"testing"
	"testing/synctest"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestStartingNodesShareCommits reports components that are NORMAL from the start, over four fifths of gatherStarts.
func TestStartingNodesShareCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, memstore.New(100), nil)
		synctest.Wait()
		before := h.revision(t)
		for i, c := range []fault.Component{fault.ComponentMemory, fault.ComponentPower, fault.ComponentTemperature} {
			h.report(fault.Seq(i+1), false, c, fault.Normal)
			time.Sleep(gatherStarts * 2 / 5)
			if got := h.revision(t); got != before && i < 2 {
				t.Errorf("revision %d after %d reports: want %d, nothing committed", got, i+1, before)
			}
		}
		synctest.Wait()
		if got := h.revision(t); got != before+1 {
			t.Errorf("revision %d after %s: want %d", got, gatherStarts, before+1)
		}
		if events, _, err := h.store.Events(t.Context(), 0, 0, nil); err != nil || len(events) != 4 {
			t.Errorf("%d events, %v: want those of the host half and of 3 components", len(events), err)
		}
	})
}

// TestFaultDoesNotWaitForStartingNodes reports a fault while a node's start waits for its commit.
func TestFaultDoesNotWaitForStartingNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, memstore.New(100), nil)
		begun := time.Now()
		h.report(1, false, fault.ComponentMemory, fault.Normal)
		synctest.Wait()
		h.report(2, false, fault.ComponentPower, fault.Sick)
		synctest.Wait()
		events, _, err := h.store.Events(t.Context(), 0, 0, nil)
		if err != nil || len(events) == 0 || events[len(events)-1].GetTo() != lofamov1.State_SICK {
			t.Errorf("events %v, %v: want SICK", events, err)
		}
		if waited := time.Since(begun); waited != 0 {
			t.Errorf("the commit came after %s", waited)
		}
	})
}

// revision returns the revision of the newest commit.
func (h *harness) revision(t *testing.T) uint64 {
	t.Helper()
	_, rev, err := h.store.Events(t.Context(), 0, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

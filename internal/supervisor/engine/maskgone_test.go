package engine

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// full returns the topology of a torus that has a node at every place.
func full(t *testing.T, dims string) *topology.Topology {
	t.Helper()
	d, err := grid.ParseDims(dims)
	if err != nil {
		t.Fatal(err)
	}
	var nodes []topology.Node
	box := d.Box()
	for r := range box.Nodes() {
		if at := box.At(r); d.Contains(at) {
			nodes = append(nodes, topology.Node{ID: fault.DefaultNodeID(at), Coord: at})
		}
	}
	return topology.New(d, nodes, nil, 0)
}

// TestMaskEndsWithItsLink: when a node joins between the ends of a masked link, the mask ends with an event. The leader of the
// change removes it, or the next one.
func TestMaskEndsWithItsLink(t *testing.T) {
	for name, led := range map[string]bool{"within a term": true, "at the start of a term": false} {
		t.Run(name, func(t *testing.T) {
			st, before, after := memstore.New(100), full(t, "3x2x1 without 1,0,0"), full(t, "3x2x1")
			begin := func(cfg *Config) {
				cfg.Seed, cfg.Marks, cfg.Masks, cfg.Names = before, view.NewMarks(), view.NewMasks(), view.NamesOf(before)
				cfg.Meta.Dims = before.Dims.String()
			}
			h := start(t, st, begin)
			mask := &lofamov1.LinkMask{Node: "n0-0-0", Coord: "0,0,0", Direction: "X+", Peer: "n2-0-0", PeerCoord: "2,0,0",
				Reason: "a test", By: "operator/someone", Since: timestamppb.Now()}
			kept := &lofamov1.LinkMask{Node: "n0-0-0", Coord: "0,0,0", Direction: "Y+", Peer: "n0-1-0", PeerCoord: "0,1,0",
				Reason: "a test", By: "operator/someone", Since: timestamppb.Now()}
			var w store.Write
			for _, m := range []*lofamov1.LinkMask{mask, kept} {
				put, err := store.MaskPut(m)
				if err != nil {
					t.Fatal(err)
				}
				w.Puts = append(w.Puts, put)
			}
			if _, err := h.Write(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			events := view.TopologyEvents(before, after, "operator/someone", time.Now())
			if led {
				if _, err := h.Change(t.Context(), func(have store.Topology) ([]store.Write, error) {
					return store.TopologyWrites(have, after, events)
				}); err != nil {
					t.Fatal(err)
				}
			} else {
				h.stop()
				commitTopology(t, st, after, events)
				h = start(t, st, begin)
			}
			if _, err := h.Write(t.Context(), store.Write{}); err != nil { // commits garbage collection first
				t.Fatal(err)
			}
			checkMaskEnded(t, h, kept)
		})
	}
}

// commitTopology commits a change of the topology as a leader does that ends right after it.
func commitTopology(t *testing.T, st *memstore.Store, to *topology.Topology, events []*lofamov1.Event) {
	t.Helper()
	snap, err := st.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	writes, err := store.TopologyWrites(snap.Topology, to, events)
	if err != nil {
		t.Fatal(err)
	}
	w, err := st.Writer(st.Campaign(), testConfig(nil).Meta, snap)
	if err != nil {
		t.Fatal(err)
	}
	for _, write := range writes {
		if _, err := w.Commit(t.Context(), write.Batch()); err != nil {
			t.Fatal(err)
		}
	}
}

// checkMaskEnded requires that only one mask is left, and one event of the end of the other after that of the topology.
func checkMaskEnded(t *testing.T, h *harness, kept *lofamov1.LinkMask) {
	t.Helper()
	snap, err := h.store.Load(t.Context())
	if err != nil || len(snap.Masks) != 1 || snap.Masks[0].GetDirection() != kept.GetDirection() {
		t.Errorf("stored masks: %v, %v: want that of %s alone", snap.Masks, err, kept.GetDirection())
	}
	if all, _, _ := h.cfg.Masks.All(); len(all) != 1 {
		t.Errorf("masks: %v", all)
	}
	events, _, err := h.store.Events(t.Context(), 0, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	changed, ended := false, 0
	for _, ev := range events {
		switch ev.GetKind() {
		case lofamov1.EventKind_TOPOLOGY_CHANGED:
			changed = true
		case lofamov1.EventKind_MASK_CHANGED:
			ended++
			if !changed || !ev.GetEnded() || ev.GetNode() != "n0-0-0" || ev.GetComponent() != "link/X+" || ev.GetReason() == "" ||
				ev.GetObserver() != "supervisor/s1" || ev.GetMask().GetPeerCoord() != "2,0,0" {
				t.Errorf("after the event of the topology %t: %v", changed, ev)
			}
		default:
		}
	}
	if ended != 1 {
		t.Errorf("%d events of masks: want 1 of the end of the mask", ended)
	}
}

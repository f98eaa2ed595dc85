package engine

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestIncidentOfAnotherVersionIsClosed: a new leader finds open incidents with root causes that it does not understand. It closes
// them, opens another one for a fault in its map, and deletes an incident that was CLOSED long ago.
func TestIncidentOfAnotherVersionIsClosed(t *testing.T) {
	st := memstore.New(100)
	var puts []store.KV
	for _, in := range []*lofamov1.Incident{
		{Id: "test-aaaaaaaa", State: lofamov1.IncidentState_OPEN, Node: "n0-0-0", Coord: "0,0,0", Component: "quantum", Version: 7,
			Fault: lofamov1.State_FAILED, Summary: "quantum of n0-0-0 is FAILED"},
		{Id: "test-bbbbbbbb", State: lofamov1.IncidentState_RECOVERING, Node: "n0-0-0", Coord: "nowhere", Component: "host", Version: 2,
			Fault: lofamov1.State_FAILED},
		{Id: "test-cccccccc", State: lofamov1.IncidentState_CLOSED, Component: "quantum", Version: 3, Fault: lofamov1.State_FAILED,
			Until: timestamppb.New(time.Now().Add(-31 * 24 * time.Hour))},
		{Id: "test-dddddddd", State: lofamov1.IncidentState_CLOSED, Component: "quantum", Version: 3, Fault: lofamov1.State_FAILED,
			Until: timestamppb.Now()},
	} {
		kv, err := store.IncidentPut(in)
		if err != nil {
			t.Fatal(err)
		}
		puts = append(puts, kv)
	}
	dead := view.Stored(awareness.NodeStatus{ID: "n1-0-0", Coord: grid.Coord{X: 1}, State: fault.Failed, Cause: fault.CauseNode,
		Since: time.Now()})
	w, err := st.Writer(st.Campaign(), testConfig(nil).Meta, store.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(t.Context(), store.Batch{Nodes: []*lofamov1.Node{dead}, Puts: puts}); err != nil {
		t.Fatal(err)
	}
	start(t, st, nil)
	read := func(id string) *lofamov1.Incident {
		key, _, _ := store.IncidentKeys(id)
		in := new(lofamov1.Incident)
		if value, _ := st.Value(key); value == nil {
			return nil
		} else if err := proto.Unmarshal(value, in); err != nil {
			t.Fatal(err)
		}
		return in
	}
	closed := func(in *lofamov1.Incident) bool {
		return in.GetState() == lofamov1.IncidentState_CLOSED && in.GetUntil() != nil
	}
	for deadline := time.Now().Add(wait); !closed(read("test-aaaaaaaa")); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v: want it CLOSED", read("test-aaaaaaaa"))
		}
	}
	if in := read("test-aaaaaaaa"); in.GetVersion() != 8 || in.GetSummary() != "quantum of n0-0-0 is FAILED" {
		t.Errorf("%v: want the rest unchanged", in)
	}
	if !closed(read("test-bbbbbbbb")) || !closed(read("test-dddddddd")) || read("test-cccccccc") != nil {
		t.Errorf("%v, %v, %v", read("test-bbbbbbbb"), read("test-dddddddd"), read("test-cccccccc"))
	}
	snap, err := st.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	open := 0
	for _, in := range snap.Incidents {
		if in.GetState() == lofamov1.IncidentState_OPEN {
			open++
			if in.GetNode() != "n1-0-0" {
				t.Errorf("%v is open", in)
			}
		}
	}
	if open != 1 {
		t.Errorf("%d incidents are open: want that of the dead node", open)
	}
}

// TestKeepIncidentsBoundsClosedOnes: of four stored CLOSED incidents a leader keeps the newest two.
func TestKeepIncidentsBoundsClosedOnes(t *testing.T) {
	st := memstore.New(100)
	var puts []store.KV
	for i, id := range []string{"test-aaaaaaaa", "test-bbbbbbbb", "test-cccccccc", "test-dddddddd"} {
		at := time.Now().Add(time.Duration(i-10) * time.Minute)
		kv, err := store.IncidentPut(view.Incident(&awareness.Incident{ID: id, State: awareness.IncidentClosed,
			Severity: awareness.IncidentWarning, Root: awareness.Part{Node: "n1-0-0", Component: fault.ComponentMemory},
			Coord: grid.Coord{X: 1}, Cause: fault.CauseMemory, Fault: fault.Sick, Since: at, Until: at, Version: 1}))
		if err != nil {
			t.Fatal(err)
		}
		puts = append(puts, kv)
	}
	w, err := st.Writer(st.Campaign(), testConfig(nil).Meta, store.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(t.Context(), store.Batch{Puts: puts}); err != nil {
		t.Fatal(err)
	}
	start(t, st, func(c *Config) { c.KeepIncidents = 2 })
	kept := func() (ids []string) {
		snap, err := st.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range snap.Incidents {
			ids = append(ids, in.GetId())
		}
		slices.Sort(ids)
		return ids
	}
	want := []string{"test-cccccccc", "test-dddddddd"}
	for deadline := time.Now().Add(wait); !slices.Equal(kept(), want); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("kept %q: want %q", kept(), want)
		}
	}
}

package local

import (
	"context"
	"slices"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
)

// TestSpuriousWakeupSendsNothing checks that a watcher keeps waiting after a second wake-up for changes that it has already
// taken. To the half, an empty list of nodes stands for the node and its neighbours.
func TestSpuriousWakeupSendsNothing(t *testing.T) {
	s := New(nil, Policy{})
	w := &watcher{nodes: []fault.NodeID{"n7"}, changed: make(map[fault.NodeID]bool), wake: make(chan struct{}, 1)}
	s.setWatchers([]*watcher{w})
	s.Changed(w.nodes)
	<-w.wake
	s.Changed(w.nodes) // between the waking and the taking
	if ids, all := s.take(w); all || !slices.Equal(ids, w.nodes) {
		t.Fatalf("took %v", ids)
	}
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan []fault.NodeID, 1)
	go func() {
		ids, _ := s.await(ctx, w)
		got <- ids
	}()
	for len(w.wake) > 0 {
		select {
		case ids := <-got:
			t.Fatalf("went on with %v", ids)
		default:
		}
	}
	s.Changed(w.nodes)
	if ids := <-got; !slices.Equal(ids, w.nodes) {
		t.Errorf("took %v", ids)
	}
	cancel()
	if ids, err := s.await(ctx, w); err == nil {
		t.Errorf("after its end: %v", ids)
	}
}

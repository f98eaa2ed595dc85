package local

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/agent/local/jobs"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// watchingHalf records the watched nodes.
type watchingHalf struct {
	Half

	nodes []fault.NodeID
}

func (h *watchingHalf) Watch(ids []fault.NodeID) { h.nodes = ids }

// has counts the watched nodes among those.
func (h *watchingHalf) has(names []string) (n int) {
	for _, name := range names {
		if slices.Contains(h.nodes, fault.NodeID(name)) {
			n++
		}
	}
	return n
}

func names(prefix string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%s%04d", prefix, i))
	}
	return out
}

// A user with as many nodes as a node may watch gives way to others, up to their shares, and learns which nodes have no room.
func TestUsersShareWatchedNodes(t *testing.T) {
	h := &watchingHalf{}
	s := New(h, Policy{})
	open := func(uid uint32, want codes.Code, nodes []string) *watcher {
		t.Helper()
		before := h.nodes
		w, err := s.open(uid, nodes)
		if status.Code(err) != want {
			t.Fatalf("%d nodes of uid %d: %v, want %s", len(nodes), uid, err, want)
		}
		if err != nil && !slices.Equal(h.nodes, before) {
			t.Errorf("a refused watch changes the watched nodes")
		}
		return w
	}
	const half = servicenet.MaxInterest / 2
	many, few := names("a", servicenet.MaxInterest), names("z", half)
	large := open(1, codes.OK, many)
	open(1, codes.ResourceExhausted, []string{"b"}) // his older watch comes first
	open(2, codes.ResourceExhausted, append(names("y", 1), few...))
	second := open(2, codes.OK, few)
	if a, z := h.has(many), h.has(few); a != half || z != half {
		t.Errorf("%d and %d nodes are watched, want %d of each user", a, z, half)
	}
	if ids, _ := s.take(large); len(ids) != half || h.has([]string{string(ids[0])}) != 0 {
		t.Errorf("the large watch learns of %d nodes without room: want %d", len(ids), half)
	}
	members := make([]fault.NodeID, 0, half)
	for _, name := range names("m", half) {
		members = append(members, fault.NodeID(name))
	}
	barriers := func(watch []fault.NodeID) {
		s.barriers.mu.Lock()
		s.apply(jobs.Output{Watch: watch, Rewatch: true})
		s.barriers.mu.Unlock()
		s.rewatch()
	}
	barriers(members)
	if m, a, z := h.has(names("m", half)), h.has(many), h.has(few); m != half || a != half/2 || z != half/2 {
		t.Errorf("%d members, %d and %d nodes are watched", m, a, z)
	}
	s.close(second)
	barriers(nil)
	if a := h.has(many); a != servicenet.MaxInterest {
		t.Errorf("alone again: %d nodes are watched", a)
	}
}

func TestUserHasHalfOfWatches(t *testing.T) {
	s := New(&watchingHalf{}, Policy{})
	for i := range maxWatchers/2 + 1 {
		if _, err := s.open(1, nil); (err == nil) != (i < maxWatchers/2) {
			t.Errorf("watch %d: %v", i+1, err)
		}
	}
	for _, uid := range []uint32{2, 0} {
		if _, err := s.open(uid, nil); err != nil {
			t.Errorf("a watch of uid %d: %v", uid, err)
		}
	}
}

func TestWatchesOpenSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time stands still
		s := New(&watchingHalf{}, Policy{})
		again := func(uid uint32) error {
			w, err := s.open(uid, nil)
			if err == nil {
				s.close(w)
			}
			return err
		}
		n := 0
		for again(1) == nil {
			n++
		}
		if n != int(opens.Burst) || status.Code(again(1)) != codes.ResourceExhausted || again(2) != nil {
			t.Errorf("%d watches at once: want %.0f, and more of another user", n, opens.Burst)
		}
		time.Sleep(time.Second)
		if err := again(1); err != nil {
			t.Errorf("a second later: %v", err)
		}
	})
}

package notify

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// sentTimes records the time of the newest message to each node.
type sentTimes struct {
	mu sync.Mutex
	at map[fault.NodeID]time.Time
}

func (s *sentTimes) Notify(node fault.NodeID, _ *lofamov1.FaultUpdate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at[node] = time.Now()
}

func (*sentTimes) Deny(fault.NodeID, *lofamov1.DenyPart) {}

func idsOf(dims grid.Dims) map[grid.Coord]fault.NodeID {
	ids := make(map[grid.Coord]fault.NodeID)
	for r := range dims.Nodes() {
		ids[dims.At(r)] = fault.DefaultNodeID(dims.At(r))
	}
	return ids
}

// running starts a notifier of a healthy map. It ends with the test.
func running(t *testing.T, names *view.Names, marks *view.Marks, to Sender) *Notifier {
	n := New(Config{Names: names, Marks: marks, Sender: to, NoQuorum: func() time.Duration { return 0 },
		DigestPeriod: 500 * time.Millisecond, DigestMisses: 4, Metrics: metrics.New(prometheus.NewRegistry())})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	n.Changed(view.NewBuilder(names, time.Now()).Map(1), nil)
	time.Sleep(time.Second)
	return n
}

// TestChangedMarkRenewsOnlyNodesItConcerns: the cost of a change does not grow with the number of marks.
func TestChangedMarkRenewsOnlyNodesItConcerns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dims := grid.Dims{X: 8, Y: 1, Z: 1}
		ids := idsOf(dims)
		to, marks := &sentTimes{at: make(map[fault.NodeID]time.Time)}, view.NewMarks()
		n := running(t, view.NewNames(dims, ids), marks, to)
		told := func(what string, change func(), want ...fault.NodeID) {
			t.Helper()
			for range 2 + renewals { // until the notifier repeats the previous change no more
				for _, id := range ids {
					n.Digest(Digest{Node: id, Epoch: 1, Revision: 1})
				}
				time.Sleep(500 * time.Millisecond)
			}
			at := time.Now()
			change()
			synctest.Wait()
			to.mu.Lock()
			defer to.mu.Unlock()
			var got []fault.NodeID
			for id, sent := range to.at {
				if !sent.Before(at) {
					got = append(got, id)
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s: told %v, want %v", what, got, want)
			}
		}
		mark := func(id fault.NodeID, reason string) []*lofamov1.Maintenance {
			return []*lofamov1.Maintenance{{Node: string(id), Reason: reason}}
		}
		told("the first mark", func() { marks.Change(mark("n1-0-0", "a"), nil, 1) }, "n0-0-0", "n1-0-0", "n2-0-0")
		told("a second mark", func() { marks.Change(mark("n5-0-0", "a"), nil, 2) }, "n4-0-0", "n5-0-0", "n6-0-0")
		told("another reason", func() { marks.Change(mark("n5-0-0", "b"), nil, 3) }, "n4-0-0", "n5-0-0", "n6-0-0")
		told("the end of the first", func() { marks.Change(nil, []fault.NodeID{"n1-0-0"}, 4) }, "n0-0-0", "n1-0-0", "n2-0-0")
	})
}

// TestDigestsOfManyNodesAreHandledTogether sends a digest of one node, then of all others 1 ms apart. The first is handled at
// once. The others are handled in as many looks as there are gatherTimes, and none waits longer than that.
func TestDigestsOfManyNodesAreHandledTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dims := grid.Dims{X: 4, Y: 4, Z: 4}
		ids := idsOf(dims)
		to := &sentTimes{at: make(map[fault.NodeID]time.Time)}
		n := running(t, view.NewNames(dims, ids), view.NewMarks(), to)

		sent := make(map[fault.NodeID]time.Time)
		for r := range dims.Nodes() {
			id := ids[dims.At(r)]
			sent[id] = time.Now()
			n.Digest(Digest{Node: id, Epoch: 1})
			time.Sleep(time.Millisecond)
		}
		time.Sleep(gatherTime)
		synctest.Wait()
		to.mu.Lock()
		defer to.mu.Unlock()
		looks := make(map[time.Time]bool)
		for id, at := range sent {
			switch heard, ok := to.at[id]; {
			case !ok:
				t.Errorf("%s got no message", id)
			case heard.Sub(at) > gatherTime:
				t.Errorf("%s got its message after %s: want %s at most", id, heard.Sub(at), gatherTime)
			case id == ids[dims.At(0)] && !heard.Equal(at):
				t.Errorf("the first digest after a pause waited for %s", heard.Sub(at))
			default:
				looks[heard] = true
			}
		}
		if most := 2 + dims.Nodes()*int(time.Millisecond)/int(gatherTime); len(looks) > most {
			t.Errorf("%d digests in %d looks: want %d at most", len(sent), len(looks), most)
		}
	})
}

// TestDigestsBeyondQueueAreDropped fills the queue while the notifier has no map.
func TestDigestsBeyondQueueAreDropped(t *testing.T) {
	n := New(Config{Metrics: metrics.New(prometheus.NewRegistry())})
	for range queue + 3 {
		n.Digest(Digest{Node: "n0-0-0", Epoch: 1})
	}
	if got := len(n.gathered()); got != queue {
		t.Errorf("%d digests wait: want %d", got, queue)
	}
}

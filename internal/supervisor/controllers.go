package supervisor

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/controller"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

const (
	// controllersEvery is the pause between two calls of the executor process for its readings.
	controllersEvery = 5 * time.Second
	// controllersIdle is that pause while the process has no controllers.
	controllersIdle = time.Minute
	// controllersPatience is the time without an answer of the process after which its readings are void for policies.
	controllersPatience = time.Minute
	// powerLabel is the label of nodes that share a power feed.
	powerLabel = "power"
)

// witnesses follows the management controllers of nodes while this replica leads. Their reports are evidence for policies and
// people: nothing here changes the map.
type witnesses struct {
	fetch  func(ctx context.Context, suspects []fault.NodeID, run string, after uint64) (controller.Batch, error)
	read   func(context.Context) (view.Map, error)
	tell   func(response.OutsideChanged)
	warn   func() // none has changed
	logger *slog.Logger

	none atomic.Bool // the last answer of the executor process in this lead says that it has no controllers

	mu       sync.Mutex
	book     controller.Book
	topology *topology.Topology
}

// lead follows the controllers until ctx ends. From then on no conditions of controllers are known.
func (w *witnesses) lead(ctx context.Context) {
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.book = controller.Book{}
		w.tell(response.OutsideChanged{Source: response.FromControllers, Unknown: true})
		if w.none.Swap(false) {
			w.warn()
		}
	}()
	var skip int       // suspects before this one had their turn, when there are too many for one call
	var lost time.Time // begin of the calls without an answer; zero: the last one had one
	void := false      // policies know that they are lost
	for {
		pause := controllersEvery
		var batch controller.Batch
		m, err := w.read(ctx)
		if err == nil {
			var suspects []fault.NodeID
			suspects, skip = suspectsOf(m, skip)
			w.mu.Lock()
			run, after := w.book.Position()
			w.mu.Unlock()
			batch, err = w.fetch(ctx, suspects, run, after)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if lost.IsZero() {
				lost = time.Now()
				w.logger.Warn("read management controllers from the executor process failed: after a minute, policies with their conditions wait",
					"err", err)
			}
			if !void && time.Since(lost) >= controllersPatience {
				void = true
				w.mu.Lock()
				w.tell(w.book.Lost())
				w.mu.Unlock()
			}
		default:
			lost, void = time.Time{}, false
			if batch.Configured == 0 {
				pause = controllersIdle
			}
			w.take(batch, m)
			if none := batch.Configured == 0; w.none.Swap(none) != none {
				w.warn()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// take adds a batch, and tells policies the conditions that have changed.
func (w *witnesses) take(batch controller.Batch, m view.Map) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.topology = m.Topology()
	around := controller.Around{Quiet: quietIn(m), Known: func(id fault.NodeID) bool { _, ok := w.topology.Node(id); return ok }}
	if ev, changed := w.book.Take(time.Now(), batch, around); changed {
		w.tell(ev)
	}
}

// suspectsOf returns the nodes that are not NORMAL, at most MaxSuspects from the given position on, and the next position.
func suspectsOf(m view.Map, skip int) ([]fault.NodeID, int) {
	ranks := slices.Collect(m.NotNormal())
	if skip >= len(ranks) {
		skip = 0
	}
	end := min(skip+executor.MaxSuspects, len(ranks))
	out := make([]fault.NodeID, 0, end-skip)
	for _, rank := range ranks[skip:end] {
		out = append(out, m.ID(rank))
	}
	return out, end
}

// quietIn returns the nodes without a sign of life: those that are FAILED as a whole, and UNKNOWN ones without an announced stop.
func quietIn(m view.Map) map[fault.NodeID]struct{} {
	out := map[fault.NodeID]struct{}{}
	for rank := range m.NotNormal() {
		if s := m.State(rank); s == fault.Failed || s == fault.Unknown && m.Stop(rank).Reason == 0 {
			out[m.ID(rank)] = struct{}{}
		}
	}
	return out
}

// notes returns the report of a node's controller, in words for an explanation.
func (w *witnesses) notes(id fault.NodeID, now time.Time) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.topology == nil {
		return nil
	}
	domain, others := feedOf(w.topology, id)
	return w.book.Notes(now, id, domain, others)
}

// feedOf returns the power domain of a node by its label, and the other nodes in it.
func feedOf(t *topology.Topology, id fault.NodeID) (domain string, others []fault.NodeID) {
	own, _ := t.Node(id)
	feed := own.Labels[powerLabel]
	if feed == "" {
		return "", nil
	}
	for _, n := range t.Nodes {
		if n.ID != id && n.Labels[powerLabel] == feed {
			others = append(others, n.ID)
		}
	}
	return powerLabel + "=" + feed, others
}

// node returns the last reading of a node's controller for clients, or nil.
func (w *witnesses) node(id fault.NodeID, now time.Time) *lofamov1.ManagementController {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, feed, ok := w.book.Reading(id)
	if !ok {
		return nil
	}
	age := func(at time.Time) *durationpb.Duration { return durationpb.New(max(0, now.Sub(at))) }
	return &lofamov1.ManagementController{
		Finding: lofamov1.ControllerFinding(r.Finding), Health: lofamov1.ControllerHealth(r.Health), Detail: r.Detail, Age: age(r.At),
		Since: age(r.Since), Log: r.Log, Sensors: r.Sensors, PowerFeedSuspected: feed,
	}
}

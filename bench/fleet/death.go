package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Normal waits until the map calls every node NORMAL.
func (f *Fleet) Normal(ctx context.Context) error {
	for {
		r, err := f.client.GetSummary(ctx, &lofamov1.GetSummaryRequest{})
		if err == nil && int(r.GetNodes().GetNormal()) == len(f.nodes) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("of %d nodes only %d are NORMAL: %w", len(f.nodes), r.GetNodes().GetNormal(), errors.Join(ctx.Err(), err))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Deaths is the outcome for nodes that died at once.
type Deaths struct {
	Known       measure.Latencies // FAILED, or UNKNOWN and inferred dead, from the death to the receipt of the event
	Accusations int               // link ends that fell silent
	Group       time.Duration     // the first group fault of half the victims or more; 0: none came
	GroupSize   uint32            // of the largest group fault
	GroupID     string
}

// Die makes nodes silent at one instant. Their neighbours report the silence when their own links have been silent
// for the time-out, each at its own moment within one link period. Die waits until the map shows all deaths and, if
// group is set, the group fault that most of the victims are in.
func (f *Fleet) Die(ctx context.Context, victims []int, group bool) (Deaths, error) {
	dead := make(map[int]bool, len(victims))
	for _, v := range victims {
		dead[v] = true
	}
	accusers, out, err := f.accusers(dead)
	if err != nil {
		return out, err
	}
	now, err := f.client.ListEvents(ctx, &lofamov1.ListEventsRequest{Limit: 1})
	if err != nil {
		return out, err
	}
	w := newWatcher(f, dead)
	wctx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	watching.Go(func() { w.run(wctx, now.GetRevision()) })
	for v := range dead {
		f.nodes[v].Kill()
	}
	w.begin(time.Now())
	if err := f.accuse(ctx, accusers); err != nil {
		return out, err
	}
	return w.wait(ctx, out, group)
}

// silence returns how long no frame comes before a link counts as silent.
func (f *Fleet) silence() time.Duration {
	return f.periods.LinkPeriod * time.Duration(f.periods.LinkMisses+1)
}

// accusers signs the reports of every living neighbour of the dead.
func (f *Fleet) accusers(dead map[int]bool) (out []*Batch, d Deaths, err error) {
	for rank, n := range f.nodes {
		if dead[rank] {
			continue
		}
		count := 0
		for _, p := range n.peers {
			if dead[p.rank] {
				count++
			}
		}
		if count == 0 {
			continue
		}
		d.Accusations += count
		b, err := n.Accuse(f.silence(), func(rank int) bool { return dead[rank] })
		if err != nil {
			return nil, d, err
		}
		out = append(out, b)
	}
	rnd := rand.New(rand.NewPCG(f.cfg.Seed, 3))
	rnd.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out, d, nil
}

// accuse sends, spread evenly over one link period after the time-out of silence.
func (f *Fleet) accuse(ctx context.Context, batches []*Batch) error {
	begun := time.Now()
	for i, b := range batches {
		at := begun.Add(f.silence() + f.periods.LinkPeriod*time.Duration(i)/time.Duration(len(batches)))
		if d := time.Until(at); d > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(d):
			}
		}
		if err := f.wire.launch(b, func(time.Duration) {}); err != nil {
			return err
		}
	}
	return nil
}

// watcher notes when the map knows of each of the dead.
type watcher struct {
	f    *Fleet
	dead map[int]bool

	mu    sync.Mutex
	begun time.Time
	known map[int]time.Duration
	d     Deaths
	more  chan struct{}
	err   error
}

func newWatcher(f *Fleet, dead map[int]bool) *watcher {
	return &watcher{f: f, dead: dead, known: make(map[int]time.Duration), more: make(chan struct{}, 1)}
}

func (w *watcher) begin(t time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = t
}

func (w *watcher) run(ctx context.Context, after uint64) {
	err := w.f.client.Watch(ctx, client.WatchOptions{After: after}, func(r *lofamov1.WatchResponse) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		took := time.Since(w.begun)
		for _, ev := range r.GetEvents() {
			w.note(ev, took)
		}
		w.tell()
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	w.tell()
}

func (w *watcher) tell() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *watcher) note(ev *lofamov1.Event, took time.Duration) {
	if g := ev.GetGroup(); g != nil {
		if g.GetState() != lofamov1.State_NORMAL && g.GetSize() > w.d.GroupSize {
			w.d.GroupSize, w.d.GroupID = g.GetSize(), g.GetId()
		}
		if w.d.Group == 0 && 2*int(g.GetSize()) >= len(w.dead) {
			w.d.Group = took
		}
		return
	}
	at, err := grid.ParseCoord(ev.GetCoord())
	if err != nil || ev.GetComponent() != "node" {
		return
	}
	rank := w.f.cfg.Dims.Rank(at)
	gone := ev.GetTo() == lofamov1.State_FAILED || ev.GetTo() == lofamov1.State_UNKNOWN
	if _, known := w.known[rank]; gone && w.dead[rank] && !known {
		w.known[rank] = took
	}
}

// wait returns when all are known, and where they are a group, that too.
func (w *watcher) wait(ctx context.Context, out Deaths, group bool) (Deaths, error) {
	for {
		w.mu.Lock()
		count, err, d := len(w.known), w.err, w.d
		w.mu.Unlock()
		if count == len(w.dead) && (!group || d.Group > 0) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, took := range w.known {
				out.Known = append(out.Known, took)
			}
			out.Group, out.GroupSize, out.GroupID = d.Group, d.GroupSize, d.GroupID
			return out, nil
		}
		if err != nil {
			return out, fmt.Errorf("watch: %w", err)
		}
		select {
		case <-ctx.Done():
			return out, fmt.Errorf("the map knows of %d of %d dead nodes: %w", count, len(w.dead), ctx.Err())
		case <-w.more:
		}
	}
}

package ingest

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

const (
	// gatherTime is the maximum time to gather restated digests. Their ages account for the delay.
	gatherTime = 20 * time.Millisecond
	// gatherMost is the size of a batch; a full batch is sent at once.
	gatherMost = 512
	// wholeEvery is the number of restatements after which a digest goes whole in any case, with its sender's
	// counters: 10 s with the default preset.
	wholeEvery = 20
)

// restater recognises unchanged digests and batches them: only changes and a sign of life travel on. It stores one
// number for each half, and only certificates can add halves. Its methods may be called from any goroutine.
type restater struct {
	submit func(to listener, list []engine.Restated)
	woken  chan struct{} // room for one

	mu      sync.Mutex
	halves  map[fault.Origin]given
	pending []engine.Restated
	to      listener // of pending
}

// listener identifies a receiver of digests: one of this replica's own terms, or a stream to the leader. Each
// listener knows only the digests sent to it. The zero listener means none.
type listener struct {
	term   uint64 // our own
	stream uint64
}

// given is the whole digest that a listener has of a half.
type given struct {
	to    listener
	epoch fault.Epoch
	words uint64
	left  int // restatements until it goes whole again
}

func newRestater(submit func(listener, []engine.Restated)) *restater {
	return &restater{submit: submit, woken: make(chan struct{}, 1), halves: make(map[fault.Origin]given)}
}

// restates reports whether a digest contains nothing new for the listener, and queues such a digest. It returns
// false if the digest must go whole, and remembers that.
func (r *restater) restates(to listener, in *servicenet.Reports, arrived time.Time) bool {
	if to == (listener{}) || in == nil || in.Words == 0 || len(in.List) != 1 {
		return false
	}
	id := in.List[0].ID
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.halves[id.Origin]
	// Readings feed the forecasts, so a digest with readings goes whole.
	if len(in.List[0].Readings) > 0 || g.to != to || g.epoch != id.Epoch || g.words != in.Words || g.left == 0 ||
		(r.to != to && len(r.pending) > 0) {
		r.halves[id.Origin] = given{to, id.Epoch, in.Words, wholeEvery}
		return false
	}
	g.left--
	r.halves[id.Origin] = g
	var held time.Duration
	for _, h := range in.Hops {
		held += h.Held
	}
	r.to = to
	r.pending = append(r.pending, engine.Restated{ID: id, Words: in.Words, Path: in.Path, Held: held, Arrived: arrived})
	if len(r.pending) == 1 || len(r.pending) == gatherMost {
		r.wake()
	}
	return true
}

func (r *restater) wake() {
	select {
	case r.woken <- struct{}{}:
	default:
	}
}

// RequestFull implements engine.FullDigestRequester.
func (r *restater) RequestFull(origins []fault.Origin) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range origins {
		delete(r.halves, o)
	}
}

// keep forgets the halves of all other nodes.
func (r *restater) keep(known func(fault.NodeID) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.halves, func(o fault.Origin, _ given) bool { return !known(o.Node) })
}

// take returns the pending digests if their time has come or the batch is full.
func (r *restater) take(now bool) (to listener, list []engine.Restated, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !now && len(r.pending) < gatherMost {
		return listener{}, nil, len(r.pending) > 0
	}
	to, list = r.to, r.pending
	r.pending = nil
	if len(list) > 0 {
		r.pending = make([]engine.Restated, 0, min(gatherMost, len(list)+len(list)/2))
	}
	return to, list, false
}

// run sends the gathered digests until the context ends.
func (r *restater) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	armed := false
	for {
		due := false
		select {
		case <-ctx.Done():
			return
		case <-r.woken:
		case <-timer.C:
			due, armed = true, false
		}
		to, list, waits := r.take(due)
		for len(list) > 0 {
			n := min(len(list), engine.MaxRestated)
			r.submit(to, list[:n:n])
			list = list[n:]
		}
		if waits && !armed {
			timer.Reset(gatherTime)
			armed = true
		}
	}
}

// words returns engine.Words of a single whole digest, or 0 for any other message.
func words(a *servicenet.Arrival) uint64 {
	if len(a.List) != 1 {
		return 0
	}
	return engine.Words(a.List[0], a.Status, a.Health)
}

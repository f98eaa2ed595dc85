// The hub distributes the committed changes of the fault map to many watchers. Each replica needs only one watch
// of the store.
//
//	store ──watch──► watchHub: ring of the newest ──────────────► subscription ──► a client
//	store ──history by number, until the ring is reached───►
//
// A subscription that resumes within the ring needs no read of the store. One that resumes before it reads events
// from history, page by page, until it reaches the ring. A subscription has no queue, only a place in the ring. It is cut off
// when the ring overtakes that place (errSlowReader).
//
// The hub selects no events and knows no clients.

package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// errSlowReader says that a subscription's reader fell behind the retained frames.
var errSlowReader = errors.New("the reader is too slow")

// expiredError says that some changes after a revision are no longer available.
type expiredError struct {
	After  uint64 // the revision
	Oldest uint64 // number of the oldest event that is kept
	// Gap describes the store's restore from a snapshot, if that lost the revision; nil: history retains only newer
	// revisions.
	Gap *store.Gap
}

func (e *expiredError) Error() string {
	if e.Gap != nil {
		return fmt.Sprintf("revision %d was lost when the store was restored from a snapshot: no commit between revision %d and "+
			"revision %d is kept",
			e.After, e.Gap.From, e.Gap.To)
	}
	return fmt.Sprintf("changes that followed revision %d are no longer kept: the oldest kept is event %d", e.After, e.Oldest)
}

// hubSource is the replica's own copy of the store; its methods need no quorum.
type hubSource interface {
	// Watch sends the commits after a revision, like store.Etcd's.
	Watch(ctx context.Context, after uint64) <-chan store.Update
	Bounds(ctx context.Context) (store.Bounds, error)
	EventsFrom(ctx context.Context, number uint64, limit int) (first uint64, events []*lofamov1.Event, err error)
}

// hubConfig is the configuration of a hub. Zero values stand for 1,024 updates and 16 MiB.
type hubConfig struct {
	Updates int // that a reader may be behind
	Bytes   int // of the updates that are kept
	Logger  *slog.Logger
}

// watchHub distributes changes to subscriptions. It works while Run runs.
type watchHub struct {
	cfg hubConfig
	src hubSource

	mu      sync.RWMutex
	ring    *watchRing
	changed chan struct{} // closed and renewed when the ring has more
	subs    map[*subscription]struct{}
}

// newHub returns a hub on a source.
func newHub(cfg hubConfig, src hubSource) *watchHub {
	cfg.Updates = cmp.Or(cfg.Updates, 1024)
	cfg.Bytes = cmp.Or(cfg.Bytes, 16<<20)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &watchHub{cfg: cfg, src: src, ring: newWatchRing(cfg.Updates, cfg.Bytes), changed: make(chan struct{}),
		subs: make(map[*subscription]struct{})}
}

// watchRetry is the pause before a new watch of the store, and between two reads of a history that lags behind the
// ring.
const watchRetry = 100 * time.Millisecond

// Run follows the store until the context ends.
func (h *watchHub) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := h.follow(ctx); ctx.Err() == nil {
			h.cfg.Logger.Warn("the store's watch ended: starting a new one", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchRetry):
		}
	}
}

// follow watches the store once, going on where the ring ends.
func (h *watchHub) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for u := range h.src.Watch(ctx, h.Head()) {
		switch {
		case errors.Is(u.Err, store.ErrCompacted):
			// The ring cannot continue without a gap: it restarts, and its readers switch to history.
			h.begin(0)
			return u.Err
		case u.Err != nil:
			return u.Err
		}
		if err := h.take(u); err != nil {
			return err
		}
	}
	return errors.New("no more updates")
}

// Head returns the hub's newest complete revision, or 0 if it has none yet.
func (h *watchHub) Head() uint64 {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.ring.Head()
}

// begin empties the ring and sets its start; 0: the start is not known yet.
func (h *watchHub) begin(revision uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if revision == 0 {
		h.ring = newWatchRing(h.cfg.Updates, h.cfg.Bytes)
	} else {
		h.ring.Begin(revision)
	}
	for s := range h.subs {
		s.joined.Store(false)
	}
}

// take adds an update and wakes the readers.
func (h *watchHub) take(u store.Update) error {
	var f *watchFrame
	if len(u.Events) > 0 && len(u.Values) == len(u.Events) {
		f = newStoredFrame(u.Revision, u.Events, u.Values)
	} else if len(u.Events) > 0 {
		var err error
		if f, err = newWatchFrame(u.Revision, u.Events); err != nil {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ring.Begun() {
		// The first update of a watch from now on is a bookmark.
		from := u.Revision
		if f != nil {
			from--
		}
		h.ring.Begin(from)
	}
	floor := h.ring.Floor()
	if f != nil {
		h.ring.Add(f)
	} else {
		h.ring.Pass(u.Revision)
	}
	if h.ring.Floor() > floor {
		h.cutSlow()
	}
	close(h.changed)
	h.changed = make(chan struct{})
	return nil
}

// cutSlow cuts off readers that the ring has overtaken.
func (h *watchHub) cutSlow() {
	for s := range h.subs {
		if s.joined.Load() && s.place.Load() < h.ring.Floor() {
			delete(h.subs, s)
			close(s.cut)
		}
	}
}

// subscription is one reader's place in the stream of changes. Only Close is safe for concurrent use.
type subscription struct {
	h      *watchHub
	place  atomic.Uint64 // revision up to which everything was handed over
	joined atomic.Bool   // the place is one in the ring
	cut    chan struct{}
	marked uint64 // the newest bookmark that was handed over
	number uint64 // of the next event in history; 0: to be found out from the place
	buf    []*watchFrame
}

// Subscribe returns a reader of the changes after a revision, which may lie in the future. It must be closed.
func (h *watchHub) Subscribe(after uint64) *subscription {
	s := &subscription{h: h, cut: make(chan struct{}), marked: after}
	s.place.Store(after)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subs[s] = struct{}{}
	return s
}

// Close gives the place up.
func (s *subscription) Close() {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	delete(s.h.subs, s)
}

// Slow is closed when the reader was cut off.
func (s *subscription) Slow() <-chan struct{} { return s.cut }

// framesAtOnce bounds the result of Next: a reader's place advances only between two calls.
const framesAtOnce = 16

// Next waits for the next changes and returns them, oldest first. They are frames with all changes of one revision
// each, or a single bookmark, which may repeat the revision of the frame before. They are shared, and the slice is
// valid until the next call. Next fails with errSlowReader, with an expiredError, with an error of the store (the caller
// may subscribe again from the reader's place), or with the context's error.
func (s *subscription) Next(ctx context.Context) ([]*watchFrame, error) {
	for {
		frames, changed, here := s.fromRing()
		if len(frames) > 0 {
			return frames, nil
		}
		if !here {
			frames, err := s.fromHistory(ctx)
			if err != nil || len(frames) > 0 {
				return frames, err
			}
			if s.place.Load() >= s.h.floor() {
				continue
			}
		}
		var again <-chan time.Time
		if !here {
			again = time.After(watchRetry)
		}
		select {
		case <-changed:
		case <-again:
		case <-s.cut:
			return nil, errSlowReader
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (h *watchHub) floor() uint64 {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.ring.Floor()
}

// fromRing returns the ring's frames after the reader's place, and a channel that signals more. here is false if
// the ring lacks some of the changes.
func (s *subscription) fromRing() (frames []*watchFrame, changed <-chan struct{}, here bool) {
	h := s.h
	h.mu.RLock()
	defer h.mu.RUnlock()
	place := s.place.Load()
	s.buf, here = h.ring.After(place, framesAtOnce, s.buf[:0])
	if !here {
		if s.joined.Load() { // it was cut off
			return nil, h.changed, true
		}
		return nil, h.changed, !h.ring.Begun()
	}
	s.joined.Store(true)
	s.number = 0
	if n := len(s.buf); n > 0 {
		s.place.Store(s.buf[n-1].Revision)
		return s.buf, h.changed, true
	}
	if mark := h.ring.Bookmark(); mark > s.marked && mark >= place {
		if f, err := newWatchFrame(h.ring.Head(), nil); err == nil { // a bookmark can always be encoded
			s.marked = f.Revision
			s.place.Store(f.Revision)
			return append(s.buf, f), h.changed, true
		}
	}
	return nil, h.changed, true
}

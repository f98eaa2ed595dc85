package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// ErrNoQuorum is an ErrNotLeading: this replica may lead, but no quorum confirms it.
var ErrNoQuorum = fmt.Errorf("%w: no quorum confirms this", ErrNotLeading)

// Map returns the committed map as of some moment during the call, without ages. It asks a quorum whether this
// replica still leads, once for all concurrent callers: a leader that was paused past its lease must not present its
// old map as the newest. It fails with ErrNotLeading.
func (e *Engine) Map(ctx context.Context) (view.Map, error) {
	for {
		t := e.term.Load()
		if t == nil {
			return view.Map{}, ErrNotLeading
		}
		m, err := t.newest(ctx)
		if next := e.term.Load(); !errors.Is(err, ErrNotLeading) || next == nil || next == t {
			return m, err
		} // else the topology has changed
	}
}

// Committed returns the newest map of the running term that this replica knows, without asking a quorum; false: no
// term runs. It never blocks: metrics use it.
func (e *Engine) Committed() (view.Map, bool) {
	t := e.term.Load()
	if t == nil {
		return view.Map{}, false
	}
	t.published.mu.Lock()
	defer t.published.mu.Unlock()
	return t.published.now, true
}

// newest returns the map of this term.
func (t *term) newest(ctx context.Context) (view.Map, error) {
	at, err := t.confirmer.confirm(ctx)
	if err != nil {
		return view.Map{}, err
	}
	// The store may have a commit, and watches may show it, before the term learns about it.
	m, err := t.published.reach(ctx, at.Head, t.done)
	// The store's revision may have advanced since the last commit, by keys outside the map, and older revisions may
	// be compacted: a watch must be able to begin at the map's revision.
	m.Revision = max(m.Revision, at.Revision)
	return m, err
}

// published is the newest committed map.
type published struct {
	mu    sync.Mutex
	now   view.Map
	newer chan struct{} // closed when now is replaced
}

func newPublished(m view.Map) *published { return &published{now: m, newer: make(chan struct{})} }

func (p *published) publish(m view.Map) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = m
	close(p.newer)
	p.newer = make(chan struct{})
}

// reach waits until the map holds the commit of a revision, and returns it.
func (p *published) reach(ctx context.Context, revision uint64, ended <-chan struct{}) (view.Map, error) {
	for {
		p.mu.Lock()
		m, newer := p.now, p.newer
		p.mu.Unlock()
		if m.Revision >= revision {
			return m, nil
		}
		select {
		case <-newer:
		case <-ended:
			return view.Map{}, ErrNotLeading
		case <-ctx.Done():
			return view.Map{}, ctx.Err()
		}
	}
}

// confirmTime is how long a quorum may take to answer.
const confirmTime = time.Second

// confirmer asks a quorum whether the term still stands. Callers that arrive during a question share the next one: an
// answer to an earlier question might be older than they may accept.
type confirmer struct {
	ctx   context.Context // of the term
	store Store
	fence store.Fence

	mu    sync.Mutex
	next  *round // not begun yet; nil: no caller waits
	works bool
	ended bool
	wg    sync.WaitGroup
}

// round is one question to the quorum.
type round struct {
	done chan struct{}
	at   store.Standing
	err  error
}

func (c *confirmer) confirm(ctx context.Context) (store.Standing, error) {
	r := c.join()
	if r == nil {
		return store.Standing{}, ErrNotLeading
	}
	select {
	case <-r.done:
		return r.at, r.err
	case <-ctx.Done():
		return store.Standing{}, ctx.Err()
	}
}

// join returns the round that begins next, or nil if the term is over.
func (c *confirmer) join() *round {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil
	}
	if c.next == nil {
		c.next = &round{done: make(chan struct{})}
	}
	if !c.works {
		c.works = true
		c.wg.Go(c.work)
	}
	return c.next
}

// work asks the quorum for as long as callers wait.
func (c *confirmer) work() {
	for {
		c.mu.Lock()
		r := c.next
		c.next, c.works = nil, r != nil
		c.mu.Unlock()
		if r == nil {
			return
		}
		ctx, cancel := context.WithTimeout(c.ctx, confirmTime)
		at, err := c.store.Confirm(ctx, c.fence)
		cancel()
		switch {
		case err == nil:
			r.at = at
		case errors.Is(err, store.ErrNotLeader), c.ctx.Err() != nil:
			r.err = ErrNotLeading
		default:
			r.err = fmt.Errorf("%w: %w", ErrNoQuorum, err)
		}
		close(r.done)
	}
}

// stop waits for the confirmer to end. The term's context must have ended.
func (c *confirmer) stop() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.wg.Wait()
}

// detail requests full node entries.
type detail struct {
	ids   []fault.NodeID
	reply chan<- []view.Entry
}

// detailPiece is the number of nodes that the engine answers between two inputs: about 0.1 ms.
const detailPiece = 32

// Detail returns nodes with the data that only the leader holds in memory: current ages, registers, evidence and
// delivery status. For a node with an uncommitted change it returns the committed state. Unknown nodes are left out.
// It does not confirm that this replica still leads: Map does. It fails with ErrNotLeading.
func (e *Engine) Detail(ctx context.Context, ids []fault.NodeID) ([]view.Entry, error) {
	t := e.term.Load()
	if t == nil {
		return nil, ErrNotLeading
	}
	out := make([]view.Entry, 0, len(ids))
	reply := make(chan []view.Entry, 1)
	for len(ids) > 0 {
		n := min(len(ids), detailPiece)
		entries, err := inquire(ctx, t, (*questions).toDetail, detail{ids[:n], reply}, reply)
		if err != nil {
			return nil, err
		}
		out, ids = append(out, entries...), ids[n:]
	}
	return out, nil
}

// detail answers Detail.
func (t *term) detail(ids []fault.NodeID) []view.Entry {
	out := make([]view.Entry, 0, len(ids))
	for _, id := range ids {
		entry, ok := t.committed.At(id)
		if !ok {
			continue
		}
		if st, ok := t.machine.Node(id); ok {
			if t.touched[id] == 0 {
				entry.Status = st
			} else {
				entry.Status.Life, entry.Status.HalfLife = st.Life, st.HalfLife
				entry.Status.Registers, entry.Status.RegistersAt = st.Registers, st.RegistersAt
				entry.Status.Platform, entry.Status.Restart, entry.Status.Stop = st.Platform, st.Restart, st.Stop
			}
		}
		said := t.senders[id]
		entry.Delivery, entry.DeliveryAt, entry.DeliveryOldAt = said.Status, said.At, said.OldAt
		entry.Health = t.healthOf(id)
		out = append(out, entry)
	}
	return out
}

// why requests an explanation of a group fault, if one is given, else of a component.
type why struct {
	group string
	id    fault.NodeID
	c     fault.Component
	reply chan<- explained
}

type explained struct {
	awareness.Explanation
	group awareness.GroupExplanation
	ok    bool
}

// why answers Explain and ExplainGroup.
func (t *term) why(w why) (x explained) {
	if w.group != "" {
		x.group, x.ok = t.machine.ExplainGroup(w.group)
	} else {
		x.Explanation, x.ok = t.machine.Explain(w.id, w.c)
	}
	return x
}

// ErrUnknown says that the node, its component or the group fault does not exist.
var ErrUnknown = errors.New("no such node, component or group fault")

// Explain returns the machine's explanation of a component's state, which includes uncommitted changes. It fails with
// ErrNotLeading and with ErrUnknown.
func (e *Engine) Explain(ctx context.Context, id fault.NodeID, c fault.Component) (awareness.Explanation, error) {
	t := e.term.Load()
	if t == nil {
		return awareness.Explanation{}, ErrNotLeading
	}
	reply := make(chan explained, 1)
	out, err := inquire(ctx, t, (*questions).toExplain, why{id: id, c: c, reply: reply}, reply)
	if err == nil && !out.ok {
		err = fmt.Errorf("explain %s of %q: %w", c, id, ErrUnknown)
	}
	return out.Explanation, err
}

// ExplainGroup is Explain for a group fault that still stands.
func (e *Engine) ExplainGroup(ctx context.Context, id string) (awareness.GroupExplanation, error) {
	t := e.term.Load()
	if t == nil {
		return awareness.GroupExplanation{}, ErrNotLeading
	}
	reply := make(chan explained, 1)
	out, err := inquire(ctx, t, (*questions).toExplain, why{group: id, reply: reply}, reply)
	if err == nil && !out.ok {
		err = fmt.Errorf("explain group fault %q: %w", id, ErrUnknown)
	}
	return out.group, err
}

// inquire puts a question to a term, by the channel that of returns, and waits for the answer. If the term ends before it takes the
// question, a term that follows immediately gets it. inquire fails with ErrNotLeading when the term that has taken the question ends
// without an answer, or no other term follows.
func inquire[Q, A any](ctx context.Context, t *term, of func(*questions) chan<- Q, q Q, reply <-chan A) (A, error) {
	var none A
	to := of(&t.questions)
	for {
		select {
		case to <- q:
			to = nil
		case a := <-reply:
			return a, nil
		case <-t.done:
			select {
			case a := <-reply: // given before the end
				return a, nil
			default:
			}
			next := t.e.term.Load()
			if to == nil || next == nil || next == t { // only the term that took the question answers it
				return none, ErrNotLeading
			}
			t, to = next, of(&next.questions)
		case <-ctx.Done():
			return none, ctx.Err()
		}
	}
}

// Package federation connects the supervisors of regions. A region is one part of a large torus with its own supervisors and store; a
// parent of regions serves one map of all of them (Yost, Chaos router §5.2.3.2, divides a map in the same way).
//
//   - The feed and the ledger (export*.go): pure machines on both ends of the stream from a region to the parent. They
//     decide which messages to send and accept.
//   - Uplink (uplink.go): a region's leader streams its committed map to the parent.
//   - Parent and Server (parent.go, term.go, commit.go, server.go): the parent commits the streams of all regions and publishes one map.
//   - Copy (copy.go): any replica of the parent reads that map from the store.
//   - Peers (peer.go): a region forwards evidence and verdicts about border nodes to the neighbouring regions.
//
// The parent's data flow:
//
//	stream ──► ledger of the region ──► units ──► committer ──► store
//	                │                                │
//	         presence of the region            map, committed
//
// The package judges no node. When a region stops reporting, the parent marks it as cut off and shows its nodes as UNKNOWN with the age
// of the last message. The stored state stays unchanged, and the parent shows it again when the region returns.
package federation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// ParentStore is the store of the parent. Its methods block until the store answers.
type ParentStore interface {
	Load(ctx context.Context) (store.Snapshot, error)
	Tree(ctx context.Context, prefix string, own bool) ([]store.Entry, uint64, error)
	Confirm(ctx context.Context, fence store.Fence) (store.Standing, error)
	Writer(fence store.Fence, meta store.Meta, snap store.Snapshot) (store.Committer, error)
}

// ParentConfig configures a Parent.
type ParentConfig struct {
	// Regions are the names of the regions. Region returns the region of a node.
	Regions []string
	Region  func(id fault.NodeID) string
	Names   *view.Names // of all regions
	Meta    store.Meta
	// Beat is the interval between messages of a region. After Misses intervals without one it is cut off.
	Beat   time.Duration
	Misses int
	// Reconnect is the least time that a region has for its first message to a new leader, or 0.
	Reconnect time.Duration
	// Ops and Bytes bound a transaction. 0 stands for 100 operations and for 896 KiB.
	Ops, Bytes int
	// Backlog bounds the bytes of units that wait for the store; 0 stands for 64 MiB. Beyond it the parent accepts no
	// input, so a slow store slows the regions down.
	Backlog int
	Metrics *metrics.Metrics
	Logger  *slog.Logger
}

// mayTell reports whether a region may report on a node. A node unknown to the parent may be a spare that the
// region put in a dead node's place. Its state is stored, and shown once the parent's configuration has the node.
// A refusal would cut the region off until then.
func (c ParentConfig) mayTell(name string, id fault.NodeID) bool {
	of := c.Region(id)
	return of == name || of == ""
}

// Parent merges the maps of all regions. It outlives terms of leadership; Lead runs one term. Its other methods
// may be called from any goroutine.
type Parent struct {
	cfg     ParentConfig
	store   ParentStore
	now     func() time.Time // tests replace it between terms
	in      chan input
	streams atomic.Uint64
	term    atomic.Pointer[term]
	began   atomic.Pointer[time.Time] // of the commit in progress, by the monotonic clock; nil: none
}

// NewParent returns a parent that keeps its regions in st.
func NewParent(cfg ParentConfig, st ParentStore) *Parent {
	cfg.Ops = cmp.Or(cfg.Ops, 100)
	cfg.Bytes = cmp.Or(cfg.Bytes, 896<<10)
	cfg.Backlog = cmp.Or(cfg.Backlog, 64<<20)
	return &Parent{cfg: cfg, store: st, now: time.Now, in: make(chan input)}
}

// input is an event for the ledger of a region, or (nil) that the names have changed.
type input struct {
	region string
	event  ledgerInput
	out    *outbox // of a stream that begins
}

// Relabel updates the map after a change of labels or spares. It blocks until the running term, if any, has
// applied the change.
func (e *Parent) Relabel(ctx context.Context) {
	if t := e.term.Load(); t != nil {
		t.submit(ctx, input{})
	}
}

// Leading reports whether a term is running.
func (e *Parent) Leading() bool { return e.term.Load() != nil }

// Committing returns the age of the commit in progress, or 0 for none.
func (e *Parent) Committing() time.Duration {
	if at := e.began.Load(); at != nil {
		return max(1, time.Since(*at))
	}
	return 0
}

// Lead runs one term. It loads the stored state and works until the context ends or the store refuses a commit. It
// returns the reason.
func (e *Parent) Lead(ctx context.Context, fence store.Fence) error {
	t, err := e.newTerm(ctx, fence)
	if err != nil {
		return fmt.Errorf("begin term %d: %w", fence.Rev, err)
	}
	e.term.Store(t)
	e.cfg.Metrics.Leader.Set(1)
	e.cfg.Metrics.Terms.Inc()
	defer func() {
		e.term.Store(nil)
		close(t.done)
		e.cfg.Metrics.Leader.Set(0)
		e.cfg.Metrics.NoRegions()
	}()
	return t.run(ctx)
}

// submit passes an event to the term that was running when the stream began, and waits until the term accepts it.
// False means that the term or the stream has ended.
func (t *term) submit(ctx context.Context, in input) bool {
	select {
	case t.e.in <- in:
		return true
	case <-t.done:
		return false
	case <-ctx.Done():
		return false
	}
}

// Map returns the map of all regions at some moment during the call. It asks a quorum whether this replica still
// leads. It fails with engine.ErrNotLeading.
func (e *Parent) Map(ctx context.Context) (view.Map, error) {
	t := e.term.Load()
	if t == nil {
		return view.Map{}, engine.ErrNotLeading
	}
	at, err := e.store.Confirm(ctx, t.fence)
	switch {
	case errors.Is(err, store.ErrNotLeader):
		return view.Map{}, engine.ErrNotLeading
	case err != nil:
		return view.Map{}, fmt.Errorf("%w: %w", engine.ErrNoQuorum, err)
	}
	for {
		p := t.published.Load()
		if p.m.Revision >= at.Head {
			m := p.m
			m.Revision = max(m.Revision, at.Revision)
			return m, nil
		}
		select {
		case <-p.newer:
		case <-t.done:
			return view.Map{}, engine.ErrNotLeading
		case <-ctx.Done():
			return view.Map{}, ctx.Err()
		}
	}
}

// Committed returns the running term's newest map known to this replica, without asking a quorum. ok is false if
// no term is running. It never blocks, because metrics use it.
func (e *Parent) Committed() (view.Map, bool) {
	t := e.term.Load()
	if t == nil {
		return view.Map{}, false
	}
	m := t.published.Load().m
	return m, m.Len() > 0 // a new term has none yet
}

// Detail adds data that only this leader has: for a region that is cut off, the time of its last message.
func (e *Parent) Detail(_ context.Context, ids []fault.NodeID) ([]view.Entry, error) {
	t := e.term.Load()
	if t == nil {
		return nil, engine.ErrNotLeading
	}
	p := t.published.Load()
	out := make([]view.Entry, 0, len(ids))
	for _, id := range ids {
		entry, ok := p.m.Find(id)
		if !ok {
			continue
		}
		if r := p.regions[e.cfg.Region(id)]; r.cut {
			entry.Status.Life = r.heard
		}
		out = append(out, entry)
	}
	return out, nil
}

// Reports implements the API's engine: a parent receives no reports.
func (e *Parent) Reports(context.Context, engine.ReportQuery) (engine.ReportView, error) {
	if !e.Leading() {
		return engine.ReportView{}, engine.ErrNotLeading
	}
	return engine.ReportView{}, nil
}

// Seen implements the API's engine: a parent sees no uncommitted events.
func (e *Parent) Seen(int) (<-chan *lofamov1.Event, func(), error) {
	if !e.Leading() {
		return nil, nil, engine.ErrNotLeading
	}
	return nil, func() {}, nil
}

// Regions describes the regions, in the order of the configuration; nil on a replica that does not lead.
func (e *Parent) Regions() []*lofamov1.Region {
	t := e.term.Load()
	if t == nil {
		return nil
	}
	p, now := t.published.Load(), e.now()
	var out []*lofamov1.Region
	for _, name := range e.cfg.Regions {
		r := p.regions[name]
		state := lofamov1.State_NORMAL
		if r.cut {
			state = lofamov1.State_UNKNOWN
		}
		out = append(out, &lofamov1.Region{Name: name, State: state, Age: view.Age(r.heard, now), Revision: r.revision, Nodes: uint32(r.nodes)})
	}
	return out
}

// Change implements the API's operators: a parent has no topology of its own. Before this, the API names the right
// supervisor to ask.
func (e *Parent) Change(context.Context, func(store.Topology) ([]store.Write, error)) (uint64, error) {
	return 0, status.Error(codes.FailedPrecondition, "a parent of regions changes nothing: ask a supervisor of the node's region")
}

// Topology implements the API's operators: a parent has no topology of its own. The API answers with the regions'
// topologies itself and does not call this.
func (e *Parent) Topology(context.Context) (store.Topology, error) {
	return store.Topology{}, status.Error(codes.FailedPrecondition, "a parent of regions has no topology: ask a supervisor of the region")
}

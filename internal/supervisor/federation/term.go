package federation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// term is one term of leadership. Lead's goroutine owns it; other goroutines may use only fence, published and
// done.
type term struct {
	e         *Parent
	fence     store.Fence
	committer *committer
	published atomic.Pointer[published]
	done      chan struct{}

	regions map[string]*regionState
	streams map[streamID]*outbox
	builder *view.Builder
	reached uint64

	queue    []job // to be committed, in order
	bytes    int   // of the units in queue
	inflight []job // with the committer
	deaf     bool  // no input is accepted: the backlog is full
	paused   rate.Sometimes
}

// regionState is one region in a term.
type regionState struct {
	name   string
	ledger *ledger
	wake   time.Time
	head   head // committed
	nodes  int
	groups map[string]awareness.GroupStatus // committed, by the parent's id
}

// job is one item to commit: a unit of a region, or the region's loss or return.
type job struct {
	region *regionState
	unit   *Unit // nil: the region's presence
	cut    bool
	at     time.Time
	bytes  int
}

// published is the state for readers.
type published struct {
	m       view.Map
	regions map[string]presence
	newer   chan struct{} // closed when a newer one exists
}

// presence is a region's state for readers.
type presence struct {
	cut      bool
	heard    time.Time // zero: not by this leader
	revision uint64
	nodes    int
}

func (e *Parent) newTerm(ctx context.Context, fence store.Fence) (*term, error) {
	snap, err := e.store.Load(ctx)
	if err != nil {
		return nil, err
	}
	w, err := e.store.Writer(fence, e.cfg.Meta, snap)
	if err != nil {
		return nil, err
	}
	entries, rev, err := e.store.Tree(ctx, prefix, false)
	if err != nil {
		return nil, err
	}
	entries, forgotten, err := e.forget(ctx, w, entries)
	if err != nil {
		return nil, err
	}
	rev = max(rev, forgotten)
	have, err := read(entries, rev)
	if err != nil {
		return nil, err
	}
	now := e.now()
	t := &term{
		e: e, fence: fence, done: make(chan struct{}), regions: make(map[string]*regionState), streams: make(map[streamID]*outbox),
		builder: view.NewBuilder(e.cfg.Names, now), reached: max(snap.Revision, rev), paused: rate.Sometimes{Interval: time.Minute},
	}
	t.committer = newCommitter(e.cfg, e.store, w, &e.began)
	for _, name := range e.cfg.Regions {
		h, known := have.heads[name]
		if !known {
			h = head{Cut: true, Since: now}
		}
		t.committer.heads[name] = h
		t.regions[name] = &regionState{name: name, head: h, groups: make(map[string]awareness.GroupStatus),
			ledger: newLedger(ledgerConfig{
				Region: name, Dims: e.cfg.Names.Dims().String(), Beat: e.cfg.Beat, Misses: e.cfg.Misses, Reconnect: e.cfg.Reconnect,
				Member: func(id string) bool { return e.cfg.mayTell(name, fault.NodeID(id)) }, Readable: readable,
			}, now, h.Position, h.Cut)}
	}
	for _, id := range e.cfg.Names.All() {
		if r := t.regions[e.cfg.Region(id)]; r != nil {
			r.nodes++
		}
	}
	for _, n := range have.nodes {
		if err := t.set(n); err != nil {
			return nil, err
		}
	}
	for _, d := range have.above {
		if err := t.show(d); err != nil {
			return nil, err
		}
	}
	t.published.Store(&published{newer: make(chan struct{})})
	t.publish()
	return t, nil
}

// forget deletes the stored state of regions that left the configuration, and nodes that now belong to another
// region. It returns the remaining entries, and the revision of the last commit that it needed (0: none). The
// region's head goes too, so that the region sends its whole map again. The head goes first: if it remained, the
// remaining documents would count as complete if a term ended here and the next one had the region again.
func (e *Parent) forget(ctx context.Context, w store.Committer, entries []store.Entry) (kept []store.Entry, revision uint64, err error) {
	reasons := make(map[string]string)
	drop := func(name, below string) bool {
		id, isNode := strings.CutPrefix(below, KindNodes)
		return !slices.Contains(e.cfg.Regions, name) || isNode && !e.cfg.mayTell(name, fault.NodeID(id))
	}
	for _, entry := range entries {
		if name, below, _ := strings.Cut(entry.Key, "/"); drop(name, below) {
			reasons[name] = "some of its nodes now belong to another region: their records are deleted"
			if !slices.Contains(e.cfg.Regions, name) {
				reasons[name] = "no longer in the configuration: its records are deleted"
			}
		}
	}
	gone := make(map[string][]string)
	for _, entry := range entries {
		name, below, _ := strings.Cut(entry.Key, "/")
		switch {
		case reasons[name] != "" && below == keyHead:
			gone[name] = slices.Insert(gone[name], 0, key(name, below))
		case drop(name, below):
			gone[name] = append(gone[name], key(name, below))
		default:
			kept = append(kept, entry)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		events := []*lofamov1.Event{{
			Kind: lofamov1.EventKind_REGION_CHANGED, Region: name, From: lofamov1.State_UNKNOWN, To: lofamov1.State_UNKNOWN,
			Time: timestamppb.Now(), Reason: reasons[name],
		}}
		for keys := range slices.Chunk(gone[name], max(1, e.cfg.Ops-1)) {
			if revision, err = w.Commit(ctx, store.Batch{Events: events, Deletes: keys}); err != nil {
				return nil, 0, fmt.Errorf("forget region %s: %w", name, err)
			}
			events = nil
		}
		e.cfg.Logger.Warn("region: "+reasons[name], "name", name, "keys", len(gone[name]))
	}
	return kept, revision, nil
}

// set puts a node into the displayed map.
func (t *term) set(n *lofamov1.Node) error {
	entry, err := view.Restore(n)
	if err != nil {
		return err
	}
	if r := t.regions[n.GetRegion()]; r == nil || r.head.Cut {
		since := t.e.now()
		if r != nil {
			since = r.head.Since
		}
		entry = cutOff(entry, since)
	}
	if !t.builder.Set(entry) {
		t.e.cfg.Logger.Warn("stored node is not in the configured torus: left out", "node", n.GetId(), "region", n.GetRegion())
	}
	return nil
}

// publish shows the current state to readers.
func (t *term) publish() {
	old := t.published.Load()
	p := &published{m: t.builder.Map(t.reached), newer: make(chan struct{})}
	t.published.Store(p.with(t))
	close(old.newer)
}

func (p *published) with(t *term) *published {
	p.regions = make(map[string]presence, len(t.regions))
	for name, r := range t.regions {
		heard, ok := r.ledger.Heard()
		if !ok {
			heard = time.Time{}
		}
		t.e.cfg.Metrics.Region(name, r.head.Cut, heard)
		p.regions[name] = presence{cut: r.head.Cut, heard: heard, revision: r.head.Revision, nodes: r.nodes}
	}
	return p
}

// told shows readers the new time of the regions' messages, with an unchanged map.
func (t *term) told() {
	old := t.published.Load()
	p := &published{m: old.m, newer: old.newer}
	t.published.Store(p.with(t))
}

// run works until the context ends or a commit fails.
func (t *term) run(ctx context.Context) error {
	cctx, cancel := context.WithCancel(ctx)
	work, results := make(chan []job), make(chan result, 1)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		t.committer.run(cctx, work, results)
	}()
	defer func() {
		cancel()
		close(work)
		<-stopped
		for _, o := range t.streams {
			o.refuse(ledgerReply{Refusal: Replaced, Text: "this replica leads no longer"})
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	t.relabel()         // changes since the term was made
	t.all(ledgerTick{}) // also notices regions that are silent from the beginning
	for {
		if t.inflight == nil && len(t.queue) > 0 {
			t.inflight, t.queue, t.bytes = t.queue, nil, 0
			work <- t.inflight
		}
		in := t.e.in
		if t.bytes > t.e.cfg.Backlog {
			in, t.deaf = nil, true
		} else if t.deaf {
			t.deaf = false
			t.all(ledgerDeaf{})
		}
		armed := t.setTimer(timer)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case i := <-in:
			t.doubt(armed)
			t.take(i)
		case <-timer.C:
			t.doubt(armed)
			t.wakeDue()
		case r := <-results:
			t.doubt(armed)
			if r.err != nil {
				return r.err
			}
			if err := t.finish(r); err != nil {
				return err
			}
		}
	}
}

// setTimer arms the timer for the earliest wake-up of a ledger, or for a beat from now if that is earlier. It returns that time. It disarms
// the timer and returns the zero time while no input is accepted, and while all regions are cut off.
func (t *term) setTimer(timer *time.Timer) time.Time {
	var first time.Time
	for _, r := range t.regions {
		first = fault.Earliest(first, r.wake)
	}
	if first.IsZero() || t.deaf {
		timer.Stop()
		return time.Time{}
	}
	now := t.e.now()
	first = fault.Earliest(first, now.Add(t.e.cfg.Beat)) // so that doubt notices any pause of more than two beats
	timer.Reset(max(0, first.Sub(now)))
	return first
}

// doubt restarts the wait for all regions if run continues more than a beat after the armed time. The process was paused or had no
// processor time, so messages that the regions sent meanwhile may still be unread.
func (t *term) doubt(armed time.Time) {
	if late := t.e.now().Sub(armed); !armed.IsZero() && late > t.e.cfg.Beat {
		t.paused.Do(func() {
			t.e.cfg.Logger.Info("this replica was paused: it restarts the wait for every region", "late", late)
		})
		t.all(ledgerDeaf{})
	}
}

// wakeDue steps the ledgers whose wake-up time has come.
func (t *term) wakeDue() {
	now := t.e.now()
	for _, name := range t.e.cfg.Regions {
		if r := t.regions[name]; !r.wake.IsZero() && !now.Before(r.wake) {
			t.step(r, ledgerTick{})
		}
	}
}

func (t *term) all(ev ledgerInput) {
	for _, name := range t.e.cfg.Regions {
		t.step(t.regions[name], ev)
	}
}

// relabel has the map follow the names, which have changed or may have done so.
func (t *term) relabel() {
	if t.builder.Relabel(t.e.cfg.Names.Topology()) {
		t.publish()
	}
}

func (t *term) take(in input) {
	if in.event == nil {
		t.relabel()
		return
	}
	r := t.regions[in.region]
	switch ev := in.event.(type) {
	case ledgerHello:
		t.streams[ev.Stream] = in.out
	case ledgerClosed:
		delete(t.streams, ev.Stream)
	}
	t.step(r, in.event)
}

// step passes an event to a ledger and performs its output.
func (t *term) step(r *regionState, ev ledgerInput) {
	now := t.e.now()
	out := r.ledger.Step(now, ev)
	r.wake = out.Wake
	for _, reply := range out.Replies {
		if o := t.streams[reply.Stream]; o != nil {
			o.put(reply)
			if reply.Refusal != 0 {
				delete(t.streams, reply.Stream)
			}
		}
	}
	if out.Apply != nil {
		j := job{region: r, unit: out.Apply, at: now}
		for _, ev := range out.Apply.Events {
			j.bytes += proto.Size(ev)
		}
		for _, d := range out.Apply.Documents {
			j.bytes += proto.Size(d)
		}
		t.queue = append(t.queue, j)
		t.bytes += j.bytes
	}
	if out.Lost || out.Back {
		t.queue = append(t.queue, job{region: r, cut: out.Lost, at: now})
		t.e.cfg.Logger.Warn("region", "name", r.name, "cut_off", out.Lost)
	}
	t.told()
}

// finish performs the work after a commit: it updates the map and informs the ledgers and the regions.
func (t *term) finish(r result) error {
	jobs := t.inflight
	t.inflight = nil
	t.reached = r.revision
	t.e.cfg.Metrics.Revision.Set(float64(r.revision))
	for name, h := range r.heads {
		s := t.regions[name]
		was := s.head.Cut
		if s.head = h; h.Cut != was {
			s.showGroups(t.builder)
		}
	}
	for _, nodes := range r.back {
		for _, n := range nodes {
			if err := t.set(n); err != nil {
				return err
			}
		}
	}
	for _, d := range r.documents { // they are no older
		if err := t.show(d); err != nil {
			return err
		}
	}
	for _, j := range jobs {
		if j.unit == nil && j.cut && t.regions[j.region.name].head.Cut {
			t.hide(j.region)
		}
	}
	t.publish()
	units := make(map[*regionState]int)
	for _, j := range jobs {
		if j.unit != nil {
			units[j.region]++
		}
	}
	for _, name := range t.e.cfg.Regions {
		s := t.regions[name]
		if n := units[s]; n > 0 {
			t.step(s, ledgerCommitted{Revision: s.head.Revision, Units: n})
		}
	}
	return nil
}

// document is a region's document as it was committed.
type document struct {
	region   string
	revision uint64
	*lofamov1.Document
}

// show puts a committed document into the map.
func (t *term) show(d document) error {
	if id, ok := strings.CutPrefix(d.GetKey(), KindGroups); ok {
		return t.showGroup(d, id)
	}
	if what, ok := strings.CutPrefix(d.GetKey(), KindWarnings); ok {
		return t.showWarning(d, what)
	}
	id, ok := strings.CutPrefix(d.GetKey(), KindNodes)
	if !ok {
		return nil
	}
	if d.GetDeleted() {
		if !t.anothers(d, fault.NodeID(id)) {
			t.builder.Reset(fault.NodeID(id), t.e.now())
		}
		return nil
	}
	n, err := decodeNode(d.region, d.GetValue())
	if err != nil {
		return err
	}
	n.Revision = d.revision
	return t.set(n)
}

// anothers reports whether a document comes from another region than the node's. A region that loses a node deletes the node's
// documents, perhaps after the new region has sent them.
func (t *term) anothers(d document, id fault.NodeID) bool {
	of := t.e.cfg.Region(id)
	return of != "" && of != d.region
}

// groupID is the parent's name for a region's group fault: two regions may have one for the same plane.
func groupID(name, id string) string { return name + "/" + id }

func (t *term) showGroup(d document, id string) error {
	r := t.regions[d.region]
	if r == nil {
		return nil // of a region that is no longer in the configuration
	}
	if d.GetDeleted() {
		delete(r.groups, groupID(d.region, id))
		t.builder.DropGroup(groupID(d.region, id))
		return nil
	}
	st, err := decodeGroup(d.GetValue())
	if err != nil {
		return fmt.Errorf("read group fault %s of region %s: %w", id, d.region, err)
	}
	st.ID = groupID(d.region, st.ID)
	r.groups[st.ID] = st
	t.builder.SetGroup(r.shown(st))
	return nil
}

// shown returns a group fault for display. If its region is cut off, its state is UNKNOWN.
func (r *regionState) shown(g awareness.GroupStatus) awareness.GroupStatus {
	if r.head.Cut {
		g.State, g.Since, g.Rule = fault.Unknown, r.head.Since, awareness.RuleCutOff
	}
	return g
}

// showGroups updates all group faults of the region.
func (r *regionState) showGroups(b *view.Builder) {
	for _, g := range r.groups {
		b.SetGroup(r.shown(g))
	}
}

// showWarning shows a warning. The argument what has the form NODE/COMPONENT/QUANTITY; a component name may contain a
// slash.
func (t *term) showWarning(d document, what string) error {
	node, c, q, err := warningKey(what)
	if err != nil {
		return fmt.Errorf("warning %q of region %s: %w", what, d.region, err)
	}
	if t.anothers(d, node) {
		return nil
	}
	if d.GetDeleted() {
		t.builder.DropWarning(node, c, q)
		return nil
	}
	st, err := decodeWarning(node, d.GetValue())
	if err != nil {
		return fmt.Errorf("read warning %s of region %s: %w", what, d.region, err)
	}
	t.builder.SetWarning(st)
	return nil
}

// hide shows a region's nodes as UNKNOWN.
func (t *term) hide(r *regionState) {
	for _, id := range t.e.cfg.Names.All() {
		if t.e.cfg.Region(id) != r.name {
			continue
		}
		if entry, ok := t.builder.At(id); ok {
			t.builder.Set(cutOff(entry, r.head.Since))
		}
	}
}

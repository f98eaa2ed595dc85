package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// term is one term of leadership. Its goroutine is Lead's; only done is for others.
type term struct {
	e         *Engine
	committer store.Committer
	machine   *awareness.Machine
	inbox     *servicenet.Inbox
	log       *reportLog
	trace     *tracer
	senders   map[fault.NodeID]Sender // by the newest digest of the host half
	groups    map[string]fault.State  // the state of those that stand, by id
	words     map[fault.Origin]spoken // of the newest digest, where that may be restated
	wake      time.Time
	verdicts  [servicenet.EpochJump + 1]prometheus.Counter

	// The committed map, and how many batches that are not committed yet touch a node: of such a node
	// readers get the committed state.
	committed *view.Builder
	touched   map[fault.NodeID]int
	published *published
	confirmer *confirmer

	open     *batch   // takes changes
	sealed   []*batch // waiting, oldest first
	inflight *batch   // with the committer
	// waiting are the reports in those batches, with those who are to hear of the commit.
	waiting map[fault.ReportID][]answerTo
	// commitTime is a running mean, for what the awareness latency must add for the commit itself.
	commitTime time.Duration

	// topology is the stored one; after the term's beginning it belongs to whoever holds Engine.changing.
	topology store.Topology
	// pausing: nothing is taken in any more, because a write waits that ends the term.
	pausing bool

	done   chan struct{}
	cancel context.CancelFunc
}

// answerTo is one way to answer.
type answerTo struct {
	answerer Answerer
	to       To
}

// maxAnswers bounds the copies of one report that are answered with one commit.
const maxAnswers = 4

// newTerm loads the committed map and begins from it.
func (e *Engine) newTerm(ctx context.Context, fence store.Fence) (_ *term, err error) {
	snap, err := e.store.Load(ctx)
	if err != nil {
		return nil, err
	}
	committer, err := e.store.Writer(fence, e.cfg.Meta, snap)
	if err != nil {
		return nil, err
	}
	if err := e.settle(ctx, committer, &snap); err != nil {
		return nil, err
	}
	now := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	t := &term{
		topology: snap.Topology, cancel: cancel,
		e: e, committer: committer, inbox: servicenet.NewInbox(snap.Inbox),
		committed: view.NewBuilder(e.cfg.Names, now), touched: make(map[fault.NodeID]int),
		confirmer: &confirmer{ctx: ctx, store: e.store, fence: fence},
		log:       newReportLog(reportsKept), trace: newTracer(e.cfg.Logger, fence), senders: make(map[fault.NodeID]Sender),
		words: make(map[fault.Origin]spoken), groups: make(map[string]fault.State),
		open: newBatch(), waiting: make(map[fault.ReportID][]answerTo), done: make(chan struct{}),
	}
	for v := servicenet.Fresh; int(v) < len(t.verdicts); v++ {
		t.verdicts[v] = e.cfg.Metrics.Verdicts.WithLabelValues(v.String())
	}
	t.trace.begins(snap)
	var saved []awareness.NodeStatus
	for _, doc := range snap.Nodes {
		entry, err := view.Restore(doc)
		if err != nil {
			return nil, err
		}
		if !t.committed.Set(entry) {
			e.cfg.Logger.Warn("stored node is not in the configured torus: left out", "node", entry.Status.ID, "coord", entry.Status.Coord)
			continue
		}
		saved = append(saved, entry.Status)
	}
	if t.machine, err = awareness.New(e.awareness(snap.Topology.Topology), now, saved); err != nil {
		return nil, err
	}
	if err := t.restoreAbove(snap); err != nil {
		return nil, err
	}
	m := t.committed.Map(snap.Revision)
	t.published = newPublished(m)
	states := make(map[fault.NodeID]fault.State, m.Len())
	for rank := range m.Len() {
		states[m.ID(rank)] = m.State(rank)
	}
	e.cfg.Metrics.Nodes(states)
	e.cfg.Metrics.Revision.Set(float64(snap.Revision))
	t.step(now, awareness.Tick{}) // for the first wake-up
	return t, nil
}

// restoreAbove puts back what stood above the nodes. What is of nodes that the torus no longer has is left out.
func (t *term) restoreAbove(snap store.Snapshot) error {
	var groups []awareness.GroupStatus
	for _, doc := range snap.Groups {
		g, err := view.RestoreGroup(doc)
		if err != nil {
			return err
		}
		n := len(g.Members)
		g.Members = slices.DeleteFunc(g.Members, func(id fault.NodeID) bool { return !t.committed.Has(id) })
		if len(g.Members) < n {
			t.e.cfg.Logger.Warn("members of a stored group fault are not in the configured torus: left out", "group", g.ID, "members", n-len(g.Members))
		}
		if len(g.Members) == 0 {
			continue
		}
		groups = append(groups, g)
		t.groups[g.ID] = g.State
		t.committed.SetGroup(g)
	}
	var warnings []awareness.WarningStatus
	for _, stored := range snap.Warnings {
		w, err := view.RestoreWarning(stored.Node, stored.Warning)
		if err != nil {
			return err
		}
		if !t.committed.Has(w.Node) {
			t.e.cfg.Logger.Warn("stored warning is of a node that is not in the configured torus: left out", "node", w.Node)
			continue
		}
		warnings = append(warnings, w)
		t.committed.SetWarning(w)
	}
	if err := t.machine.RestoreGroups(groups); err != nil {
		return err
	}
	return t.machine.RestoreWarnings(warnings)
}

// result is what the committer says of a batch.
type result struct {
	revision uint64
	took     time.Duration
	err      error
}

// run works until the context ends or a commit fails.
func (t *term) run(ctx context.Context) error {
	work, results := make(chan *batch), make(chan result, 1)
	cctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		t.commitBatches(cctx, work, results)
	}()
	defer func() {
		cancel()
		close(work)
		<-stopped
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if t.inflight == nil {
			t.launch(work)
		}
		t.sealFull()
		t.setTimer(timer)
		answers, digests, in := t.e.answers, t.e.digests, t.e.in
		if len(t.waiting) >= t.e.cfg.Backlog {
			in = nil // let the queue fill up
		}
		if t.pausing {
			answers, digests, in = nil, nil, nil // they wait for the next term
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case i := <-answers:
			t.take(time.Now(), i)
		case i := <-digests:
			t.take(time.Now(), i)
		case i := <-in:
			t.take(time.Now(), i)
		case <-timer.C:
			// What came before the verdict is heard before the verdict.
			t.drain()
			t.step(time.Now(), awareness.Tick{})
		case d := <-t.e.details:
			d.reply <- t.detail(d.ids)
		case w := <-t.e.whys:
			x, ok := t.machine.Explain(w.id, w.c)
			w.reply <- explained{x, ok}
		case w := <-t.e.writes:
			t.takeWrite(w)
		case a := <-t.e.asks:
			a.reply <- t.reports(a.query)
		case r := <-results:
			if err := t.ended(r); err != nil {
				return err
			}
		}
	}
}

func (t *term) setTimer(timer *time.Timer) {
	if t.wake.IsZero() || t.pausing {
		timer.Stop()
		return
	}
	timer.Reset(max(0, time.Until(t.wake)))
}

// commitBatches is the committer: one transaction at a time.
func (t *term) commitBatches(ctx context.Context, work <-chan *batch, results chan<- result) {
	for b := range work {
		start := time.Now()
		var rev uint64
		out, err := b.render(start, t.e.cfg.Names)
		if err == nil {
			rev, err = t.committer.Commit(ctx, out)
		}
		results <- result{revision: rev, took: time.Since(start), err: err}
	}
}

// drain handles what is in the queues now, the reports as far as the backlog allows. Digests come last:
// what a half reported before its digest is then history, and not left out.
func (t *term) drain() {
	room := func() bool { return len(t.waiting) < t.e.cfg.Backlog }
	always := func() bool { return true }
	t.drainOne(t.e.answers, always)
	t.drainOne(t.e.in, room)
	t.drainOne(t.e.digests, always)
}

func (t *term) drainOne(queue <-chan Input, goOn func() bool) {
	for n := len(queue); n > 0 && goOn(); n-- {
		t.take(time.Now(), <-queue)
		t.sealFull()
	}
}

// asOf is the time as of which an input is handled. Where a wake-up is due, that is just before it:
// only a Tick, which follows all that is in the queue, brings verdicts about, never the report that
// happens to stand before the answer. A longer delay is the machine's to judge: it doubts itself.
func (t *term) asOf(now time.Time) time.Time {
	if late := now.Sub(t.wake); t.wake.IsZero() || late < 0 || late > t.e.cfg.Awareness.ChallengeNode {
		return now
	}
	return t.wake.Add(-1)
}

// take handles one input.
func (t *term) take(now time.Time, in Input) {
	now = t.asOf(now)
	t.e.cfg.Metrics.Depth.WithLabelValues("evidence").Set(float64(len(t.e.in) + len(t.e.digests)))
	switch {
	case in.Reports != nil:
		t.takeReports(now, in)
	case in.Restated != nil:
		t.takeRestated(now, in.Restated, in.Wanting)
	case in.Answer != nil:
		t.step(now, *in.Answer)
	case in.Gossip != nil:
		t.step(now, *in.Gossip)
	}
}

// takeReports handles reports that came together. What the inbox has seen before, or will not see,
// is answered here, in as few acks as possible.
func (t *term) takeReports(now time.Time, in Input) {
	to := answerTo{in.Answerer, in.To}
	var known, stale []fault.ReportID
	for i := range in.Reports.List {
		rep := &in.Reports.List[i]
		verdict := t.inbox.Accept(rep.ID, rep.Digest)
		t.verdicts[verdict].Inc()
		switch verdict {
		case servicenet.Fresh:
			t.takeReport(now, in, rep, to)
		case servicenet.Duplicate:
			t.e.cfg.Metrics.Duplicates.WithLabelValues(in.Reports.Path.String()).Inc()
			t.log.copied(rep.ID)
			if !rep.Digest && !t.awaitCommit(rep.ID, to) {
				known = append(known, rep.ID)
			}
		case servicenet.StaleEpoch:
			stale = append(stale, rep.ID)
		default:
			t.e.cfg.Metrics.Refused.WithLabelValues("epoch-jump").Inc()
		}
	}
	to.answer(lofamov1.Ack_COMMITTED, 0, known...)
	if len(stale) > 0 {
		to.answer(lofamov1.Ack_STALE_EPOCH, t.inbox.Position(stale[0].Origin).Epoch, stale...)
	}
}

// takeReport takes one that has not been seen before.
func (t *term) takeReport(now time.Time, in Input, rep *fault.Report, to answerTo) {
	d := fault.Delivery{Report: *rep, Path: in.Reports.Path, Hops: in.Reports.Hops}
	arrived := in.Arrived.Add(-in.Held)
	if !rep.Digest {
		t.trace.taken(rep)
	}
	t.note(arrived, d, in)
	held := now.Sub(arrived)
	for i := range rep.Observations {
		rep.Observations[i].Age = max(0, rep.Observations[i].Age+held)
	}
	changed := t.step(now, awareness.Evidence{Delivery: d})
	if rep.Digest {
		t.noteWords(rep.ID, in.Reports.Words)
	}
	if rep.Digest && !changed {
		return // liveness is not committed
	}
	t.open.touchOrigin(rep.ID.Origin)
	if rep.Digest {
		return
	}
	t.touch(rep.ID.Origin.Node)
	for _, o := range rep.Observations {
		t.touch(o.Node)
	}
	t.open.reports = append(t.open.reports, rep.ID)
	t.waiting[rep.ID] = []answerTo{to}
}

// awaitCommit has a copy that came another way answered with the commit of the report too, if that is
// still to come.
func (t *term) awaitCommit(id fault.ReportID, to answerTo) bool {
	list, ok := t.waiting[id]
	if ok && len(list) < maxAnswers && !slices.Contains(list, to) {
		t.waiting[id] = append(list, to)
	}
	return ok
}

// step feeds the machine and does what it asks for. It says whether the map changed.
func (t *term) step(now time.Time, ev awareness.Event) bool {
	changed, _ := t.stepped(now, ev)
	return changed
}

// stepped also says whether the machine did not know what it was to apply.
func (t *term) stepped(now time.Time, ev awareness.Event) (changed, unknown bool) {
	out := t.machine.Step(now, ev)
	t.wake = out.Wake
	for _, c := range out.Challenges {
		t.e.cfg.Challenger.Challenge(c)
	}
	for _, c := range out.Changes {
		t.touch(c.Node)
		t.change(timedChange{Change: c, at: now})
	}
	for _, g := range out.Groups {
		was := t.groups[g.ID]
		if t.groups[g.ID] = g.State; g.State == fault.Normal {
			delete(t.groups, g.ID)
		}
		t.change(timedChange{group: &groupChange{g, max(was, fault.Unknown)}, at: now})
	}
	for _, w := range out.Warnings {
		t.change(timedChange{warning: &w, at: now})
	}
	return len(out.Changes)+len(out.Groups)+len(out.Warnings) > 0, out.Unknown
}

// change takes a change into the open batch, and shows it to those who want to see it before its commit.
func (t *term) change(c timedChange) {
	t.open.changes = append(t.open.changes, c)
	if t.e.seen.empty() {
		return
	}
	seen, err := c.render(c.at, 0, t.e.cfg.Names, make(map[string][]byte))
	if err != nil {
		return // the commit will tell
	}
	if c.Latency >= 0 && seen.AwarenessLatency != nil {
		seen.AwarenessLatency = durationpb.New(c.Latency)
	}
	seen.AsSeen = true
	t.e.seen.publish(seen)
}

// touch notes that a node's document is to be written with the open batch.
func (t *term) touch(id fault.NodeID) {
	if !t.committed.Has(id) {
		return // not in this torus
	}
	if t.open.touchNode(id) {
		t.touched[id]++
	}
}

// sealFull seals a batch that is large enough. It is for between two inputs only: what is sealed must
// hold all that the map and the inbox know.
func (t *term) sealFull() {
	if t.open.ops() >= t.e.cfg.BatchOps {
		t.seal()
	}
}

// seal closes the open batch with the state of its nodes and inbox positions as they are now.
func (t *term) seal() {
	b := t.open
	for _, id := range b.nodes {
		if st, ok := t.machine.Node(id); ok {
			b.statuses = append(b.statuses, st)
		}
	}
	for _, o := range b.origins {
		b.inbox = append(b.inbox, t.inbox.Position(o))
	}
	b.commitTime = t.commitTime
	t.sealed = append(t.sealed, b)
	t.open = newBatch()
	if len(t.sealed) > maxSealed {
		t.mergeSealed()
	}
}

// maxSealed is how many batches may wait for the store before they are merged: what waits is then bounded by
// the components that there are.
const maxSealed = 16

// mergeSealed makes of all batches in a row, which a store that takes nothing has left lying, one. What an
// operator writes stays where it is between them.
func (t *term) mergeSealed() {
	out := t.sealed[:0]
	for _, b := range t.sealed {
		last := len(out) - 1
		if last < 0 || b.write != nil || out[last].write != nil {
			out = append(out, b)
			continue
		}
		for _, id := range out[last].merge(b) {
			t.touched[id]-- // it is committed once, not twice
		}
	}
	clear(t.sealed[len(out):])
	t.sealed = out
}

// launch gives the committer, which is idle, the oldest batch.
func (t *term) launch(work chan<- *batch) {
	if len(t.sealed) == 0 {
		if t.open.empty() {
			return
		}
		t.seal()
	}
	t.inflight, t.sealed = t.sealed[0], t.sealed[1:]
	work <- t.inflight
}

// ended takes the end of a commit. Any error but that of a write that came too late ends the term.
func (t *term) ended(r result) error {
	w := t.inflight.write
	switch {
	case r.err == nil:
		t.finish(r)
	case w != nil && errors.Is(r.err, store.ErrConflict):
		t.inflight = nil
	default:
		return r.err
	}
	if w != nil {
		return t.follow(w, r)
	}
	return nil
}

// finish does what follows a commit: the map, the acks, the metrics.
func (t *term) finish(r result) {
	b, m := t.inflight, t.e.cfg.Metrics
	t.inflight = nil
	t.commitTime += (r.took - t.commitTime) / 8
	m.Commit.Observe(r.took.Seconds())
	m.Revision.Set(float64(r.revision))
	m.BatchOps.Observe(float64(b.ops()))
	for _, st := range b.statuses {
		if t.touched[st.ID]--; t.touched[st.ID] == 0 {
			delete(t.touched, st.ID)
		}
		m.Node(st.ID, t.committed.State(st.ID), st.State)
		t.committed.Set(view.Entry{Status: st, Revision: r.revision})
	}
	now := time.Now()
	for i := range b.changes {
		c := &b.changes[i]
		switch {
		case c.group != nil:
			t.committed.SetGroup(c.group.GroupStatus)
			continue
		case c.warning != nil:
			t.committed.SetWarning(*c.warning)
			continue
		}
		m.Changes.WithLabelValues(c.To.String()).Inc()
		if c.Latency >= 0 && c.To != fault.Normal && c.Cause > fault.CauseNone {
			m.Awareness.WithLabelValues(c.Cause.String()).Observe((c.Latency + now.Sub(c.at)).Seconds())
		}
	}
	t.published.publish(t.committed.Map(r.revision))
	t.acknowledge(b)
}

// acknowledge answers the reports of a committed batch, many of one origin in one ack.
func (t *term) acknowledge(b *batch) {
	type group struct {
		answerTo
		origin fault.Origin
	}
	t.trace.committed(b.reports)
	var order []group
	ids := make(map[group][]fault.ReportID)
	now := time.Now()
	for _, id := range b.reports {
		t.log.committed(id, now)
		for _, to := range t.waiting[id] {
			g := group{to, id.Origin}
			if ids[g] == nil {
				order = append(order, g)
			}
			ids[g] = append(ids[g], id)
		}
		delete(t.waiting, id)
	}
	for _, g := range order {
		list := ids[g]
		for len(list) > 0 {
			n := min(len(list), servicenet.MaxAckSeqs)
			g.answer(lofamov1.Ack_COMMITTED, 0, list[:n]...)
			list = list[n:]
		}
	}
}

func (a answerTo) answer(status lofamov1.Ack_Status, highest fault.Epoch, ids ...fault.ReportID) {
	if a.answerer == nil || len(ids) == 0 {
		return
	}
	for _, ack := range servicenet.NewAcks(status, ids...) {
		ack.HighestEpoch = uint64(highest)
		a.answerer.Answer(a.to, ack)
	}
}

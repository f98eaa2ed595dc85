package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// answerTo is one way to answer a report.
type answerTo struct {
	answerer Answerer
	to       To
}

// maxAnswers bounds the copies of one report that one commit answers.
const maxAnswers = 4

// result is the committer's result for a batch.
type result struct {
	revision uint64
	took     time.Duration
	err      error
}

// commitBatches is the committer. It runs one transaction at a time.
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

// awaitCommit registers a copy of a report that arrived another way, so that the report's commit acknowledges both.
// It returns false if the report is not waiting for a commit.
func (t *term) awaitCommit(id fault.ReportID, to answerTo) bool {
	list, ok := t.waiting[id]
	if ok && len(list) < maxAnswers && !slices.Contains(list, to) {
		t.waiting[id] = append(list, to)
	}
	return ok
}

// sealFull seals a batch that is large enough. Call it only between two inputs: a sealed batch must hold all that the
// map and the inbox know.
func (t *term) sealFull() {
	if t.open.ops() >= t.e.cfg.BatchOps {
		t.seal()
	}
}

// seal closes the open batch with the current state of its nodes and inbox positions.
func (t *term) seal() {
	b, now := t.open, time.Now()
	for _, id := range b.nodes {
		if st, ok := t.machine.NodeToCommit(id); ok {
			b.statuses = append(b.statuses, st)
			if list := view.GatherAll(st, t.machine.Life, now); list != nil {
				b.evidence[id] = list
			}
			if r, ok := t.reported[id]; ok {
				b.reported[id] = r
			}
			t.noteTrace(b, st)
		}
	}
	for _, o := range b.origins {
		if p := t.inbox.Position(o); p.Epoch > 0 { // otherwise it was dropped meanwhile
			b.inbox = append(b.inbox, p)
		}
	}
	b.commitTime = t.commitTime
	t.foldIncidents(b, now)
	t.sealed = append(t.sealed, b)
	t.open = newBatch()
	if len(t.sealed) > maxSealed {
		t.mergeSealed()
	}
}

// maxSealed is how many batches may wait for the store before they are merged. Merging bounds the waiting changes by
// the number of components.
const maxSealed = 16

// mergeSealed merges runs of adjacent batches that piled up while the store was blocked. Operators' writes keep their
// place between them.
func (t *term) mergeSealed() {
	out := t.sealed[:0]
	for _, b := range t.sealed {
		last := len(out) - 1
		if last < 0 || b.write != nil || out[last].write != nil {
			out = append(out, b)
			continue
		}
		for _, id := range out[last].merge(b) {
			t.touched[id]-- // one commit instead of two
		}
	}
	clear(t.sealed[len(out):])
	t.sealed = out
}

// gatherStarts is how long a batch waits for more starting nodes, unless another change arrives first. Without it, a
// starting cluster would commit five times per node.
const gatherStarts = 500 * time.Millisecond

// launch gives the oldest batch to the committer, which must be idle.
func (t *term) launch(work chan<- *batch) {
	if len(t.sealed) == 0 {
		if t.open.empty() || t.open.begins() && time.Since(t.open.changes[0].at) < gatherStarts {
			return
		}
		t.seal()
	}
	t.inflight = t.sealed[0]
	t.sealed = slices.Delete(t.sealed, 0, 1) // leaves no batch behind in the array: they are large
	now := time.Now()
	t.e.commitBegan.Store(&now)
	work <- t.inflight
}

// ended handles the end of a commit. Any error ends the term, except a conflict or refusal of a single write. If the store refuses a
// batch of evidence, this term's map can never match the store: the next term begins with the stored state.
func (t *term) ended(r result) error {
	t.e.commitBegan.Store(nil)
	w := t.inflight.write
	switch {
	case r.err == nil:
		if w != nil { // before the map of that revision is shown
			if err := t.followWrite(w, r.revision); err != nil {
				return err
			}
		}
		t.finish(r)
	case w != nil && (errors.Is(r.err, store.ErrConflict) || errors.Is(r.err, store.ErrRefused)):
		t.inflight = nil
	default:
		t.unsettle(r.err)
		return r.err
	}
	if w != nil {
		t.reply(w, r)
	}
	return nil
}

// finish updates the map, sends the acks and records metrics after a commit.
func (t *term) finish(r result) {
	b, m := t.inflight, t.e.cfg.Metrics
	t.inflight = nil
	t.commitTime += (r.took - t.commitTime) / 8
	m.Commit.Observe(r.took.Seconds())
	m.Revision.Set(float64(r.revision))
	m.BatchOps.Observe(float64(b.ops()))
	for _, st := range b.statuses {
		if t.touched[st.ID]--; t.touched[st.ID] <= 0 { // less: it has left its place meanwhile
			delete(t.touched, st.ID)
		}
		halves := b.reported[st.ID]
		t.committed.Set(view.Entry{Status: st, Revision: r.revision, Faults: b.evidence[st.ID],
			Watchdog: halves[halfOf(fault.HalfHost)].watchdog, GivenUp: [2]bool{halves[0].givenUp, halves[1].givenUp},
			Kernels: b.traces[st.ID].Kernels})
	}
	now := time.Now()
	for i := range b.changes {
		c := &b.changes[i]
		switch {
		case c.undone():
			continue
		case c.group != nil:
			t.committed.SetGroup(c.group.GroupStatus)
			continue
		case c.warning != nil:
			t.committed.SetWarning(*c.warning)
			continue
		case c.recovered != nil:
			if c.recovered.told() {
				continue
			}
			m.Recoveries.WithLabelValues(c.recovered.half.String(), c.recovered.outcome()).Add(float64(max(1, c.recovered.since)))
			continue
		case c.starved != nil:
			if c.starved.time != nil {
				m.Starvations.WithLabelValues(c.starved.half.String()).Inc()
			}
			continue
		}
		m.Changes.WithLabelValues(c.To.String()).Inc()
		t.measure(c, now)
	}
	t.published.publish(t.committed.Map(r.revision))
	t.acknowledge(b)
}

// measure records how long a change to a bad state took until its commit.
func (t *term) measure(c *timedChange, now time.Time) {
	m, took := t.e.cfg.Metrics, time.Duration(-1)
	if c.Latency >= 0 {
		took = c.Latency + now.Sub(c.at)
	}
	if took >= 0 && c.To != fault.Normal && c.Cause > fault.CauseNone {
		m.Aware(c.Cause, took)
	}
	// Halves and nodes come before all other components. A link that fails because its peer is dead is no failure of its own.
	if c.Component <= fault.ComponentDNP && c.To == fault.Failed && c.From != fault.Failed {
		m.Failed(c.Cause, c.Platform, c.SingleWitness, took)
	}
}

// acknowledge answers the reports of a committed batch, with one ack for many reports of one origin.
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

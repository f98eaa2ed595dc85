package engine

import (
	"context"
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

// term is one term of leadership. It belongs to Lead's goroutine; other goroutines use only done.
type term struct {
	e         *Engine
	committer store.Committer
	machine   *awareness.Machine
	inbox     *servicenet.Inbox
	log       *reportLog
	trace     *tracer
	senders   map[fault.NodeID]Sender     // from the newest digest of the host half
	health    map[fault.NodeID][2]health  // from the newest digests
	reported  map[fault.NodeID]recoveries // published as events; most nodes have none
	watchdogs *view.Watchdogs
	hostBegan map[fault.NodeID]hostBegin
	traced    map[fault.NodeID]bool // nodes whose last batch had a trace of their machine's death
	// wordsOf are the last words in the newest digest of a receiver that had some.
	wordsOf       map[fault.Origin][servicenet.MaxLastWords]wordsID
	wordsIn       map[fault.Origin]fault.ReportID // the newest report with last words that is no digest
	publishedLast map[fault.NodeID][2]time.Time   // time of the last event in this term
	began         time.Time
	groups        map[string]fault.State  // by ID: the state of the group faults that stand
	incidents     *awareness.Incidents    // as of the last sealed batch
	unread        []*lofamov1.Incident    // stored ones that are not understood, until the first batch
	keepFor       time.Duration           // of CLOSED incidents
	words         map[fault.Origin]spoken // of the newest digest, if it can be restated
	wake          time.Time
	verdicts      [servicenet.EpochJump + 1]prometheus.Counter

	// The committed map, and the number of uncommitted batches that touch a node. Readers get the committed state of
	// such a node.
	committed *view.Builder
	touched   map[fault.NodeID]int
	published *published
	confirmer *confirmer

	open     *batch   // collects changes
	sealed   []*batch // waiting, oldest first
	inflight *batch   // with the committer
	// waiting holds the reports in those batches, and the senders to answer after the commit.
	waiting map[fault.ReportID][]answerTo
	// commitTime is a running mean, which the awareness latency adds for the commit itself.
	commitTime time.Duration

	topology known
	strays   *strays
	// pausing means that the term takes no inputs until it has followed a waiting change of places.
	pausing bool

	questions
	done   chan struct{}
	cancel context.CancelFunc
}

// questions are what other goroutines put to one term; see inquire. Nothing waits in them.
type questions struct {
	details chan detail
	asks    chan ask
	writes  chan write
	whys    chan why
}

func newQuestions() questions {
	return questions{details: make(chan detail), asks: make(chan ask), writes: make(chan write), whys: make(chan why)}
}

func (q *questions) toDetail() chan<- detail { return q.details }
func (q *questions) toReport() chan<- ask    { return q.asks }
func (q *questions) toWrite() chan<- write   { return q.writes }
func (q *questions) toExplain() chan<- why   { return q.whys }

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
		select {
		case r := <-results: // of the commit in flight when the context ended
			if w := t.inflight.write; w != nil && r.err == nil {
				w.reply <- written{revision: r.revision}
			} else {
				t.unsettle(r.err)
			}
		default:
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		t.sealFull()
		if t.inflight == nil {
			t.launch(work)
		}
		t.setTimer(timer)
		answers, digests, in := t.e.answers, t.e.digests, t.e.in
		if len(t.waiting) >= t.e.cfg.Backlog {
			in = nil // let the queue fill up
		}
		if t.pausing {
			answers, digests, in = nil, nil, nil // they wait for the new places
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
			// Handle inputs that came before the verdict first.
			t.drain()
			now := time.Now()
			t.machine.Behind(now, t.e.cfg.Challenger.Behind())
			t.step(now, awareness.Tick{})
			if due := t.incidents.Wake(); !due.IsZero() && !now.Before(due) {
				t.foldIncidents(t.open, now)
			}
		case d := <-t.details:
			d.reply <- t.detail(d.ids)
		case w := <-t.whys:
			w.reply <- t.why(w)
		case w := <-t.writes:
			t.takeWrite(w)
		case a := <-t.asks:
			a.reply <- t.reports(a.query)
		case r := <-results:
			if err := t.ended(r); err != nil {
				return err
			}
		}
	}
}

func (t *term) setTimer(timer *time.Timer) {
	wake := fault.Earliest(t.wake, t.incidents.Wake())
	if t.inflight == nil && t.open.begins() { // otherwise launch would have taken it
		wake = fault.Earliest(wake, t.open.changes[0].at.Add(gatherStarts))
	}
	if wake.IsZero() || t.pausing {
		timer.Stop()
		return
	}
	timer.Reset(max(0, time.Until(wake)))
}

// drain handles the inputs that are now in the queues, reports only as far as the backlog allows. Digests come last:
// a report that a half sent before its digest is then history instead of missing.
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

// asOf returns the time at which to handle an input. If a wake-up is due, it is just before the wake-up: only a Tick,
// which follows all queued inputs, causes verdicts, never a report that happens to be queued before the answer. The
// machine itself judges longer delays: it doubts itself.
func (t *term) asOf(now time.Time) time.Time {
	if late := now.Sub(t.wake); t.wake.IsZero() || late < 0 || late > t.e.cfg.Awareness.ChallengeNode {
		return now
	}
	return t.wake.Add(-1)
}

// take handles one input.
func (t *term) take(now time.Time, in Input) {
	waited := now.Sub(in.Arrived)
	if (in.Restated != nil || in.Reports != nil && in.Reports.Digests()) && waited > t.e.cfg.Awareness.DigestPeriod/2 {
		t.e.Lost() // newer digests wait behind it
	}
	if in.Answer != nil || in.Reports != nil && !in.Reports.Digests() {
		// A long delay at a follower, perhaps because it was paused, says little about the others.
		held := min(in.Held, t.e.cfg.Awareness.ChallengeSingle)
		t.machine.Behind(now, waited+held+t.e.cfg.Challenger.Behind())
	}
	now = t.asOf(now)
	t.e.cfg.Metrics.Depth.WithLabelValues("evidence").Set(float64(len(t.e.in) + len(t.e.digests)))
	switch {
	case in.Reports != nil:
		t.takeReports(now, in)
	case in.Restated != nil:
		t.takeRestated(now, in.Restated, in.Requester)
	case in.Answer != nil:
		t.step(now, *in.Answer)
	case in.Refused != nil:
		t.step(now, *in.Refused)
	case in.Gossip != nil:
		t.step(now, *in.Gossip)
	case in.Revoked:
		t.step(now, t.e.cfg.Revoked())
	case in.Foreign != nil:
		for _, v := range in.Foreign {
			t.step(now, v)
		}
	}
}

// takeReports handles reports that arrived together. It answers reports that the inbox has seen before or refuses, in
// as few acks as possible.
func (t *term) takeReports(now time.Time, in Input) {
	to := answerTo{in.Answerer, in.To}
	var known, stale []fault.ReportID
	for i := range in.Reports.List {
		rep := &in.Reports.List[i]
		if rep.Digest && in.Held > t.e.cfg.Awareness.Window() {
			continue // its statements expired at the follower: the half has sent newer ones, or is dead
		}
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
			stale = append(stale, rep.ID)
		}
	}
	to.answer(lofamov1.Ack_COMMITTED, 0, known...)
	if len(stale) == 0 {
		return
	}
	if known := t.inbox.Position(stale[0].Origin).Epoch; known > 0 { // otherwise over MaxEpoch: no epoch to continue from
		to.answer(lofamov1.Ack_STALE_EPOCH, known, stale...)
	}
}

// takeReport handles a report on its first arrival.
func (t *term) takeReport(now time.Time, in Input, rep *fault.Report, to answerTo) {
	d := fault.Delivery{Report: *rep, Path: in.Reports.Path, Hops: in.Reports.Hops}
	arrived := in.Arrived.Add(-in.Held)
	if !rep.Digest {
		t.trace.taken(rep)
	}
	t.note(arrived, d, in)
	d.Waited = max(0, now.Sub(arrived))
	for i := range rep.Observations {
		rep.Observations[i].Age = max(0, rep.Observations[i].Age+d.Waited)
	}
	changed := false
	if !byDaemon(&d, in.Reports.Health) { // which is no sign of life of the half
		t.noteHostEpoch(arrived, rep.ID)
		changed = t.step(now, awareness.Evidence{Delivery: d})
	}
	changed = t.noteHealth(now, arrived, &d, in.Reports.Health) || changed
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
	t.stopsWatchdog(now, rep)
	t.touchReported(rep)
	t.open.reports = append(t.open.reports, rep.ID)
	t.waiting[rep.ID] = []answerTo{to}
}

// step feeds the machine, carries out its output, and reports whether the map changed.
func (t *term) step(now time.Time, ev awareness.Event) bool {
	changed, _ := t.stepped(now, ev)
	return changed
}

// stepped also reports whether the machine did not recognise the event.
func (t *term) stepped(now time.Time, ev awareness.Event) (changed, unknown bool) {
	if at := t.e.lost.Load(); at != nil {
		t.machine.Lost(*at)
	}
	out := t.machine.Step(now, ev)
	t.e.discounted.Store(int64(t.machine.Discounted()))
	t.wake = out.Wake
	for _, c := range out.Challenges {
		if !t.e.cfg.Challenger.Challenge(c) {
			t.machine.NotAsked(c)
		}
	}
	for _, c := range out.Changes {
		t.touch(c.Node)
		t.change(timedChange{Change: c, at: now})
	}
	for _, id := range out.Settled {
		t.touch(id)
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

// change adds a change to the open batch and publishes it to subscribers that follow uncommitted changes.
func (t *term) change(c timedChange) {
	t.open.changes = append(t.open.changes, c)
	if t.e.seen.empty() {
		return
	}
	seen, err := c.render(c.at, 0, t.e.cfg.Names, make(map[string][]byte))
	if err != nil {
		return // the commit will report the error
	}
	if c.Latency >= 0 && seen.AwarenessLatency != nil {
		seen.AwarenessLatency = durationpb.New(c.Latency)
	}
	seen.AsSeen = true
	t.e.seen.publish(seen)
}

// touchReported touches the nodes of a report whose documents may get other contents. A state that changes touches its node
// itself. Besides states, a document has evidence of faults, the boot epochs and the platform: the document of a NORMAL
// node without faults stays as it is when neighbours accuse the node.
func (t *term) touchReported(rep *fault.Report) {
	by := rep.ID.Origin
	e, plain := t.committed.Plain(by.Node)
	epoch := e.Status.HostEpoch
	if by.Half == fault.HalfDNP {
		epoch = e.Status.DNPEpoch
	}
	if !plain || t.touched[by.Node] > 0 || epoch != rep.ID.Epoch || e.Status.Platform != rep.Platform ||
		rep.Restart.Half != 0 || rep.Stop != 0 {
		t.touch(by.Node)
	}
	for _, o := range rep.Observations {
		if o.Node == by.Node {
			continue
		}
		if _, plain := t.committed.Plain(o.Node); !plain || t.touched[o.Node] > 0 {
			t.touch(o.Node)
		}
	}
}

// touch notes that the open batch must write a node's document.
func (t *term) touch(id fault.NodeID) {
	if !t.committed.Has(id) {
		return // not in this torus
	}
	if t.open.touchNode(id) {
		t.touched[id]++
	}
}

package servicenet

import (
	"fmt"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Outbox is the sender's log of one half. Reports stay until they are COMMITTED, digests until
// they are RECEIVED or replaced by the next digest.
//
//	              RECEIVED                    COMMITTED
//	unreceived ──────────────► received ──────────────────► freed
//	 │  ▲   ▲                     │
//	 └──┘   └─────────────────────┘ no COMMITTED in time: sent again, on the same rail,
//	 no RECEIVED in time: next rails            to another supervisor
//
// When a report has MaxReports others before it, the log drops, oldest first, reports whose observations and notices are
// all restated by newer ones; the next one on the same component says so in its details. Only if that frees no room the oldest
// report goes (it cannot with MaxReports above some 140: there are not more components). An Outbox is owned by one
// goroutine.
type Outbox struct {
	origin fault.Origin
	epoch  fault.Epoch
	cfg    OutboxConfig

	seq        fault.Seq         // last given in the present epoch
	seqAcked   fault.Seq         // of these, the last that was answered
	answers    uint64            // see Answers
	log        []*entry          // by epoch and number
	reports    int               // entries that are not digests
	leftOut    map[statement]int // dropped because the log was full, and not mentioned yet
	renumbered time.Time         // when an epoch was last taken from the supervisors

	room       room
	have, down [numPaths]bool // down: of the gossip and torus rails
	interfaces []iface        // of the direct rail
	targets    []target       // see order
	leader     string
	sticky     string // whose answer came last
	paths      paths
	torusRTT   rttEstimator
	torusAgain time.Time // when damage last made us send again by the torus
	direct     directHealth
	isolation  isolation
	silence    silence
	budget     budget
	latePaid   time.Time      // when lateCost was spent last
	batches    []batch        // of the step under way
	parts      []fault.Report // of the report in Add
	spool      string         // why reports are not kept on disk
	wake       time.Time
	stats      OutboxStats
	answeredBy [numPaths]uint64 // reports, gossip and torus
}

const numPaths = int(fault.PathTorus) + 1

// entry is one logged report.
type entry struct {
	report   fault.Report // ages as of added
	added    time.Time
	hold     time.Time // until when it may wait for others to share its datagram
	due      time.Time // of the next attempt
	attempts int
	step     int // of the escalation: 0 is the first rail
	repeats  int // of attempts, for damage
	received bool
	probe    bool              // a digest that is to go by the alternate first
	size     int               // encoded, in a batch; 0: not computed yet
	said     map[statement]int // per statement: the number of dropped reports that it, or a part beside it, mentions
	// commitWait is the next wait for COMMITTED.
	commitWait time.Duration
	via        fault.Path // rail of the last RECEIVED; 0 before the first
	rail       fault.Path // whose time-out counts for the last attempt; 0 before the first
	path       *path      // of the last send on the direct rail
	tried      []*path    // in this round
	room       [2]*path   // memory for tried, at first
	torusAt    time.Time  // of the only send by torus; zero for none or several
	torusSends int
}

// OutboxStats counts since the start, except for Pending, Received, RTT and Timeout.
type OutboxStats struct {
	Pending    int // reports and digests in the log
	Received   int // of these, received and not yet committed
	Added      uint64
	Committed  uint64
	Sent       [numPaths]uint64 // reports by fault.Path
	Datagrams  uint64           // that carried them
	Retries    uint64           // sends that were not the first of their report
	Shortened  uint64           // reports left out because the log was full
	Answered   uint64           // reports and digests whose RECEIVED came
	Migrations uint64           // changes of the primary path
	RTT        time.Duration    // smoothed, of the primary path; 0: no sample
	Timeout    time.Duration    // of the primary path
}

// NewOutbox returns an empty log for a half that has just started with the given epoch.
func NewOutbox(origin fault.Origin, epoch fault.Epoch, cfg OutboxConfig) (*Outbox, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("outbox of %s: %w", origin, err)
	}
	if err := checkID("origin.node", string(origin.Node)); err != nil {
		return nil, fmt.Errorf("outbox of %s: %w", origin, err)
	}
	if !origin.Half.Valid() {
		return nil, fmt.Errorf("outbox of %s: origin.half: given %s: want host or dnp", origin, origin.Half)
	}
	if epoch < 1 || epoch > MaxEpoch {
		return nil, fmt.Errorf("outbox of %s: epoch: given %d: want 1 to %d", origin, epoch, MaxEpoch)
	}
	o := &Outbox{origin: origin, epoch: epoch, cfg: cfg, budget: startBudget, interfaces: newInterfaces(cfg.Interfaces),
		leftOut: map[statement]int{}, room: usualRoom}
	if cfg.Certificate > 0 {
		o.room = roomFor(origin.Node, cfg.Certificate)
	}
	o.direct.state = fault.Unknown
	for _, p := range cfg.Rails {
		o.have[p] = true
	}
	if o.have[fault.PathDirect] {
		o.paths.state = PathMigrated
	}
	return o, nil
}

// Epoch returns the boot epoch in use.
func (o *Outbox) Epoch() fault.Epoch { return o.epoch }

// Stats returns the counters.
func (o *Outbox) Stats() OutboxStats {
	s := o.stats
	s.Pending = len(o.log)
	for _, e := range o.log {
		if e.received {
			s.Received++
		}
	}
	s.Timeout = o.cfg.AckTimeout
	if p := o.paths.primary; p != nil {
		s.RTT, s.Timeout = p.rtt.srtt, o.pathTimeout(p)
	}
	return s
}

// Restore takes over reports of earlier lives, under their old ids. Call it before the first Add. Restore forgets
// reports that the log has no room for, that are not of this half, or that cannot be sent. If a report has a number
// of the present epoch that was not assigned yet, or is of a later epoch, the half's record of its numbers is older
// than the spool, and Restore begins a new epoch.
func (o *Outbox) Restore(now time.Time, kept []Kept) Output {
	var out Output
	for _, k := range kept {
		id := k.Report.ID
		if id.Origin != o.origin || id.Epoch < 1 || id.Epoch >= MaxEpoch || id.Seq < 1 || k.Report.Digest || !o.sendable(k.Report) {
			out.Forget = append(out.Forget, id)
			continue
		}
		if id.Epoch > o.epoch || id.Epoch == o.epoch && id.Seq > o.seq {
			o.epoch = id.Epoch + 1
			o.seq, o.seqAcked = 0, 0
			out.NewEpoch = o.epoch
		}
		i, found := o.search(id)
		if found {
			continue
		}
		o.log = slices.Insert(o.log, i, o.newEntry(now, k.Report))
		o.log[i].added = now.Add(-max(k.Age, 0))
		o.reports++
	}
	for o.reports > o.cfg.MaxReports {
		o.leaveOut(0, &out)
	}
	o.noteDropped(&out)
	o.pump(now, &out)
	return out
}

// sendable reports whether a report that another version may have kept can be sealed: one that cannot would hold up
// the reports beside it forever. Longer names than those of today leave less room.
func (o *Outbox) sendable(r fault.Report) bool {
	if checkReport(0, &r, fault.ReportID{}) != nil || reportSize(aged(r, MaxAge)) > o.room.direct {
		return false
	}
	return !o.tooLong(r)
}

// tooLong reports whether a report, which no rail but the torus can carry, does not fit a relayed datagram. It would be sent again without
// end, and hold up newer reports.
func (o *Outbox) tooLong(r fault.Report) bool {
	return !o.have[fault.PathDirect] && reportSize(r) > o.room.limit
}

func (o *Outbox) newEntry(now time.Time, r fault.Report) *entry {
	o.stats.Added++
	e := &entry{report: r, added: now, due: now, hold: now, commitWait: o.cfg.CommitTimeout}
	e.tried = e.room[:0]
	return e
}

// Add logs a report, gives it its id and returns what to send. A report too large for a datagram is split
// (splitReport); the id is that of the first part. Add leaves out parts that are too long for the only rail. A digest
// replaces the previous one. Observations without a node are about the origin's own.
func (o *Outbox) Add(now time.Time, r fault.Report) (fault.ReportID, Output) {
	var out Output
	o.noteLateness(now)
	r.ID = fault.ReportID{Origin: o.origin, Epoch: o.epoch}
	r.Observations = slices.Clone(r.Observations)
	for i := range r.Observations {
		if r.Observations[i].Node == "" {
			r.Observations[i].Node = o.origin.Node
		}
	}
	probe := false
	if r.Digest {
		o.log = slices.DeleteFunc(o.log, func(e *entry) bool { return e.report.Digest })
		o.paths.digests++
		if !o.silence.on {
			o.budget.earn()
		}
		probe = o.paths.digests%probeEvery == 0
	} else if o.reports >= o.cfg.MaxReports {
		o.shorten(r, &out)
	}
	var said map[statement]int
	if !r.Digest {
		said = o.sayLeftOut(r)
	}
	first := o.seq + 1
	o.parts = splitReport(o.parts[:0], r, o.room.report())
	for _, part := range o.parts {
		o.seq++
		part.ID.Seq = o.seq
		if !r.Digest && o.tooLong(part) { // the next digest replaces a digest
			out.TooLong++
			continue
		}
		e := o.newEntry(now, part)
		e.probe, e.said = probe, said
		if !r.Digest {
			e.hold = now.Add(o.cfg.AggregateDelay)
			o.reports++
			out.Keep = append(out.Keep, aged(part, 0))
		}
		o.log = append(o.log, e)
	}
	clear(o.parts) // it is the log's now
	for o.reports > o.cfg.MaxReports {
		o.leaveOut(slices.IndexFunc(o.log, func(e *entry) bool { return !e.report.Digest }), &out)
	}
	o.noteDropped(&out)
	r.ID.Seq = first
	o.pump(now, &out)
	return r.ID, out
}

// Step handles one event.
func (o *Outbox) Step(now time.Time, ev Event) Output {
	var out Output
	o.noteLateness(now)
	switch ev := ev.(type) {
	case Tick:
	case Acked:
		o.acked(now, ev, &out)
	case RailUp:
		o.railUp(now, ev)
	case RailDown:
		o.railDown(now, ev, &out)
	case PathFailed:
		o.pathFailed(now, ev, &out)
	case Damaged:
		o.damaged(now, ev)
	case Replied:
		o.replied(now, ev, &out)
	case Supervisors:
		o.setSupervisors(now, ev, &out)
	case SpoolState:
		o.spool = ev.Err
	}
	o.pump(now, &out)
	return out
}

func (o *Outbox) remove(i int) {
	if !o.log[i].report.Digest {
		o.reports--
	}
	o.log = slices.Delete(o.log, i, i+1)
}

// forget removes a report from the log and the spool.
func (o *Outbox) forget(i int, out *Output) {
	if e := o.log[i]; !e.report.Digest {
		out.Forget = append(out.Forget, e.report.ID)
	}
	o.remove(i)
}

// search returns where an id of this half stands in the log, or would.
func (o *Outbox) search(id fault.ReportID) (int, bool) {
	return slices.BinarySearchFunc(o.log, id, func(e *entry, id fault.ReportID) int {
		switch at := e.report.ID; {
		case at.Epoch < id.Epoch, at.Epoch == id.Epoch && at.Seq < id.Seq:
			return -1
		case at == id:
			return 0
		}
		return 1
	})
}

// find returns the entry with the given id of this half, and nil when it is gone.
func (o *Outbox) find(id fault.ReportID) *entry {
	if i, ok := o.search(id); ok {
		return o.log[i]
	}
	return nil
}

// acked handles a verified acknowledgement. It ignores one without news, which is a duplicate or an attacker's replay. Such
// an acknowledgement shows neither that the rail works nor which supervisor leads.
func (o *Outbox) acked(now time.Time, ev Acked, out *Output) {
	a := ev.Ack
	if OriginOf(a) != o.origin {
		return
	}
	stale, news := false, false
	id := fault.ReportID{Origin: o.origin, Epoch: fault.Epoch(a.GetEpoch())}
	for _, seq := range a.GetSeqs() {
		id.Seq = fault.Seq(seq)
		i, found := o.search(id)
		if a.GetStatus() == lofamov1.Ack_STALE_EPOCH {
			news = news || found
			if id.Epoch == o.epoch {
				stale = true
			} else {
				o.renumber(now, id, out)
			}
			continue
		}
		committed := a.GetStatus() == lofamov1.Ack_COMMITTED
		if found && (committed || !o.log[i].received) || o.awaits(id, ev) {
			o.answered(now, id, ev, out)
			news = true
		}
		if !found {
			continue
		}
		e := o.log[i]
		if !e.received {
			o.stats.Answered++
			o.countAnswer(ev)
		}
		switch {
		case committed && !e.report.Digest:
			o.stats.Committed++
			o.forget(i, out)
		case e.report.Digest:
			o.remove(i)
		case !e.received:
			o.becomeReceived(now, e, ev.Path)
		}
	}
	if news {
		o.setLeader(a.GetLeader())
	}
	// Not more often than MaxBackoff: two processes with one identity would outbid each other without
	// end, and with a write to the disk each time.
	rested := o.renumbered.IsZero() || now.Sub(o.renumbered) >= o.cfg.MaxBackoff
	if h := fault.Epoch(a.GetHighestEpoch()); stale && rested && h < MaxEpoch && (h >= o.epoch || o.epoch-h > MaxEpochJump) {
		o.becomeEpoch(now, max(h, o.earlier(h+MaxEpochJump))+1, h+MaxEpochJump, out)
	}
}

// earlier is the highest epoch of the reports that are left of earlier lives, of those up to a bound.
func (o *Outbox) earlier(bound fault.Epoch) fault.Epoch {
	var last fault.Epoch
	for _, e := range o.log {
		if epoch := e.report.ID.Epoch; epoch < o.epoch && epoch <= bound {
			last = max(last, epoch)
		}
	}
	return last
}

// awaits reports whether an answer is news although the log does not wait for it. A digest may have been replaced
// before its answer came. If a digest was sent by several paths, each path is expected to bring its own answer.
func (o *Outbox) awaits(id fault.ReportID, ev Acked) bool {
	if id.Epoch == o.epoch && id.Seq > o.seqAcked && id.Seq <= o.seq {
		return true
	}
	for i := range o.direct.flights {
		f := &o.direct.flights[i]
		stranger := f.digest && ev.Path == fault.PathDirect && f.path.id != PathID{ev.Interface, ev.Supervisor}
		if !f.answered && !stranger && f.has(id) {
			return true
		}
	}
	return false
}

func (o *Outbox) becomeReceived(now time.Time, e *entry, path fault.Path) {
	e.received, e.repeats = true, 0
	e.via = path
	e.due = now.Add(e.commitWait)
	e.commitWait = min(2*e.commitWait, max(o.cfg.MaxBackoff, o.cfg.CommitTimeout))
}

// becomeEpoch renumbers the reports of the present epoch, because the supervisors refuse all of them. Either they
// know a higher epoch, or no start leads so far ahead of the one they know: then a bit of it flipped in memory.
// Reports kept over a restart keep their numbers, except those of an epoch beyond the bound.
func (o *Outbox) becomeEpoch(now time.Time, epoch, bound fault.Epoch, out *Output) {
	old := o.epoch
	o.epoch, o.renumbered, out.NewEpoch = epoch, now, epoch
	o.seq, o.seqAcked = 0, 0
	o.direct.forget(func(*flight) bool { return true })
	for _, e := range o.log {
		if of := e.report.ID.Epoch; of == old || of > bound {
			o.number(now, e, out)
		}
	}
}

// renumber moves one report of an earlier life into the present epoch: the supervisors can no longer distinguish it
// from a replay.
func (o *Outbox) renumber(now time.Time, id fault.ReportID, out *Output) {
	i, found := o.search(id)
	if !found || id.Epoch >= o.epoch {
		return
	}
	e := o.log[i]
	o.log = append(slices.Delete(o.log, i, i+1), e)
	o.number(now, e, out)
}

// number gives e the next number of the present epoch, as if it had never been sent.
func (o *Outbox) number(now time.Time, e *entry, out *Output) {
	old := e.report.ID
	o.seq++
	e.report.ID.Epoch, e.report.ID.Seq = o.epoch, o.seq
	if !e.report.Digest {
		out.Forget, out.Replaced = append(out.Forget, old), append(out.Replaced, old)
		out.Keep = append(out.Keep, aged(e.report, now.Sub(e.added)))
	}
	e.received, e.via, e.step, e.repeats, e.due, e.tried = false, 0, 0, 0, now, e.tried[:0]
	e.rail, e.path, e.size = 0, nil, 0
	e.torusSends, e.torusAt = 0, time.Time{}
	e.commitWait = o.cfg.CommitTimeout
}

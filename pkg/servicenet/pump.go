package servicenet

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// pump makes every attempt that is due, judges the direct rail and sets the next wake.
func (o *Outbox) pump(now time.Time, out *Output) {
	o.expireFlights(now, out)
	o.advancePaths(now, out)
	o.poseRequest(now, out)
	o.judge(now, out)
	o.judgeSilence(now)
	wake := o.attempts(now)
	o.endRound(now)
	o.flush(now, out)
	o.judgeIsolation(now, out)
	wake = fault.Earliest(wake, o.pathWake(now))
	o.wake = fault.Earliest(wake, o.deadline(now))
	out.Wake = o.wake
	out.ServiceNetwork = o.direct.state
}

// attempts puts due reports into batches, and returns the time of the next attempt.
func (o *Outbox) attempts(now time.Time) time.Time {
	var wake time.Time
	inFlight, retries, again := 0, 0, 0
	busy := o.busy()
	var oldest fault.ReportID // the first report of the epoch
	for _, e := range o.log {
		if id := e.report.ID; !e.report.Digest && oldest.Epoch != id.Epoch {
			oldest = id
		}
		switch {
		case e.via != 0: // was received once: only the commit is missing
			if retries == maxCommitRetries {
				continue
			}
			retries++
		case !e.report.Digest:
			// The second condition keeps every pending report inside the receivers' window.
			if inFlight == maxInFlight || e.report.ID.Seq-oldest.Seq >= WindowBits {
				continue
			}
			inFlight++
		}
		if busy && e.attempts == 0 && now.Before(e.hold) {
			wake = fault.Earliest(wake, e.hold)
			continue
		}
		if o.silence.holds(now, e, again) {
			if !e.report.Digest && now.Before(o.silence.next) {
				wake = fault.Earliest(wake, o.silence.next)
			}
			continue
		}
		if !now.Before(e.due) {
			if !o.affords(e) {
				continue
			}
			if e.attempts > 0 {
				again++
			}
			o.attempt(now, e)
		}
		wake = fault.Earliest(wake, e.due)
	}
	return wake
}

// busy reports whether a report may wait to share a datagram. Only the direct rail knows its datagrams; without it
// each report counts as one.
func (o *Outbox) busy() bool {
	if o.usable(fault.PathDirect) {
		return o.direct.open >= busyDatagrams
	}
	n := 0
	for _, e := range o.log {
		if e.pending() {
			if n++; n >= busyDatagrams {
				return true
			}
		}
	}
	return false
}

// attempt puts e into the batches of its step's rails and sets the next attempt.
func (o *Outbox) attempt(now time.Time, e *entry) {
	again := e.received
	if again {
		// The path works, only the commit is missing: the same rail, another supervisor. If this one
		// is not even RECEIVED, the next attempt escalates.
		e.received, e.step = false, 0
	}
	use := o.railsFor(e.step, e.report.Digest)
	if again && e.via == fault.PathTorus && o.have[fault.PathTorus] {
		use = [numPaths]bool{fault.PathTorus: true}
	}
	o.spareTorus(now, &use, e)
	if use != [numPaths]bool{} {
		e.attempts++
	}
	e.rail = 0 // the first usable one
	for p := fault.PathDirect; p <= fault.PathTorus; p++ {
		if !use[p] {
			continue
		}
		if e.rail == 0 || !o.usable(e.rail) && o.usable(p) {
			e.rail = p
		}
		var by *path
		switch p {
		case fault.PathDirect:
			by = o.pickPath(e)
			e.path = by
			e.tried = append(e.tried, by)
			o.interfaces[by.id.Interface].sent++
		case fault.PathTorus:
			e.torusSends++
			e.torusAt = now
		case fault.PathGossip:
		}
		o.stats.Sent[p]++
		if e.attempts > 1 {
			o.stats.Retries++
		}
		o.enqueue(e, p, by)
	}
	wait := o.cfg.AckTimeout
	switch {
	case e.rail == fault.PathDirect:
		wait = o.pathTimeout(e.path)
	case e.rail != 0:
		wait = o.timeout(e.rail)
	}
	e.due = now.Add(o.waitAfter(e.step, wait))
	e.step++
}

// batch is a datagram that is being filled.
type batch struct {
	rail    fault.Path
	path    *path // on the direct rail
	session bool
	attempt int
	entries []*entry
	limit   int // of size
	size    int // of the encoded reports; 0: one entry, not computed yet
}

// enqueue puts e into a batch that goes the same way and has room, or a new one. Only digests without a missed answer
// may use a MAC, and the torus treats first attempts in its own way, so these go apart.
func (o *Outbox) enqueue(e *entry, rail fault.Path, by *path) {
	session := false
	if by != nil && e.report.Digest && e.attempts == 1 {
		t := o.target(by.id.Supervisor)
		session = t != nil && t.session
	}
	for i := len(o.batches) - 1; i >= 0; i-- {
		b := &o.batches[i]
		if b.rail == rail && b.path == by && b.session == session && (rail != fault.PathTorus || b.attempt == e.attempts) && b.take(e) {
			return
		}
	}
	if n := len(o.batches); n < cap(o.batches) {
		o.batches = o.batches[:n+1] // with the entries' memory
	} else {
		o.batches = append(o.batches, batch{})
	}
	b := &o.batches[len(o.batches)-1]
	*b = batch{rail: rail, path: by, session: session, attempt: e.attempts, entries: append(b.entries[:0], e), limit: o.room.by(rail)}
}

// take adds e if it fits.
func (b *batch) take(e *entry) bool {
	if b.size == 0 {
		b.size = b.entries[0].encodedSize()
	}
	n := e.encodedSize()
	if b.size+n > b.limit || len(b.entries) == MaxReports {
		return false
	}
	b.size += n
	b.attempt = max(b.attempt, e.attempts)
	b.entries = append(b.entries, e)
	return true
}

// encodedSize has room for the ages that a report may reach in the log, where it can stand for days:
// a batch that outgrew its datagram would never be sent. A digest is soon replaced.
func (e *entry) encodedSize() int {
	if e.size == 0 {
		r := e.report
		if !r.Digest {
			r = aged(r, MaxAge)
		}
		r.ID.Epoch, r.ID.Seq = max(r.ID.Epoch, 1<<34), max(r.ID.Seq, 1<<34)
		e.size = reportSize(r)
	}
	return e.size
}

// flush makes the sends of the batches.
func (o *Outbox) flush(now time.Time, out *Output) {
	for i := range o.batches {
		b := &o.batches[i]
		s := Send{Reports: make([]fault.Report, 0, len(b.entries)), Path: b.rail, Attempt: b.attempt, Session: b.session, Room: b.limit}
		digest := false
		for _, e := range b.entries {
			s.Reports = append(s.Reports, aged(e.report, now.Sub(e.added)))
			digest = digest || e.report.Digest
		}
		if b.path != nil {
			s.Interface, s.Target, s.Checksum = b.path.id.Interface, b.path.id.Supervisor, b.path.checksum
			o.noteFlight(now, b)
		}
		if digest && len(o.interfaces) > 0 {
			s.Status = o.statusFor(now, b)
		}
		o.stats.Datagrams++
		o.isolation.sent(now, b.rail)
		o.silence.sent(now, b.rail)
		out.Send = append(out.Send, s)
	}
	// Only now, when all flights are noted: a report that went another way as well proves nothing there.
	for i := range o.batches {
		if b := &o.batches[i]; b.rail != fault.PathDirect {
			for _, e := range b.entries {
				o.shareFlights(e.report.ID)
			}
		}
	}
	o.batches = o.batches[:0]
}

// statusFor returns the status that goes with the digests of b, as much of it as there is room for. By
// the torus that is the numbers, 33 bytes at most, beside a digest of some 190 when little is wrong, and
// often more. A half without a service interface needs none: its node's other half says how the node's
// reports fare.
func (o *Outbox) statusFor(now time.Time, b *batch) *lofamov1.DeliveryStatus {
	if b.size == 0 {
		b.size = b.entries[0].encodedSize()
	}
	room := b.limit - b.size
	if b.rail == fault.PathDirect {
		room -= toldSize
	}
	st := o.Status(now)
	for _, shorten := range [...]func(*lofamov1.DeliveryStatus){
		func(*lofamov1.DeliveryStatus) {},
		func(s *lofamov1.DeliveryStatus) { s.Rails = nil },
		func(s *lofamov1.DeliveryStatus) { s.Primary, s.Alternate, s.Spool = "", "", "" },
	} {
		if shorten(st); statusSize(st) <= room {
			return st
		}
	}
	return nil
}

const (
	// toldSize is the room for the field told, which the half adds to its status on the direct rail.
	toldSize = 1 + 10 + 1 + 5 + deniedSize
	// deniedSize is room for the version of the list of revoked certificates, which the half adds last, when it
	// seals, and for a longer length.
	deniedSize = 2 + 10 + 1
)

// aged returns r with ages that include the time in the log, if there is any; the log's own observations
// never change.
func aged(r fault.Report, held time.Duration) fault.Report {
	if held <= 0 {
		return r
	}
	obs := make([]fault.Observation, len(r.Observations))
	copy(obs, r.Observations)
	for i := range obs {
		obs[i].Age += held
	}
	r.Observations = obs
	if r.Restart.Within > 0 {
		r.Restart.Within = max(r.Restart.Within-held, time.Millisecond) // 0 would end the restart
	}
	return r
}

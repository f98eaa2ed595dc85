package servicenet

import (
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

const (
	missStrain    = 3  // a lost digest adds so much to the strain, an answered one takes 1 away
	sickStrain    = 18 // SICK from so much on: six lost in a row
	maxStrain     = 24 // and NORMAL again when none is left: after so many answers in a row, at most
	deadAttempts  = 4  // unanswered in a row, at least, before the rail counts as dead
	recoverAcks   = 3  // answered in a row bring it back
	keptFlights   = 64 // for round-trip samples of late answers
	lateFractions = 4  // a step later than NetworkDeadAfter/4 doubts itself
)

// flight is one datagram on the direct rail.
type flight struct {
	ids      []fault.ReportID
	path     *path
	at       time.Time
	deadline time.Time
	answered bool
	missed   bool // its deadline has passed unanswered; a late answer clears it
	shared   bool // a report also went by another rail: a stranger's answer proves nothing
	again    bool // an earlier flight had one of the reports and the path: no round-trip sample
	mac      bool // it carried no signature
	digest   bool // it carried one
	strained bool // it was missed, and has added to the strain
}

// directHealth judges the direct rail by its acknowledgements.
//
//	UNKNOWN ──► NORMAL ◄──► SICK      strain: more than one digest of four is lost
//	   │          │           │
//	   └──────────┴─────┬─────┘       none answered for NetworkDeadAfter
//	                    ▼
//	                  FAILED ──► NORMAL after three answers in a row
//
// A half that never had an answer stays UNKNOWN, unless the torus brings one: without that, a dead network looks the
// same as supervisors that were never there. For the same reason SICK ignores datagrams that were sent before the
// first answer.
//
// SICK is judged by the datagrams with digests. The supervisor that receives one answers it once, so an answered
// retry does not hide an earlier loss. Reports are not used: the leader answers them as well, and in a crowd a copy
// is not answered. With 30 % lost each way half of the datagrams stay unanswered, and SICK comes within 10 digests in
// the median, 60 at most in 80,000 runs; with 2 % a half is wrongly SICK once in months.
type directHealth struct {
	state      fault.State
	dead       bool      // no longer a rail for first attempts
	ever       bool      // was answered on the direct rail
	since      time.Time // of the first answer there
	answeredAt time.Time // of the last one
	elsewhere  bool      // was answered on another rail
	flights    []flight  // the last keptFlights, oldest first: a window on store, see push
	store      []flight
	open       int // of flights: neither answered nor missed
	strain     int // 0 to maxStrain
	// Since the last answer:
	unanswered int
	first      time.Time // of these
	recovered  int       // answers in a row while dead
}

// rttEstimator is the usual smoothed mean and deviation (RFC 6298).
type rttEstimator struct{ srtt, rttvar time.Duration }

func (r *rttEstimator) sample(d time.Duration) {
	if d < 0 {
		return
	}
	if r.srtt == 0 {
		r.srtt, r.rttvar = d, d/2
		return
	}
	r.rttvar = (3*r.rttvar + (r.srtt - d).Abs()) / 4
	r.srtt = (7*r.srtt + d) / 8
}

func (r *rttEstimator) timeout(floor, ceiling time.Duration) time.Duration {
	return min(max(r.srtt+4*r.rttvar, floor), ceiling)
}

// noteLateness makes an outbox that was itself stopped doubt itself: answers may lie unread in its socket, so
// unanswered sends do not count.
func (o *Outbox) noteLateness(now time.Time) {
	if o.wake.IsZero() || now.Sub(o.wake) <= o.cfg.NetworkDeadAfter/lateFractions {
		return
	}
	h := &o.direct
	h.unanswered, h.first = 0, time.Time{}
	for i := range h.flights {
		if f := &h.flights[i]; !f.answered && !f.missed {
			f.deadline = now.Add(o.pathTimeout(f.path))
		}
	}
	for _, p := range o.paths.all {
		p.tried = false
	}
	o.isolation.doubt()
}

func (o *Outbox) noteFlight(now time.Time, b *batch) {
	h := &o.direct
	f := h.push()
	*f = flight{ids: f.ids[:0], path: b.path, at: now, deadline: now.Add(o.pathTimeout(b.path)), mac: b.session}
	for _, e := range b.entries {
		f.ids = append(f.ids, e.report.ID)
		f.digest = f.digest || e.report.Digest
	}
	for _, e := range b.entries {
		if e.attempts == 1 {
			continue
		}
		for i := range h.flights {
			if old := &h.flights[i]; old != f && old.path == b.path && old.has(e.report.ID) {
				f.again, old.again = true, true
			}
		}
	}
	if h.unanswered == 0 {
		h.first = now
	}
	h.unanswered++
	b.path.tried = true
}

// push makes room for one more flight and returns its slot with the old content, whose memory is to be reused. The
// window slides through twice its size of memory, and is moved back at the end.
func (h *directHealth) push() *flight {
	if h.store == nil {
		h.store = make([]flight, 2*keptFlights)
		h.flights = h.store[:0]
	}
	if len(h.flights) == keptFlights {
		if f := &h.flights[0]; !f.answered && !f.missed {
			h.open--
		}
		h.flights = h.flights[1:]
	}
	n := len(h.flights)
	if n == cap(h.flights) {
		for i := range n {
			h.store[i], h.flights[i] = h.flights[i], h.store[i]
		}
		h.flights = h.store[:n]
	}
	h.flights = h.flights[:n+1]
	h.open++
	return &h.flights[n]
}

// forget drops flights.
func (h *directHealth) forget(which func(*flight) bool) {
	h.flights = slices.DeleteFunc(h.flights, func(f flight) bool { return which(&f) })
	h.open = 0
	for i := range h.flights {
		if f := &h.flights[i]; !f.answered && !f.missed {
			h.open++
		}
	}
}

func (f *flight) has(id fault.ReportID) bool {
	for i := range f.ids { // all of one origin
		if f.ids[i].Seq == id.Seq && f.ids[i].Epoch == id.Epoch {
			return true
		}
	}
	return false
}

func (o *Outbox) shareFlights(id fault.ReportID) {
	for i := range o.direct.flights {
		if f := &o.direct.flights[i]; !f.shared && f.has(id) {
			f.shared = true
		}
	}
}

// expireFlights counts the deadlines that have passed against the paths, and as strain. A datagram that was lost
// between answered ones says nothing of its path.
func (o *Outbox) expireFlights(now time.Time, out *Output) {
	h := &o.direct
	for i := range h.flights {
		f := &h.flights[i]
		if h.open == 0 {
			break
		}
		if f.answered || f.missed || now.Before(f.deadline) {
			continue
		}
		f.missed = true
		h.open--
		p := f.path
		h.recovered, o.interfaces[p.id.Interface].recovered = 0, 0
		if t := o.target(p.id.Supervisor); f.mac && t != nil {
			t.session = false
		}
		o.strain(f)
		if f.at.After(p.answeredAt) {
			p.misses++
		}
	}
	o.judgePaths(now, out)
}

// strain counts a lost flight. Flights by a suspected path do not count while another path answers: that path is
// dead, not the network. Nor do flights sent before the first answer: the supervisors may have started later than
// this half.
func (o *Outbox) strain(f *flight) {
	h := &o.direct
	if !f.digest || !h.ever || f.at.Before(h.since) || f.path.suspect() && o.anotherAnswers(f.path) {
		return
	}
	f.strained = true
	h.strain = min(h.strain+missStrain, maxStrain)
}

// anotherAnswers reports whether another path than p is known to answer.
func (o *Outbox) anotherAnswers(p *path) bool {
	return slices.ContainsFunc(o.paths.all, func(q *path) bool { return q != p && !q.suspect() && !q.answeredAt.IsZero() })
}

// judgePaths draws the conclusions for primary and alternate.
func (o *Outbox) judgePaths(now time.Time, out *Output) {
	s := &o.paths
	if s.state == PathArmed && s.alternate.misses > 0 {
		o.becomeRearm(now, s.alternate, "the alternate missed an answer", out)
	}
	if p := s.primary; p != nil && p.suspect() && len(s.all) > 1 {
		o.pathLost(now, p, "no answer", out)
	}
}

// answered takes a supervisor's answer on a report as a sign that the rail of the answer works.
func (o *Outbox) answered(now time.Time, id fault.ReportID, ev Acked, out *Output) {
	o.noteAnswer(now)
	if id.Epoch == o.epoch {
		o.seqAcked = max(o.seqAcked, id.Seq)
	}
	// The time of a COMMITTED is the store's, not the path's.
	sample := ev.Ack.GetStatus() == lofamov1.Ack_RECEIVED
	if ev.Path != fault.PathDirect {
		o.direct.elsewhere = true
		if e := o.find(id); sample && ev.Path == fault.PathTorus && e != nil && !e.received && e.torusSends == 1 {
			o.torusRTT.sample(now.Sub(e.torusAt))
		}
		return
	}
	from := o.paths.find(PathID{ev.Interface, ev.Supervisor})
	if from != nil {
		from.misses = 0
		o.sticky = ev.Supervisor
	}
	answered, proved := o.answerFlights(now, id, from, sample)
	if answered == nil {
		return
	}
	o.directAnswered(now, answered)
	if proved != nil && o.paths.state == PathReestablishing {
		o.establish(now, proved, "a report was answered", out)
	}
}

// answerFlights marks the datagrams with a report as answered and returns a path that one of them took, or nil if
// none was waiting. The answer proves the path on which it came. If another supervisor answers for the one that has
// the report, it proves the only path that was tried. A digest is answered only by its receiver, and each answer is
// for one datagram: the newest, as good as any.
func (o *Outbox) answerFlights(now time.Time, id fault.ReportID, from *path, sample bool) (answered, proved *path) {
	sole := true
	var sent time.Time
	one := false
	for i := len(o.direct.flights) - 1; i >= 0; i-- {
		f := &o.direct.flights[i]
		if f.answered || f.path != from && (f.shared || f.digest) || f.digest && one || !f.has(id) {
			continue
		}
		one = one || f.digest
		o.direct.answer(f)
		if f.path == from {
			if sample && !f.again {
				from.rtt.sample(now.Sub(f.at))
			}
			from.succeed(f.at)
			proved = from
		}
		sole = sole && (answered == nil || answered == f.path)
		if answered == nil {
			answered, sent = f.path, f.at
		}
	}
	if proved == nil && answered != nil && sole {
		proved = answered
		proved.succeed(sent)
	}
	return answered, proved
}

// answer marks a flight as answered, late or not.
func (h *directHealth) answer(f *flight) {
	if !f.missed {
		h.open--
	}
	if f.strained {
		h.strain -= missStrain
	}
	if f.digest {
		h.strain--
	}
	h.strain = max(h.strain, 0)
	f.answered, f.missed, f.strained = true, false, false
}

func (o *Outbox) directAnswered(now time.Time, by *path) {
	h, i := &o.direct, &o.interfaces[by.id.Interface]
	if !h.ever {
		h.ever, h.since = true, now
	}
	h.answeredAt = now
	o.budget.earn()
	h.unanswered, h.first = 0, time.Time{}
	for _, p := range o.paths.all {
		p.tried = false
	}
	if i.down {
		if i.recovered++; i.recovered >= recoverAcks {
			i.down, i.recovered = false, 0
			h.recovered = max(h.recovered, recoverAcks-1)
		}
	}
	if h.dead {
		if h.recovered++; h.recovered >= recoverAcks {
			o.becomeAlive(now)
		}
	}
}

// becomeAlive is the careful way back: it forgets the misses of the dead time, and issues waiting reports again in
// order.
func (o *Outbox) becomeAlive(now time.Time) {
	h := &o.direct
	h.dead, h.recovered, h.strain = false, 0, 0
	h.forget(func(*flight) bool { return true })
	for _, p := range o.paths.all {
		p.misses = 0
	}
	if o.usable(fault.PathDirect) {
		o.reissue(now, nil)
	}
}

// judge sets the state of the direct rail.
func (o *Outbox) judge(now time.Time, out *Output) {
	h := &o.direct
	if !h.dead && o.isDead(now) {
		h.dead, h.recovered = true, 0
	}
	state := h.state
	switch {
	case h.dead && (h.ever || h.elsewhere):
		state = fault.Failed
	case h.dead || !h.ever:
		state = fault.Unknown
	case state == fault.Sick && h.strain > 0:
	case h.strain >= sickStrain && !o.goingSilent(now):
		state = fault.Sick
	default:
		state = fault.Normal
	}
	if state != h.state {
		h.state = state
		out.Changed = true
	}
}

// goingSilent reports whether answers are missing altogether, by every rail. Then the network is not bad, but the
// supervisors are gone, and NetworkDeadAfter decides the next verdict.
func (o *Outbox) goingSilent(now time.Time) bool {
	since := o.silence.since
	return !since.IsZero() && now.Sub(since) >= o.cfg.NetworkDeadAfter/4
}

// isDead: enough datagrams in a row without an answer, on every path, for long enough.
func (o *Outbox) isDead(now time.Time) bool {
	h := &o.direct
	if len(o.paths.all) == 0 || h.unanswered < max(deadAttempts, len(o.targets)) || now.Sub(h.first) < o.cfg.NetworkDeadAfter {
		return false
	}
	for _, p := range o.paths.all {
		if !p.tried && !o.interfaceDown(p) {
			return false
		}
	}
	return true
}

// deadline is the next moment without an event at which judge may come to another verdict, or a path
// has missed an answer.
func (o *Outbox) deadline(now time.Time) time.Time {
	h := &o.direct
	var at time.Time
	for i := range h.flights {
		if f := &h.flights[i]; h.open > 0 && !f.answered && !f.missed {
			at = fault.Earliest(at, f.deadline)
		}
	}
	if dead := h.first.Add(o.cfg.NetworkDeadAfter); !h.dead && h.unanswered > 0 && dead.After(now) {
		at = fault.Earliest(at, dead)
	}
	return fault.Earliest(at, o.isolationDeadline(now))
}

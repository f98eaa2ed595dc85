package servicenet

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

const (
	healthWindow  = 16 // direct datagrams whose fate is judged
	sickMisses    = 6  // unanswered of these: more than a third
	clearMisses   = 2  // and back at most so many, so that the state does not flap
	deadAttempts  = 4  // unanswered in a row, at least, before the rail is called dead
	recoverAcks   = 3  // answered in a row bring it back
	keptFlights   = 64 // for round-trip samples of late answers
	lateFractions = 4  // a step later than NetworkDeadAfter/4 doubts itself
)

// flight is one datagram on the direct rail.
type flight struct {
	seq      fault.Seq
	target   string
	at       time.Time
	deadline time.Time
	answered bool
	missed   bool // its deadline has passed unanswered; a late answer clears it
	shared   bool // the report also went by another rail: a stranger's answer proves nothing
	again    bool // an earlier flight had the same report and target: no round-trip sample
}

// directHealth is what the acknowledgements say of the direct rail.
//
//	UNKNOWN ──► NORMAL ◄──► SICK      (missing answers among the last 16)
//	   │          │           │
//	   └──────────┴─────┬─────┘       none answered for NetworkDeadAfter
//	                    ▼
//	                  FAILED ──► NORMAL after three answers in a row
//
// A half that never had an answer stays UNKNOWN, unless the torus brings one: without that nothing
// tells a dead network from supervisors that were never there.
type directHealth struct {
	state     fault.State
	dead      bool // no longer a rail for first attempts
	ever      bool // was answered on the direct rail
	elsewhere bool // was answered on another rail
	flights   []flight
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

// noteLateness makes an outbox that was itself stopped doubt itself: answers may lie unread in its
// socket, so what is unanswered does not count.
func (o *Outbox) noteLateness(now time.Time) {
	if o.wake.IsZero() || now.Sub(o.wake) <= o.cfg.NetworkDeadAfter/lateFractions {
		return
	}
	h := &o.direct
	h.unanswered, h.first = 0, time.Time{}
	for i := range h.flights {
		if f := &h.flights[i]; !f.answered && !f.missed {
			f.deadline = now.Add(o.timeout(fault.PathDirect))
		}
	}
	for i := range o.targets {
		o.targets[i].sinceAnswer = false
	}
}

func (o *Outbox) noteFlight(now time.Time, seq fault.Seq, t *target) {
	h := &o.direct
	f := flight{seq: seq, target: t.id, at: now, deadline: now.Add(o.timeout(fault.PathDirect))}
	for i := range h.flights {
		if h.flights[i].seq == seq && h.flights[i].target == t.id {
			f.again, h.flights[i].again = true, true
		}
	}
	if len(h.flights) == keptFlights {
		copy(h.flights, h.flights[1:])
		h.flights = h.flights[:keptFlights-1]
	}
	h.flights = append(h.flights, f)
	if h.unanswered == 0 {
		h.first = now
	}
	h.unanswered++
	t.sinceAnswer = true
}

func (o *Outbox) shareFlights(seq fault.Seq) {
	for i := range o.direct.flights {
		if f := &o.direct.flights[i]; f.seq == seq {
			f.shared = true
		}
	}
}

// expireFlights counts the deadlines that have passed against the supervisors.
func (o *Outbox) expireFlights(now time.Time) {
	h := &o.direct
	for i := range h.flights {
		f := &h.flights[i]
		if f.answered || f.missed || now.Before(f.deadline) {
			continue
		}
		f.missed = true
		h.recovered = 0
		if t := o.target(f.target); t != nil {
			t.misses++
			t.retryAt = now.Add(suspectFor)
		}
	}
}

// answered takes a supervisor's answer on the report with number seq as a sign that the rail
// works on which it came.
func (o *Outbox) answered(now time.Time, seq fault.Seq, ev Acked) {
	supervisor, path := ev.Supervisor, ev.Path
	// The time of a COMMITTED is the store's, not the path's.
	sample := ev.Ack.GetStatus() == lofamov1.Ack_RECEIVED
	if path != fault.PathDirect {
		o.direct.elsewhere = true
		if sample {
			o.sampleTorus(now, seq, path)
		}
		return
	}
	matched := false
	for i := range o.direct.flights {
		f := &o.direct.flights[i]
		if f.seq != seq || f.answered || f.target != supervisor && f.shared {
			continue
		}
		if sample && f.target == supervisor && !f.again {
			o.rtt[fault.PathDirect].sample(now.Sub(f.at))
		}
		f.answered, f.missed = true, false
		matched = true
	}
	if t := o.target(supervisor); t != nil {
		t.misses = 0
		o.sticky = supervisor
	}
	if matched {
		o.directAnswered()
	}
}

func (o *Outbox) sampleTorus(now time.Time, seq fault.Seq, path fault.Path) {
	i := o.find(seq)
	if path != fault.PathTorus || i < 0 {
		return
	}
	if e := o.log[i]; !e.received && e.torusSends == 1 {
		o.rtt[fault.PathTorus].sample(now.Sub(e.torusAt))
	}
}

func (o *Outbox) directAnswered() {
	h := &o.direct
	h.ever = true
	h.unanswered, h.first = 0, time.Time{}
	for i := range o.targets {
		o.targets[i].sinceAnswer = false
	}
	if !h.dead && !o.down[fault.PathDirect] {
		return
	}
	if h.recovered++; h.recovered >= recoverAcks {
		o.becomeAlive()
	}
}

// becomeAlive is the careful way back: the misses of the dead time are forgotten.
func (o *Outbox) becomeAlive() {
	h := &o.direct
	h.dead, h.recovered, h.flights = false, 0, nil
	o.down[fault.PathDirect] = false
	for i := range o.targets {
		o.targets[i].misses = 0
	}
}

// judge sets the state of the direct rail.
func (o *Outbox) judge(now time.Time, out *Output) {
	h := &o.direct
	if !h.dead && h.isDead(now, o.targets, o.cfg.NetworkDeadAfter) {
		h.dead, h.recovered = true, 0
	}
	state := h.state
	switch {
	case h.dead && (h.ever || h.elsewhere):
		state = fault.Failed
	case h.dead || !h.ever:
		state = fault.Unknown
	case state == fault.Sick && o.misses() > clearMisses:
	case o.misses() >= sickMisses:
		state = fault.Sick
	default:
		state = fault.Normal
	}
	if state != h.state {
		h.state = state
		out.Changed = true
	}
}

// isDead: enough datagrams in a row without an answer, to every supervisor, for long enough.
func (h *directHealth) isDead(now time.Time, targets []target, after time.Duration) bool {
	if h.unanswered < max(deadAttempts, len(targets)) || now.Sub(h.first) < after || len(targets) == 0 {
		return false
	}
	for _, t := range targets {
		if !t.sinceAnswer {
			return false
		}
	}
	return true
}

// misses counts the unanswered among the last datagrams. A supervisor under suspicion does not
// count while another one answers: that one is dead, not the network.
func (o *Outbox) misses() int {
	all := true
	for i := range o.targets {
		all = all && o.targets[i].suspect()
	}
	n, seen := 0, 0
	for i := len(o.direct.flights) - 1; i >= 0 && seen < healthWindow; i-- {
		f := o.direct.flights[i]
		t := o.target(f.target)
		if !f.answered && !f.missed || !all && (t == nil || t.suspect()) {
			continue
		}
		seen++
		if f.missed {
			n++
		}
	}
	return n
}

// deadline is the next moment at which judge may come to another verdict without an event.
func (o *Outbox) deadline(now time.Time) time.Time {
	h := &o.direct
	if h.dead || h.unanswered == 0 {
		return time.Time{}
	}
	if at := h.first.Add(o.cfg.NetworkDeadAfter); at.After(now) {
		return at
	}
	return time.Time{}
}

package servicenet

import (
	"hash/fnv"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

const (
	// maxInFlight bounds the reports that wait for RECEIVED at one time: when nothing answers, to
	// send more is to shout. Later reports wait in the log, in order.
	maxInFlight = 32
	// maxCommitRetries bounds the received reports that are sent again for want of COMMITTED at one
	// time, oldest first: a store that is slow for a minute must not cause a flood.
	maxCommitRetries = 16
	// suspectMisses is how many unanswered datagrams in a row make a supervisor the last choice,
	// until it answers; a digest asks it again every suspectFor.
	suspectMisses = 2
	suspectFor    = 2 * time.Second
	// gossipEvery: of the attempts after the first ones, one in so many goes by gossip as well,
	// which every member pays for.
	gossipEvery = 4
)

// target is one supervisor.
type target struct {
	id          string
	misses      int // unanswered in a row
	retryAt     time.Time
	sinceAnswer bool // sent to since any answer on the direct rail
}

func (t *target) suspect() bool { return t.misses >= suspectMisses }

func (o *Outbox) target(id string) *target {
	for i := range o.targets {
		if o.targets[i].id == id {
			return &o.targets[i]
		}
	}
	return nil
}

// setSupervisors takes over the list. Where no leader is known the halves spread over the
// replicas: each begins at a place that its name gives.
func (o *Outbox) setSupervisors(now time.Time, ev Supervisors) {
	ids := slices.Clone(ev.Targets)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if n := len(ids); n > 0 {
		h := fnv.New32a()
		_, _ = h.Write([]byte(o.origin.String())) // never fails
		k := int(h.Sum32() % uint32(n))
		ids = slices.Concat(ids[k:], ids[:k])
	}
	first := len(o.targets) == 0
	targets := make([]target, 0, len(ids))
	for _, id := range ids {
		if old := o.target(id); old != nil {
			targets = append(targets, *old)
		} else {
			targets = append(targets, target{id: id})
		}
	}
	o.targets = targets
	led := o.leader
	if ev.Leader != "" && o.target(ev.Leader) != nil {
		o.leader = ev.Leader
	}
	for _, e := range o.log {
		switch {
		case e.received && led != "" && led != o.leader:
			e.due = now // the old leader may have taken it with it
		case !e.received && first:
			e.due, e.step = now, 0
		}
	}
}

// pickTarget returns the best supervisor that e was not sent to in this round: not under
// suspicion, then the leader, then the one that answered last.
func (o *Outbox) pickTarget(now time.Time, e *entry) *target {
	rank := func(t *target) int {
		r := 2
		switch t.id {
		case o.leader:
			r = 0
		case o.sticky:
			r = 1
		}
		if t.suspect() && (!e.report.Digest || now.Before(t.retryAt)) {
			r += 3
		}
		return r
	}
	if len(e.tried) >= len(o.targets) {
		e.tried = e.tried[:0]
	}
	var best *target
	for i := range o.targets {
		t := &o.targets[i]
		if !slices.Contains(e.tried, t.id) && (best == nil || rank(t) < rank(best)) {
			best = t
		}
	}
	if best == nil { // the list has changed under e
		e.tried = e.tried[:0]
		best = &o.targets[0]
	}
	e.tried = append(e.tried, best.id)
	return best
}

// usable says whether a rail is worth a first attempt.
func (o *Outbox) usable(p fault.Path) bool {
	if !o.have[p] || o.down[p] {
		return false
	}
	return p != fault.PathDirect || len(o.targets) > 0 && !o.direct.dead
}

// railsFor is the order of escalation: direct; another supervisor and gossip; the torus as well.
// When the direct rail is not usable the torus takes its place from the first attempt on, and
// digests keep probing the direct rail. From the third attempt on everything is tried. Digests
// never go by gossip.
func (o *Outbox) railsFor(step int, digest bool) [numPaths]bool {
	var use [numPaths]bool
	direct := o.have[fault.PathDirect] && len(o.targets) > 0
	gossip := o.have[fault.PathGossip] && !digest && step%gossipEvery == 1
	torus := o.have[fault.PathTorus]
	switch {
	case step >= 2:
		use[fault.PathDirect], use[fault.PathGossip], use[fault.PathTorus] = direct, gossip, torus
	case o.usable(fault.PathDirect):
		use[fault.PathDirect], use[fault.PathGossip] = true, gossip && !o.down[fault.PathGossip]
	default:
		use[fault.PathDirect] = direct && digest
		use[fault.PathTorus] = o.usable(fault.PathTorus)
		use[fault.PathGossip] = gossip || !digest && !use[fault.PathTorus] && o.usable(fault.PathGossip)
	}
	if use == [numPaths]bool{} {
		use[fault.PathDirect], use[fault.PathTorus] = direct, torus
		use[fault.PathGossip] = o.have[fault.PathGossip] && !digest
	}
	return use
}

// waitAfter returns how long the attempt at step may take: T, then 2T so that the third attempt
// comes at 3T, then doubling.
func (o *Outbox) waitAfter(step int, t time.Duration) time.Duration {
	switch step {
	case 0:
		return t
	case 1:
		return min(2*t, o.cfg.MaxBackoff)
	}
	return min(t<<min(step, 10), o.cfg.MaxBackoff)
}

// timeout is the present wait for RECEIVED on a rail.
func (o *Outbox) timeout(p fault.Path) time.Duration {
	return o.rtt[p].timeout(o.cfg.AckTimeout, o.cfg.MaxAckTimeout)
}

// pump makes every attempt that is due, judges the direct rail and sets the next wake.
func (o *Outbox) pump(now time.Time, out *Output) {
	o.expireFlights(now)
	o.judge(now, out)
	var wake time.Time
	inFlight, retries := 0, 0
	var oldest fault.Seq // of the reports
	for _, e := range o.log {
		if !e.report.Digest && oldest == 0 {
			oldest = e.report.ID.Seq
		}
		switch {
		case e.via != 0: // was received once: only the commit is missing
			if retries == maxCommitRetries {
				continue
			}
			retries++
		case !e.report.Digest:
			// The second condition keeps every pending report inside the receivers' window.
			if inFlight == maxInFlight || e.report.ID.Seq-oldest >= WindowBits {
				continue
			}
			inFlight++
		}
		if !now.Before(e.due) {
			o.attempt(now, e, out)
		}
		wake = earliest(wake, e.due)
	}
	o.wake = earliest(wake, o.deadline(now))
	out.Wake = o.wake
	out.ServiceNetwork = o.direct.state
}

// attempt sends e on the rails of its step and sets the next attempt.
func (o *Outbox) attempt(now time.Time, e *entry, out *Output) {
	use := o.railsFor(e.step, e.report.Digest)
	if e.received {
		// The path works, only the commit is missing: the same rail, another supervisor. If this one
		// is not even RECEIVED, the next attempt escalates.
		e.received, e.step = false, 0
		use = [numPaths]bool{}
		if e.via == fault.PathTorus && o.have[fault.PathTorus] {
			use[fault.PathTorus] = true
		} else {
			use = o.railsFor(0, false)
		}
	}
	if use != [numPaths]bool{} {
		e.attempts++
	}
	main := fault.Path(0) // whose time-out counts: the first usable one
	for p := fault.PathDirect; p <= fault.PathTorus; p++ {
		if !use[p] {
			continue
		}
		if main == 0 || !o.usable(main) && o.usable(p) {
			main = p
		}
		s := Send{Reports: []fault.Report{aged(e.report, now.Sub(e.added))}, Path: p, Attempt: e.attempts}
		switch p {
		case fault.PathDirect:
			s.Target = o.sendDirect(now, e)
		case fault.PathTorus:
			e.torusSends++
			e.torusAt = now
			o.shareFlights(e.report.ID.Seq)
		case fault.PathGossip:
			o.shareFlights(e.report.ID.Seq)
		}
		o.stats.Sent[p]++
		if e.attempts > 1 {
			o.stats.Retries++
		}
		out.Send = append(out.Send, s)
	}
	if main == 0 { // no rail and no supervisor known
		main = fault.PathDirect
	}
	e.due = now.Add(o.waitAfter(e.step, o.timeout(main)))
	e.step++
}

// sendDirect chooses a supervisor for e and notes the flight.
func (o *Outbox) sendDirect(now time.Time, e *entry) string {
	t := o.pickTarget(now, e)
	o.noteFlight(now, e.report.ID.Seq, t)
	return t.id
}

// aged returns a copy of r whose ages include the time in the log.
func aged(r fault.Report, held time.Duration) fault.Report {
	r.Observations = slices.Clone(r.Observations)
	for i := range r.Observations {
		r.Observations[i].Age += max(held, 0)
	}
	return r
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

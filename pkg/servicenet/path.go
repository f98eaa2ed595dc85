package servicenet

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

const (
	// rearmTries is how many REQ an alternate may leave unanswered before the outbox tries another one.
	rearmTries = 3
	// probeEvery: of the digests one in so many goes by the armed alternate first, so that it is not
	// found dead only when it is needed.
	probeEvery = 10
	// restFor is how long a failed path rests; each failure doubles it up to maxRest, and goodAnswers in a row make
	// it short again. So an unstable path is used at most once in restFor: while it rests, only re-establishment
	// tries it.
	restFor     = 2 * time.Second
	maxRest     = 32 * time.Second
	goodAnswers = 16
)

// path is one service interface to one supervisor.
type path struct {
	id         PathID
	name       string // as users see it
	rtt        rttEstimator
	misses     int       // unanswered sends in a row
	answeredAt time.Time // when the newest answered datagram was sent; zero: none
	tried      bool      // sent to since any answer on the direct rail
	rest       time.Duration
	retryAt    time.Time     // the end of its rest
	good       int           // answers since it failed
	deaf       time.Duration // the last rest from errors
	deafUntil  time.Time     // no error is believed before
	resent     time.Time     // when damage last made us send again
	proven     uint64        // id of the REQ whose REP came last; 0: none since it failed
	checksum   *lofamov1.Checksum
}

func (p *path) suspect() bool { return p.misses >= suspectMisses }

func (p *path) fail(now time.Time) {
	p.rest = min(max(2*p.rest, restFor), maxRest)
	p.retryAt, p.good, p.proven = now.Add(p.rest), 0, 0
}

// believe reports whether an error that came back for the path counts. ICMP is not signed, and a forger must not make
// us change paths without end. After each error that counted, only missing answers speak against the path for a
// while, which grows as long as errors keep coming.
func (p *path) believe(now time.Time) bool {
	if now.Before(p.deafUntil) {
		return false
	}
	if now.Sub(p.deafUntil) > maxRest {
		p.deaf = 0
	}
	p.deaf = min(max(2*p.deaf, restFor), maxRest)
	p.deafUntil = now.Add(p.deaf)
	return true
}

// succeed notes an answer to something that was sent at the given time.
func (p *path) succeed(sent time.Time) {
	p.misses = 0
	if sent.After(p.answeredAt) {
		p.answeredAt = sent
	}
	if p.good++; p.good >= goodAnswers {
		p.rest, p.retryAt = 0, time.Time{}
	}
}

// paths is the session of a half with the supervisors (seed 004 §II-B, Figure 2). Its primary carries the reports. An
// exchange of REQ, REP and ACK has already proved the alternate, so that the switch to it needs none.
//
//	              alternate chosen: REQ              REP: ACK
//	┌──► MIGRATED ────────────────────► REARM ────────────────────► ARMED
//	│    │     ▲ ▲      none is left    │   ▲  the alternate missed an │ │
//	│    │     │ └──────────────────────┤   │  answer, the leader is   │ │
//	│    │     │                        │   │  elsewhere, or a better  │ │
//	│    │     │                        │   └─ one is to be had ───────┘ │
//	│    │     └────────────────────────┼────────────────────────────────┘
//	│    │ the primary fails            │        the primary fails, or the alternate
//	│    ▼                              │        leads to the leader: it is the primary
//	└─── REESTABLISHING ◄───────────────┘ the primary fails
//	     REQ by every path; the first REP (ACK), or answer to a report, gives the primary
//
// The primary fails on suspectMisses unanswered sends in a row, on an error of its path and when its interface goes
// down. A half with one path has no alternate and no other path to try: it stays MIGRATED.
type paths struct {
	all       []*path // by interface, then in the order of the supervisors
	state     PathState
	primary   *path // nil: no supervisor is known, or REESTABLISHING
	alternate *path // in REARM and ARMED
	last      PathID
	turn      int       // index in all of the last alternate chosen
	followAt  time.Time // no change to the leader before
	digests   int       // counted for probeEvery
	lastID    uint64    // of a REQ
	exchange  inquiry
	answered  answeredRequest
}

// find returns a path by its id, and nil when there is none.
func (s *paths) find(id PathID) *path {
	for _, p := range s.all {
		if p.id == id {
			return p
		}
	}
	return nil
}

// iface is one service interface.
type iface struct {
	rail           string // its name as a rail
	down           bool
	recovered      int    // answers in a row while down
	sent, answered uint64 // reports, since the start
}

func newInterfaces(names []string) []iface {
	out := make([]iface, len(names))
	for i, name := range names {
		out[i].rail = "direct/" + name
	}
	return out
}

func (o *Outbox) interfaceDown(p *path) bool { return o.interfaces[p.id.Interface].down }

func (o *Outbox) available(p *path, now time.Time) bool {
	return !o.interfaceDown(p) && !now.Before(p.retryAt)
}

// becomeMigrated ends in the state without an alternate.
func (o *Outbox) becomeMigrated(primary *path, why string, out *Output) {
	s := &o.paths
	s.exchange = inquiry{}
	s.primary, s.alternate = primary, nil
	o.enter(PathMigrated, why, out)
}

// becomeRearm begins to load an alternate.
func (o *Outbox) becomeRearm(now time.Time, alternate *path, why string, out *Output) {
	s := &o.paths
	s.alternate = alternate
	s.turn = indexOf(s.all, alternate)
	o.request(now, requestAlternate, alternate)
	o.enter(PathRearm, why, out)
}

// becomeArmed follows the REP by the alternate.
func (o *Outbox) becomeArmed(out *Output) {
	o.paths.exchange = inquiry{}
	o.enter(PathArmed, "the alternate has answered", out)
}

// becomeReestablishing asks every path: the primary has failed and no alternate is armed.
func (o *Outbox) becomeReestablishing(now time.Time, why string, out *Output) {
	s := &o.paths
	s.primary, s.alternate = nil, nil
	o.request(now, requestAny, nil)
	o.enter(PathReestablishing, why, out)
}

// enter records the state, and the change of primary that goes with this state.
func (o *Outbox) enter(state PathState, why string, out *Output) {
	s := &o.paths
	m := Migration{From: s.last, To: s.last, State: state, Why: why}
	if s.primary != nil {
		m.To = s.primary.id
	}
	was := s.state
	s.state, s.last = state, m.To
	if was == state && (m.From == m.To || m.From == (PathID{})) { // the first path is no migration
		return
	}
	if m.From != m.To {
		o.stats.Migrations++
	}
	out.Migrations = append(out.Migrations, m)
}

// pathFailed handles an error of a path. A half with a single path has nothing to change, and hasten's
// limit is enough.
func (o *Outbox) pathFailed(now time.Time, ev PathFailed, out *Output) {
	p := o.paths.find(ev.Path)
	if p != nil && (len(o.paths.all) == 1 || p.believe(now)) {
		o.pathLost(now, p, ev.Why, out)
	}
}

// pathLost handles the failure of one path.
func (o *Outbox) pathLost(now time.Time, p *path, why string, out *Output) {
	s := &o.paths
	switch p {
	case s.primary:
		p.fail(now)
		o.losePrimary(now, why, out)
	case s.alternate:
		p.fail(now)
		o.becomeMigrated(s.primary, why, out)
	default:
		if !now.Before(p.retryAt) { // every packet may bring such an error
			p.fail(now)
		}
	}
}

// losePrimary switches to the armed alternate without any exchange, or sends REQ on every path. Unanswered reports go
// out again at once, in order.
func (o *Outbox) losePrimary(now time.Time, why string, out *Output) {
	s := &o.paths
	old := s.primary
	switch {
	case s.state == PathArmed:
		o.becomeMigrated(s.alternate, why, out)
		o.reissue(now, old)
	case len(s.all) > 1:
		o.becomeReestablishing(now, why, out)
		o.hasten(now, old, 2)
	default:
		o.hasten(now, old, 1)
	}
}

// establish ends the re-establishment: failed transfers are issued again in order, unless the direct rail must give
// more answers before the outbox trusts it.
func (o *Outbox) establish(now time.Time, p *path, why string, out *Output) {
	o.becomeMigrated(p, why, out)
	if o.usable(fault.PathDirect) {
		o.reissue(now, nil)
	}
}

// reissue sends again, from the first rail on, the reports that are unanswered on a path; nil: on any. It repeats
// RECEIVED ones too: their COMMITTED was to come by that path, and reports that wait for one keep new reports out of
// the window.
func (o *Outbox) reissue(now time.Time, p *path) {
	for _, e := range o.log {
		switch {
		case p != nil && e.path != p:
		case e.pending():
			e.due, e.step, e.tried = now, 0, e.tried[:0]
		case e.received && e.via == fault.PathDirect:
			e.due = now
		}
	}
}

// hasten makes the next attempt of unanswered reports on a path (nil: on any) due now. With a limit it hastens only
// reports that had no more attempts than that: reports that already go by every rail gain nothing, and errors that
// come for every packet must not make us send faster.
func (o *Outbox) hasten(now time.Time, p *path, limit int) {
	for _, e := range o.log {
		if e.pending() && (p == nil || e.path == p) && (limit == 0 || e.step <= limit) && now.Before(e.due) {
			e.due = now
		}
	}
}

// pending reports whether e was sent and no RECEIVED has come.
func (e *entry) pending() bool { return !e.received && e.step > 0 }

// advancePaths takes the next step if no exchange is under way: to the leader, to a session on the primary, to an
// alternate.
func (o *Outbox) advancePaths(now time.Time, out *Output) {
	s := &o.paths
	if s.primary == nil || s.exchange.kind != 0 {
		return
	}
	if o.leaderElsewhere() && !now.Before(s.followAt) {
		if s.state == PathArmed && s.alternate.id.Supervisor == o.leader {
			s.followAt = now.Add(restFor)
			o.becomeMigrated(s.alternate, whyLeader, out)
		} else if p := o.leaderPath(now); p != nil {
			o.becomeRearm(now, p, "the way to the leader", out)
			return
		}
	}
	if t := o.target(s.primary.id.Supervisor); t != nil && !t.session && !now.Before(t.sessionAt) {
		o.request(now, requestSession, s.primary)
		return
	}
	switch {
	case s.state == PathMigrated:
		o.rearm(now, "an alternate is chosen", out)
	case s.state == PathArmed && s.alternate.id.Supervisor != o.leader:
		// An interface is back, or a path has rested: one that shares less with the primary.
		if i := o.nextAlternate(now); i >= 0 && disjointness(s.all[i].id, s.primary.id) > disjointness(s.alternate.id, s.primary.id) {
			o.becomeRearm(now, s.all[i], "a better alternate", out)
		}
	}
}

// leaderElsewhere reports whether another supervisor than the primary's leads. The outbox follows that at most once
// in restFor: supervisors may not agree on the leader, and each of them passes a report on.
func (o *Outbox) leaderElsewhere() bool {
	return o.leader != "" && o.paths.primary.id.Supervisor != o.leader
}

// rearm loads the next alternate, if there is one.
func (o *Outbox) rearm(now time.Time, why string, out *Output) {
	s := &o.paths
	i := o.nextAlternate(now)
	if i < 0 {
		o.becomeMigrated(s.primary, why, out)
		return
	}
	o.becomeRearm(now, s.all[i], why, out)
}

func (o *Outbox) nextAlternate(now time.Time) int {
	s := &o.paths
	return nextAlternate(len(s.all), func(i int) (PathID, bool) { return s.all[i].id, o.available(s.all[i], now) }, s.primary.id, s.turn)
}

// leaderPath returns the way to the leader: by the primary's interface if that is possible, since it
// is known to work, or else by the next one.
func (o *Outbox) leaderPath(now time.Time) *path {
	s := &o.paths
	var best *path
	for _, p := range s.all {
		if p.id.Supervisor == o.leader && o.available(p, now) &&
			(best == nil || p.id.Interface == s.primary.id.Interface) {
			best = p
		}
	}
	return best
}

// nextAlternate chooses an alternate among n paths by turns: the first after the last one, among those
// that share as little with the primary as any that can be used. It returns -1 when there is none.
func nextAlternate(n int, at func(i int) (id PathID, usable bool), primary PathID, last int) int {
	best, most := -1, 0
	for k := 1; k <= n; k++ {
		i := (last + k) % n
		if id, usable := at(i); usable && disjointness(id, primary) > most {
			best, most = i, disjointness(id, primary)
		}
	}
	return best
}

// disjointness grades how little two paths share: 3 nothing, 2 the supervisor, 1 the interface, 0 both.
func disjointness(a, b PathID) int {
	d := 0
	if a.Interface != b.Interface {
		d += 2
	}
	if a.Supervisor != b.Supervisor {
		d++
	}
	return d
}

// pathWake returns when a path's rest or a session's ends that something waits for.
func (o *Outbox) pathWake(now time.Time) time.Time {
	s := &o.paths
	if s.exchange.kind != 0 {
		return s.exchange.due
	}
	if s.primary == nil {
		return time.Time{}
	}
	var wake time.Time
	if t := o.target(s.primary.id.Supervisor); t != nil && !t.session && now.Before(t.sessionAt) {
		wake = t.sessionAt
	}
	if o.leaderElsewhere() && now.Before(s.followAt) {
		wake = fault.Earliest(wake, s.followAt)
	}
	for _, p := range s.all {
		wanted := p.id.Supervisor == o.leader && o.leaderElsewhere() ||
			s.state == PathMigrated && p != s.primary ||
			s.state == PathArmed && disjointness(p.id, s.primary.id) > disjointness(s.alternate.id, s.primary.id)
		if wanted && now.Before(p.retryAt) {
			wake = fault.Earliest(wake, p.retryAt)
		}
	}
	return wake
}

func indexOf(all []*path, p *path) int {
	for i := range all {
		if all[i] == p {
			return i
		}
	}
	return 0
}

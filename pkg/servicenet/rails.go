package servicenet

import (
	"cmp"
	"hash/fnv"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

const (
	// maxInFlight bounds the reports that wait for RECEIVED at one time, because more traffic does not help when no
	// answers come. Later reports wait in the log, in order.
	maxInFlight = 32
	// maxCommitRetries bounds the received reports that are repeated at one time because no COMMITTED came, oldest
	// first: a store that is slow for a minute must not cause a flood.
	maxCommitRetries = 16
	// suspectMisses is how many unanswered sends in a row make a path the last choice until it answers,
	// and end it as the primary.
	suspectMisses = 2
	// gossipEvery: of the attempts after the first ones, one in so many goes by gossip as well,
	// which every member pays for.
	gossipEvery = 4
	// busyDatagrams unanswered make a report wait for others to share its datagram (as Nagle has it).
	busyDatagrams = 4
	// damageRest is the least time between two repetitions for damage on one path.
	damageRest = 10 * time.Millisecond
	// maxRepeats bounds the repetitions of one report for damage, until it is RECEIVED.
	maxRepeats = 3
)

// target is one supervisor.
type target struct {
	id          string
	session     bool          // a REP came, and since then no MAC went unanswered
	sessionAt   time.Time     // no REQ for a session before
	sessionRest time.Duration // after the last one that was not answered
}

func (o *Outbox) target(id string) *target {
	for i := range o.targets {
		if o.targets[i].id == id {
			return &o.targets[i]
		}
	}
	return nil
}

// setLeader applies a hint. An unknown leader is no news.
func (o *Outbox) setLeader(id string) {
	if id != "" && o.target(id) != nil {
		o.leader = id
	}
}

// setSupervisors applies the list. Without a known leader the halves spread over the replicas: each begins at a place
// that depends on its name.
func (o *Outbox) setSupervisors(now time.Time, ev Supervisors, out *Output) {
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
	if o.target(o.leader) == nil {
		o.leader = ""
	}
	o.setLeader(ev.Leader)
	o.setPaths(now, out)
	for _, e := range o.log {
		switch {
		case e.received && led != "" && led != o.leader:
			e.due = now // the old leader may have taken it with it
		case !e.received && first:
			e.due, e.step = now, 0
		}
	}
}

// setPaths rebuilds the paths for the present supervisors.
func (o *Outbox) setPaths(now time.Time, out *Output) {
	s := &o.paths
	var all []*path
	for i := range o.interfaces {
		for _, t := range o.targets {
			id := PathID{uint8(i), t.id}
			p := s.find(id)
			if p == nil {
				p = &path{id: id, name: o.PathName(id)}
			}
			all = append(all, p)
		}
	}
	turn := 0
	if s.turn < len(s.all) {
		turn = indexOf(all, s.all[s.turn])
	}
	s.all, s.turn = all, turn
	o.direct.forget(func(f *flight) bool { return !slices.Contains(all, f.path) })
	if s.exchange.path != nil && !slices.Contains(all, s.exchange.path) {
		s.exchange = inquiry{}
	}
	switch primary := slices.Contains(all, s.primary); {
	case len(all) == 0:
		o.becomeMigrated(nil, "no supervisor is known", out)
	case primary && s.alternate != nil && !slices.Contains(all, s.alternate):
		o.becomeMigrated(s.primary, "the alternate's supervisor is gone", out)
	case primary || s.state == PathReestablishing && len(all) > 1:
	case s.state == PathArmed && slices.Contains(all, s.alternate):
		o.becomeMigrated(s.alternate, "the supervisor is gone", out)
		o.reissue(now, nil)
	default:
		o.becomeMigrated(o.firstPath(now), "the first path", out)
		o.reissue(now, nil)
	}
}

// firstPath is the primary to begin with, which nothing has proved: to the leader if it is known.
func (o *Outbox) firstPath(now time.Time) *path {
	s := &o.paths
	rank := func(p *path) int {
		r := 0
		if !o.available(p, now) {
			r += 2
		}
		if o.leader != "" && p.id.Supervisor != o.leader {
			r++
		}
		return r
	}
	return slices.MinFunc(s.all, func(a, b *path) int { return rank(a) - rank(b) })
}

// pickPath returns the best path by which e was not sent in this round: the primary, the armed alternate, and then
// the path that shares least with the last one tried. A report that waits only for its commit goes to the leader
// first. Paths known not to work come last.
func (o *Outbox) pickPath(e *entry) *path {
	s := &o.paths
	if e.probe && e.attempts == 1 && s.state == PathArmed {
		return s.alternate
	}
	if len(e.tried) >= len(s.all) {
		e.tried = e.tried[:0]
	}
	var best *path
	bestRank := 0
	for _, p := range s.all {
		if r := o.rankPath(p, e); !slices.Contains(e.tried, p) && (best == nil || r < bestRank) {
			best, bestRank = p, r
		}
	}
	if best == nil { // the list has changed under e
		e.tried = e.tried[:0]
		best = s.all[0]
	}
	return best
}

func (o *Outbox) rankPath(p *path, e *entry) int {
	s := &o.paths
	r := 0
	if p.suspect() || o.interfaceDown(p) {
		r += 100
	}
	switch {
	case e.via != 0 && p.id.Supervisor == o.leader:
	case p == s.primary:
		return r + 1
	case s.state == PathArmed && p == s.alternate:
		return r + 2
	default:
		r += 3
	}
	if n := len(e.tried); n > 0 {
		r += 10 * (3 - disjointness(p.id, e.tried[n-1].id))
	}
	switch p.id.Supervisor {
	case o.leader:
	case o.sticky:
		r++
	default:
		r += 2
	}
	return r
}

// usable reports whether a rail is worth a first attempt.
func (o *Outbox) usable(p fault.Path) bool {
	if !o.have[p] || o.down[p] {
		return false
	}
	if p != fault.PathDirect {
		return true
	}
	primary := o.paths.primary
	return primary != nil && !o.interfaceDown(primary) && !o.direct.dead
}

// railsFor returns the order of escalation: direct; another path and gossip; the torus as well. When the direct rail
// is not usable the torus replaces it from the first attempt on, and digests keep probing the direct rail. From the
// third attempt on every rail is tried. If the configuration names gossip first, a report's first attempt goes by gossip
// alone. Digests never go by gossip.
func (o *Outbox) railsFor(step int, digest bool) [numPaths]bool {
	var use [numPaths]bool
	direct := o.have[fault.PathDirect] && len(o.paths.all) > 0
	gossip := o.have[fault.PathGossip] && !digest && step%gossipEvery == 1
	torus := o.have[fault.PathTorus]
	switch {
	case step == 0 && !digest && o.cfg.Rails[0] == fault.PathGossip && o.usable(fault.PathGossip):
		use[fault.PathGossip] = true
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

// timeout is the present wait for RECEIVED on a rail other than the direct one.
func (o *Outbox) timeout(p fault.Path) time.Duration {
	if p == fault.PathTorus {
		return o.torusRTT.timeout(o.cfg.AckTimeout, o.cfg.MaxAckTimeout)
	}
	return o.cfg.AckTimeout
}

func (o *Outbox) pathTimeout(p *path) time.Duration {
	return p.rtt.timeout(o.cfg.AckTimeout, o.cfg.MaxAckTimeout)
}

func (o *Outbox) railUp(now time.Time, ev RailUp) {
	switch {
	case ev.Path == fault.PathDirect && int(ev.Interface) < len(o.interfaces):
		i := &o.interfaces[ev.Interface]
		if !i.down {
			return
		}
		i.down = false
		o.breakSilence(now)
		if x := &o.paths.exchange; x.kind == requestAny {
			x.due, x.wait = now, o.cfg.AckTimeout
		}
		o.hasten(now, nil, 0)
	case ev.Path.Valid() && o.down[ev.Path]:
		o.down[ev.Path] = false
		o.breakSilence(now)
		o.hasten(now, nil, 0)
	}
}

func (o *Outbox) railDown(now time.Time, ev RailDown, out *Output) {
	switch {
	case ev.Path == fault.PathDirect && int(ev.Interface) < len(o.interfaces):
		o.interfaceLost(now, ev, out)
	case ev.Path.Valid() && ev.Path != fault.PathDirect && !o.down[ev.Path]:
		o.down[ev.Path] = true
		o.hasten(now, nil, 0)
	}
}

func (o *Outbox) interfaceLost(now time.Time, ev RailDown, out *Output) {
	i, s := &o.interfaces[ev.Interface], &o.paths
	if i.down {
		return
	}
	i.down, i.recovered = true, 0
	why := ev.Why
	why = cmp.Or(why, "its interface is down")
	if s.alternate != nil && s.alternate.id.Interface == ev.Interface {
		o.becomeMigrated(s.primary, why, out)
	}
	old := s.primary
	switch {
	case old == nil || old.id.Interface != ev.Interface:
		for _, p := range s.all {
			if p.id.Interface == ev.Interface {
				o.hasten(now, p, 0)
			}
		}
	case s.state == PathArmed || len(s.all) > 1:
		o.losePrimary(now, why, out)
	default:
		o.hasten(now, nil, 0)
	}
}

// damaged repeats at once the reports that wait for an answer on a path with damage: the damaged packet is likely an
// answer, or a report that needed one.
func (o *Outbox) damaged(now time.Time, ev Damaged) {
	if ev.Path != fault.PathDirect {
		if ev.Path.Valid() && now.Sub(o.torusAgain) >= max(o.torusRTT.srtt, damageRest) {
			o.torusAgain = now
			o.sendAgain(now, func(e *entry) bool { return e.rail == ev.Path })
		}
		return
	}
	for _, p := range o.paths.all {
		if p.id.Interface != ev.Interface || ev.Supervisor != "" && p.id.Supervisor != ev.Supervisor ||
			now.Sub(p.resent) < max(p.rtt.srtt, damageRest) {
			continue
		}
		p.resent = now
		o.sendAgain(now, func(e *entry) bool { return e.rail == fault.PathDirect && e.path == p })
	}
}

// sendAgain repeats the last attempt of unanswered reports, but of each report only a few times: anyone can send
// damaged packets, and these must not keep it from the next rails.
func (o *Outbox) sendAgain(now time.Time, which func(*entry) bool) {
	for _, e := range o.log {
		if e.pending() && e.repeats < maxRepeats && which(e) {
			e.repeats++
			e.step--
			e.due, e.tried = now, e.tried[:max(0, len(e.tried)-1)]
		}
	}
}

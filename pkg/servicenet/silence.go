package servicenet

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

const (
	// silentRounds is the number of times that the wait between two rounds doubles, from SilentBackoff on.
	silentRounds = 3
	// roundReports bounds the reports of one round, oldest first: one or two datagrams.
	roundReports = 8
)

// silence slows an outbox down while no supervisor answers. Supervisors that are gone, or too busy to answer, gain
// nothing from retries, and each retry by the torus costs all neighbours a signature.
//
//	answering ──no answer for NetworkDeadAfter, by the direct rail and the torus──► silent
//	    ▲                                                                              │
//	    └───────────────────────────── any answer ────────────────────────────────────┘
//
// A silent outbox sends each new report once and each digest once by the direct rail. All else, retries and
// digests by the torus, waits for the next round. Rounds come after SilentBackoff, then twice as long up to
// 2^silentRounds times SilentBackoff, each 25 % more or less, so that the halves of a cluster do not retry together.
// A rail that comes up starts a round at once. Attempts before the silence keep their times, and so does detection.
type silence struct {
	on    bool
	since time.Time // of the first send since the last answer; zero: none
	rails [numPaths]bool
	round int
	next  time.Time // start of the next round
}

// silentWait returns how long a silent half waits before a round, counted from 0.
func silentWait(origin fault.Origin, round int, least time.Duration) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(origin.String())) // never fails
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(round)))
	wait := least << min(round, silentRounds)
	return wait*3/4 + time.Duration(h.Sum64()>>1)%(wait/2)
}

func (s *silence) sent(now time.Time, rail fault.Path) {
	if s.since.IsZero() {
		s.since = now
	}
	s.rails[rail] = true
}

// due reports whether the outbox may send reports that wait for a round.
func (s *silence) due(now time.Time) bool { return !s.on || !now.Before(s.next) }

// holds reports whether an entry waits for a round. A digest waits for none: the next one replaces it.
func (s *silence) holds(now time.Time, e *entry, sent int) bool {
	return s.on && e.attempts > 0 && (e.report.Digest || now.Before(s.next) || sent >= roundReports)
}

// judgeSilence begins the silence. Gossip does not count: digests do not go by it. Unlike isolation it does not
// doubt itself, for a half that comes late has the more reason to send less.
func (o *Outbox) judgeSilence(now time.Time) {
	s := &o.silence
	if s.on || s.since.IsZero() || now.Sub(s.since) < o.cfg.NetworkDeadAfter {
		return
	}
	for _, p := range o.cfg.Rails {
		if p != fault.PathGossip && !s.rails[p] && o.usable(p) {
			return
		}
	}
	o.budget = 0
	s.on, s.round, s.next = true, 0, now.Add(silentWait(o.origin, 0, o.cfg.SilentBackoff))
}

// endRound sets the time of the next round.
func (o *Outbox) endRound(now time.Time) {
	if s := &o.silence; s.on && !now.Before(s.next) {
		s.round++
		s.next = now.Add(silentWait(o.origin, s.round, o.cfg.SilentBackoff))
	}
}

// endSilence sends waiting reports, for an answer has come. The budget, which answers fill, determines how soon the
// fast rate is back.
func (o *Outbox) endSilence(now time.Time) {
	was := o.silence.on
	o.silence = silence{}
	if was {
		o.hasten(now, nil, 0)
	}
}

// breakSilence starts a round at once, for a rail has come up.
func (o *Outbox) breakSilence(now time.Time) {
	if s := &o.silence; s.on {
		s.round, s.next = 0, now
	}
}

func (o *Outbox) interfaceUp() bool {
	return slices.ContainsFunc(o.interfaces, func(i iface) bool { return !i.down })
}

// Silent reports whether no rail has brought an answer for NetworkDeadAfter.
func (o *Outbox) Silent() bool { return o.silence.on }

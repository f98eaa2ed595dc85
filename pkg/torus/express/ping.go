package express

import (
	"math/bits"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Broadcasts are rare, so a link that carries none of them would show only when one is lost (seed 003 §7.2).
// Therefore each open link gets a ping once in PingEvery. Without an echo, the ping is repeated every two link
// periods. A link that carries heartbeats both ways and has left DeafAfter pings in a row unanswered is deaf; a link
// that has not answered yet, after DeafGrace. It is so until an echo comes, or until its heartbeats end: then the link
// machine reports it anyway.

const (
	// PingEvery is the time between pings of a link that answers; where heartbeats are rarer than usual it is
	// pingPeriods of theirs.
	PingEvery   = time.Second
	pingPeriods = 40
	// DeafAfter is the number of pings in a row that must go unanswered. On a link that loses three frames of ten,
	// each way, that happens by chance about once in three minutes; on one that loses one of ten, once in a week.
	DeafAfter = 8
	// DeafGrace is how long a link may be open without its first echo: the other end may still be starting.
	DeafGrace = 5 * time.Second
)

// pings are those of all links; nil as long as no way was open.
type pings struct {
	number uint64 // last given
	links  [grid.NumDirections]pinged
	open   Mask
	good   Mask
	deaf   Mask
}

type pinged struct {
	opened time.Time // zero: it has answered since it opened
	first  uint64    // number of the first one since the last echo
	number uint64    // last sent; 0: there was an echo since
	missed int
	sent   time.Time
	at     time.Time // of the next one
}

func (p *pings) deafness() Mask {
	if p == nil {
		return 0
	}
	return p.deaf
}

func (p *pings) wake() time.Time {
	var w time.Time
	if p == nil {
		return w
	}
	p.open.each(func(i int) { w = fault.Earliest(w, p.links[i].at) })
	return w
}

// begin sets the open ways. A way that is not good is not deaf: it is worse.
func (p *pings) begin(now time.Time, w Ways) {
	if p == nil {
		return
	}
	(w.Open &^ p.open).each(func(i int) { p.links[i] = pinged{opened: now, at: now} })
	(p.good &^ w.Good).each(func(i int) { p.links[i].missed = 0 })
	p.open, p.good = w.Open, w.Good
	p.deaf &= w.Good
}

// RarerPings makes the pings of links that answer n times rarer. 1 is the initial state; less counts as 1.
func (m *Machine) RarerPings(n int) { m.rarer = max(1, n) }

// pingEvery is the time between pings of a link that answers.
func (m *Machine) pingEvery() time.Duration { return time.Duration(max(1, m.rarer)) * m.pingDeaf() }

// pingDeaf is the time between pings of a deaf link. RarerPings leaves it alone, so that the recovery shows as soon.
func (m *Machine) pingDeaf() time.Duration { return max(PingEvery, pingPeriods*m.cfg.Period) }

// ping asks the links whose turn it is.
func (m *Machine) ping(now time.Time) {
	if m.pings == nil {
		if m.ways.Open == 0 || m.cfg.NoPings {
			return
		}
		m.pings = &pings{}
		m.pings.begin(now, m.ways)
	}
	p := m.pings
	for open := p.open; open != 0; open &= open - 1 {
		i := bits.TrailingZeros8(uint8(open))
		l := &p.links[i]
		if now.Before(l.at) {
			continue
		}
		if l.number != 0 {
			m.stats.Unanswered++
			if p.good>>i&1 != 0 {
				l.missed++
			}
			if l.missed >= DeafAfter && (l.opened.IsZero() || now.Sub(l.opened) >= DeafGrace) {
				p.deaf |= 1 << i
			}
		}
		p.number++
		if l.number == 0 {
			l.first = p.number
		}
		l.number = p.number
		l.sent, l.at = now, now.Add(2*m.cfg.Period)
		if l.missed >= DeafAfter {
			l.at = now.Add(m.pingDeaf())
		}
		m.stats.Pings++
		m.send(grid.Directions()[i], appendPing(make([]byte, 0, pingSize), kindPing, l.number))
	}
}

// echoed handles the answer to a ping of a link. One that comes after the next ping was sent is as good: a long way,
// or a busy machine, makes no link deaf.
func (m *Machine) echoed(d grid.Direction, number uint64) {
	p := m.pings
	if p == nil {
		return
	}
	i := d.Index()
	l := &p.links[i]
	if l.number == 0 || number < l.first || number > l.number {
		return
	}
	l.at = l.sent.Add(m.pingEvery())
	l.number, l.missed, l.opened = 0, 0, time.Time{}
	p.deaf &^= 1 << i
}

package controller

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Config of a machine.
type Config struct {
	Every   time.Duration // between two looks at the controller of a healthy node: 1m to 24h
	Timeout time.Duration // for one look: 1s to 1m
	AtOnce  int           // concurrent looks: 2 to 64
}

// Validate reports every invalid field.
func (c Config) Validate() error {
	var errs []error
	if c.Every < time.Minute || c.Every > 24*time.Hour {
		errs = append(errs, fmt.Errorf("every: given %s: want 1m to 24h", c.Every))
	}
	if c.Timeout < time.Second || c.Timeout > time.Minute {
		errs = append(errs, fmt.Errorf("timeout: given %s: want 1s to 1m", c.Timeout))
	}
	if c.AtOnce < 2 || c.AtOnce > 64 {
		errs = append(errs, fmt.Errorf("atOnce: given %d: want 2 to 64", c.AtOnce))
	}
	return errors.Join(errs...)
}

// Pauses of the controllers of suspects.
const (
	// SuspectEvery is the pause between two looks at a suspect's controller.
	SuspectEvery = 10 * time.Second
	// SuspectFull is the pause between two looks at a suspect's event log and sensors.
	SuspectFull = time.Minute
	// SuspectLife is the time that a node stays a suspect after the last call that named it.
	SuspectLife = time.Minute
	// maxBackOff bounds the pause after looks without a plain answer. It is below the age at which a condition expires.
	maxBackOff = 2 * time.Minute
	// grace is the time that a look may take beyond its timeout before the machine gives its slot away. A look closes its session within 1s.
	grace = 3 * time.Second
)

// A controller whose power state changes maxFlips times within flipTime is not credible until it stops.
const (
	maxFlips = 6
	flipTime = 10 * time.Minute
)

// Ask is a look that begins now.
type Ask struct {
	Node fault.NodeID
	Full bool // event log and sensors too
}

// Machine schedules the looks.
//
//	idle ── due, slot free ──► asked ── Ended ──► idle, or backing off
//	                             └─ timeout + grace ──► abandoned: its slot is free ── Ended ──► backing off
//
// Each controller has at most one look under way. Controllers without a plain answer use at most half of the slots, so
// hanging ones never keep others waiting for more than one timeout. Not safe for concurrent use.
type Machine struct {
	cfg     Config
	places  map[fault.NodeID]*place
	order   []fault.NodeID // sorted
	version uint64
}

type place struct {
	node    fault.NodeID
	next    time.Time // of the next look
	full    time.Time // of the next full look
	suspect time.Time // until when; zero: no suspect
	last    time.Time // begin of the last look
	state   state
	failed  int         // looks without a plain answer, in a row
	flips   []time.Time // the last changes of the power state, at most maxFlips, oldest first
	reading Reading
}

type state uint8

const (
	idle state = iota + 1
	asked
	abandoned
)

// New returns a machine whose slow round begins at now and is spread over Every.
func New(cfg Config, now time.Time, nodes []fault.NodeID) (*Machine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &Machine{cfg: cfg, places: map[fault.NodeID]*place{}, order: slices.Sorted(slices.Values(nodes))}
	m.order = slices.Compact(m.order)
	for i, id := range m.order {
		at := now.Add(cfg.Every / time.Duration(len(m.order)) * time.Duration(i))
		m.places[id] = &place{node: id, next: at, full: at, state: idle}
	}
	return m, nil
}

// Suspects makes the controllers of these nodes due soon and often, for SuspectLife. It ignores nodes without a controller.
func (m *Machine) Suspects(now time.Time, nodes []fault.NodeID) {
	for _, id := range nodes {
		p := m.places[id]
		if p == nil {
			continue
		}
		if !p.suspect.After(now) { // a node that flaps gets no more looks than one that stays a suspect
			p.next, p.full = fault.Later(now, p.last.Add(SuspectEvery)), now
		}
		p.suspect = now.Add(SuspectLife)
	}
}

// Tick returns the looks that begin now, and when to call again at the latest.
func (m *Machine) Tick(now time.Time) (asks []Ask, wake time.Time) {
	wake = now.Add(m.cfg.Every)
	used, doubtful := 0, 0
	var due []*place
	for _, id := range m.order {
		p := m.places[id]
		if end := p.last.Add(m.cfg.Timeout + grace); p.state == asked && !end.After(now) {
			p.becomeAbandoned()
			m.keep(p, now, Answer{Finding: Silent, Detail: "the look did not end within its timeout"})
		}
		switch p.state {
		case asked:
			used++
			if p.failed > 0 {
				doubtful++
			}
			wake = earlier(wake, p.last.Add(m.cfg.Timeout+grace))
		case idle:
			if p.next.After(now) {
				wake = earlier(wake, p.next)
				continue
			}
			due = append(due, p)
		case abandoned:
		}
	}
	slices.SortStableFunc(due, func(a, b *place) int { // suspects first, then by how long they have waited
		if s := cmp.Compare(rank(a, now), rank(b, now)); s != 0 {
			return s
		}
		return a.next.Compare(b.next)
	})
	for _, p := range due {
		if used == m.cfg.AtOnce {
			break
		}
		if p.failed > 0 {
			if doubtful >= m.cfg.AtOnce/2 {
				continue
			}
			doubtful++
		}
		used++
		asks = append(asks, m.begin(p, now))
		wake = earlier(wake, now.Add(m.cfg.Timeout+grace))
	}
	return asks, wake
}

func rank(p *place, now time.Time) int {
	if p.suspect.After(now) {
		return 0
	}
	return 1
}

// begin makes a place asked.
func (m *Machine) begin(p *place, now time.Time) Ask {
	p.state, p.last = asked, now
	return Ask{Node: p.node, Full: !p.full.After(now)}
}

// becomeAbandoned gives the place's slot away. Its next look waits for the end of this one.
func (p *place) becomeAbandoned() {
	p.state = abandoned
	p.failed++
}

// Ended ends a look.
func (m *Machine) Ended(now time.Time, node fault.NodeID, a Answer) {
	p := m.places[node]
	if p == nil || p.state == idle {
		return
	}
	late := p.state == abandoned
	p.state = idle
	if !late { // the answer of an abandoned look is too old to count
		if a = a.cleaned(); a.Finding.Plain() {
			p.failed = 0
		} else {
			p.failed++
		}
		m.keep(p, now, a)
	}
	if a.Full && !late && p.failed == 0 {
		p.full = now.Add(m.cfg.Every)
		if p.suspect.After(now) {
			p.full = now.Add(SuspectFull)
		}
	}
	p.next = now.Add(m.pause(p, now))
}

// pause returns the time until the next look. It doubles with each look without a plain answer.
func (m *Machine) pause(p *place, now time.Time) time.Duration {
	if !p.suspect.After(now) {
		return m.cfg.Every
	}
	d := SuspectEvery
	for range min(p.failed, 8) {
		d = min(2*d, maxBackOff)
	}
	return d
}

// keep makes an answer the node's reading. A short look leaves log and sensors as they were.
func (m *Machine) keep(p *place, now time.Time, a Answer) {
	was := p.reading
	if !a.Full || !a.Finding.Plain() {
		a.Log, a.Sensors = was.Log, was.Sensors
	} else {
		a.Log = append(slices.Clone(was.Log), a.Log...)
		a.Log = slices.Clone(a.Log[max(0, len(a.Log)-MaxLines):])
	}
	r := Reading{Node: p.node, At: now, Since: now, HealthSince: now, Last: was.Last, LastAt: was.LastAt}
	if a.Finding.Plain() {
		if was.Last != 0 && was.Last != a.Finding {
			p.flips = append(p.flips, now)
			p.flips = slices.Clone(p.flips[max(0, len(p.flips)-maxFlips):])
		}
		r.Last, r.LastAt = a.Finding, now
		if len(p.flips) == maxFlips && now.Sub(p.flips[0]) < flipTime {
			a.Finding, a.Health = Wrong, 0
			a.Detail = fmt.Sprintf("its power state changed %d times within %s: it is not credible", maxFlips, flipTime)
		}
	}
	if was.Finding == a.Finding {
		r.Since = was.Since
	}
	if was.Health == a.Health {
		r.HealthSince = was.HealthSince
	}
	m.version++
	r.Answer, r.Version = a, m.version
	p.reading = r
}

// Reading returns the last reading of a node's controller, or an empty one.
func (m *Machine) Reading(node fault.NodeID) Reading {
	if p := m.places[node]; p != nil {
		return p.reading
	}
	return Reading{}
}

// Counts returns the number of controllers by finding, those without an answer under zero.
func (m *Machine) Counts() map[Finding]int {
	out := map[Finding]int{}
	for _, p := range m.places {
		out[p.reading.Finding]++
	}
	return out
}

// After returns the readings that are newer than a version, oldest first, at most limit.
func (m *Machine) After(version uint64, limit int) []Reading {
	var out []Reading
	for _, id := range m.order {
		if r := m.places[id].reading; r.Version > version {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b Reading) int { return cmp.Compare(a.Version, b.Version) })
	return out[:min(len(out), limit)]
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

package diagnosis

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Config sets a run.
type Config struct {
	Links []LinkConfig // to test; 1 to 6, each direction once
	// Sizes of the probes, in bytes, MinSize to MaxSize each; at least one.
	Sizes []int
	// Rounds is the number of rounds, 1 to MaxRounds. They are RoundEvery apart.
	Rounds int
	// Run is in all probes: an answer to another run does not count. Not 0.
	Run uint64
}

// LinkConfig says how a link can be tested.
type LinkConfig struct {
	Dir grid.Direction
	// Knows: the neighbour passes probes on, so that Host and Through are tested. A half of an earlier version does
	// not.
	Knows bool
	// Able: frames can be sent on the link. Without it the link counts as silent, and nothing is sent.
	Able bool
}

// How a run goes. In a round 36 probes go to a neighbour's DNP half, 12 through it and 6 to its host half, within 120
// ms: less than a neighbour sends back at once (100 for each link), so that a test that is not answered has another
// cause.
const (
	// Pace is between two batches.
	Pace = 10 * time.Millisecond
	// batches are in a round.
	batches = 12
	// MaxRounds bounds the rounds.
	MaxRounds = 10
	// RoundEvery is from round to round: a neighbour's budget of echoes is whole again by then.
	RoundEvery = time.Second
	// LateAfter is from when on an answer is counted as late.
	LateAfter = 200 * time.Millisecond
	// Timeout is how long the run waits for answers after the last probe.
	Timeout = time.Second
	// ownLate is the delay of a tick after which unread answers may be waiting (the self-doubt of faults.md row 2).
	ownLate = 100 * time.Millisecond
	// ownGrace is how much longer the run then waits for answers.
	ownGrace = 300 * time.Millisecond
)

// Validate names the first field that is not allowed.
func (c Config) Validate() error {
	seen := [grid.NumDirections]bool{}
	for _, l := range c.Links {
		if !l.Dir.Valid() || seen[l.Dir.Index()] {
			return fmt.Errorf("links: given %s: want each direction once", l.Dir)
		}
		seen[l.Dir.Index()] = true
	}
	switch {
	case len(c.Links) == 0:
		return fmt.Errorf("links: given none: want 1 to %d", grid.NumDirections)
	case len(c.Sizes) == 0:
		return fmt.Errorf("sizes: given none: want at least one")
	case c.Rounds < 1 || c.Rounds > MaxRounds:
		return fmt.Errorf("rounds: given %d: want 1 to %d", c.Rounds, MaxRounds)
	case c.Run == 0:
		return fmt.Errorf("run: given 0: want another number")
	}
	for _, s := range c.Sizes {
		if s < MinSize || s > MaxSize {
			return fmt.Errorf("sizes: given %d: want %d to %d bytes", s, MinSize, MaxSize)
		}
	}
	return nil
}

// Event is an input of a run.
type Event interface{ diagnosisEvent() }

// Tick says that time has passed.
type Tick struct{}

// Answer is a probe that came back by a link. Its Data is not kept.
type Answer struct {
	Dir  grid.Direction
	Data []byte
}

func (Tick) diagnosisEvent()   {}
func (Answer) diagnosisEvent() {}

// Send is a probe to send by the link Dir. Data is the shell's.
type Send struct {
	Dir  grid.Direction
	Kind Kind
	Data []byte
}

// Output is the result of a step.
type Output struct {
	Send []Send
	Done bool      // everything has come, or the time is over: Findings are final
	Wake time.Time // when Step must be called again; zero: done
}

// Machine is one run at one node. One goroutine owns it.
//
//	Sending ──all sent──► Waiting ──all answered, or Timeout──► Done
//
// It ends within Rounds·RoundEvery + Timeout in every case.
type Machine struct {
	cfg   Config
	start time.Time
	batch int    // next to send, counted over all rounds
	next  uint16 // number of the next probe, a multiple of patterns: at most 6·54·MaxRounds of them
	links []linkRun

	due      time.Time // of the next tick
	deadline time.Time // zero while sending
	done     bool
}

// linkRun is the progress of the test on one link.
type linkRun struct {
	cfg   LinkConfig
	tests [Through + 1]testRun
}

// testRun is one kind of test on one link.
type testRun struct {
	sent    []flight
	trips   []time.Duration // of the answers
	altered uint32
	late    uint32
}

// flight is a probe that was sent.
type flight struct {
	number   uint16
	size     int
	at       time.Time
	answered bool
}

// New begins a run. The configuration must have passed Validate.
func New(cfg Config, now time.Time) *Machine {
	if err := cfg.Validate(); err != nil {
		panic("diagnosis: New with a configuration that was not validated: " + err.Error())
	}
	m := &Machine{cfg: cfg, start: now, due: now}
	for _, l := range cfg.Links {
		m.links = append(m.links, linkRun{cfg: l})
	}
	return m
}

// Step handles one event. Time must not run backwards.
func (m *Machine) Step(now time.Time, ev Event) Output {
	var out Output
	switch ev := ev.(type) {
	case Tick:
		if !now.Before(m.due) {
			m.tick(now, &out)
		}
	case Answer:
		m.answer(now, ev)
	}
	out.Done, out.Wake = m.done, m.due
	if m.done {
		out.Wake = time.Time{}
	}
	return out
}

// Answered reports whether returned bytes belong to this run.
func (m *Machine) Answered(data []byte) bool {
	h, ok := readHead(data)
	return ok && h.run == m.cfg.Run
}

func (m *Machine) tick(now time.Time, out *Output) {
	late := now.Sub(m.due) > ownLate
	if total := m.cfg.Rounds * batches; m.batch < total {
		if m.batch%batches == 0 && m.batch > 0 { // a round begins
			if at := m.start.Add(time.Duration(m.batch/batches) * RoundEvery); now.Before(at) {
				m.due = at
				return
			}
		}
		m.sendBatch(now, m.batch%batches, out)
		m.batch++
		m.due = now.Add(Pace)
		if m.batch == total {
			m.deadline = now.Add(Timeout)
		}
		return
	}
	if late { // frames that arrived meanwhile are still unread
		m.deadline = later(m.deadline, now.Add(ownGrace))
	}
	if m.complete() || !now.Before(m.deadline) {
		m.done = true
		return
	}
	m.due = earlier(now.Add(Pace), m.deadline)
}

// sendBatch sends 3 probes to each DNP half, 1 through it, and every second time 1 to its host half.
func (m *Machine) sendBatch(now time.Time, n int, out *Output) {
	for i := range m.links {
		l := &m.links[i]
		if !l.cfg.Able {
			continue
		}
		for range 3 {
			m.send(now, l, DNP, out)
		}
		if !l.cfg.Knows {
			continue
		}
		m.send(now, l, Through, out)
		if n%2 == 0 {
			m.send(now, l, Host, out)
		}
	}
}

// send sends one: all patterns come in all sizes in turn.
func (m *Machine) send(now time.Time, l *linkRun, k Kind, out *Output) {
	t := &l.tests[k]
	n := len(t.sent)
	number := m.next + uint16(n%patterns) // the pattern goes with the place in the row
	m.next += patterns
	size := m.cfg.Sizes[n/patterns%len(m.cfg.Sizes)]
	t.sent = append(t.sent, flight{number: number, size: size, at: now})
	out.Send = append(out.Send, Send{l.cfg.Dir, k, appendProbe(make([]byte, 0, size), k, l.cfg.Dir, number, m.cfg.Run, size)})
}

// answer handles a returned probe. A probe with an altered head cannot be identified and counts as lost.
func (m *Machine) answer(now time.Time, ev Answer) {
	h, ok := readHead(ev.Data)
	if !ok || h.run != m.cfg.Run || h.dir != ev.Dir || m.done {
		return
	}
	i := slices.IndexFunc(m.links, func(l linkRun) bool { return l.cfg.Dir == ev.Dir })
	if i < 0 {
		return
	}
	t := &m.links[i].tests[h.kind]
	j := slices.IndexFunc(t.sent, func(f flight) bool { return f.number == h.number })
	if j < 0 || t.sent[j].answered {
		return
	}
	f := &t.sent[j]
	f.answered = true
	if !bytes.Equal(ev.Data, appendProbe(make([]byte, 0, f.size), h.kind, h.dir, h.number, h.run, f.size)) {
		t.altered++
	}
	took := now.Sub(f.at)
	if took > LateAfter {
		t.late++
	}
	t.trips = append(t.trips, took)
	if m.batch == m.cfg.Rounds*batches && m.complete() {
		m.due = now // the run waits for nothing more
	}
}

func (m *Machine) complete() bool {
	for i := range m.links {
		for k := range m.links[i].tests {
			if t := &m.links[i].tests[k]; len(t.trips) < len(t.sent) {
				return false
			}
		}
	}
	return true
}

// Findings returns the counts so far, in the order of the configured links.
func (m *Machine) Findings() []Finding {
	out := make([]Finding, 0, len(m.links))
	for i := range m.links {
		l := &m.links[i]
		out = append(out, Finding{Dir: l.cfg.Dir, DNP: l.tests[DNP].result(), Host: l.tests[Host].result(), Through: l.tests[Through].result()})
	}
	return out
}

func (t *testRun) result() Test {
	r := Test{Sent: uint32(len(t.sent)), Answered: uint32(len(t.trips)), Altered: t.altered, Late: t.late}
	if len(t.trips) > 0 {
		trips := slices.Sorted(slices.Values(t.trips))
		r.Min, r.Median, r.Max = trips[0], trips[len(trips)/2], trips[len(trips)-1]
	}
	return r
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

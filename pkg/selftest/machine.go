package selftest

import (
	"fmt"
	"math/bits"
	"slices"
	"time"
)

// Parameters of the judgement.
const (
	// LateTests is how many tests in a row must be late in one size: one slow probe is a busy machine.
	LateTests = 6
	// LongTests is how many tests in a row must lose their longest probe alone: a lossy path does so by chance.
	LongTests = 8
	// ClearTests is how many clean tests in a row clear a failed module.
	ClearTests = 2
	// regainProbes is the number of probes after which a lossy path that was judged faulty may become good.
	regainProbes = 12
	// foreignDoubles is the share of probes that a foreign network may double.
	foreignDoubles = 0.05
	// ownLate is the lateness of a tick at which the half doubts itself.
	ownLate = 20 * time.Millisecond
	// RelearnAfter is how long a module may be late, without other faults, until the latency counts as usual: the path
	// has become longer.
	RelearnAfter = 5 * time.Minute
	// ProvingPatience is how long after a restart a module keeps the half unproven if it cannot be tested, or if a
	// partner may be why it fails.
	ProvingPatience = 5 * time.Second
	// maxBackoff is the longest interval between tests of a module whose other end has never answered.
	maxBackoff = time.Minute
	// saveEvery is the interval at which the learned values go into the copy.
	saveEvery = time.Minute
)

// Event is an input of a half's tests.
type Event interface{ selftestEvent() }

// Tick reports that time has passed. The owner sends it at least every Config.Tick. If it comes later, the machine
// doubts itself and not the modules.
type Tick struct{}

// Begin starts the tests that Use requested.
type Begin struct{}

// Returned is a probe that arrived at the far end of a module.
type Returned struct {
	Module Module
	Data   []byte        // the machine does not keep it
	Took   time.Duration // measured by the carrier; 0: since it was sent
}

// Refused is a probe that the module's own code rejected at its end: it was altered.
type Refused struct {
	Module Module
	ID     uint64
	Why    string
}

// Void is a probe that could not be sent for a reason that is no fault of ours: there is no session, or no process at
// the other end.
type Void struct {
	Module Module
	ID     uint64
}

// Excused reports that a module's path is known to be broken: its probes in flight do not count.
type Excused struct{ Module Module }

// Renewed reports that the other end of a module restarted, possibly with another version: whether it answers is
// unknown again.
type Renewed struct{ Module Module }

// Carried says which partner carries the probes of a module's current test, for a module with Partners.
type Carried struct {
	Module  Module
	Partner uint8 // 0 to MaxPartners-1
	Able    uint8 // a bit for each partner that can carry tests now: former tests of the others do not count
}

func (Tick) selftestEvent()     {}
func (Begin) selftestEvent()    {}
func (Returned) selftestEvent() {}
func (Refused) selftestEvent()  {}
func (Void) selftestEvent()     {}
func (Excused) selftestEvent()  {}
func (Renewed) selftestEvent()  {}
func (Carried) selftestEvent()  {}

// Probe is a message for a module, to be sent now and in this order. Its Data is the shell's.
type Probe struct {
	Module Module
	ID     uint64
	Data   []byte
}

// Output is what follows from a step. Its slices are the caller's.
type Output struct {
	Probes  []Probe
	Changed []Result // modules with a new State, Fault, Proving or Blamed
	Save    bool     // Snapshot goes into the copy
}

// Machine holds the tests of one half. One goroutine owns it. Its memory is bounded by the modules. A nil Machine
// belongs to a half without tests: it accepts every event and returns nothing.
type Machine struct {
	cfg      Config
	modules  []*module
	next     uint64 // counts probes
	lastTick time.Time
	saveAt   time.Time
	start    time.Time
	rarer    int // tests of modules that have not failed are so many times rarer; at least 1
	out      Output
}

// New returns a machine in which only modules that are always used are in use. The configuration must have passed
// Validate.
func New(cfg Config, now time.Time) *Machine {
	if err := cfg.Validate(); err != nil {
		panic("selftest: New with a configuration that was not validated: " + err.Error())
	}
	m := &Machine{cfg: cfg, next: cfg.First, lastTick: now, start: now, saveAt: now.Add(saveEvery), rarer: 1}
	for _, c := range cfg.Modules {
		m.Add(now, c)
	}
	return m
}

// Add adds a module, untested. It does nothing if the module is there. The configuration with it must pass Validate.
func (m *Machine) Add(now time.Time, c ModuleConfig) {
	if m == nil || m.find(c.Module) != nil {
		return
	}
	if c.Name == "" {
		c.Name = c.Module.String()
	}
	m.modules = append(m.modules, &module{
		cfg: c, state: Untested, slots: make([]slot, len(c.Sizes)), inUse: c.Always, testAt: now, answered: c.Local,
	})
}

// Remove removes a module and its result.
func (m *Machine) Remove(id Module) {
	if m != nil {
		m.modules = slices.DeleteFunc(m.modules, func(u *module) bool { return u.cfg.Module == id })
	}
}

// Rarer makes the tests of modules that have not failed n times rarer than Config.Interval, from their next test on. A
// failed module, and one that has to pass after a restart, keep their interval. 1 is the initial state; less counts as 1.
func (m *Machine) Rarer(n int) {
	if m != nil {
		m.rarer = max(1, n)
	}
}

// Use records the use of a module, before the message goes. It reports whether a test must precede the message: then
// call Step with Begin, send the probes, and continue. It allocates nothing.
func (m *Machine) Use(now time.Time, id Module) (test bool) {
	u := m.find(id)
	if u == nil {
		return false
	}
	u.usedAt = now
	if u.inUse {
		return false
	}
	u.inUse, u.testAt, m.out.Save = true, later(u.testAt, now, u.unanswered > 0), true
	return !now.Before(u.testAt)
}

// later returns at if holds is true, otherwise now.
func later(at, now time.Time, holds bool) time.Time {
	if holds && at.After(now) {
		return at
	}
	return now
}

// Step processes one event. Time must not run backwards.
func (m *Machine) Step(now time.Time, ev Event) Output {
	if m == nil {
		return Output{}
	}
	late := now.Sub(m.lastTick) > m.cfg.Tick+ownLate
	switch ev := ev.(type) {
	case Tick:
		m.tick(now, late)
	case Begin:
		m.begin(now, len(m.modules))
	case Returned:
		if u := m.find(ev.Module); u != nil {
			m.after(now, u, func() { u.returned(now, ev, late) })
		}
	case Refused:
		if u := m.find(ev.Module); u != nil {
			m.after(now, u, func() { u.refused(ev) })
		}
	case Void:
		if u := m.find(ev.Module); u != nil {
			m.after(now, u, func() { u.void(ev.ID) })
		}
	case Excused:
		if u := m.find(ev.Module); u != nil {
			m.after(now, u, u.excuse)
		}
	case Renewed:
		if u := m.find(ev.Module); u != nil && !u.cfg.Local {
			m.after(now, u, u.renew)
		}
	case Carried:
		if u := m.find(ev.Module); u != nil && ev.Partner < MaxPartners {
			m.after(now, u, func() { u.partner, u.bad = ev.Partner, u.bad&ev.Able })
		}
	}
	out := m.out
	m.out = Output{}
	return out
}

func (m *Machine) find(id Module) *module {
	for _, u := range m.all() {
		if u.cfg.Module == id {
			return u
		}
	}
	return nil
}

// tick handles everything that is due. At a late tick, probes may be waiting unread, so they do not count.
func (m *Machine) tick(now time.Time, late bool) {
	m.lastTick = now
	for _, u := range m.modules {
		m.after(now, u, func() {
			if late {
				u.abandon()
			}
			u.expire(now)
		})
		u.rest(now, m.cfg.IdleAfter)
	}
	m.begin(now, 1+int(time.Duration(len(m.modules))*m.cfg.Tick/m.cfg.Interval))
	if !now.Before(m.saveAt) {
		m.saveAt, m.out.Save = now.Add(saveEvery), true
	}
}

// begin starts tests that are due, a few at a time so that the real traffic never waits for many.
func (m *Machine) begin(now time.Time, most int) {
	for _, u := range m.modules {
		if most <= 0 && !u.proving {
			continue
		}
		if len(u.flights) > 0 || now.Before(u.testAt) || !u.wanted() {
			continue
		}
		most--
		for i, size := range u.cfg.Sizes {
			m.next++
			id := scramble(m.next) // numbers that are never close to one another
			u.flights = append(u.flights, flight{id: id, slot: i, sent: now})
			m.out.Probes = append(m.out.Probes, Probe{u.cfg.Module, id, fill(make([]byte, 0, size), id, size)})
		}
		u.began, u.tally = now, tally{}
		u.testAt = now.Add(m.interval(u))
	}
}

// interval returns the time between two tests of a module.
func (m *Machine) interval(u *module) time.Duration {
	if u.state == Failed || u.proving {
		return m.cfg.Interval
	}
	return time.Duration(m.rarer) * m.cfg.Interval
}

// after applies an event to a module, ends its test after the last probe, and publishes the changes.
func (m *Machine) after(now time.Time, u *module, do func()) {
	state, flt, proving, answered, blamed := u.state, u.fault, u.proving, u.answered, u.blamed()
	do()
	if u.done() {
		u.finish(now, m.cfg.Interval)
	}
	if u.proving && now.Sub(m.start) >= ProvingPatience && (u.state != Failed || u.cfg.Partners) {
		u.proving = false
	}
	if u.answered != answered {
		m.out.Save = true
	}
	if u.state != state || u.fault != flt || u.proving != proving || u.blamed() != blamed {
		m.out.Changed = append(m.out.Changed, u.result(now))
	}
}

// all returns the modules; none for a nil Machine.
func (m *Machine) all() []*module {
	if m == nil {
		return nil
	}
	return m.modules
}

// Results returns the test result of each module, in the configured order.
func (m *Machine) Results(now time.Time) []Result {
	out := make([]Result, 0, len(m.all()))
	for _, u := range m.all() {
		out = append(out, u.result(now))
	}
	return out
}

// Answered reports whether any probe has ever come back in a module whose other end is not known to have restarted.
func (m *Machine) Answered(id Module) bool {
	u := m.find(id)
	return u != nil && u.answered
}

// Proving reports whether modules that were in use before the restart still have to pass.
func (m *Machine) Proving() bool {
	for _, u := range m.all() {
		if u.proving {
			return true
		}
	}
	return false
}

// Failed returns the failed modules with their faults; empty: none.
func (m *Machine) Failed() []Result {
	var out []Result
	for _, u := range m.all() {
		if u.state == Failed {
			out = append(out, u.result(m.lastTick))
		}
	}
	return out
}

func words(f Fault, format string, args ...any) string {
	return f.String() + ": " + fmt.Sprintf(format, args...)
}

// lossWindow holds the outcomes of the last probes: the lowest bit is the newest, and set for a lost one.
type lossWindow struct {
	bits uint32
	n    int
}

func (w *lossWindow) add(lost bool) {
	w.bits <<= 1
	if lost {
		w.bits |= 1
	}
	w.n = min(w.n+1, window)
}

func (w *lossWindow) lost() int { return bits.OnesCount32(w.bits) }

// found cancels the newest loss.
func (w *lossWindow) found() { w.bits &= w.bits - 1 }

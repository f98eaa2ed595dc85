package selftest

import (
	"fmt"
	"math/bits"
	"time"
)

// How tests are judged.
const (
	// LateTests is how many tests in a row must be late in one size: one slow probe is a busy machine.
	LateTests = 6
	// ClearTests is how many clean tests in a row clear a failed module.
	ClearTests = 2
	// regainProbes is after how many probes a lossy way that was called faulty may be called good.
	regainProbes = 12
	// foreignDoubles is what share of probes a network that is not ours may double.
	foreignDoubles = 0.05
	// ownLate is how late a tick may come until the half doubts itself.
	ownLate = 20 * time.Millisecond
	// RelearnAfter is how long a module may be late, and nothing worse, until that is the usual: a way that
	// has become a longer one.
	RelearnAfter = 5 * time.Minute
	// ProvingPatience is how long after a restart a module that cannot be tested keeps the half unproven.
	ProvingPatience = 5 * time.Second
	// maxBackoff is how rarely a module is tested whose other end has never answered.
	maxBackoff = time.Minute
	// saveEvery is how often what was learned goes into the copy.
	saveEvery = time.Minute
)

// Event is what happens to the tests of a half.
type Event interface{ selftestEvent() }

// Tick says that time has passed. The owner gives it at least every Config.Tick: later, and the machine
// doubts itself and not the modules.
type Tick struct{}

// Begin begins the tests that Use called for.
type Begin struct{}

// Returned is a probe that came out of a module at its end.
type Returned struct {
	Module Module
	Data   []byte        // not kept
	Took   time.Duration // as whoever carried it has measured; 0: since it was given out
}

// Refused is a probe that the module's own code did not accept at its end: it came altered.
type Refused struct {
	Module Module
	ID     uint64
	Why    string
}

// Void is a probe that could not be sent for a reason that speaks against nothing of ours: there is no
// session, or nobody at the other end.
type Void struct {
	Module Module
	ID     uint64
}

// Excused says that the way of a module is known to be broken: what is under way there counts for nothing.
type Excused struct{ Module Module }

// Renewed says that the other end of a module began anew, and may be of another version: whether it answers
// is not known any more.
type Renewed struct{ Module Module }

func (Tick) selftestEvent()     {}
func (Begin) selftestEvent()    {}
func (Returned) selftestEvent() {}
func (Refused) selftestEvent()  {}
func (Void) selftestEvent()     {}
func (Excused) selftestEvent()  {}
func (Renewed) selftestEvent()  {}

// Probe is a message to give to a module now, in this order. Its Data is the shell's.
type Probe struct {
	Module Module
	ID     uint64
	Data   []byte
}

// Output is what follows from a step. Its slices are the caller's.
type Output struct {
	Probes  []Probe
	Changed []Result // modules whose State, Fault or Proving is another
	Save    bool     // Snapshot goes into the copy
}

// Machine holds the tests of one half. One goroutine owns it. Its memory is bounded by the modules. A nil Machine is that of a
// half that tests nothing: it takes every event, wants nothing and has nothing to say.
type Machine struct {
	cfg      Config
	modules  []*module
	next     uint64 // counts probes
	lastTick time.Time
	saveAt   time.Time
	start    time.Time
	out      Output
}

// New returns a machine in which nothing is in use yet but what always is. The configuration must have
// passed Validate.
func New(cfg Config, now time.Time) *Machine {
	if err := cfg.Validate(); err != nil {
		panic("selftest: New with a configuration that was not validated: " + err.Error())
	}
	m := &Machine{cfg: cfg, next: cfg.First, lastTick: now, start: now, saveAt: now.Add(saveEvery)}
	for _, c := range cfg.Modules {
		if c.Name == "" {
			c.Name = c.Module.String()
		}
		m.modules = append(m.modules, &module{
			cfg: c, state: Untested, slots: make([]slot, len(c.Sizes)), inUse: c.Always, testAt: now, answered: c.Local,
		})
	}
	return m
}

// Use notes that a module is used, before the message goes. It says whether a test is to go before the
// message: then Step with Begin, give the probes to their modules, and go on. It costs no allocation.
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

// later returns at, if that holds, else now.
func later(at, now time.Time, holds bool) time.Time {
	if holds && at.After(now) {
		return at
	}
	return now
}

// Step takes one event at one time. Time must not run backwards.
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

// tick does what is due. A tick that comes late finds probes that may lie unread before us: they count for
// nothing (faults.md 2).
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

// begin begins tests that are due, a few at a time so that the real traffic never waits for many.
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
			id := scramble(m.next) // numbers of which no two are near one another
			u.flights = append(u.flights, flight{id: id, slot: i, sent: now})
			m.out.Probes = append(m.out.Probes, Probe{u.cfg.Module, id, fill(make([]byte, 0, size), id, size)})
		}
		u.began, u.tally = now, tally{}
		u.testAt = now.Add(m.cfg.Interval)
	}
}

// after lets something happen to a module, ends its test if that was the last probe, and tells what has
// changed.
func (m *Machine) after(now time.Time, u *module, do func()) {
	state, flt, proving, answered := u.state, u.fault, u.proving, u.answered
	do()
	if u.done() {
		u.finish(now, m.cfg.Interval)
	}
	if u.proving && now.Sub(m.start) >= ProvingPatience && u.state != Failed {
		u.proving = false
	}
	if u.answered != answered {
		m.out.Save = true
	}
	if u.state != state || u.fault != flt || u.proving != proving {
		m.out.Changed = append(m.out.Changed, u.result(now))
	}
}

// all returns the modules; none of a nil Machine.
func (m *Machine) all() []*module {
	if m == nil {
		return nil
	}
	return m.modules
}

// Results returns what the tests say of each module, in the configured order.
func (m *Machine) Results(now time.Time) []Result {
	out := make([]Result, 0, len(m.all()))
	for _, u := range m.all() {
		out = append(out, u.result(now))
	}
	return out
}

// Answered says whether something has ever come back in a module whose other end is not known to have begun anew.
func (m *Machine) Answered(id Module) bool {
	u := m.find(id)
	return u != nil && u.answered
}

// Proving says whether modules that were in use before the restart still have to pass.
func (m *Machine) Proving() bool {
	for _, u := range m.all() {
		if u.proving {
			return true
		}
	}
	return false
}

// Failed names the failed modules with what is wrong with them; empty: none.
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

// lossWindow are the fates of the last probes: the lowest bit is the newest, and set for a lost one.
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

// found takes one lost probe back: the newest.
func (w *lossWindow) found() { w.bits &= w.bits - 1 }

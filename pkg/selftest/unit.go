package selftest

import (
	"bytes"
	"time"
)

// module is the machine's state of one module.
type module struct {
	cfg    ModuleConfig
	inUse  bool
	usedAt time.Time
	testAt time.Time // of the next test
	began  time.Time // start of the current test
	ended  time.Time // the last test; zero: never

	answered   bool // a probe has come back, in this life or an earlier one
	unanswered int  // consecutive tests without any answer, before that
	proving    bool

	flights []flight // of the current test; empty: none
	past    [2 * MaxSlots]past
	oldest  int // of past
	slots   []slot
	losses  lossWindow
	doubles lossWindow         // the same for probes that came twice
	tally   tally              // of the current test
	partner uint8              // that carries the current test
	long    int                // consecutive tests that lost their longest probe alone
	bad     uint8              // a bit for each partner whose tests are bad
	missed  [MaxPartners]uint8 // of each partner: a bit for each size that its last test lost

	state     State
	fault     Fault
	why       string
	clean     int // consecutive clean tests, for a failed module
	lateSince time.Time
	suspect   bool
	cameLate  bool          // a probe that was given up arrived late, since the last test ended
	latency   time.Duration // of the last test
	slowest   int           // slot of it

	tests                        uint64
	lost, altered, doubled, late uint64
}

// flight is a probe in flight.
type flight struct {
	id   uint64
	slot int
	sent time.Time
	fate fate
}

// fate is the outcome of a probe.
type fate uint8

const (
	flying fate = iota
	came
	gaveUp
	voided
)

// past is an earlier probe, kept to recognise duplicates and late arrivals.
type past struct {
	id      uint64
	slot    int
	fate    fate
	sent    time.Time
	partner uint8
}

// slot is the state of one size.
type slot struct {
	base    baseline
	late    int           // consecutive late tests
	pending time.Duration // of the first late one: learned if it was the only one
}

// tally counts the probes of a test.
type tally struct {
	came, altered, doubled, late, lost, void int
	missed                                   uint8 // a bit for each size that was lost
	size                                     int   // of the last bad one
}

// wanted reports whether to test the module when a test is due.
func (u *module) wanted() bool { return u.inUse || u.state == Failed || u.proving }

// rest ends the tests of a module that is no longer used.
func (u *module) rest(now time.Time, idleAfter time.Duration) {
	if u.inUse && !u.cfg.Always && now.Sub(u.usedAt) >= idleAfter {
		u.inUse = false
	}
}

// returned processes a probe that has come back.
func (u *module) returned(now time.Time, ev Returned, doubt bool) {
	id := numberOf(ev.Data)
	for i := range u.flights {
		if f := &u.flights[i]; f.id == id && f.fate == flying {
			took := ev.Took
			if took <= 0 {
				took = now.Sub(f.sent)
			}
			u.arrived(now, f, ev.Data, took, doubt)
			return
		}
	}
	if u.again(now, id, ev.Data) {
		return
	}
	for i := range u.flights { // its number was altered
		if f := &u.flights[i]; f.fate == flying && len(ev.Data) == u.cfg.Sizes[f.slot] && near(f.id, id) {
			u.noteAltered(f)
			return
		}
	}
}

func (u *module) arrived(now time.Time, f *flight, data []byte, took time.Duration, doubt bool) {
	u.answered, u.unanswered = true, 0
	size := u.cfg.Sizes[f.slot]
	if !bytes.Equal(data, fill(make([]byte, 0, size), f.id, size)) {
		u.noteAltered(f)
		return
	}
	f.fate = came
	u.tally.came++
	u.losses.add(false)
	u.doubles.add(false)
	if doubt {
		return // this half was late itself
	}
	s := &u.slots[f.slot]
	if limit := s.base.limit(u.cfg.Floor); limit > 0 && took > limit {
		u.tally.late++
		u.noteLate(now, f.slot, took)
	} else {
		if s.pending > 0 {
			s.base.learn(min(s.pending, limit))
		}
		s.base.learn(took)
		s.late, s.pending = 0, 0
	}
	if took >= u.latency || u.tally.came == 1 {
		u.latency, u.slowest = took, f.slot
	}
}

// noteLate counts a late probe of a size. Its latency is learned only if the next one is not late.
func (u *module) noteLate(now time.Time, i int, took time.Duration) {
	u.late++
	u.tally.size = u.cfg.Sizes[i]
	s := &u.slots[i]
	s.late++
	s.pending = took
	if s.late == 1 && u.lateSince.IsZero() {
		u.lateSince = now
	}
}

// again processes a probe that already had an outcome, in this test or an earlier one.
func (u *module) again(now time.Time, id uint64, data []byte) bool {
	for i := range u.flights {
		if f := &u.flights[i]; f.id == id {
			u.second(now, f.fate, f.slot, f.sent, u.partner, data)
			if f.fate == gaveUp {
				f.fate = came
			}
			return true
		}
	}
	for i := range u.past {
		if p := &u.past[i]; p.id == id && id != 0 {
			u.second(now, p.fate, p.slot, p.sent, p.partner, data)
			if p.fate == gaveUp {
				p.fate = came
			}
			return true
		}
	}
	return false
}

func (u *module) second(now time.Time, was fate, i int, sent time.Time, partner uint8, data []byte) {
	switch was {
	case came:
		u.doubled++
		u.tally.doubled++
		u.tally.size = len(data)
		u.doubles.add(true)
		if u.doubling() {
			u.bad |= 1 << partner
			u.fail(Doubled, "a probe of %d bytes came twice", len(data))
		}
	case gaveUp:
		u.answered = true
		u.lost--
		u.losses.found()
		u.cameLate = true
		u.noteLate(now, i, now.Sub(sent))
		if u.slots[i].late >= LateTests || u.state == Failed && u.fault == Lost {
			u.fail(Late, "probes of %d bytes came after %s", u.cfg.Sizes[i], now.Sub(sent).Round(time.Millisecond))
		}
	default: // of a test that was given up because of our own delay
	}
}

func (u *module) noteAltered(f *flight) {
	f.fate = came
	u.answered = true
	u.altered++
	u.tally.altered++
	u.tally.size = u.cfg.Sizes[f.slot]
}

// refused processes a probe that the module's own code rejected.
func (u *module) refused(ev Refused) {
	for i := range u.flights {
		if f := &u.flights[i]; f.id == ev.ID && f.fate == flying {
			u.noteAltered(f)
		}
	}
}

func (u *module) void(id uint64) {
	for i := range u.flights {
		if f := &u.flights[i]; f.id == id && f.fate == flying {
			f.fate = voided
			u.tally.void++
		}
	}
}

// abandon gives up the probes in flight without counting them against the module.
func (u *module) abandon() {
	for i := range u.flights {
		if f := &u.flights[i]; f.fate == flying {
			f.fate = voided
			u.tally.void++
		}
	}
}

// excuse clears the counts against a module whose path is broken.
func (u *module) excuse() {
	u.abandon()
	u.losses, u.doubles = lossWindow{}, lossWindow{}
	for i := range u.slots {
		u.slots[i].late, u.slots[i].pending = 0, 0
	}
	u.suspect, u.lateSince, u.bad, u.missed = false, time.Time{}, 0, [MaxPartners]uint8{}
	if u.state == Failed {
		u.become(Untested, 0, "")
	}
}

// renew forgets that the other end has ever answered.
func (u *module) renew() {
	u.excuse()
	u.answered, u.unanswered = false, 0
}

// expire gives up probes that are too late.
func (u *module) expire(now time.Time) {
	for i := range u.flights {
		if f := &u.flights[i]; f.fate == flying && now.Sub(f.sent) >= u.cfg.Timeout {
			f.fate = gaveUp
			u.lost++
			u.tally.lost++
			u.tally.missed |= 1 << f.slot
			u.tally.size = u.cfg.Sizes[f.slot]
			u.losses.add(true)
		}
	}
}

// done reports whether each probe of the current test has an outcome.
func (u *module) done() bool {
	for i := range u.flights {
		if u.flights[i].fate == flying {
			return false
		}
	}
	return len(u.flights) > 0
}

// finish ends a test, judges the module, and schedules the next test.
func (u *module) finish(now time.Time, interval time.Duration) {
	probes := len(u.flights)
	for _, f := range u.flights {
		u.past[u.oldest] = past{f.id, f.slot, f.fate, f.sent, u.partner}
		u.oldest = (u.oldest + 1) % len(u.past)
	}
	u.flights = u.flights[:0]
	retry := u.began.Add(interval / 4)
	if u.tally.void == probes {
		if u.proving { // nothing was learned
			u.testAt = retry
		}
		return
	}
	u.tests++
	u.ended = now
	if !u.answered {
		u.unanswered++
		u.losses = lossWindow{}
		u.testAt = u.began.Add(min(interval<<min(u.unanswered, 10), maxBackoff))
		u.proving = false // it was never testable
		return
	}
	u.judge(now, probes)
	if u.suspect || u.state == Failed || u.proving {
		u.testAt = retry
	}
}

// countLong counts consecutive tests that lost their longest probe alone.
func (u *module) countLong() {
	if u.long++; u.tally.missed != 1<<(len(u.slots)-1) || len(u.slots) == 1 {
		u.long = 0
	}
}

// judge derives the module's state from a test.
func (u *module) judge(now time.Time, probes int) {
	t := u.tally
	worst := 0
	for i := range u.slots {
		if u.slots[i].late > u.slots[worst].late {
			worst = i
		}
	}
	late, cameLate := u.slots[worst].late, u.cameLate
	u.cameLate = false
	if late == 0 {
		u.lateSince = time.Time{}
	}
	u.blame(late)
	u.countLong()
	u.suspect = late > 0 || 2*t.lost > probes || u.cfg.Loss == 0 && t.lost > 0
	switch {
	case t.altered > 0:
		u.fail(Altered, "%d of %d probes, one of %d bytes", t.altered, probes, t.size)
	case u.long >= LongTests:
		u.fail(Lost, "large frames are lost, of %d bytes in %d tests in a row, and shorter ones arrive", t.size, u.long)
	case t.lost > 0 && u.losses.lost() >= LossBound(u.losses.n, u.cfg.Loss) && (u.fault != Late || !cameLate):
		u.fail(Lost, "%d of the last %d probes, one of %d bytes", u.losses.lost(), u.losses.n, t.size)
		u.losses = lossWindow{}
	case late >= LateTests && now.Sub(u.lateSince) >= RelearnAfter:
		u.relearn()
	case late >= LateTests:
		u.fail(Late, "%d tests in a row took longer than %s in %d bytes", late, u.limit(worst).Round(10*time.Microsecond), u.cfg.Sizes[worst])
	case t.doubled > 0 && !u.cfg.Foreign:
		u.clean = 0
	case u.suspect || t.came == 0:
		u.clean = 0 // not clean, and within the bounds
	case u.state == Failed && (u.clean+1 < ClearTests || !u.regained()):
		u.clean++
	default:
		if u.state == Failed {
			u.losses, u.doubles = lossWindow{}, lossWindow{}
		}
		u.proving = false
		u.become(Passed, 0, "")
	}
}

// regained reports whether a module that lost probes now loses no more than its path may. After only a few probes this
// cannot be distinguished from a path that loses half.
func (u *module) regained() bool {
	return u.fault != Lost || u.cfg.Loss == 0 || u.losses.n >= regainProbes && 3*u.losses.lost() <= u.losses.n
}

// blame judges the partner that carried a test. late is how many tests in a row were late in one size: as for the module,
// one slow probe is a busy machine. A path may lose the probes of a test, but not the same size in two tests in a row.
func (u *module) blame(late int) {
	t, before := u.tally, u.missed[u.partner]
	u.missed[u.partner] = t.missed
	u.bad &^= 1 << u.partner
	if t.altered > 0 || t.doubled > 0 && u.doubling() || t.late > 0 && late >= LateTests || t.missed&before != 0 {
		u.bad |= 1 << u.partner
	}
}

// doubling reports whether more probes came twice than the path may double.
func (u *module) doubling() bool {
	return !u.cfg.Foreign || u.doubles.lost() >= LossBound(u.doubles.n, foreignDoubles)
}

// blamed returns Result.Blamed.
func (u *module) blamed() uint8 {
	if u.state != Failed || !u.cfg.Partners {
		return 0
	}
	return u.bad
}

// relearn discards the learned values, because the new ones have lasted so long.
func (u *module) relearn() {
	for i := range u.slots {
		u.slots[i] = slot{}
	}
	u.lateSince = time.Time{}
}

func (u *module) limit(i int) time.Duration { return u.slots[i].base.limit(u.cfg.Floor) }

func (u *module) fail(f Fault, format string, args ...any) {
	u.clean = 0
	u.become(Failed, f, words(f, format, args...))
}

// become is the only writer of the state.
func (u *module) become(s State, f Fault, why string) {
	if s != Failed {
		u.clean, u.bad = 0, 0
	}
	u.state, u.fault, u.why = s, f, why
}

func (u *module) result(now time.Time) Result {
	r := Result{
		Module: u.cfg.Module, Name: u.cfg.Name, State: u.state, Fault: u.fault, Why: u.why, InUse: u.inUse, Proving: u.proving,
		Blamed: u.blamed(),
		Age:    -1, Latency: u.latency, Baseline: u.slots[u.slowest].base.mean, Limit: u.limit(u.slowest),
		Tests: u.tests, Lost: u.lost, Altered: u.altered, Doubled: u.doubled, Late: u.late,
	}
	if !u.ended.IsZero() {
		r.Age = max(0, now.Sub(u.ended))
	}
	return r
}

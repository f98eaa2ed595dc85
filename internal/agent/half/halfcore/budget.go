package halfcore

import (
	"fmt"
	"math"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
)

// BudgetLevel says how much periodic work a half gives up to keep to its budget of processor time. A higher level
// includes the lower ones. No level touches the watchdog words, the heartbeats of links or the answers to challenges.
type BudgetLevel uint8

// The levels, in the order in which a half reaches them.
const (
	BudgetKept    BudgetLevel = iota // all work at its periods
	BudgetDigests                    // digests are rarer
	BudgetProbes                     // and probes: self-tests, and pings of links
	BudgetSensors                    // and readings of sensors
)

// rarer is the factor by which probes and readings of sensors become rarer.
const rarer = 4

// Digests returns the period of digests: longer from level 1 on, by a third at most. Two bounds keep verdicts from
// following. Supervisors consider a digest missed after one and a half periods. A half's statements expire after
// M = DigestMisses periods, and as many digests in a row may be lost before that as at level 0: M-2. Both bounds leave two
// write periods for each digest, because digests ride on the write period and need some time on their way. If M is at
// most 3, at most one may be lost, and digests keep their period.
func (l BudgetLevel) Digests(p config.Periods) time.Duration {
	m := p.DigestMisses
	if l < BudgetDigests || m <= 3 {
		return p.DigestPeriod
	}
	unexpired := p.DigestPeriod + p.DigestPeriod/time.Duration(m-1)
	return max(p.DigestPeriod, min(p.DigestPeriod*4/3, p.DigestPeriod*3/2-2*p.TWrite, unexpired-2*p.TWrite))
}

// Probes returns how many times rarer probes are: 1 or 4.
func (l BudgetLevel) Probes() int {
	if l >= BudgetProbes {
		return rarer
	}
	return 1
}

// Sensors returns how many times rarer readings of sensors are: 1 or 4.
func (l BudgetLevel) Sensors() int {
	if l >= BudgetSensors {
		return rarer
	}
	return 1
}

// String names the work that is rarer.
func (l BudgetLevel) String() string {
	switch l {
	case BudgetKept:
		return "all periodic work as configured"
	case BudgetDigests:
		return "digests are rarer"
	case BudgetProbes:
		return "digests and probes are rarer"
	default:
		return "digests, probes and sensor readings are rarer"
	}
}

// Times of a budget.
const (
	// budgetSample is the shortest interval over which the use is measured.
	budgetSample = 500 * time.Millisecond
	// budgetBurst is the time for which a half may save up its budget: a start, or the death of a neighbour, is short.
	budgetBurst = 10 * time.Second
	// budgetHold is the time for which a half must use little before its level falls by one. It doubles, up to
	// budgetMaxHold, each time that the level rises again before a whole hold has passed at level 0.
	budgetHold    = 10 * time.Second
	budgetMaxHold = time.Minute
	// budgetCalm is the part of the budget, in hundredths, that counts as little.
	budgetCalm = 75
)

// Sensors are late after sensorMisses periods without an answer, but not before sensorGrace, because a script may take its
// whole time-out.
const (
	sensorMisses = 4
	sensorGrace  = 5 * time.Second
)

// BudgetChange is the result of a measurement: the direction in which the level changed.
type BudgetChange uint8

// The results of a measurement.
const (
	BudgetSame  BudgetChange = iota // the level is as before
	BudgetOver                      // the half used more than its budget, and gives up more work
	BudgetEased                     // the half used little, and gives up less work
)

// Budget compares a half's processor time with its budget, and judges the silence of the half's sensors by the level. It
// is pure and belongs to the half's machine.
//
//	        ┌──────── an interval that ends without credit: one level higher ────────┐
//	level 0 ┴──► level 1 ──► level 2 ──► level 3
//	        ◄─── a hold in which it used at most three quarters: one level lower
//
// Credit accrues at the rate of the budget, for budgetBurst at most.
type Budget struct {
	share float64 // of one core; 0: no budget
	level BudgetLevel
	ever  bool // the level was above 0 since the half started

	at     time.Time // of the last measurement; zero: none yet
	total  time.Duration
	credit time.Duration
	use    float64 // smoothed, of one core

	held    time.Time     // start of the present hold
	heldUse time.Duration // processor time then
	hold    time.Duration
	fell    bool // the level fell since the last whole hold at level 0

	sensorPeriod time.Duration
	sensedAt     time.Time // the silence of the sensors counts from here
	sensorsLate  bool      // SensorsLate has reported the present silence
}

// NewBudget returns the budget of a half that may use this percentage of one core; 0: no limit. The half's sensors
// answer once every sensorPeriod at level 0. Their silence counts from now on.
func NewBudget(percent float64, sensorPeriod time.Duration, now time.Time) Budget {
	return Budget{share: percent / 100, hold: budgetHold, sensorPeriod: sensorPeriod, sensedAt: now}
}

// Spent records the processor time that the half has used in total until now, and returns how the level changed. The
// caller calls it about once a second.
func (b *Budget) Spent(now time.Time, total time.Duration) BudgetChange {
	was := b.level
	b.measure(now, total)
	if was.Sensors() != b.level.Sensors() {
		// The reader of sensors notices the new period only at its next tick, up to an old period away.
		b.sensedAt = now.Add(time.Duration(was.Sensors()) * b.sensorPeriod)
	}
	switch {
	case b.level > was:
		return BudgetOver
	case b.level < was:
		return BudgetEased
	default:
		return BudgetSame
	}
}

// FollowBudget records processor time like Spent. If the level changes, it writes one note, of kind over or eased, and
// passes the factor by which probes are now rarer to each of the functions.
func FollowBudget[K any](b *Budget, now time.Time, total time.Duration, note func(kind K, format string, args ...any), over, eased K,
	rarer ...func(times int)) {
	switch b.Spent(now, total) {
	case BudgetSame:
		return
	case BudgetOver:
		note(over, "%s", b)
	case BudgetEased:
		note(eased, "%s", b)
	}
	for _, f := range rarer {
		f(b.level.Probes())
	}
}

// measure adjusts the level to the use since the last measurement.
func (b *Budget) measure(now time.Time, total time.Duration) {
	if b.share <= 0 {
		return
	}
	passed, spent := now.Sub(b.at), total-b.total
	if b.at.IsZero() || spent < 0 {
		b.at, b.total, b.credit = now, total, b.accrues(budgetBurst)
		b.beginHold()
		return
	}
	if passed < budgetSample {
		return
	}
	b.at, b.total = now, total
	b.use += (float64(spent)/float64(passed) - b.use) / 2
	b.credit += b.accrues(passed) - spent
	over := b.credit < 0
	b.credit = min(max(b.credit, 0), b.accrues(budgetBurst))
	switch {
	case over && b.level < BudgetSensors:
		b.rise()
	case now.Sub(b.held) >= b.hold:
		b.endHold(now)
	}
}

func (b *Budget) accrues(d time.Duration) time.Duration { return time.Duration(b.share * float64(d)) }

func (b *Budget) rise() {
	b.level, b.ever = b.level+1, true
	if b.fell {
		b.fell, b.hold = false, min(2*b.hold, budgetMaxHold)
	}
	b.beginHold()
}

// endHold lowers the level, if the half used little in the hold, and begins the next hold.
func (b *Budget) endHold(now time.Time) {
	calm := b.total-b.heldUse <= b.accrues(now.Sub(b.held))*budgetCalm/100
	switch {
	case calm && b.level > BudgetKept:
		b.level, b.fell = b.level-1, true
	case calm:
		b.fell, b.hold = false, budgetHold
	}
	b.beginHold()
}

func (b *Budget) beginHold() { b.held, b.heldUse = b.at, b.total }

// SensorsAnswered records that sensors answered.
func (b *Budget) SensorsAnswered(now time.Time) {
	b.sensorsLate = false
	if now.After(b.sensedAt) { // it is later if the period has just changed
		b.sensedAt = now
	}
}

// SensorsOweNothingFor does not count a time in which the half did not run as silence of its sensors.
func (b *Budget) SensorsOweNothingFor(away time.Duration) { b.sensedAt = b.sensedAt.Add(away) }

// SensorsLate reports, once for each silence, that the sensors have not answered for longer than their present period
// explains. It also returns how long the silence lasts.
func (b *Budget) SensorsLate(now time.Time) (silence time.Duration, late bool) {
	silence = now.Sub(b.sensedAt)
	if b.sensorsLate || silence < max(time.Duration(sensorMisses*b.level.Sensors())*b.sensorPeriod, sensorGrace) {
		return 0, false
	}
	b.sensorsLate = true
	return silence, true
}

// Level returns the present level.
func (b *Budget) Level() BudgetLevel { return b.level }

// String describes the level for people, with the use of the last seconds.
func (b *Budget) String() string {
	return fmt.Sprintf("processor budget: level %d, %s: this half uses %.1f %% of a core, its budget is %.3g %%", b.level, b.level, 100*b.use,
		100*b.share)
}

// ProcessorTime describes for digests how late a half runs, and the work that it gives up. It returns nil for a half
// that was always in time and within its budget.
func ProcessorTime(l *Lateness, b *Budget) *lofamov1.ProcessorTime {
	s := l.Status()
	if !b.ever {
		return s
	}
	if s == nil {
		s = &lofamov1.ProcessorTime{}
	}
	if b.level > BudgetKept {
		s.BudgetLevel, s.UsedPermille = uint32(b.level), uint32(min(max(0, math.Round(1000*b.use)), math.MaxUint32))
	}
	return s
}

package halfcore

import (
	"fmt"
	"math"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Limits of the state "starved".
const (
	// starvedShare is the share of a window that a half must be late to be starved, in thousandths.
	starvedShare = 100
	// recoveredShare is the share at or below which it is no longer starved.
	recoveredShare = 20
	// latenessWindow is the length of a window, in digest periods.
	latenessWindow = 10
	// minLong is the shortest lateness that makes a half starved by itself.
	minLong = 50 * time.Millisecond
)

// Lateness measures how late a half runs: the times between the moments for which it had set its timer and those at
// which it ran. It is pure and belongs to the half's machine.
//
//	in time ──late for Long at once, or for a tenth of a window──► starved
//	        ◄── a whole window with at most a fiftieth late, and never for Long ──
//
// A starved half is neither dead nor sick: it reports the state with its digests. Its verdicts wait until it has been in
// time again: torus.Link and watchdog.Reader see to that, each for its own times.
type Lateness struct {
	tolerance time.Duration // shorter delays are normal
	long      time.Duration // others may find the half silent or dead after that time
	window    time.Duration

	ran     time.Time // the last step
	begun   time.Time // of the present window
	now     lateWindow
	last    lateWindow // the window before the present one
	starved bool
	ever    bool // it was starved since it started
}

// lateWindow sums the lateness of a window.
type lateWindow struct {
	sum, longest time.Duration
}

func (w lateWindow) share(window time.Duration) int { return int(w.sum * 1000 / max(1, window)) }

// NewLateness returns the measure of a half with these periods that starts now.
func NewLateness(p config.Periods, now time.Time) Lateness {
	return Lateness{
		tolerance: p.TRead / 2, window: latenessWindow * p.DigestPeriod, ran: now, begun: now,
		long: max(minLong, min(time.Duration(p.LinkMisses+1)*p.LinkPeriod, time.Duration(p.ReadMisses+1)*p.TRead)),
	}
}

// Ran records a step at now of a half that was to run at due. It returns how long the half was away, which is 0 for
// less than half a read period, and whether the state changed.
func (l *Lateness) Ran(now, due time.Time) (away time.Duration, changed bool) {
	if from := fault.Later(due, l.ran); !due.IsZero() && now.Sub(from) > l.tolerance {
		away = now.Sub(from)
	}
	l.ran = now
	if away == 0 && now.Sub(l.begun) < l.window {
		return 0, false // nearly all steps
	}
	l.now.sum += away
	l.now.longest = max(l.now.longest, away)
	was := l.starved
	if l.now.longest >= l.long || l.now.share(l.window) >= starvedShare {
		l.starved, l.ever = true, true
	}
	if passed := now.Sub(l.begun); passed >= l.window {
		if l.now.longest < l.long && l.now.share(passed) <= recoveredShare {
			l.starved = false
		}
		l.last, l.now, l.begun = l.now, lateWindow{}, now
	}
	return away, l.starved != was
}

// Starved reports whether the half gets too little processor time.
func (l *Lateness) Starved() bool { return l.starved }

// Status returns the state for a digest: the longest lateness of this window and the one before it, and the larger
// share of the two. It returns nil for a half that was never starved.
func (l *Lateness) Status() *lofamov1.ProcessorTime {
	if !l.ever {
		return nil
	}
	if !l.starved {
		return &lofamov1.ProcessorTime{}
	}
	longest := max(l.now.longest, l.last.longest)
	return &lofamov1.ProcessorTime{
		Starved: true, LongestMs: uint32(min(longest.Milliseconds(), math.MaxUint32)),
		SharePermille: uint32(min(max(l.now.share(l.window), l.last.share(l.window)), 1000)),
	}
}

// String describes the state for people.
func (l *Lateness) String() string {
	if !l.starved {
		return "this half gets enough processor time again"
	}
	s := l.Status()
	return fmt.Sprintf("this half is starved of processor time: late by up to %d ms, for %d %% of the last %s; it gives no verdicts "+
		"while it is late", s.GetLongestMs(), s.GetSharePermille()/10, l.window)
}

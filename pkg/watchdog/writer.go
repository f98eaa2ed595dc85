package watchdog

import (
	"errors"
	"fmt"
	"time"
)

// WriterConfig is the owner's side of a watchdog word.
type WriterConfig struct {
	TWrite time.Duration // period of writing and validating; shorter than the other half's TRead
}

// Validate refuses a period that is not positive.
func (c WriterConfig) Validate() error { return positive("TWrite", c.TWrite) }

// CheckPeriods refuses periods that break the paper's condition T_write < T_read (§III-E). Without it a reader finds
// words not valid though their owner is healthy.
func CheckPeriods(tWrite, tRead time.Duration) error {
	if err := errors.Join(positive("TWrite", tWrite), positive("TRead", tRead)); err != nil {
		return err
	}
	if tWrite >= tRead {
		return fmt.Errorf("TWrite is %v and TRead is %v: want TWrite < TRead", tWrite, tRead)
	}
	return nil
}

func positive(name string, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("%s is %v: want more than 0", name, d)
	}
	return nil
}

// Writer decides when the owner of a word must write and validate it.
//
//	           first Step
//	unwritten ───────────► writing ──┐
//	                          ▲      │ every TWrite, or as soon after as it is stepped
//	                          └──────┘
//
// Its times lie on one grid from the first Step on. After a delay it writes once, not once for each
// missed time, and continues on the grid. So timers of a half that start together stay together, and
// one wake-up serves them all.
type Writer struct {
	cfg    WriterConfig
	state  writerState
	due    time.Time
	missed uint64
}

type writerState uint8

const (
	writerUnwritten writerState = iota + 1
	writerWriting
)

// NewWriter returns a machine that is due at its first Step. The configuration must have passed
// Validate.
func NewWriter(cfg WriterConfig) *Writer {
	if err := cfg.Validate(); err != nil {
		panic("watchdog: NewWriter with a configuration that was not validated: " + err.Error())
	}
	return &Writer{cfg: cfg, state: writerUnwritten}
}

// Step reports whether to write now, and when to step again at the latest. Additional writes, after a change of the
// word, do no harm and need no Step.
func (w *Writer) Step(now time.Time) (due bool, wake time.Time) {
	switch {
	case w.state == writerUnwritten:
		w.becomeWriting(now)
		return true, w.due
	case now.Before(w.due):
		return false, w.due
	}
	w.advance(now)
	return true, w.due
}

// Missed returns how many times of the grid passed without a write: the owner's own lateness.
func (w *Writer) Missed() uint64 { return w.missed }

func (w *Writer) becomeWriting(now time.Time) {
	w.state = writerWriting
	w.due = now.Add(w.cfg.TWrite)
}

// advance moves to the first time of the grid after now.
func (w *Writer) advance(now time.Time) {
	var skipped int64
	w.due, skipped = nextOnGrid(w.due.Add(w.cfg.TWrite), w.cfg.TWrite, now.Add(1))
	w.missed += uint64(skipped)
}

// nextOnGrid returns the first time from start on, in steps of period, that is not before limit, and
// how many steps it skipped.
func nextOnGrid(start time.Time, period time.Duration, limit time.Time) (next time.Time, skipped int64) {
	wait := limit.Sub(start)
	if wait <= 0 {
		return start, 0
	}
	skipped = int64((wait + period - 1) / period)
	return start.Add(time.Duration(skipped * int64(period))), skipped
}

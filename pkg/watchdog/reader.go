package watchdog

import (
	"errors"
	"fmt"
	"time"
)

// DefaultGrace is the time that a half gives its other half for the first write. A cold start of a whole cluster on a
// busy machine is slow and must not lead to accusations.
const DefaultGrace = 5 * time.Second

// MaxDoubts limits a reader's doubt: after that many late reads, or reads of a starved owner's word, since the last valid word, the
// next ones count as misses. Otherwise a reader that is always late would never notice a death.
const MaxDoubts = 8

// MaxMisses bounds ReaderConfig.Misses.
const MaxMisses = 100

// ReaderConfig is the watching side of a watchdog word.
type ReaderConfig struct {
	TRead  time.Duration // period of reading and invalidating; longer than the owner's TWrite
	Misses int           // K: how many consecutive reads may find the word not valid before it is stale
	Grace  time.Duration // how long to wait for a half that was never seen; 0 is DefaultGrace
}

// Validate returns an error for every bad field.
func (c ReaderConfig) Validate() error {
	errs := []error{positive("TRead", c.TRead)}
	if c.Misses < 0 || c.Misses > MaxMisses {
		errs = append(errs, fmt.Errorf("reader: Misses is %d: want 0 to %d", c.Misses, MaxMisses))
	}
	if c.Grace < 0 {
		errs = append(errs, fmt.Errorf("reader: Grace is %v: want 0 or more", c.Grace))
	}
	return errors.Join(errs...)
}

// StaleBound returns the longest time from the owner's death to the verdict Stale if the reader is in time: the last
// word may be read a whole period after it was written, and K+1 misses follow (seed 001 §III-E).
func StaleBound(tRead time.Duration, misses int) time.Duration {
	return time.Duration(misses+2) * tRead
}

// Verdict is a reader's verdict on the other half.
type Verdict uint8

// The verdicts.
const (
	Waiting Verdict = iota + 1 // not seen since the reader started: grace period
	Alive                      // seen, and not missed more than K times in a row since
	Stale                      // missed too often, or never seen within the grace
)

// String returns the verdict's name.
func (v Verdict) String() string {
	switch v {
	case Waiting:
		return "Waiting"
	case Alive:
		return "Alive"
	case Stale:
		return "Stale"
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Sample is the result of one read of the word.
type Sample struct {
	Valid   bool // the owner has written since the last read
	Corrupt bool // the word does not match its guard, or has a value that no owner writes: a miss
	Starved bool // the word is not valid, and the kernel says that the owner waits for a processor
}

// ReaderOutput is the result of a Step.
type ReaderOutput struct {
	Read    bool // the word was read in this Step; Late and Corrupt refer to that read
	Verdict Verdict
	Changed bool          // the verdict changed in this Step
	Age     time.Duration // since the last valid read; before the first, since the start
	Misses  int           // in a row
	Late    bool          // the reader was late by more than TRead/2
	Corrupt bool
	Wake    time.Time
}

// ReaderStats counts from the start.
type ReaderStats struct {
	Reads, Misses, Corrupt uint64
	Late                   uint64 // reads that came late by more than TRead/2
	Doubts                 uint64 // empty reads that were not counted as misses
}

// Reader reads and invalidates the other half's word every TRead, and judges it.
//
//	              valid
//	Waiting ────────────────► Alive ◄──┐
//	   │                        │      │ valid: a restart, or it hung and goes on
//	   │ never seen             │ more than K misses
//	   │ within Grace           ▼      │
//	   └─────────────────────► Stale ──┘
//
// Ended leads to Stale at once from any verdict.
//
// The first read is discarded: its word may have been validated before the reader started, by an
// owner that has died since.
//
// A reader doubts itself first. If it is late by more than TRead/2, the machine is slow or this
// process was stopped, and the same may be true of the other half; an empty word then proves nothing.
// The same holds for a read much sooner than TRead after the previous one. Such a read is no miss. A late one also
// clears the misses before it: the verdict takes K+1 misses in time (but see MaxDoubts). A valid word is a sign of life
// at any time.
//
// An owner that waits for a processor cannot write. A reader on the same kernel learns that from it (Sample.Starved) and
// then judges as if it had been late itself.
type Reader struct {
	cfg      ReaderConfig
	verdict  Verdict
	start    time.Time
	due      time.Time
	begun    bool // the first read has happened
	lastRead time.Time
	lastSeen time.Time // time of the last valid read; before the first, the start
	misses   int       // in a row
	doubts   int       // since the last valid word
	stats    ReaderStats
}

// NewReader returns a machine whose first read is due now. The configuration must have passed
// Validate.
func NewReader(cfg ReaderConfig, now time.Time) *Reader {
	if err := cfg.Validate(); err != nil {
		panic("watchdog: NewReader with a configuration that was not validated: " + err.Error())
	}
	if cfg.Grace == 0 {
		cfg.Grace = DefaultGrace
	}
	return &Reader{cfg: cfg, verdict: Waiting, start: now, due: now, lastRead: now, lastSeen: now}
}

// Step reads the word when that is due, and judges it. read must load the word and clear its Valid bit in one atomic
// step; it is called at most once, and only when a read is due.
func (r *Reader) Step(now time.Time, read func() Sample) ReaderOutput {
	if now.Before(r.due) {
		return r.output(now, r.verdict)
	}
	before := r.verdict
	late := now.Sub(r.due) > r.cfg.TRead/2
	outOfTime := late || now.Sub(r.lastRead) < r.cfg.TRead-r.cfg.TRead/4
	first := !r.begun
	r.schedule(now, late)

	s := read()
	r.stats.Reads++
	if late {
		r.stats.Late++
	}
	if s.Corrupt {
		r.stats.Corrupt++
	}
	switch {
	case first: // proves nothing in either direction
	case s.Valid && !s.Corrupt:
		r.becomeAlive(now)
	case (outOfTime || s.Starved) && r.doubts < MaxDoubts:
		r.doubt(late || s.Starved)
	default:
		r.miss(now)
	}
	out := r.output(now, before)
	out.Read, out.Late, out.Corrupt = true, late, s.Corrupt
	return out
}

// Ended turns the verdict to Stale at once: the caller knows from the kernel that the owner's process has ended. The
// word may still be valid from the owner's last write, so the next read proves nothing; a valid word after that is of
// a new process.
func (r *Reader) Ended(now time.Time) ReaderOutput {
	before := r.verdict
	r.becomeStale()
	r.begun, r.doubts = false, 0
	return r.output(now, before)
}

// Verdict returns the present verdict.
func (r *Reader) Verdict() Verdict { return r.verdict }

// Stats returns the counters.
func (r *Reader) Stats() ReaderStats { return r.stats }

func (r *Reader) output(now time.Time, before Verdict) ReaderOutput {
	return ReaderOutput{
		Verdict: r.verdict,
		Changed: r.verdict != before,
		Age:     now.Sub(r.lastSeen),
		Misses:  r.misses,
		Wake:    r.due,
	}
}

// schedule sets the time of the next read, on the grid of the first (see Writer): a late reader waits for at least one
// whole period.
func (r *Reader) schedule(now time.Time, late bool) {
	r.begun, r.lastRead = true, now
	r.due = r.due.Add(r.cfg.TRead)
	if late {
		r.due, _ = nextOnGrid(r.due, r.cfg.TRead, now.Add(r.cfg.TRead))
	}
}

func (r *Reader) becomeAlive(now time.Time) {
	r.verdict = Alive
	r.lastSeen = now
	r.misses, r.doubts = 0, 0
}

// doubt ignores an empty read. away says that one of the two processes may not have run in the time before the read. Then
// doubt also resets the misses, because that time does not prove that the owner is silent.
func (r *Reader) doubt(away bool) {
	if away {
		r.misses = 0
	}
	r.doubts++
	r.stats.Doubts++
}

func (r *Reader) miss(now time.Time) {
	r.misses++
	r.stats.Misses++
	switch {
	case r.verdict == Waiting && now.Sub(r.start) < r.cfg.Grace:
	case r.verdict == Alive && r.misses <= r.cfg.Misses:
	default:
		r.becomeStale()
	}
}

func (r *Reader) becomeStale() { r.verdict = Stale }

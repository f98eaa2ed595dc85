package half

import (
	"log/slog"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// repeatsWindow is the time in which Repeats logs a text only once.
const repeatsWindow = time.Minute

// Repeats logs texts that may come many times a second, such as doubts of a half that gets no CPU time. The first one
// is logged at once. Those that follow within a minute are one line at its end, with their number. The zero value is
// ready for one goroutine.
type Repeats struct {
	seen map[string]*repeated
	due  time.Time // the end of the earliest window; zero: none is open
}

type repeated struct {
	until time.Time
	times int // after the first
}

// Warn logs a text, or counts it.
func (r *Repeats) Warn(log *slog.Logger, now time.Time, text string) {
	r.Flush(log, now)
	if s := r.seen[text]; s != nil {
		s.times++
		return
	}
	r.open(now, text)
	log.Warn(text)
}

// Flush logs the numbers of the windows that have ended. A text that came again has a new window.
func (r *Repeats) Flush(log *slog.Logger, now time.Time) {
	if r.due.IsZero() || now.Before(r.due) {
		return
	}
	ended := r.seen
	r.seen, r.due = nil, time.Time{}
	for text, s := range ended {
		switch {
		case now.Before(s.until):
			r.keep(text, s)
		case s.times > 0:
			log.Warn(text, "times", s.times, "within", repeatsWindow)
			r.open(now, text)
		}
	}
}

func (r *Repeats) open(now time.Time, text string) {
	r.keep(text, &repeated{until: now.Add(repeatsWindow)})
}

func (r *Repeats) keep(text string, s *repeated) {
	if r.seen == nil {
		r.seen = make(map[string]*repeated)
	}
	r.seen[text] = s
	r.due = fault.Earliest(r.due, s.until)
}

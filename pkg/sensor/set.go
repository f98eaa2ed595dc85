package sensor

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// stalePeriods is the age, in a source's own periods, at which its reading becomes unknown.
const stalePeriods = 3

// stopWait is how long Run waits for sources to end when it stops. A source that hangs in the kernel is left behind and
// named.
const stopWait = time.Second

// Set polls sources. Each has a goroutine of its own while Run runs, so that one that hangs does not delay the others;
// it is not read again before it has answered. Requests do not queue: a source that is busy when it is due is skipped.
type Set struct {
	sources []Source
	clock   source.Clock
	was     []Reading    // before a restart
	rarer   atomic.Int64 // periods are so many times longer; 0 counts as 1
}

// NewSet returns a set of sources with distinct components.
func NewSet(sources []Source) *Set { return &Set{sources: sources, clock: time.Now} }

// Rarer makes Run read all sources n times less often, from the next reading on; a reading may be n times older before
// it is replaced by Unknown. 1 is the initial state; less counts as 1. Any goroutine may call it.
func (s *Set) Rarer(n int) { s.rarer.Store(int64(n)) }

// times returns the present factor of all periods.
func (s *Set) times() int { return int(max(1, s.rarer.Load())) }

// poll is the state of one source in Run's goroutine, its only owner.
type poll struct {
	src      Source
	interval time.Duration
	times    int           // factor of the periods when it last answered
	ask      chan struct{} // capacity 1, and empty whenever busy is false
	busy     bool
	due      time.Time
	reading  Reading
	readAt   time.Time // when reading was requested; zero before the first
	was      Reading   // before a restart, until its Until
}

// answer is a reading on its way from a source's goroutine.
type answer struct {
	index   int
	reading Reading
	askedAt time.Time
	again   bool // the source was unavailable: ignore its interval
}

// Run polls the sources at every tick, one each period (more than 0), or at their own interval if they have one, until ctx ends. A
// source whose error is ErrUnavailable is read again at the next tick. Run calls emit on its own goroutine with the readings of all
// sources, in their order: at once when a state has changed, when all requested sources have answered, at each period's
// end if some have not, and when a late one answers. emit owns the slice. A reading older than three intervals is
// replaced by Unknown. Rarer changes all periods. The error names the sources that did not stop; it is nil when all did.
func (s *Set) Run(ctx context.Context, ticks <-chan time.Time, period time.Duration, emit func([]Reading)) error {
	answers := make(chan answer, len(s.sources)) // each source has at most one answer in flight
	polls, ended := s.start(ctx, period, answers)
	s.ask(polls)
	rest := 1    // ticks until the next reading
	open := true // sources were read at the last tick, and their readings are not emitted yet
	for {
		select {
		case <-ctx.Done():
			for _, p := range polls {
				close(p.ask)
			}
			return s.wait(polls, ended)
		case a := <-answers:
			changed, busy := polls[a.index].accept(a, s.times()), anyBusy(polls)
			if changed || !open || !busy {
				emit(s.snapshot(polls))
			}
			open = open && busy
		case <-ticks:
			if rest--; rest > 0 {
				continue
			}
			rest = s.times()
			if open {
				emit(s.snapshot(polls))
			}
			s.ask(polls)
			open = true
		}
	}
}

// start gives each source its goroutine. ended receives each index when that goroutine is over.
func (s *Set) start(ctx context.Context, period time.Duration, answers chan<- answer) ([]*poll, <-chan int) {
	polls := make([]*poll, len(s.sources))
	ended := make(chan int, len(s.sources))
	for i, src := range s.sources {
		p := &poll{src: src, interval: period, ask: make(chan struct{}, 1)}
		if v, ok := src.(Periodic); ok && v.Interval() > 0 {
			p.interval = v.Interval()
		}
		p.resume(s.clock(), s.was)
		polls[i] = p
		go func() {
			defer func() { ended <- i }()
			for range p.ask {
				askedAt := s.clock()
				r, err := p.src.Read(ctx)
				if err != nil && r.State != fault.Sick && r.State != fault.Failed {
					r.State, r.Absent, r.Detail = fault.Unknown, false, source.Detail(err.Error())
				}
				r.Component, r.Source = p.src.Component(), p.src.Name()
				answers <- answer{i, r, askedAt, errors.Is(err, ErrUnavailable)}
			}
		}()
	}
	return polls, ended
}

// ask wakes the sources that are due and not busy. A tolerance of an eighth keeps a source whose interval is a multiple
// of the period from slipping by one when a tick comes early.
func (s *Set) ask(polls []*poll) {
	now, times := s.clock(), s.times()
	for _, p := range polls {
		if p.busy || now.Before(p.due) {
			continue
		}
		p.busy = true
		p.due = now.Add(time.Duration(times) * (p.interval - p.interval/8))
		p.ask <- struct{}{}
	}
}

// accept processes an answer, at a factor of the periods, and reports whether the state has changed.
func (p *poll) accept(a answer, times int) (changed bool) {
	a.reading = p.hold(a.reading, a.askedAt)
	changed = !p.readAt.IsZero() && p.reading.State != a.reading.State
	p.busy, p.reading, p.readAt, p.times = false, a.reading, a.askedAt, times
	if a.again {
		p.due = time.Time{}
	}
	return changed
}

func anyBusy(polls []*poll) bool {
	for _, p := range polls {
		if p.busy {
			return true
		}
	}
	return false
}

// snapshot returns the readings, with stale ones replaced.
func (s *Set) snapshot(polls []*poll) []Reading {
	now, times := s.clock(), s.times()
	out := make([]Reading, len(polls))
	for i, p := range polls {
		out[i] = p.reading
		switch age := now.Sub(p.readAt); {
		case p.readAt.IsZero() && p.was.State != 0:
			out[i] = p.was
		case p.readAt.IsZero():
			out[i] = Reading{State: fault.Unknown, Detail: "not read yet", Component: p.src.Component(), Source: p.src.Name()}
		case age > time.Duration(stalePeriods*max(times, p.times))*p.interval:
			out[i].State, out[i].Value, out[i].Unit = fault.Unknown, 0, ""
			out[i].Detail = source.Detail(fmt.Sprintf("not answered since %v; before: %s %s", age.Round(time.Millisecond), p.reading.State,
				p.reading.Detail))
		}
	}
	return out
}

// wait gives the sources' goroutines stopWait to end.
func (s *Set) wait(polls []*poll, ended <-chan int) error {
	over := make([]bool, len(polls))
	timeout := time.NewTimer(stopWait)
	defer timeout.Stop()
	for range polls {
		select {
		case i := <-ended:
			over[i] = true
		case <-timeout.C:
			var errs []error
			for i, p := range polls {
				if !over[i] {
					errs = append(errs, fmt.Errorf("stop sensor %s: still reading after %v", p.src.Name(), stopWait))
				}
			}
			return errors.Join(errs...)
		}
	}
	return nil
}

package measure

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Metered is a process whose cost a Meter measures.
type Metered struct {
	PID     int
	Started uint64 // start time in clock ticks: distinguishes the process from a later one with the same PID
	Group   int    // index of a group of processes that are counted together
}

// Meter samples the processor time of groups of processes that come and go. Close stops it.
type Meter struct {
	list   func() []Metered
	stop   context.CancelFunc
	done   chan struct{}
	mu     sync.Mutex
	known  map[Metered]time.Duration
	sample []sample
}

// sample is the processor time that each group has used so far.
type sample struct {
	at   time.Time
	used []time.Duration
}

// NewMeter samples the processes that list returns, every period. Groups are numbered from 0 to groups-1. The time
// that a process used before its first sample counts in that sample, and the time since its last sample is lost when
// it ends.
func NewMeter(period time.Duration, groups int, list func() []Metered) *Meter {
	ctx, stop := context.WithCancel(context.Background())
	m := &Meter{list: list, stop: stop, done: make(chan struct{}), known: map[Metered]time.Duration{}}
	m.take(groups)
	go func() {
		defer close(m.done)
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				m.take(groups)
			}
		}
	}()
	return m
}

// Close ends the sampling and keeps the samples.
func (m *Meter) Close() {
	m.stop()
	<-m.done
}

func (m *Meter) take(groups int) {
	list := m.list()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range list {
		if u, err := Process(p.PID); err == nil { // else it has just ended
			m.known[p] = u.CPU
		}
	}
	s := sample{time.Now(), make([]time.Duration, groups)}
	for p, used := range m.known {
		s.used[p.Group] += used
	}
	m.sample = append(m.sample, s)
}

func (m *Meter) between(from, to time.Time) []sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.sample), func(s sample) bool { return s.at.Before(from) || s.at.After(to) })
}

// Mean returns the processor time of the given groups between two times, as a share of one core. It is 0 without two
// samples.
func (m *Meter) Mean(from, to time.Time, groups ...int) float64 {
	s := m.between(from, to)
	if len(s) < 2 {
		return 0
	}
	return share(s[0], s[len(s)-1], groups)
}

// Peak returns the highest Mean of all windows of at least the given length between two times; of the whole time when
// that is shorter.
func (m *Meter) Peak(from, to time.Time, window time.Duration, groups ...int) float64 {
	s := m.between(from, to)
	if len(s) < 2 {
		return 0
	}
	most := 0.0
	for first, last := 0, 1; last < len(s); last++ {
		for first+1 < last && s[last].at.Sub(s[first+1].at) >= window {
			first++
		}
		if s[last].at.Sub(s[first].at) >= window || last == len(s)-1 && first == 0 {
			most = max(most, share(s[first], s[last], groups))
		}
	}
	return most
}

func share(a, b sample, groups []int) float64 {
	var used time.Duration
	for _, g := range groups {
		used += b.used[g] - a.used[g]
	}
	return float64(used) / float64(b.at.Sub(a.at))
}

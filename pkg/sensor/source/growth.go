package source

import "time"

// growthSamples bounds what a Growth remembers; the window is exact to one part in as many.
const growthSamples = 64

// Growth measures by how much a counter grew within a window that moves with the time. The first
// value is the base: what was counted before has no time. A counter that falls was reset (a driver
// reloaded, an operator cleared it), and so is the memory of it. The zero value is not ready: use
// NewGrowth.
type Growth struct {
	window  time.Duration
	last    uint64
	samples []sample // oldest first; at most two within window/growthSamples, one older than the window
}

type sample struct {
	at    time.Time
	value uint64
}

// NewGrowth returns a Growth over the window.
func NewGrowth(window time.Duration) *Growth { return &Growth{window: window} }

// Add takes the counter's value now and returns its growth within the window.
func (g *Growth) Add(now time.Time, value uint64) uint64 {
	if value < g.last {
		g.samples = nil
	}
	g.last = value
	slot := g.window / growthSamples
	switch n := len(g.samples); {
	case n == 0 || now.Sub(g.samples[n-1].at) >= slot:
		g.samples = append(g.samples, sample{now, value})
	case value == g.samples[n-1].value:
	case n >= 2 && now.Sub(g.samples[n-2].at) < slot:
		g.samples[n-1] = sample{now, value} // both within a slot: growth is taken to be the later
	default:
		g.samples = append(g.samples, sample{now, value})
	}
	for start := now.Add(-g.window); len(g.samples) > 1 && !g.samples[1].at.After(start); {
		g.samples = g.samples[1:]
	}
	return value - g.samples[0].value
}

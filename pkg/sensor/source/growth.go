package source

import "time"

// growthSamples limits the memory of a Growth; the window is exact to one part in as many.
const growthSamples = 64

// Growth measures the growth of a counter within a sliding window. The first value is the base, because earlier counts
// have no time. A counter that falls was reset (a reloaded driver, an operator), which also resets the Growth. The zero
// value is not ready: use NewGrowth.
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

// Add records the counter's present value and returns its growth within the window.
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
		g.samples[n-1] = sample{now, value} // both within a slot: the growth counts as the later
	default:
		g.samples = append(g.samples, sample{now, value})
	}
	for start := now.Add(-g.window); len(g.samples) > 1 && !g.samples[1].at.After(start); {
		g.samples = g.samples[1:]
	}
	return value - g.samples[0].value
}

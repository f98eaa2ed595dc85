package express

import (
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// bucket is a token bucket that starts full; its zero is one that was never used.
type bucket struct {
	spent float64 // tokens that are missing
	at    time.Time
}

// settle fills the bucket up to now.
func (b *bucket) settle(now time.Time, rate float64) {
	if !b.at.IsZero() {
		b.spent = max(0, b.spent-max(0, now.Sub(b.at).Seconds())*rate)
	}
	b.at = now
}

func (b *bucket) has(burst float64) bool { return b.spent+1 <= burst }

// budgets bound the broadcasts that a node accepts from its neighbours, from each origin and from itself.
type budgets struct {
	links   Mask
	self    bucket
	jobs    bucket // of self, the share for jobs
	byLink  [grid.NumDirections]bucket
	origins map[grid.Coord]*bucket
	sweepAt time.Time
}

// own reports whether this node may raise a broadcast. Half of the budget is out of jobs' reach and reserved for the
// cluster itself.
func (b *budgets) own(now time.Time, t Topic) bool {
	b.self.settle(now, ownRate)
	b.jobs.settle(now, ownRate/2)
	return b.self.has(ownBurst) && (t != TopicJob || b.jobs.has(ownBurst/2))
}

func (b *budgets) takeOwn(t Topic) {
	b.self.spent++
	if t == TopicJob {
		b.jobs.spent++
	}
}

// take returns a function that spends a token of a link and one of an origin; nil: there is none.
func (b *budgets) take(now time.Time, d grid.Direction, origin grid.Coord) func() {
	l := &b.byLink[d.Index()]
	l.settle(now, LinkRate)
	if !l.has(LinkBurst) {
		return nil
	}
	b.sweep(now)
	o, known := b.origins[origin]
	switch {
	case known:
		o.settle(now, OriginRate)
		if !o.has(OriginBurst) {
			return nil
		}
	case len(b.origins) >= maxOrigins:
		return nil
	default:
		o = &bucket{at: now}
	}
	return func() {
		l.spent++
		o.spent++
		if !known {
			if b.origins == nil {
				b.origins = map[grid.Coord]*bucket{}
			}
			b.origins[origin] = o
		}
	}
}

// sweep forgets origins whose bucket is full again.
func (b *budgets) sweep(now time.Time) {
	if now.Before(b.sweepAt) {
		return
	}
	b.sweepAt = now.Add(time.Second)
	for c, o := range b.origins {
		if o.settle(now, OriginRate); o.spent == 0 {
			delete(b.origins, c)
		}
	}
}

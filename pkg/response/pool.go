package response

import "slices"

// pool is what a response counts in. Config.MaxActive bounds each by itself: however many wait for a person, or for a place under the caps,
// nobody who is only to be told waits for them.
type pool uint8

// The pools.
const (
	acting    pool = iota // with steps that are more than notifications, under way or waiting
	telling               // of notifications alone, under way or waiting
	observing             // open ones of policies that only observe
	numPools
)

var poolNames = [numPools]string{"are under way or wait", "of notifications are under way or wait", "only observe"}

func poolOf(m Mode, tells bool) pool {
	switch {
	case m == ObserveOnly:
		return observing
	case tells:
		return telling
	default:
		return acting
	}
}

// pool is that of the policy's responses.
func (p *Policy) pool() pool {
	return poolOf(p.Mode, !slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Kind.Traits().Class > Notify }))
}

// pool is that of the response.
func (r *Response) pool() pool {
	return poolOf(r.Mode, !slices.ContainsFunc(r.Steps, func(s StepRecord) bool { return s.Kind.Traits().Class > Notify }))
}

// backlog are faults that wait for room in a pool: who came first is served first. Each of its calls costs the same, however many wait.
type backlog struct {
	queue []Target // those too that wait no more, and some twice
	waits map[Target]bool
}

// add has a fault wait. One that waits keeps its place.
func (b *backlog) add(t Target) {
	if b.waits[t] {
		return
	}
	b.waits[t] = true
	b.queue = append(b.queue, t)
	if len(b.queue) > 2*len(b.waits)+64 {
		b.tidy()
	}
}

func (b *backlog) drop(t Target) { delete(b.waits, t) }

// tidy takes out of the queue what waits no more.
func (b *backlog) tidy() {
	kept, seen := make([]Target, 0, len(b.waits)), make(map[Target]bool, len(b.waits))
	for _, t := range b.queue {
		if b.waits[t] && !seen[t] {
			kept, seen[t] = append(kept, t), true
		}
	}
	b.queue = kept
}

// first is who has waited for longest.
func (b *backlog) first() (Target, bool) {
	for len(b.queue) > 0 {
		if t := b.queue[0]; b.waits[t] {
			return t, true
		}
		b.queue = b.queue[1:]
	}
	return Target{}, false
}

// lines are where faults wait whose responses were not proposed: one for each pool without room, and one for the breaker to close.
const (
	breakerLine = numPools
	numLines    = numPools + 1
)

// room has one fault looked at again of those that there may be room for, and says whether there is such. One at a time, and it
// stays the first until it wants no more: where several policies are for a fault it takes more than one place. Looking at it
// either has it drop out or fills the pool.
func (e *Engine) room() bool {
	for k := range e.backlogs {
		if k := pool(k); k == breakerLine && e.breaker.Open || k < numPools && e.counts[k] >= e.cfg.MaxActive {
			continue
		}
		if t, ok := e.backlogs[k].first(); ok {
			e.dirty[t] = true
			return true
		}
	}
	return false
}

package response

import "slices"

// pool is the group in which a response counts. Config.MaxActive limits each pool separately, so notifications never
// wait behind responses that wait for a person or a cap.
type pool uint8

// The pools.
const (
	acting    pool = iota // with steps that are more than notifications, running or waiting
	telling               // with notifications only, running or waiting
	observing             // open ones of policies that only observe
	numPools
)

var poolNames = [numPools]string{"under way or waiting", "with notifications only, under way or waiting", "of observe-only policies"}

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

// pool returns the pool of the policy's responses.
func (p *Policy) pool() pool {
	return poolOf(p.Mode, !slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Kind.Traits().Class > Notify }))
}

// pool returns the response's pool.
func (r *Response) pool() pool {
	return poolOf(r.Mode, !slices.ContainsFunc(r.Steps, func(s StepRecord) bool { return s.Kind.Traits().Class > Notify }))
}

// backlog is a first-in, first-out queue of faults that wait for room in a pool. Each call takes constant time on
// average, regardless of the length.
type backlog struct {
	queue []Target // may contain faults that no longer wait, and duplicates
	waits map[Target]bool
}

// add queues a fault. A waiting fault keeps its place.
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

// tidy removes faults that no longer wait from the queue.
func (b *backlog) tidy() {
	kept, seen := make([]Target, 0, len(b.waits)), make(map[Target]bool, len(b.waits))
	for _, t := range b.queue {
		if b.waits[t] && !seen[t] {
			kept, seen[t] = append(kept, t), true
		}
	}
	b.queue = kept
}

// first returns the fault that has waited longest.
func (b *backlog) first() (Target, bool) {
	for len(b.queue) > 0 {
		if t := b.queue[0]; b.waits[t] {
			return t, true
		}
		b.queue = b.queue[1:]
	}
	return Target{}, false
}

// lines are the queues of faults without a response: one for each pool without room, and one for the open breaker.
const (
	breakerLine = numPools
	numLines    = numPools + 1
)

// room touches the first fault of a backlog that may now have room, and reports whether there is one. It handles one
// fault at a time; the fault stays first until it needs no more room, because several policies may match it. Each look
// either removes the fault from the queue or fills the pool.
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

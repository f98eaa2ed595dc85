package sim

// event is something that happens at a time.
type event struct {
	at    int64  // nanoseconds since the world began
	order uint64 // breaks ties: first in, first out
	do    func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.order < o.order }

// eventQueue is a typed heap with four children per node: a world spends most of its time on adding and removing
// events, and container/heap would allocate for each one.
type eventQueue []event

func (q *eventQueue) push(e event) {
	*q = append(*q, e)
	h := *q
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if !e.before(&h[parent]) {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = e
}

func (q *eventQueue) pop() event {
	h := *q
	first, n := h[0], len(h)-1
	last := h[n]
	h[n] = event{}
	*q = h[:n]
	if n > 0 {
		h[:n].sink(last)
	}
	return first
}

// sink puts e in at the top, which is free, and lets it down to its place.
func (q eventQueue) sink(e event) {
	i, n := 0, len(q)
	for {
		child := 4*i + 1
		if child >= n {
			break
		}
		for c := child + 1; c < min(child+4, n); c++ {
			if q[c].before(&q[child]) {
				child = c
			}
		}
		if !q[child].before(&e) {
			break
		}
		q[i] = q[child]
		i = child
	}
	q[i] = e
}

package paths

import (
	"container/heap"
	"time"
)

// queue holds the ends that wait for their acknowledgement, the first due in front. When a whole cluster starts,
// or an attacker replays its requests, there are many, and every message of a half needs the first.
type queue struct {
	heap  dueHeap
	count uint64
}

// put makes an end wait until it is due; among equal times the first put comes first.
func (q *queue) put(e *end) {
	q.count++
	e.order, e.waits = q.count, true
	heap.Push(&q.heap, e)
}

// remove removes an end, if it waits.
func (q *queue) remove(e *end) {
	if e.waits {
		heap.Remove(&q.heap, e.index)
	}
}

// due removes and returns a due end, or nil.
func (q *queue) due(now time.Time) *end {
	if len(q.heap) == 0 || now.Before(q.heap[0].due) {
		return nil
	}
	return heap.Pop(&q.heap).(*end)
}

// wake returns the first due time; zero: no end waits.
func (q *queue) wake() time.Time {
	if len(q.heap) == 0 {
		return time.Time{}
	}
	return q.heap[0].due
}

type dueHeap []*end

func (h dueHeap) Len() int { return len(h) }

func (h dueHeap) Less(i, j int) bool {
	if c := h[i].due.Compare(h[j].due); c != 0 {
		return c < 0
	}
	return h[i].order < h[j].order
}

func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *dueHeap) Push(x any) {
	e := x.(*end)
	e.index = len(*h)
	*h = append(*h, e)
}

func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	e.waits = false
	return e
}

package ingest

import (
	"container/heap"
	"time"
)

// pathQueue holds the ends that wait for their acknowledgement, the first due in front. When a whole cluster starts,
// or an attacker replays its requests, there are many, and every message of a half needs the first.
type pathQueue struct {
	heap  pathHeap
	count uint64
}

// put makes an end wait until it is due; among equal times the first put comes first.
func (q *pathQueue) put(e *pathEnd) {
	q.count++
	e.order, e.waits = q.count, true
	heap.Push(&q.heap, e)
}

// remove removes an end, if it waits.
func (q *pathQueue) remove(e *pathEnd) {
	if e.waits {
		heap.Remove(&q.heap, e.index)
	}
}

// due removes and returns a due end, or nil.
func (q *pathQueue) due(now time.Time) *pathEnd {
	if len(q.heap) == 0 || now.Before(q.heap[0].due) {
		return nil
	}
	return heap.Pop(&q.heap).(*pathEnd)
}

// wake returns the first due time; zero: no end waits.
func (q *pathQueue) wake() time.Time {
	if len(q.heap) == 0 {
		return time.Time{}
	}
	return q.heap[0].due
}

type pathHeap []*pathEnd

func (h pathHeap) Len() int { return len(h) }

func (h pathHeap) Less(i, j int) bool {
	if c := h[i].due.Compare(h[j].due); c != 0 {
		return c < 0
	}
	return h[i].order < h[j].order
}

func (h pathHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *pathHeap) Push(x any) {
	e := x.(*pathEnd)
	e.index = len(*h)
	*h = append(*h, e)
}

func (h *pathHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	e.waits = false
	return e
}

package awareness

import (
	"container/heap"
	"time"
)

// wakeHeap holds the nodes with a deadline, the earliest first.
type wakeHeap []*node

func (w wakeHeap) Len() int { return len(w) }
func (w wakeHeap) Less(i, j int) bool {
	if !w[i].next.Equal(w[j].next) {
		return w[i].next.Before(w[j].next)
	}
	return w[i].rank < w[j].rank
}
func (w wakeHeap) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].place, w[j].place = int32(i), int32(j)
}

// Push implements container/heap.Interface.
func (w *wakeHeap) Push(x any) {
	n := x.(*node)
	n.place = int32(len(*w))
	*w = append(*w, n)
}

// Pop implements container/heap.Interface.
func (w *wakeHeap) Pop() any {
	old := *w
	n := old[len(old)-1]
	old[len(old)-1] = nil
	*w = old[:len(old)-1]
	n.place = -1
	return n
}

// drop removes the node and clears its deadline and its restless flag. The deadline of a node in the heap never
// changes.
func (w *wakeHeap) drop(n *node) {
	if n.place >= 0 {
		heap.Remove(w, int(n.place))
	}
	n.next, n.restless = time.Time{}, false
}

// set inserts a node that is not in the heap, if it has a deadline.
func (w *wakeHeap) set(n *node) {
	if !n.next.IsZero() {
		heap.Push(w, n)
	}
}

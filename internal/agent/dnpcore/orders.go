package dnpcore

import lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"

// orderMemory is how many numbers of orders of a kind are remembered.
const orderMemory = 64

// orderLog remembers which orders of a kind this half has taken in this life. That a number is lower than the last says only within orderLife
// that an order is old, for a store may have begun anew. That it was taken before says it always: no supervisor gives a number twice, and
// repeats none but the last. So a copy of an order that somebody kept does nothing, unless orderMemory others were taken since, or the half has
// begun anew: then it has one run made, once.
type orderLog struct {
	taken [orderMemory]struct{ term, count uint64 }
	next  int
}

// has says whether an order was taken.
func (l *orderLog) has(n *lofamov1.OrderNumber) bool {
	for _, t := range l.taken {
		if t.term == n.GetTerm() && t.count == n.GetCount() {
			return true
		}
	}
	return false
}

// take notes that an order is taken. A number is of no order when it is zero.
func (l *orderLog) take(n *lofamov1.OrderNumber) {
	l.taken[l.next] = struct{ term, count uint64 }{n.GetTerm(), n.GetCount()}
	l.next = (l.next + 1) % orderMemory
}

package order

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Verdict is what a fence says of an order.
type Verdict uint8

// The verdicts.
const (
	New   Verdict = iota + 1 // to be carried out
	Known                    // the same as the last one: answer again
	Older                    // from before the last one: a leader that was deposed
	Copy                     // taken before, and not the last one: somebody kept it and sent it again
	Other                    // for another life of the node
)

var verdictNames = [...]string{"", "new", "known", "older", "a copy", "of another life"}

func (v Verdict) String() string { return verdictNames[v] }

// OtherLife reports whether an order is not for this life of a node. A node that holds no order cannot tell an old one by its number, and
// a life never comes again. life is 0 if the leader is of an earlier version, which names none; unknown says that the leader has not
// heard of the node yet.
func OtherLife(life uint64, unknown bool, own uint64) bool {
	return unknown || life != 0 && life != own
}

const (
	// runsKept is the number of past runs that a fence remembers.
	runsKept = 64
	// RunsLast is how long the number of the last run makes lower numbers old: longer than any run takes.
	RunsLast = time.Minute
)

// Runs is the fence of a node for runs of one kind: each is carried out once. A lower number than the last one means an old leader only
// for RunsLast, because the store may have begun anew, with lower terms. A number that was taken before is a copy at any time: no leader
// gives a number twice or repeats any run but its last. So a copy does nothing, unless the node has taken runsKept others since or has
// started again: then the node runs it once more. The zero value has taken none.
type Runs struct {
	last  number
	at    time.Time // when last came first
	taken [runsKept]number
	next  int
}

type number struct{ term, count uint64 }

func numberOf(n *lofamov1.OrderNumber) number { return number{n.GetTerm(), n.GetCount()} }

func (n number) below(o number) bool {
	return n.term < o.term || n.term == o.term && n.count < o.count
}

// Judge says what becomes of an order with that number. It takes nothing.
func (r *Runs) Judge(now time.Time, n *lofamov1.OrderNumber) Verdict {
	is := numberOf(n)
	switch {
	case r.last == number{}:
	case is == r.last:
		return Known
	case is.below(r.last) && now.Sub(r.at) < RunsLast:
		return Older
	}
	for _, t := range r.taken {
		if t == is {
			return Copy
		}
	}
	return New
}

// Take notes that the order with that number is carried out.
func (r *Runs) Take(now time.Time, n *lofamov1.OrderNumber) {
	r.last, r.at = numberOf(n), now
	r.taken[r.next] = r.last
	r.next = (r.next + 1) % runsKept
}

// Forget makes the last run one of the past: it is a copy from now on, and no number is too low.
func (r *Runs) Forget() { r.last = number{} }

// Holder is what a node holds by standing orders of one kind. The content counts at once; the leader hears of it when it is on disk,
// because a leader would not repeat what a crash undoes.
//
//	held ──Change──► being stored ──Stored──► held, the leader is told
type Holder[S comparable] struct {
	State   S
	Lost    bool // the stored content cannot be read, and no order has come since
	storing bool
	tell    time.Time // when the leader is told; zero: there is nothing to tell
}

// Change takes a new content, which the caller has stored.
func (h *Holder[S]) Change(next S) { h.State, h.storing = next, true }

// Storing reports whether the content is not on disk yet.
func (h *Holder[S]) Storing() bool { return h.storing }

// Stored takes the news that a content is on disk, or that the disk refuses it. It reports whether that is the present one.
func (h *Holder[S]) Stored(of S) bool {
	if of != h.State {
		return false
	}
	h.storing = false
	return true
}

// Tell has the leader told at a time; zero: not at all.
func (h *Holder[S]) Tell(at time.Time) { h.tell = at }

// Tells reports whether the leader is to be told now.
func (h *Holder[S]) Tells(now time.Time) bool {
	return !h.storing && !h.tell.IsZero() && !now.Before(h.tell)
}

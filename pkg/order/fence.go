package order

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Verdict is a fence's judgement on an order.
type Verdict uint8

// The verdicts.
const (
	New   Verdict = iota + 1 // to be executed
	Known                    // the same as the last one: answer again
	Older                    // from before the last one: from a deposed leader
	Copy                     // accepted before, and not the last one: a replay
	Other                    // for another life of the node
)

var verdictNames = [...]string{"", "new", "known", "older", "a copy", "of another life"}

func (v Verdict) String() string { return verdictNames[v] }

// OtherLife reports whether an order is for another life of the node. A node that holds no order cannot detect an old
// one by its number, and a life is unique. life is 0 if the leader is of an earlier version, which does not set it;
// unknown means that the node has not reported to the leader yet.
func OtherLife(life uint64, unknown bool, own uint64) bool {
	return unknown || life != 0 && life != own
}

const (
	// runsKept is the number of past runs that a fence remembers.
	runsKept = 64
	// RunsLast is how long the number of the last run makes lower numbers old: longer than any run lasts.
	RunsLast = time.Minute
)

// Runs is a node's fence for runs of one kind: each run is executed once. A number lower than the last one indicates an
// old leader only for RunsLast, because a recreated store may have lower terms. A number that was accepted before is a
// copy at any time: no leader assigns a number twice or repeats any run but its last. A copy does nothing, unless the
// node has accepted runsKept others since or has restarted: then the node executes it again. The zero value has
// accepted none.
type Runs struct {
	last  number
	at    time.Time // first arrival of last
	taken [runsKept]number
	next  int
}

type number struct{ term, count uint64 }

func numberOf(n *lofamov1.OrderNumber) number { return number{n.GetTerm(), n.GetCount()} }

func (n number) below(o number) bool {
	return n.term < o.term || n.term == o.term && n.count < o.count
}

// Judge returns the verdict on an order with that number. It changes nothing.
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

// Take records that the node executes the order with that number.
func (r *Runs) Take(now time.Time, n *lofamov1.OrderNumber) {
	r.last, r.at = numberOf(n), now
	r.taken[r.next] = r.last
	r.next = (r.next + 1) % runsKept
}

// Forget moves the last run to the past runs: it is a copy from now on, and no number is too low.
func (r *Runs) Forget() { r.last = number{} }

// Holder is a node's content by standing orders of one kind. The content counts at once. The leader gets a report only
// when the content is on disk, because it would not repeat an order that a crash undoes.
//
//	held ──Change──► being stored ──Stored──► held, the leader is told
//	                    │    ▲
//	                    └────┘ Stored with the disk's error: StoresAgain every storeAgain
type Holder[S comparable] struct {
	State   S
	Lost    bool // the stored content is unreadable, and no order has come since
	storing bool
	again   time.Time // when to store the content again; zero: the disk has not refused it
	tell    time.Time // when to report to the leader; zero: nothing to report
}

// storeAgain is the time between two attempts to store a content that the disk refuses.
const storeAgain = 10 * time.Second

// Change sets a new content, which the caller is storing.
func (h *Holder[S]) Change(next S) { h.State, h.storing, h.again = next, true, time.Time{} }

// Storing reports whether the content is not on disk yet.
func (h *Holder[S]) Storing() bool { return h.storing }

// Stored takes the disk's answer for a content. It reports whether the present content is now on disk; after an error, StoresAgain asks for
// another attempt.
func (h *Holder[S]) Stored(now time.Time, of S, err error) bool {
	switch {
	case of != h.State:
		return false
	case err != nil:
		h.storing, h.again = true, now.Add(storeAgain)
		return false
	}
	h.storing, h.again = false, time.Time{}
	return true
}

// StoresAgain reports whether the caller must store the content again now, because the disk has refused it.
func (h *Holder[S]) StoresAgain(now time.Time) bool {
	if h.again.IsZero() || now.Before(h.again) {
		return false
	}
	h.again = time.Time{}
	return true
}

// Tell schedules a report to the leader; zero: none.
func (h *Holder[S]) Tell(at time.Time) { h.tell = at }

// Tells reports whether a report to the leader is due now.
func (h *Holder[S]) Tells(now time.Time) bool {
	return !h.storing && !h.tell.IsZero() && !now.Before(h.tell)
}

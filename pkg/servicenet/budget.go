package servicenet

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

const (
	maxBudget   = 32
	startBudget = 16
	// torusCost is for six neighbours that verify, sign and send a copy to two supervisors each.
	torusCost = 12
	// lateCost is the total cost of such copies of reports after their last step: less, because no other message
	// carries the same content.
	lateCost = 4
	// requestCost is for a REQ, which brings a REP and an ACK with signatures; maxRoundCost bounds that of all paths.
	requestCost  = 2
	maxRoundCost = 12
	// freeAttempts of a report are its ladder with two tries by the torus. They cost nothing: delivery bounds rest on
	// them.
	freeAttempts = 4
)

// budget limits the retries of a half while supervisors answer only some of its messages. Overloaded supervisors lose
// datagrams, and unlimited retries would prolong the overload.
//
//	earned   1 by a digest, but not in silence; 1 by an answer on the direct rail
//	spent    1 for a digest sent again, torusCost for its copy by the torus, lateCost for all copies at one time of reports whose ladder
//	         is over, requestCost for a REQ
//
// So every digest is sent again once at least, and answered halves have saved enough to lose several digests in a row
// and still ask everywhere. No copy is held back while the direct rail is dead and silent: then the torus is the only
// way. Silence spends nothing.
type budget int

func (b *budget) earn() { *b = min(*b+1, maxBudget) }

func (b *budget) spend(n int) bool {
	if int(*b) < n {
		return false
	}
	*b -= budget(n)
	return true
}

// cut reports whether the direct rail is dead, and has not brought a single answer lately either.
func (o *Outbox) cut(now time.Time) bool {
	h := &o.direct
	return h.dead && (h.answeredAt.IsZero() || now.Sub(h.answeredAt) >= o.cfg.NetworkDeadAfter)
}

// affords reports whether a digest may be sent again. One that may not is sent once an answer adds to the budget, or
// not at all.
func (o *Outbox) affords(e *entry) bool {
	return !e.report.Digest || e.attempts == 0 || !o.have[fault.PathDirect] || o.budget.spend(1)
}

// spareTorus skips the torus where the direct rail is tried as well and the budget is spent. A half whose service
// interfaces are down has only the torus.
//
// A digest goes by the torus only once, answered or not: each further copy costs all neighbours a signature, and the
// next digest carries the same state. During silence a digest takes the torus only in a round.
func (o *Outbox) spareTorus(now time.Time, use *[numPaths]bool, e *entry) {
	if !use[fault.PathDirect] || !use[fault.PathTorus] || !o.interfaceUp() {
		return
	}
	switch {
	case e.report.Digest && (e.torusSends > 0 || !o.silence.due(now)):
		use[fault.PathTorus] = false
	case o.cut(now) || !e.report.Digest && e.attempts < freeAttempts:
	case e.report.Digest:
		use[fault.PathTorus] = o.budget.spend(torusCost)
	case o.latePaid.Equal(now):
	case o.budget.spend(lateCost):
		o.latePaid = now
	default:
		use[fault.PathTorus] = false
	}
}

package hostcore

import (
	"time"

	"golang.org/x/time/rate"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

const (
	// challengeLife is for how long after the newest challenge of a term an older one of it is fresh: those of one question come by several
	// ways, and overtake one another.
	challengeLife = 2 * time.Second
	// answersMost is how many copies of one challenge are fresh: each replica sends it by all interfaces, and by six neighbours.
	answersMost = 64
	// noncesMost bounds the nonces that are remembered, twice that at most.
	noncesMost = 256
	// What may be answered of challenges that are not fresh: those of supervisors that went back to an earlier term, as after a restore of
	// the store, and of an earlier version.
	staleRate, staleBurst = 50, 100
)

// asked is what a half remembers of the challenges that it was sent, so that a recorded one does not make it send to whom the recorder wants.
type asked struct {
	term          uint64
	issued        int64 // of the newest of that term
	latest, older map[string]int
	stale         *rate.Limiter
}

// fresh says whether a challenge, which is signed by a supervisor, may be answered to where it came from: it is not of an earlier leader, not
// much older than another one of the same leader, and did not come too often. A challenge without a term is fresh until one with a term has
// come.
func (a *asked) fresh(c *lofamov1.Challenge) bool {
	term, issued := c.GetTerm(), c.GetIssuedNs()
	switch {
	case term < a.term, term == a.term && issued < a.issued-challengeLife.Nanoseconds():
		return false
	case term > a.term:
		a.term, a.issued = term, issued
	default:
		a.issued = max(a.issued, issued)
	}
	nonce := string(c.GetNonce())
	n := max(a.latest[nonce], a.older[nonce])
	if n >= answersMost {
		return false
	}
	if len(a.latest) >= noncesMost || a.latest == nil {
		a.older, a.latest = a.latest, make(map[string]int)
	}
	a.latest[nonce] = n + 1
	return true
}

// affords says whether one more that is not fresh may be answered now.
func (a *asked) affords(now time.Time) bool {
	if a.stale == nil {
		a.stale = rate.NewLimiter(staleRate, staleBurst)
	}
	return a.stale.AllowN(now, 1)
}

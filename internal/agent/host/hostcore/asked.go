package hostcore

import (
	"time"

	"golang.org/x/time/rate"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

const (
	// challengeLife limits how much older than the term's newest challenge a fresh challenge may be. Copies of a challenge take
	// different paths, so they can arrive out of order.
	challengeLife = 2 * time.Second
	// answersMost is the number of fresh copies of one challenge: each replica sends it by all interfaces and through six neighbours.
	answersMost = 64
	// noncesMost limits the remembered nonces; up to twice as many are kept.
	noncesMost = 256
	// staleRate and staleBurst limit the answers to challenges that are not fresh. Such challenges come from supervisors of an earlier
	// version, and from supervisors whose term went back, for example after a restore of the store.
	staleRate, staleBurst = 50, 100
)

// asked remembers the challenges that a half received, so that a recorded challenge cannot redirect its answers.
type asked struct {
	term          uint64
	issued        int64 // time of the newest challenge of that term
	latest, older map[string]int
	stale         *rate.Limiter
}

// fresh reports whether a challenge, signed by a supervisor, may be answered to the address it came from. A challenge
// is not fresh if it is from an earlier term, more than challengeLife older than the newest one of its term, or repeated more than
// answersMost times. A challenge without a term is fresh until one with a term has arrived.
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

// affords reports whether another stale challenge may be answered now.
func (a *asked) affords(now time.Time) bool {
	if a.stale == nil {
		a.stale = rate.NewLimiter(staleRate, staleBurst)
	}
	return a.stale.AllowN(now, 1)
}

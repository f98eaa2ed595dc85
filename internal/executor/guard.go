package executor

import (
	"maps"
	"sync"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Guard refuses late attempts: a token lower than one already seen, and an attempt number that is not higher than those
// seen for its response and step. It remembers the token as long as the process lasts, and an attempt for guardMargin longer than
// the attempt's timeout. A supervisor does not begin an attempt after its timeout, and never uses its number again. An executor that
// needs more keeps the state elsewhere. A higher token clears the attempts, since Guard refuses the lower token from then on. The
// zero value is ready to use.
type Guard struct {
	mu    sync.Mutex
	token uint64
	seen  map[stepKey]seenAttempt
	swept time.Time // time of the last removal of old attempts, each of which reads all
}

// Times of a guard's memory.
const (
	guardMargin = time.Hour
	guardSweep  = 10 * time.Minute // interval between removals
)

type seenAttempt struct {
	attempt int       // the highest number
	until   time.Time // end of the memory of it, and of lower numbers
}

type stepKey struct {
	response string
	step     int
}

// Admit records the attempt and reports whether it may be made. If not, Admit also returns the result to answer with:
// StaleToken for a lower token, and NotKnown for an attempt number that is not higher, since only the attempt already
// seen knows its outcome.
func (g *Guard) Admit(e response.Effect) (Result, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e.Token < g.token {
		return Stale("token %d: %d has been seen", e.Token, g.token), false
	}
	if e.Token > g.token || g.seen == nil {
		g.token, g.seen = e.Token, map[stepKey]seenAttempt{}
	}
	now := time.Now()
	g.forget(now)
	k := stepKey{e.Response, e.Step}
	was, ok := g.seen[k]
	if ok && e.Attempt.Attempt <= was.attempt {
		return NotKnown("attempt %d at step %d of %s: attempt %d has been seen", e.Attempt.Attempt, e.Step, e.Response, was.attempt), false
	}
	g.seen[k] = seenAttempt{e.Attempt.Attempt, fault.Later(was.until, now.Add(e.Timeout+guardMargin))}
	return Result{}, true
}

// forget removes old attempts.
func (g *Guard) forget(now time.Time) {
	if now.Sub(g.swept) < guardSweep {
		return
	}
	g.swept = now
	maps.DeleteFunc(g.seen, func(_ stepKey, a seenAttempt) bool { return now.After(a.until) })
}

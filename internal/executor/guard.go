package executor

import (
	"sync"

	"github.com/lofamo/lofamo/pkg/response"
)

// Guard refuses late attempts: a token lower than one already seen, and an attempt number that is not higher than those
// seen for its response and step. Its memory lasts as long as the process; an executor that needs more keeps the state
// elsewhere. A higher token clears the attempts, since Guard refuses the lower token from then on. The zero value is
// ready to use.
type Guard struct {
	mu    sync.Mutex
	token uint64
	seen  map[stepKey]int // the highest attempt number
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
		g.token, g.seen = e.Token, map[stepKey]int{}
	}
	k := stepKey{e.Response, e.Step}
	if was, ok := g.seen[k]; ok && e.Attempt.Attempt <= was {
		return NotKnown("attempt %d at step %d of %s: attempt %d has been seen", e.Attempt.Attempt, e.Step, e.Response, was), false
	}
	g.seen[k] = e.Attempt.Attempt
	return Result{}, true
}

package executor

import (
	"sync"

	"github.com/lofamo/lofamo/pkg/response"
)

// Guard refuses what comes too late: a token lower than one that was seen, and of one response and step an attempt that is not
// higher than those that were seen. It lives as long as its process: who has to remember longer keeps that elsewhere. What is
// remembered of attempts is dropped with each higher token, since what bears the lower one is refused from then on. Its zero
// value has seen nothing.
type Guard struct {
	mu    sync.Mutex
	token uint64
	seen  map[stepKey]int // the highest attempt
}

type stepKey struct {
	response string
	step     int
}

// Admit says whether the attempt may be made, and remembers it. What it refuses is the answer to give: StaleToken for a lower
// token, and for an attempt that is not higher NotKnown, since what became of the one that is known is for that one to say.
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

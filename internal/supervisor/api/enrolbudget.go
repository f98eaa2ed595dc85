package api

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/bounded"
	"github.com/lofamo/lofamo/internal/pki"
)

// allow takes a request from a budget, and reports whether it has a good token or certificate of a node. Such a request spends the token's
// or the node's budget, from any address. All others spend that of their address, and later one that they share. So strangers cannot keep
// out such a node.
func (e *Enrolment) allow(ctx context.Context, req *lofamov1.EnrolRequest) (known bool, _ error) {
	now := time.Now()
	if node, err := e.certified(ctx); err == nil && node != "" {
		if e.members.allow(string(node), now) {
			return true, nil
		}
		return true, status.Errorf(codes.ResourceExhausted, "too many requests of node %s: try again in a moment", node)
	}
	if t, err := pki.ParseJoinToken(req.GetToken()); err == nil && e.tokens.has(ctx, e.cfg.Tokens, t, now) {
		if e.known.allow(t.ID, now) {
			return true, nil
		}
		return true, status.Error(codes.ResourceExhausted, "too many nodes enrol with this token at once: try again in a moment")
	}
	p, ok := peer.FromContext(ctx)
	if !ok || !e.sources.allow(bounded.SourceOf(p.Addr), now) {
		return false, status.Error(codes.ResourceExhausted, "too many requests from this address: try again in a moment")
	}
	return false, nil
}

// budgets holds a budget of requests for each of some names. It forgets those of which nothing is spent, and refuses further names while it
// is full: nobody can end the limit of a name.
type budgets struct {
	rate  rate.Limit
	burst int

	mu sync.Mutex
	of map[string]*rate.Limiter
}

func newBudgets(perSecond rate.Limit, burst int) *budgets {
	return &budgets{rate: perSecond, burst: burst, of: make(map[string]*rate.Limiter)}
}

func (b *budgets) allow(name string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.of[name]
	if l == nil {
		if len(b.of) >= maxSources {
			maps.DeleteFunc(b.of, func(_ string, l *rate.Limiter) bool { return l.TokensAt(now) >= float64(b.burst) })
		}
		if len(b.of) >= maxSources {
			return false
		}
		l = rate.NewLimiter(b.rate, b.burst)
		b.of[name] = l
	}
	return l.AllowN(now, 1)
}

// tokensEvery is the time between two reads of the list of tokens for unknown ones. A new token counts as unknown until then.
const tokensEvery = time.Second

// tokenList is the latest list of tokens that this replica has read. It decides only about budgets.
type tokenList struct {
	mu     sync.Mutex
	readAt time.Time
	sums   map[string][]byte // of secrets, by id
}

// has reports whether the list has a token.
func (l *tokenList) has(ctx context.Context, from Tokens, t pki.JoinToken, now time.Time) bool {
	if good, due := l.look(t, now); good || !due {
		return good
	}
	ctx, cancel := context.WithTimeout(ctx, quorumTime)
	defer cancel()
	all, err := from.Tokens(ctx)
	if err != nil {
		return false
	}
	sums := make(map[string][]byte, len(all))
	for _, have := range all {
		sums[have.ID] = have.Sum
	}
	l.mu.Lock()
	l.sums = sums
	l.mu.Unlock()
	good, _ := l.look(t, now)
	return good
}

// look looks into the list, and reports whether the caller has to read it again.
func (l *tokenList) look(t pki.JoinToken, now time.Time) (good, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if sum, ok := l.sums[t.ID]; ok && t.Is(sum) {
		return true, false
	}
	if now.Sub(l.readAt) < tokensEvery {
		return false, false
	}
	l.readAt = now
	return false, true
}

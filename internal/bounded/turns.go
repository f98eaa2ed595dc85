package bounded

import (
	"slices"
	"time"

	"golang.org/x/time/rate"
)

// A TLS handshake costs the server about a millisecond of a core, and its client nothing that it has to prove. So a listener gives its
// server at most Limits.Handshakes connections a second. The others wait in the listener, where no server's time-out runs, and take
// turns by source: a source with a thousand connections waits for itself. Every other turn is of a source that has proved its
// identity on this listener before.

// maxRemembered bounds the sources that a listener remembers.
const maxRemembered = 4096

// turns holds the connections that wait for their turn. The listener's mutex guards it.
type turns struct {
	limit   *rate.Limiter
	waiting []*Conn           // the oldest first
	count   uint64            // turns so far
	served  map[string]uint64 // number of the last turn of a source
	proved  map[string]bool   // sources that have proved their identity
}

func newTurns(perSecond int) *turns {
	t := &turns{limit: rate.NewLimiter(rate.Inf, 0), served: map[string]uint64{}, proved: map[string]bool{}}
	if perSecond > 0 {
		t.limit = rate.NewLimiter(rate.Limit(perSecond), perSecond)
	}
	return t
}

// prove remembers that a source has proved its identity.
func (t *turns) prove(source string) {
	if len(t.proved) >= maxRemembered {
		clear(t.proved)
	}
	t.proved[source] = true
}

// next removes and returns the connection whose turn it is. With nil it returns when that of a waiting one comes, if any waits.
func (t *turns) next(now time.Time) (*Conn, time.Time) {
	if len(t.waiting) == 0 {
		return nil, time.Time{}
	}
	if r := t.limit.ReserveN(now, 1); r.DelayFrom(now) > 0 {
		due := now.Add(r.DelayFrom(now))
		r.CancelAt(now)
		return nil, due
	}
	best := 0
	for i, c := range t.waiting {
		if t.before(c, t.waiting[best]) {
			best = i
		}
	}
	c := t.waiting[best]
	t.waiting = slices.Delete(t.waiting, best, best+1)
	if len(t.served) >= maxRemembered {
		clear(t.served)
	}
	t.count++
	t.served[c.source] = t.count
	return c, time.Time{}
}

// before reports whether a source comes before another one, which waits for longer.
func (t *turns) before(a, b *Conn) bool {
	if pa, pb := t.proved[a.source], t.proved[b.source]; pa != pb {
		return pa == (t.count%2 == 0)
	}
	return t.served[a.source] < t.served[b.source]
}

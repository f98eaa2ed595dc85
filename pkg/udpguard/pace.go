package udpguard

import (
	"time"

	"golang.org/x/time/rate"
)

// FloodRest is the rest for a reader of datagrams.
const FloodRest = time.Millisecond

// Pace bounds the rate at which a reader takes datagrams or connections from a socket. Each one beyond the rate and the burst costs a rest.
// Meanwhile the kernel drops those for which it has no room. A process of real-time class that never rests is killed by its limit
// (RLIMIT_RTTIME). Any goroutine may use it.
type Pace struct {
	Sleep func(time.Duration) // time.Sleep, except in tests

	limit *rate.Limiter
	rest  time.Duration
}

// NewPace returns a pace of perSecond a second after a burst. In a flood the reader takes up to 1 s / rest more in a second.
func NewPace(perSecond, burst int, rest time.Duration) *Pace {
	return &Pace{Sleep: time.Sleep, limit: newLimit(perSecond, burst), rest: rest}
}

func newLimit(perSecond, burst int) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(perSecond), max(burst, 1))
}

// Take counts one, and rests if that is too fast. It reports whether it rested. A nil pace never rests.
func (p *Pace) Take() (rested bool) {
	if p == nil || p.limit.Allow() {
		return false
	}
	p.Sleep(p.rest)
	return true
}

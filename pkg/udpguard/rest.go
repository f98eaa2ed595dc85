package udpguard

import "time"

// Rest says how long a socket ignores something after a flood. A rest is twice as long as the one before it, up to Most, and First again
// after a calm time of Most. One goroutine uses it.
type Rest struct {
	First, Most time.Duration

	last time.Duration
	over time.Time // when the last rest ends
}

// Next returns the rest that begins now.
func (r *Rest) Next(now time.Time) time.Duration {
	if r.last = min(2*r.last, r.Most); r.last == 0 || now.Sub(r.over) > r.Most {
		r.last = r.First
	}
	r.over = now.Add(r.last)
	return r.last
}

package selftest

import (
	"math"
	"time"
)

// window is over how many last probes of a module losses are judged.
const window = 32

// rare is how probable it may be that a window of a healthy way is called faulty.
const rare = 1e-9

// LossBound is the least number of lost probes out of n that a way which loses the share p, each probe by
// itself, shows with a probability below one in a thousand million. It is at least 2: one lost probe says
// nothing. With n or more to lose there is no such number below n+1: then it is n+1, and nothing is judged.
func LossBound(n int, p float64) int {
	if p <= 0 {
		return 2
	}
	tail := 0.0 // P(at least k)
	for k := n; k >= 0; k-- {
		tail += binomial(n, k, p)
		if tail >= rare {
			return max(2, k+1)
		}
	}
	return 2
}

func binomial(n, k int, p float64) float64 {
	lg := func(x int) float64 { v, _ := math.Lgamma(float64(x) + 1); return v }
	return math.Exp(lg(n) - lg(k) - lg(n-k) + float64(k)*math.Log(p) + float64(n-k)*math.Log1p(-p))
}

// Limit is the latency above which a probe is late, for a module that usually takes mean, with deviation
// dev, and where nothing below floor is late.
func Limit(mean, dev, floor time.Duration) time.Duration {
	return max(floor, 2*mean, mean+8*dev)
}

// baseline is what a module has learned of one size: smoothed mean and deviation, as TCP has them of its
// round trips (RFC 6298).
type baseline struct {
	mean, dev time.Duration
	n         uint32 // probes learned from
}

// learnFirst is how many probes are learned from before one is judged.
const learnFirst = 5

func (b *baseline) learn(d time.Duration) {
	if b.n < learnFirst {
		b.n++
	}
	if b.mean == 0 {
		b.mean, b.dev = d, d/2
		return
	}
	off := d - b.mean
	b.dev += (max(off, -off) - b.dev) / 4
	b.mean += off / 8
}

// limit returns Limit; 0 while too little is known.
func (b *baseline) limit(floor time.Duration) time.Duration {
	if b.n < learnFirst {
		return 0
	}
	return Limit(b.mean, b.dev, floor)
}

package selftest

import (
	"math"
	"time"
)

// window is the number of a module's last probes over which losses are judged.
const window = 32

// rare is the accepted probability that a window of a healthy path counts as faulty.
const rare = 1e-9

// LossBound returns the least number of lost probes out of n that a path which loses the share p, each probe
// independently, shows with a probability below one in a thousand million. It is at least 2: one lost probe proves
// nothing. If no number up to n qualifies, it is n+1, and losses are not judged.
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

// Limit returns the latency above which a probe is late, for a module with the usual mean and deviation dev. Nothing
// below floor is late.
func Limit(mean, dev, floor time.Duration) time.Duration {
	return max(floor, 2*mean, mean+8*dev)
}

// baseline holds a module's usual latency for one size: smoothed mean and deviation, as in TCP's round trips (RFC
// 6298).
type baseline struct {
	mean, dev time.Duration
	n         uint32 // number of learned probes
}

// learnFirst is the number of probes to learn from before the first judgement.
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

// limit returns Limit; 0 while too few probes are learned.
func (b *baseline) limit(floor time.Duration) time.Duration {
	if b.n < learnFirst {
		return 0
	}
	return Limit(b.mean, b.dev, floor)
}

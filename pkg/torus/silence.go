package torus

import (
	"math"
	"time"
)

const (
	// MaxMisses bounds the result of ToleratedMisses on a lossy link: silence is always detected within 17 periods.
	MaxMisses = 16
	// missChance is the probability that a lossy link is called silent by bad luck, per frame.
	missChance = 1e-4
	// recentFrames is the short memory of losses, which notices that a link has just begun to lose.
	recentFrames = 16
	// damagedLoss is the assumed loss while only damaged frames come: some frames do come.
	damagedLoss = 0.3
)

// ToleratedMisses returns how many heartbeats in a row may be missing on a link that loses the share loss (0 to 1) of
// its frames. That is the number that it loses in a row once in 10,000 frames, not fewer than misses and not more
// than MaxMisses (or misses, if that is more). On a link without losses it is misses. So a lossy link is sick, and
// not now and then silent.
func ToleratedMisses(misses int, loss float64) int {
	most := max(misses, MaxMisses)
	switch {
	case loss <= 0:
		return misses
	case loss >= 1:
		return most
	}
	return min(most, max(misses, int(math.Ceil(math.Log(missChance)/math.Log(loss)))))
}

// silentAfter is the time without an authentic frame after which this link is silent, given its recent losses.
// Damaged frames count here although anyone can send them: a stranger gains only that silence is detected some
// periods later.
func (l *Link) silentAfter() time.Duration {
	frames, errors := l.seq.judged()
	loss := max(errorRatio(errors, frames), l.seq.recentLoss())
	if l.crcPending > 0 {
		loss = max(loss, damagedLoss)
	}
	return time.Duration(ToleratedMisses(l.cfg.Misses, loss)+1) * l.cfg.Period
}

// recentLoss is the share missing of the last recentFrames numbers.
func (s *sequence) recentLoss() float64 {
	n := min(recentFrames, s.tail+s.count)
	if n == 0 {
		return 0
	}
	missing := 0
	for i := range n {
		if !s.got[s.slot(s.high-uint64(i))] {
			missing++
		}
	}
	return float64(missing) / float64(n)
}

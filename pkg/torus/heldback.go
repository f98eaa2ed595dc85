package torus

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// mostHeldBack bounds the numbers that wait. At one heartbeat in a period and a wait of one period, few do.
const mostHeldBack = 8

// heldBack are the sequence numbers of heartbeats that overtook other frames: heartbeats without news and other frames
// come through two sockets, and the one with the other frames may be full. The numbers between are not missing yet.
// They get a period to come. A heartbeat counts as a sign of life at once.
type heldBack struct {
	session uint32
	epoch   fault.Epoch
	numbers []uint64 // at most mostHeldBack
	since   time.Time
}

// holdBack reports whether a frame from the second socket overtook other frames. It then keeps the frame's number.
// fresh is false if the frame was here before.
func (l *Link) holdBack(now time.Time, f *Frame, forgive bool) (held, fresh bool) {
	if forgive || !l.restart.first.IsZero() || !l.seq.ahead(f.Session, f.Epoch, f.Seq) {
		return false, false
	}
	h := &l.heldBack
	if h.session != f.Session || h.epoch != f.Epoch {
		h.session, h.epoch, h.numbers = f.Session, f.Epoch, h.numbers[:0]
	}
	if slices.Contains(h.numbers, f.Seq) {
		return true, false
	}
	if len(h.numbers) == mostHeldBack {
		return false, false
	}
	if len(h.numbers) == 0 {
		h.since = now
	}
	h.numbers = append(h.numbers, f.Seq)
	return true, true
}

// release accepts the numbers that no longer leave a gap, and all after a period. Numbers of an earlier session or
// epoch are dropped.
func (l *Link) release(now time.Time) {
	h := &l.heldBack
	if len(h.numbers) == 0 {
		return
	}
	over := now.Sub(h.since) >= l.cfg.Period || !l.seq.follows(h.session, h.epoch)
	h.numbers = slices.DeleteFunc(h.numbers, func(n uint64) bool {
		if !over && l.seq.ahead(h.session, h.epoch, n) {
			return false
		}
		if gap, v := l.seq.accept(h.session, h.epoch, n, l.forgive); v == seqNext {
			l.countCRC(gap)
		}
		return true
	})
}

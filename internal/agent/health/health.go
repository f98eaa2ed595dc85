// Package health keeps what a half knows of how the halves of its node fare (recoveries, self-tests), so that it
// can be said with the half's digests, and turns what the daemon and the self-tests know into it. It judges nothing.
package health

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Keeper holds what was last said of each half, and counts its ages on. The zero value knows nothing.
type Keeper struct {
	halves [2]said
}

// said is what was said of a half, as of a time.
type said struct {
	at     time.Time
	health *lofamov1.HalfHealth
}

// Set replaces what is known of a half. h is not changed any more; nil: nothing is known.
func (k *Keeper) Set(now time.Time, half fault.Half, h *lofamov1.HalfHealth) {
	if half.Valid() {
		k.halves[half-fault.HalfHost] = said{now, h}
	}
}

// As returns what is known, with ages as of now.
func (k *Keeper) As(now time.Time) servicenet.Health {
	return servicenet.Health{Host: k.halves[0].as(now), DNP: k.halves[1].as(now)}
}

// as counts all ages on to now, but for AgeNs: since then nothing else was said, which is to be seen.
func (s *said) as(now time.Time) *lofamov1.HalfHealth {
	if s.health == nil {
		return nil
	}
	passed := max(0, now.Sub(s.at))
	h := proto.CloneOf(s.health)
	Older(h, passed)
	h.AgeNs = min(h.GetAgeNs()+uint64(passed), uint64(servicenet.MaxAge))
	return h
}

// Older adds to the ages of the last restart and of the tests, and takes from the time until a restart is over.
func Older(h *lofamov1.HalfHealth, by time.Duration) {
	if r := h.GetRecovery(); r != nil {
		if r.GetAgeNs() > 0 {
			r.AgeNs = min(r.GetAgeNs()+uint64(by), uint64(servicenet.MaxAge))
		}
		r.UntilMs -= uint32(min(int64(r.GetUntilMs()), by.Milliseconds()))
	}
	for _, t := range h.GetTests() {
		t.AgeMs = uint32(min(int64(t.GetAgeMs())+by.Milliseconds(), math.MaxUint32))
	}
}

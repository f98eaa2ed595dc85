package view

import (
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Health is what was said of a half of a node, in whole, and when the same was last heard: digests that say nothing new
// come without it.
type Health struct {
	Said             *lofamov1.HalfHealth // nil: nothing was said; not changed any more
	At, Heard, OldAt time.Time
}

// render counts ages on to now. What happened once grows older since it was said in whole; modules that are tested all the
// time were tested as lately as then when it was last heard.
func (h Health) render(now time.Time, d *lofamov1.DeliveryStatus) *lofamov1.HalfHealth {
	if h.Said == nil {
		return nil
	}
	out := proto.CloneOf(h.Said)
	since, heard := max(0, now.Sub(h.At)), max(0, now.Sub(h.Heard))
	if r := out.GetRecovery(); r != nil {
		if r.GetAgeNs() > 0 {
			r.AgeNs += uint64(since)
		}
		r.UntilMs -= uint32(min(int64(r.GetUntilMs()), since.Milliseconds()))
	}
	for _, t := range out.GetTests() {
		by := heard
		if t.GetState() == lofamov1.TestState_IDLE {
			by = since
		}
		t.AgeMs = uint32(min(int64(t.GetAgeMs())+by.Milliseconds(), 1<<32-1))
		t.Module = servicenet.ModuleName(t.GetNumber(), d)
	}
	out.AgeNs = min(out.GetAgeNs()+uint64(heard), uint64(servicenet.MaxAge))
	out.Old = Old(h.OldAt, now)
	return out
}

package sim

import (
	"bytes"
	"time"

	"github.com/lofamo/lofamo/internal/agent/dnpcore"
)

// backup is the copy of a DNP half: it outlives the half, and dies with the machine. How it lies in a file, and what becomes of
// that, is package backup's own business and tested there.
type backup struct {
	hops  dnpcore.Hops
	since [dnpcore.NumHeld]time.Time // when what is in a slot was kept for the first time
}

func (b *backup) keep(now time.Time, all []dnpcore.Keep) {
	for _, k := range all {
		if k.Dir.Valid() {
			b.hops.Links[k.Dir.Index()] = bytes.Clone(k.Bytes)
			continue
		}
		held := &b.hops.Held[k.Slot]
		if k.New {
			b.since[k.Slot] = now
		}
		held.Bytes = bytes.Clone(k.Bytes)
	}
}

// resume is what a half that starts now finds.
func (b *backup) resume(now time.Time) dnpcore.Hops {
	for i := range b.hops.Held {
		b.hops.Held[i].Age = now.Sub(b.since[i])
	}
	return b.hops
}

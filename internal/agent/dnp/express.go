package dnp

import (
	"encoding/binary"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/express"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/storage"
)

// The copy has a slot for each broadcast that the machine holds. Each slot begins with the time when it was stored,
// CLOCK_MONOTONIC in ns, 8 bytes big endian, as with held messages.
var (
	_ [storage.NumExpress]struct{}                               = [express.MaxHeld]struct{}{}
	_ [storage.MaxExpress - takenSize - express.MaxKeep]struct{} // not negative
	_ [storage.MaxExpressSeen - express.MaxKeepSeen]struct{}
)

// resumeExpress returns the broadcasts' state in the copy.
func (d *dnpHalf) resumeExpress() express.Resume {
	out := express.Resume{Number: d.Copy.Numbers.Express, Seen: d.Copy.File.ExpressSeen()}
	now := half.Monotonic()
	for i := range out.Held {
		if b := d.Copy.File.Express(i); len(b) >= takenSize {
			age := time.Duration(max(0, now-int64(binary.BigEndian.Uint64(b))))
			out.Held[i] = express.Kept{Bytes: b[takenSize:], Age: age}
		}
	}
	return out
}

// keepExpress stores a step's changes to broadcasts. It runs before the step's frames are sent, so that every
// acknowledged broadcast is in the copy.
func (d *dnpHalf) keepExpress(out *dnpcore.Output) {
	for _, k := range out.KeepExpress {
		var b []byte
		if k.Bytes != nil {
			b = append(binary.BigEndian.AppendUint64(d.held.buf[:0], uint64(half.Monotonic())), k.Bytes...)
		}
		d.Copy.Note(d.Log, d.Copy.File.StoreExpress(k.Place, b))
	}
	if out.KeepSeen != nil {
		d.Copy.Note(d.Log, d.Copy.File.StoreExpressSeen(out.KeepSeen))
	}
}

func (d *dnpHalf) countProcedures(out []uint32) {
	s := d.core.ProcedureStats()
	out[half.CountState], out[half.CountWave], out[half.CountClear], out[half.CountNotClear] = uint32(s.State), uint32(s.Wave),
		uint32(s.Clear), uint32(s.NotClear)
	out[half.CountRefused], out[half.CountHeldUp], out[half.CountWaiting], out[half.CountHeld] = uint32(s.Refused), uint32(s.HeldUp),
		uint32(s.Waiting), uint32(s.Held)
}

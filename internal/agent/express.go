package agent

import (
	"encoding/binary"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/express"

	"github.com/lofamo/lofamo/internal/agent/backup"
	"github.com/lofamo/lofamo/internal/agent/dnpcore"
)

// The copy has a place for each broadcast that the machine holds. Before each stands there the time when it was stored,
// CLOCK_MONOTONIC in ns, 8 bytes big endian, as with held messages.
var (
	_ [backup.NumExpress]struct{}                               = [express.MaxHeld]struct{}{}
	_ [backup.MaxExpress - takenSize - express.MaxKeep]struct{} // not negative
	_ [backup.MaxExpressSeen - express.MaxKeepSeen]struct{}
)

// resumeExpress returns what the copy holds of broadcasts.
func (d *dnpHalf) resumeExpress() express.Resume {
	out := express.Resume{Number: d.copy.numbers.Express, Seen: d.copy.file.ExpressSeen()}
	now := monotonic()
	for i := range out.Held {
		if b := d.copy.file.Express(i); len(b) >= takenSize {
			age := time.Duration(max(0, now-int64(binary.BigEndian.Uint64(b))))
			out.Held[i] = express.Kept{Bytes: b[takenSize:], Age: age}
		}
	}
	return out
}

// keepExpress stores what a step wants kept of broadcasts. It comes before its frames: what is acknowledged is in the copy.
func (d *dnpHalf) keepExpress(out *dnpcore.Output) {
	for _, k := range out.KeepExpress {
		var b []byte
		if k.Bytes != nil {
			b = append(binary.BigEndian.AppendUint64(d.held.buf[:0], uint64(monotonic())), k.Bytes...)
		}
		d.copy.note(d.log, d.copy.file.StoreExpress(k.Place, b))
	}
	if out.KeepSeen != nil {
		d.copy.note(d.log, d.copy.file.StoreExpressSeen(out.KeepSeen))
	}
}

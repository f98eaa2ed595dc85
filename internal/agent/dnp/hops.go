package dnp

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/storage/backup"
)

// The machine holds as many messages as the copy has slots for. Before each stands there the time when it was taken,
// CLOCK_MONOTONIC in ns, 8 bytes big endian: a copy is of one boot of the machine.
var _ [backup.NumRelay]struct{} = [dnpcore.NumHeld]struct{}{}

const takenSize = 8

// heldMessages are the messages that the copy holds.
type heldMessages struct {
	taken [dnpcore.NumHeld]int64 // when
	buf   [backup.MaxRelay]byte
}

// resumeHops returns what the copy holds of the messages that are passed on.
func (d *dnpHalf) resumeHops() (out dnpcore.Hops) {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	out.Stream = max(1, binary.BigEndian.Uint32(b[:]))
	for _, dir := range d.Topo.Links {
		out.Links[dir.Index()] = d.Copy.File.Hop(dir)
	}
	now := half.Monotonic()
	for i := range out.Held {
		b := d.Copy.File.Relay(i)
		if len(b) < takenSize {
			continue
		}
		d.held.taken[i] = int64(binary.BigEndian.Uint64(b))
		out.Held[i] = dnpcore.Held{Bytes: b[takenSize:], Age: time.Duration(max(0, now-d.held.taken[i]))}
	}
	return out
}

// randomSeed is that of the chance by which ways are chosen: two lives do not choose alike.
func randomSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

// keepHops stores what a step wants kept. It comes before its frames: what is acknowledged is in the copy.
func (d *dnpHalf) keepHops(all []dnpcore.Keep) {
	for _, k := range all {
		switch {
		case k.Dir.Valid():
			d.Copy.Note(d.Log, d.Copy.File.StoreHop(k.Dir, k.Bytes))
		case k.Bytes == nil:
			d.Copy.Note(d.Log, d.Copy.File.FreeRelay(k.Slot))
		default:
			if k.New {
				d.held.taken[k.Slot] = half.Monotonic()
			}
			b := binary.BigEndian.AppendUint64(d.held.buf[:0], uint64(d.held.taken[k.Slot]))
			d.Copy.Note(d.Log, d.Copy.File.StoreRelay(k.Slot, append(b, k.Bytes...)))
		}
	}
}

// hand gives messages that the machine holds to the host half, and tells it of those that the mailbox did not take.
func (d *dnpHalf) hand(mail []dnpcore.HostMail) {
	for _, h := range mail {
		if half.SendMail(d.box, h.Message, d.Log) != nil {
			d.then(dnpcore.NotTaken{Slot: h.Slot})
		}
	}
}

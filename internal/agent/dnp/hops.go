package dnp

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/storage"
)

// The machine holds as many messages as the copy has slots. Each slot begins with the time when the half accepted its
// message, CLOCK_MONOTONIC in ns, 8 bytes big endian; a copy belongs to one boot of the machine.
var _ [storage.NumRelay]struct{} = [dnpcore.NumHeld]struct{}{}

const takenSize = 8

// heldMessages are the messages in the copy.
type heldMessages struct {
	taken [dnpcore.NumHeld]int64 // acceptance times
	buf   [storage.MaxRelay]byte
}

// resumeHops returns the state of forwarded messages in the copy.
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

// randomSeed returns the seed of the random choice among routes. Two incarnations do not choose alike.
func randomSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

// keepHops stores a step's changes to messages. It runs before the step's frames are sent, so that every acknowledged
// message is in the copy.
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

// hand puts messages that the machine holds into the host half's mailbox, and reports to the machine those that the
// mailbox refused.
func (d *dnpHalf) hand(mail []dnpcore.HostMail) {
	for _, h := range mail {
		if half.SendMail(d.box, h.Message, d.Log) != nil {
			d.then(dnpcore.NotTaken{Slot: h.Slot})
		}
	}
}

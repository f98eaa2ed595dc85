package sim

import (
	"bytes"
	"time"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
)

// backup is the copy of a DNP half: it outlives the half, and dies with the machine. Package backup owns and tests its
// file format and its errors.
type backup struct {
	hops  dnpcore.Hops
	since [dnpcore.NumHeld]time.Time // when the content of a slot was first stored
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

// resume returns the data for a half that starts now.
func (b *backup) resume(now time.Time) dnpcore.Hops {
	for i := range b.hops.Held {
		b.hops.Held[i].Age = now.Sub(b.since[i])
	}
	return b.hops
}

// recover acts as the recovery daemon for a hanging DNP half: it kills the half, announces the time of its return on
// its links, and starts it from its copy.
func (n *node) recover(within time.Duration) {
	const announcements = 3
	if !n.dnp.running {
		return
	}
	n.dnp.kill()
	for _, d := range n.dnpCore.Links() {
		s := n.dnpCore.LinkSnapshot(d)
		if s.TxSession == 0 {
			continue
		}
		dst, _ := n.dnpCore.LinkTo(d)
		for range announcements {
			n.announced[d.Index()]++
			n.sendFrame(dnpcore.Outgoing{Dir: d, Frame: torus.RestartingFrame(torus.Frame{
				Direction: d, Src: n.topo.Coord, Dst: dst, Session: s.TxSession, Epoch: n.dnp.epoch, Seq: s.TxSeq + n.announced[d.Index()], Ack: s.High,
				DNP: n.page.dnp.Encode(), Host: n.page.host.Encode(),
			}, torus.Restarting{Back: within + time.Second, Attempt: 1})})
		}
	}
	n.w.after(within, func() {
		if !n.dnp.running && n.stop == nil {
			n.recovers = true
			n.start(fault.HalfDNP)
		}
	})
}

// recoverHost acts as the recovery daemon for a hanging host half: it kills the half, and after a time starts it from
// its copy, with a note of the restart.
func (n *node) recoverHost(after time.Duration) {
	n.host.kill()
	n.w.after(after, func() {
		if !n.host.running && n.stop == nil {
			n.recovers, n.proves = true, true
			n.start(fault.HalfHost)
			n.proves = false
		}
	})
}

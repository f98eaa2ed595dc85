package dnp

import (
	"time"

	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// OnPacket handles a packet. It allocates nothing for a heartbeat.
func (d *dnpHalf) OnPacket(dir grid.Direction, b []byte) {
	r := &d.readers.Ways[dir.Index()]
	r.Begin()
	defer r.End()
	for range failpoint.Packet(failpoint.LinkReceive, b) {
		d.onPacket(dir, b)
	}
}

func (d *dnpHalf) onPacket(dir grid.Direction, b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.readQuiet(now, dir) // they arrived before this packet
	f, err := d.authentic(now, dir, b)
	if err != nil {
		d.handle(now, dnpcore.Bad{Dir: dir, Kind: torus.KindOf(err), Count: 1})
		return
	}
	d.frame = dnpcore.Frame{Dir: dir, Frame: f}
	d.handle(now, &d.frame)
}

// handle steps the machine by an event, and carries out the output. If a tick is due, the machine may judge the silence
// of links, so it gets the heartbeats that wait before. It runs under the mutex.
func (d *dnpHalf) handle(now time.Time, ev dnpcore.Event) {
	d.readDue(now)
	d.apply(now, d.core.Step(now, ev))
}

// OnRefused handles the hint that a neighbour's process has ended. It may be the last one that makes the link silent, so
// the heartbeats that wait count before it.
func (d *dnpHalf) OnRefused(dir grid.Direction) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.onRefused(time.Now(), dir)
}

func (d *dnpHalf) onRefused(now time.Time, dir grid.Direction) {
	d.readQuiet(now, dir)
	d.handle(now, dnpcore.Refused{Dir: dir})
}

// readDue reads the heartbeats that wait at all links, if a tick is due. It runs under the mutex.
func (d *dnpHalf) readDue(now time.Time) {
	if !now.Before(d.alarm.Wake) {
		d.readQuiet(now, d.core.Links()...)
	}
}

// readQuiet handles the heartbeats of links that waited because they say nothing new. The machine judges the links with
// the next event, at the same time. It runs under the mutex.
func (d *dnpHalf) readQuiet(now time.Time, dirs ...grid.Direction) {
	d.quiet.at = now
	for _, dir := range dirs {
		if l := d.links[dir.Index()]; l != nil {
			l.ReadQuiet(now, d)
		}
	}
	d.stepQuiet()
}

// quietFrames are frames that waited, for one step of the machine.
type quietFrames struct {
	at     time.Time
	waited dnpcore.Waited
}

func (d *dnpHalf) stepQuiet() {
	if q := &d.quiet; len(q.waited.Frames) > 0 {
		d.settle(q.at, d.core.Step(q.at, &q.waited))
		q.waited.Frames = q.waited.Frames[:0]
	}
}

// OnQuiet takes one of these heartbeats, and reports whether it is authentic. It is the path of almost all of them, and
// allocates nothing.
func (d *dnpHalf) OnQuiet(dir grid.Direction, b []byte, waited time.Duration) (authentic bool) {
	authentic = true
	for range failpoint.Packet(failpoint.LinkReceive, b) {
		q := &d.quiet
		f, err := d.authentic(q.at, dir, b)
		if authentic = err == nil; !authentic {
			d.stepQuiet() // in order
			d.settle(q.at, d.core.Step(q.at, dnpcore.Bad{Dir: dir, Kind: torus.KindOf(err), Count: 1, More: true}))
			continue
		}
		q.waited.Frames = append(q.waited.Frames, dnpcore.Frame{Dir: dir, Frame: f, Waited: waited, More: true})
		if len(f.Payload) > 0 {
			d.stepQuiet() // the next packet takes its memory
		}
	}
	return authentic
}

// authentic returns the frame of a packet, or why torus.Decode refuses it.
func (d *dnpHalf) authentic(now time.Time, dir grid.Direction, b []byte) (torus.Frame, error) {
	keys := &d.keys[dir.Index()]
	f, err := torus.Decode(b, d.Config.MTU, keys)
	if err == nil {
		keys.Confirm(f.Session)
		d.links[dir.Index()].Known(now, &f)
	}
	return f, err
}

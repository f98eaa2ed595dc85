package dnpcore

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/routing"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// Stores are ordered so that this half may be killed between any two stores: a stream before its first message, the
// message before the window that acknowledges it, and every acknowledgement after all of these.
func TestKeptBeforeAcknowledged(t *testing.T) {
	w := newWorld(t, "2x2x1", "0,0,0")
	p := w.peer(grid.YPlus)
	for _, p := range w.peers {
		p.status.Hops, p.mute = true, true
		w.receive(p, p.machine.NextFrame(p.status))
	}
	w.setHost([]string{"word", "service-network"})
	hd, _ := p.hop.Send(w.now, 0)
	b, err := halfcore.Relay{Kind: halfcore.RelayUp, Limit: 9, Made: 1, Envelope: []byte("rise")}.Append(hd.Append(nil))
	w.must(err)
	f := torus.Frame{Type: torus.TypeHop, Payload: b}
	p.machine.Fill(&f)
	out := w.m.Step(w.now, &Frame{Dir: p.dir, Frame: f})
	var order []string
	for _, k := range out.Keep {
		if !k.Dir.Valid() {
			order = append(order, fmt.Sprintf("slot %d", k.Slot))
			continue
		}
		s, ok := torus.DecodeHopSnapshot(k.Bytes)
		if !ok {
			t.Fatalf("hop of %s: %x", k.Dir, k.Bytes)
		}
		order = append(order, fmt.Sprintf("hop %s taken %d", k.Dir, s.Ack))
	}
	if got := fmt.Sprint(order); got != "[hop Y+ taken 0 slot 0 hop X+ taken 0 hop Y+ taken 1]" {
		t.Error(got)
	}
	last := out.Frames[len(out.Frames)-1]
	if ack, _, err := torus.DecodeHop(last.Frame.Payload); err != nil || last.Dir != grid.YPlus || ack.Ack != 1 {
		t.Errorf("%+v, %v", last, err)
	}
}

// When all slots are full a message is neither accepted nor acknowledged. It is accepted when it comes again and there
// is room. The half's own messages are sent all the same.
func TestMessageWaitsForFreeSlot(t *testing.T) {
	w := newWorld(t, "2x2x1", "0,0,0")
	w.m.cfg.RelayRate = 1000
	for _, p := range w.peers {
		p.status.Hops, p.mute = true, true
		w.receive(p, p.machine.NextFrame(p.status))
		l := w.m.links[p.dir.Index()]
		l.bucket = newBucket(1000, 1000, w.now)
	}
	w.setHost([]string{"word", "service-network"})
	p := w.peer(grid.YPlus)
	up := func(i int) {
		w.message(p, halfcore.Relay{Kind: halfcore.RelayUp, Limit: 9, Made: 1, Envelope: fmt.Append(nil, i),
			Hops: []halfcore.RelayHop{{Half: fault.HalfDNP}}})
	}
	room := w.m.room()
	for i := range room {
		up(i)
	}
	if s := w.m.HopStats(); s.Held != room || s.Refused != 0 {
		t.Fatalf("%+v", s)
	}
	last := p.hop
	p.hop = torus.NewHop(w.m.hopConfig(), 99) // its window is free
	up(1000)
	if s := w.m.HopStats(); s.Held != room || s.Refused != 1 {
		t.Errorf("%+v", s)
	}
	w.deeds = nil
	w.step(FromHost{Message: halfcore.Relay{Kind: halfcore.RelayUp, Envelope: []byte("own")}})
	if len(w.deeds) == 0 {
		t.Error("an own message waits for room")
	}
	p.hop = last
	w.run(hopLife + 100*time.Millisecond)
	if s := w.m.HopStats(); s.Held != 0 || int(s.Expired) != room {
		t.Fatalf("%+v", s)
	}
	w.frame(p, torus.TypeHop, p.sent[len(p.sent)-1])
	if s := w.m.HopStats(); s.Held != 1 {
		t.Errorf("it is not taken when there is room: %+v", s)
	}
}

// When too many messages are in flight over a link, an acknowledged message waits until there is room, and then goes.
func TestMessageWaitsForRoomOnLink(t *testing.T) {
	w := newWorld(t, "3x1x1", "0,0,0")
	for _, p := range w.peers {
		p.status.Hops, p.mute = true, p.dir == grid.XPlus
		w.receive(p, p.machine.NextFrame(p.status))
	}
	down := func(text string) {
		w.message(w.peer(grid.XMinus), halfcore.Relay{Kind: halfcore.RelayDown, Limit: 9, Made: 1, Dst: grid.Coord{X: 1}, Envelope: []byte(text)})
	}
	down("first")
	for hop := w.m.links[grid.XPlus.Index()].hop; ; {
		hd, ok := hop.Send(w.now, 0)
		if !ok {
			break
		}
		hop.Abandon(hd.Number)
	}
	w.deeds = nil
	down("second")
	if got := strings.Join(w.deeds, "\n"); strings.Contains(got, "second") || !strings.Contains(got, "acknowledges to X-: 2") {
		t.Errorf("sent where there is no room, or not acknowledged:\n%s", got)
	}
	if s := w.m.HopStats(); s.Held != 2 {
		t.Errorf("%+v", s)
	}
	w.peer(grid.XPlus).mute = false
	w.run(time.Second)
	if got := strings.Join(w.deeds, "\n"); strings.Count(got, `"second"`) != 1 || !strings.Contains(got, "number 65 on 65") {
		t.Errorf("it goes when there is room, and once:\n%s", got)
	}
	if s := w.m.HopStats(); s.Held != 0 || s.Expired != 0 {
		t.Errorf("%+v", s)
	}
}

// TestMessageOnDetoursHoldsOneSlot: the destination has announced that it is away, so its message passes by again and again, and its sender
// repeats it. It waits in one slot for as long as after its last arrival, and reaches the destination once.
func TestMessageOnDetoursHoldsOneSlot(t *testing.T) {
	w := newWorld(t, "3x3x1", "0,0,0")
	w.m.cfg.MaxHops, w.m.cfg.Routing = 32, routing.Chaos
	for _, p := range w.peers {
		p.status.Hops = true
		w.receive(p, p.machine.NextFrame(p.status))
	}
	away := w.peer(grid.XPlus)
	w.receive(away, torus.RestartingFrame(away.machine.NextFrame(away.status), torus.Restarting{Back: 10 * time.Second, Attempt: 1}))
	away.alive = false
	arrive := func(made uint8, from grid.Direction) {
		w.message(w.peer(from), halfcore.Relay{Kind: halfcore.RelayDown, Limit: 32, Made: made, Dst: grid.Coord{X: 1},
			Envelope: []byte("challenge")})
		w.run(100 * time.Millisecond)
		if s := w.m.HopStats(); s.Held != 1 {
			t.Errorf("%s after the announcement: %+v, want one message held", w.now.Sub(w.begun), s)
		}
	}
	for made, from := range []grid.Direction{grid.YMinus, grid.XMinus, grid.YPlus, grid.YMinus} {
		arrive(uint8(1+2*made), from)
	}
	w.run(4 * time.Second)
	arrive(1, grid.YMinus) // its sender repeats it
	w.run(hopLife / 2)
	w.deeds, away.alive = nil, true
	w.receive(away, away.machine.NextFrame(away.status))
	w.run(time.Second)
	if got := strings.Join(w.deeds, "\n"); strings.Count(got, `"challenge"`) != 1 {
		t.Errorf("want it once at the destination:\n%s", got)
	}
	if s := w.m.HopStats(); s.Held != 0 || s.Expired != 0 {
		t.Errorf("%+v", s)
	}
}

// Holding time counts, also across a restart.
func TestAgeIncludesTimeInCopy(t *testing.T) {
	w := newWorld(t, "2x2x1", "0,0,0")
	p := w.peer(grid.XPlus)
	p.status.Hops, p.mute = true, true
	w.receive(p, p.machine.NextFrame(p.status))
	w.setHost([]string{"word", "service-network"})
	w.message(w.peer(grid.YPlus), halfcore.Relay{Kind: halfcore.RelayUp, Limit: 9, Made: 1, Envelope: []byte("rise"),
		Hops: []halfcore.RelayHop{{Half: fault.HalfDNP, Held: time.Second}}})
	if w.kept.Held[0].Bytes == nil {
		t.Fatal("not kept")
	}
	w.kept.Held[0].Age = 300 * time.Millisecond
	w.cfg.Hops = w.kept
	m, err := New(w.cfg, w.now, 7)
	w.must(err)
	m.Step(w.now, Tick{})
	m.Step(w.now, Session{Dir: grid.XPlus, ID: 50})
	out := m.Step(w.now.Add(100*time.Millisecond), Tick{})
	for _, f := range out.Frames {
		if f.Frame.Type != torus.TypeHop || f.Dir != grid.XPlus {
			continue
		}
		_, b, err := torus.DecodeHop(f.Frame.Payload)
		w.must(err)
		msg, err := halfcore.DecodeRelay(b)
		w.must(err)
		if n := len(msg.Hops); msg.Made != 2 || n != 2 || msg.Hops[0].Held != time.Second || msg.Hops[1].Held != 400*time.Millisecond {
			t.Errorf("%+v", msg)
		}
		return
	}
	t.Errorf("not sent again: %+v", out.Frames)
}

// An idle link carries only heartbeats, which are no longer than without hops.
func TestIdleLinksCarryHeartbeatsAlone(t *testing.T) {
	w := newWorld(t, "2x2x1", "0,0,0")
	for _, p := range w.peers {
		p.status.Hops = true
		w.receive(p, p.machine.NextFrame(p.status))
	}
	frames := 0
	for end := w.now.Add(time.Second); w.now.Before(end); {
		w.now = w.wake
		out := w.m.Step(w.now, Tick{})
		for _, f := range out.Frames {
			if frames++; f.Frame.Type != torus.TypeHeartbeat || len(f.Frame.Payload) > 0 || f.Frame.Flags&torus.FlagHops == 0 {
				t.Fatalf("%+v", f.Frame)
			}
		}
		if len(out.Keep) > 0 {
			t.Fatalf("kept: %+v", out.Keep)
		}
		w.apply(out)
		for _, p := range w.peers {
			w.tickPeer(p)
		}
	}
	if frames == 0 {
		t.Error("none at all")
	}
}

// A malformed frame of TypeHop is the neighbour's fault, and is not taken as a message.
func TestMalformedHopFrameBlamesNeighbour(t *testing.T) {
	w := newWorld(t, "2x2x1", "0,0,0")
	w.frame(w.peer(grid.XPlus), torus.TypeHop, []byte("short"))
	if v := w.m.exceptions.at(watchdog.AddrRouter0).value; v != watchdog.RouterProtocolMalformed || w.m.word.Core != watchdog.HealthNormal {
		t.Errorf("router %#x, core %s", v, w.m.word.Core)
	}
}

func FuzzDecodeSlot(f *testing.F) {
	s := slot{from: grid.YMinus, stream: 7, number: 9,
		msg: halfcore.Relay{Kind: halfcore.RelayDown, Limit: 3, Dst: grid.Coord{X: 1}, Envelope: []byte("x")}}
	s.wait[2] = 1 << 40
	b, err := s.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:slotHeader])
	up := append(append([]byte(nil), b[:slotHeader]...), 1, byte(halfcore.RelayUp), 0, 3, 0, 9, 0, 0, 0, 0, 0, 'x') // no coordinates
	f.Add(up)
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok := decodeSlot(b)
		if !ok {
			return
		}
		again, err := s.encode() // not always the same bytes: the message leaves out unused fields
		if err != nil || len(b) > MaxKept {
			t.Fatalf("%x becomes %x, %v", b, again, err)
		}
		if got, ok := decodeSlot(again); !ok || !reflect.DeepEqual(got, s) {
			t.Fatalf("%x is %+v, and then %+v, %t", b, s, got, ok)
		}
	})
}

package torus

import (
	"bytes"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// FuzzDecodeRestarting: an accepted announcement encodes to the same bytes. However often a peer announces, silence
// counts no later than MaxRestarting after the first announcement.
func FuzzDecodeRestarting(f *testing.F) {
	f.Add(Restarting{Back: 2 * time.Second, Attempt: 1}.Append(nil), uint16(100))
	f.Add(append(Restarting{Back: 1<<32 - 1, Attempt: 1 << 31}.Append(nil), "of a later version"...), uint16(29_999))
	f.Add([]byte{1, 2, 3}, uint16(0))
	f.Fuzz(func(t *testing.T, b []byte, again uint16) {
		r, err := DecodeRestarting(b)
		if err == nil && !bytes.Equal(r.Append(nil), b[:restartingSize]) {
			t.Fatalf("%x is %+v, which is written as %x", b, r, r.Append(nil))
		}
		now := time.Unix(1000, 0)
		l := NewLink(testConfig(), now)
		frame := Frame{Type: TypeHeartbeat, Direction: grid.XMinus, Src: grid.Coord{X: 1}, Seq: 1, Epoch: 1}
		l.Step(now, FrameReceived{Frame: frame})
		frame.Type, frame.Payload = TypeRestarting, b
		var wake time.Time // when to look next, as the link itself wants it
		for i := range uint64(3) {
			frame.Seq = 2 + i
			wake = l.Step(now.Add(time.Duration(i)*time.Duration(again)*time.Millisecond), FrameReceived{Frame: frame}).Wake
		}
		end, state := now.Add(3*MaxRestarting), LinkState(0)
		for n := 0; wake.Before(end) && state != LinkBroken; n++ {
			if n > 100_000 {
				t.Fatalf("%x: wakes without end at %s", b, wake.Sub(now))
			}
			out := l.Step(wake, Tick{})
			wake, state = out.Wake, out.State
		}
		if state != LinkBroken {
			t.Fatalf("%x: the link is %s long after the last announcement", b, state)
		}
	})
}

// FuzzDecodeHopSnapshot: an accepted snapshot encodes to the same bytes, and a hop resumes from it: its messages have
// new numbers, and accepted messages stay accepted.
func FuzzDecodeHopSnapshot(f *testing.F) {
	h := NewHop(hopConfig, 7)
	h.Send(time.Unix(1, 0), 1)
	f.Add(h.Snapshot().Append(nil), uint64(1))
	f.Add(HopSnapshot{Stream: 1, Next: maxHopNumber, Rx: 2, Ack: 5, Taken: 3}.Append(nil), uint64(1<<64-1))
	f.Add([]byte("short"), uint64(0))
	f.Fuzz(func(t *testing.T, b []byte, number uint64) {
		s, ok := DecodeHopSnapshot(b)
		if !ok {
			return
		}
		if again := s.Append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x is %+v, which is written as %x", b, s, again)
		}
		h := ResumeHop(hopConfig, s)
		if got := h.Snapshot(); got != s {
			t.Fatalf("resumed from %+v it is %+v", s, got)
		}
		now := time.Unix(1, 0)
		restored := h.Restore(now, number, 1)
		hd, sent := h.Send(now, 2)
		if sent && hd.Number < s.Next || sent && restored && hd.Number == number {
			t.Fatalf("resumed from %+v it sends number %d", s, hd.Number)
		}
		in := HopHeader{Stream: s.Rx, Number: s.Ack, Base: s.Ack}
		if s.Rx != 0 && s.Ack != 0 && h.Receive(in) == HopNew {
			t.Fatalf("resumed from %+v it takes number %d anew", s, s.Ack)
		}
	})
}

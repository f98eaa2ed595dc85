package storage

import (
	"bytes"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// FuzzCopyRecords checks that a link resumes from any bytes in a cell of the copy and works in time, and that decoded
// records are encoded alike.
func FuzzCopyRecords(f *testing.F) {
	var b [countersSize]byte
	encodeCounters(&b, &torus.LinkSnapshot{TxSession: 1, TxSeq: 9, Acked: 8, Started: true, RxSession: 2, High: 7, Replay: 1,
		Rx: torus.LinkNormal, Tx: torus.LinkSick, Silent: true, HeardAge: time.Second})
	f.Add(b[:])
	f.Add(bytes.Repeat([]byte{0xff}, countersSize))
	f.Add([]byte("a report that is longer than its header"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if r, ok := decodeCopiedReport(in); ok && len(r.Payload)+reportHeader != len(in) {
			t.Fatalf("%d bytes hold a report of %d", len(in), len(r.Payload))
		}
		s, ok := decodeCounters(in)
		if !ok {
			return
		}
		var again [countersSize]byte
		encodeCounters(&again, &s)
		if got, _ := decodeCounters(again[:]); got != s {
			t.Fatalf("%+v, and written and read again %+v", s, got)
		}
		now := time.Unix(1000, 0)
		l := torus.ResumeLink(torus.LinkConfig{
			Dir: grid.XPlus, Dst: grid.Coord{X: 1}, Period: 25 * time.Millisecond, Misses: 2, Grace: 200 * time.Millisecond,
			SickRatio: 0.05, ClearRatio: 0.01, Window: 40, MinErrors: 3, HoldOff: 500 * time.Millisecond,
		}, now, s)
		for range 50 {
			out := l.Step(now, torus.Tick{})
			if !out.Wake.After(now) || out.Wake.After(now.Add(time.Hour)) || !out.State.Valid() {
				t.Fatalf("resumed from %+v it is %s and wakes %s later", s, out.State, out.Wake.Sub(now))
			}
			l.NextFrame(torus.Status{})
			now = out.Wake
		}
		l.Step(now, torus.FrameReceived{Frame: torus.Frame{Type: torus.TypeHeartbeat, Direction: grid.XMinus, Src: grid.Coord{X: 1},
			Seq: s.High + 1, Epoch: max(1, s.PeerEpoch)}})
	})
}

package hostcore

import (
	"bytes"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/routing"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// An envelope that is longer than a relayed message goes down in pieces, each of which a relay carries; one that no
// buffer holds is refused.
func TestLongDowncallGoesInPieces(t *testing.T) {
	w := newWorld(t, "3x3x1", "0,0,0", nil)
	long := bytes.Repeat([]byte("order "), 250)
	w.m.out = Output{}
	w.m.passDown("n2-1-0", long)
	var r routing.Reorder
	var whole []byte
	for _, m := range w.m.out.Relay {
		if _, err := m.Append(nil); err != nil || m.Dst != (grid.Coord{X: 2, Y: 1}) {
			t.Errorf("piece to %s: %v", m.Dst, err)
		}
		var err error
		if whole, _, err = r.Take(time.Unix(0, 0), 0, m.Envelope); err != nil {
			t.Error(err)
		}
	}
	if len(w.m.out.Relay) != 2 || !bytes.Equal(whole, long) {
		t.Errorf("%d messages, which make %q", len(w.m.out.Relay), whole)
	}
	w.m.out = Output{}
	w.m.passDown("n2-1-0", make([]byte, halfcore.MaxRelayEnvelope))
	if len(w.m.out.Relay) != 1 || routing.IsPiece(w.m.out.Relay[0].Envelope) {
		t.Errorf("what fits is split: %d messages", len(w.m.out.Relay))
	}
	w.m.out = Output{}
	w.m.passDown("n2-1-0", make([]byte, routing.MaxMessage+1))
	if len(w.m.out.Relay) != 0 || len(w.m.out.Notes) != 1 {
		t.Errorf("what is too long is sent: %d messages", len(w.m.out.Relay))
	}
}

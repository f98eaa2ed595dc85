package host

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/routing"
)

// The host half reassembles the pieces from the DNP half into one envelope, also after an earlier envelope stayed
// incomplete.
func TestHostHalfMakesEnvelopesWhole(t *testing.T) {
	h := &hostHalf{}
	h.Log = slog.New(slog.DiscardHandler)
	now := time.Unix(0, 0)
	long := bytes.Repeat([]byte("order "), 500)
	pieces, err := routing.Split(grid.Coord{}, long, routing.MaxPiece)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.whole(now, []byte("short")); string(got) != "short" {
		t.Errorf("%q", got)
	}
	if got := h.whole(now, pieces[1]); got != nil {
		t.Errorf("%q of one piece", got)
	}
	now = now.Add(routing.MissingAfter)
	for i, p := range pieces {
		if got := h.whole(now, p); (i == len(pieces)-1) != bytes.Equal(got, long) {
			t.Errorf("piece %d of %d makes %d bytes", i+1, len(pieces), len(got))
		}
	}
	if s := h.pieces.Stats(); s.Whole != 1 || s.Missing != 1 {
		t.Errorf("%+v", s)
	}
}

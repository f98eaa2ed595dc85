package dnpcore

import (
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/routing"
)

// A node that begins messages without end and completes none does not fill the log.
func TestNotesOfMissingPiecesAreBounded(t *testing.T) {
	w := newMesh(t, "4x1x1", 1, nil)
	n := w.nodes[0]
	n.m.out.Notes = nil
	begin := func(i int) {
		message := make([]byte, routing.MaxPiece+1+i)
		pieces, err := routing.Split(grid.Coord{X: 2}, message, routing.MaxPiece)
		if err != nil {
			t.Fatal(err)
		}
		n.m.arrive(w.now, n.m.links[grid.XPlus.Index()], pieces[0])
	}
	const begun = 1000
	for i := range begun {
		begin(i)
	}
	if got := len(n.m.out.Notes); got != 1 {
		t.Errorf("%d log lines about %d incomplete messages at once: want 1", got, begun)
	}
	w.now = w.now.Add(noteEvery)
	begin(begun)
	if got := n.m.out.Notes[len(n.m.out.Notes)-1].Text; !strings.Contains(got, "more messages") {
		t.Errorf("log line after %s: %q: want the number of messages between", noteEvery, got)
	}
}

package dnpcore

import (
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A diagnosis does not unmask a person's mask, and a person does not unmask a diagnosis's: they are separate.
func TestPersonAndDiagnosisKeepSeparateMasks(t *testing.T) {
	w := newMesh(t, "4x1x1", 1, nil)
	n := w.nodes[0]
	inForce := func(what string, want chanmask.Mask) {
		t.Helper()
		if _, got := n.m.Mask(); got != want {
			t.Errorf("%s: in force %v: want %v", what, got, want)
		}
	}
	w.step(n, OwnMask{chanmask.All.Without(grid.XPlus)})
	inForce("a person's", chanmask.All.Without(grid.XPlus))
	n.m.setOwn(w.now, chanmask.All.Without(grid.XMinus))
	inForce("both", chanmask.All.Without(grid.XPlus, grid.XMinus))
	n.m.setOwn(w.now, chanmask.All)
	inForce("after a diagnosis that found all well", chanmask.All.Without(grid.XPlus))
	n.m.setOwn(w.now, chanmask.All.Without(grid.XMinus))
	w.step(n, OwnMask{chanmask.All})
	inForce("taken back by the person", chanmask.All.Without(grid.XMinus))
}

// A neighbour that keeps changing its mask of a link does not fill the log, and each change still counts.
func TestNotesOfMasksAreBounded(t *testing.T) {
	w := newMesh(t, "4x1x1", 1, nil)
	n := w.nodes[0]
	l := n.m.links[grid.XPlus.Index()]
	n.m.out.Notes = nil
	for i := range 1000 {
		l.peer.Masked = i%2 == 0
		n.m.peerMasked(w.now, l)
	}
	if got := len(n.m.out.Notes); got != 1 {
		t.Errorf("%d lines of 1000 changes at once", got)
	}
	n.m.peerMasked(w.now.Add(noteEvery), l)
	if got := n.m.out.Notes[len(n.m.out.Notes)-1].Text; got != "link X+: masked by the neighbour false (and 999 changes since the last line)" {
		t.Errorf("%q", got)
	}
}

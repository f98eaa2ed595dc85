package hostcore

import (
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
)

// TestMissingQuorumSinceStartIsKnown checks that a half that has seen no quorum since its start does not invent a time of
// loss.
func TestMissingQuorumSinceStartIsKnown(t *testing.T) {
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{cfg: Config{Periods: p}}
	for _, c := range []struct {
		after       time.Duration
		without     int64
		stale, aged bool
		confirmed   time.Duration // after the start; 0: never
	}{
		{time.Minute, -1, true, true, 0},
		{2 * time.Minute, 30_000, true, false, 90 * time.Second},
		{3 * time.Minute, 120_000, true, false, 90 * time.Second}, // another replica knows less
		{4 * time.Minute, -1, true, false, 90 * time.Second},
		{5 * time.Minute, 0, false, true, 5 * time.Minute},
		{5*time.Minute + time.Second, -1, false, false, 5 * time.Minute},
	} {
		m.out = Output{}
		m.noteQuorum(start.Add(c.after), c.without)
		want := time.Time{}
		if c.confirmed > 0 {
			want = start.Add(c.confirmed)
		}
		if m.stale != c.stale || m.out.Aged != c.aged || !m.confirmed.Equal(want) {
			t.Errorf("after %s, %d ms without: stale %v (changed %v), confirmed %s: want %v (%v), %s", c.after, c.without, m.stale, m.out.Aged,
				m.confirmed, c.stale, c.aged, want)
		}
	}
}

// A replacement neighbour is known by its own name: observations of the old one are withdrawn, and the half needs a
// full update.
func TestReplacedNeighbourResetsFaultView(t *testing.T) {
	w := newWorld(t, "3x1x1", "0,0,0", nil)
	w.regs.DNP.NeighbourHostFailed[grid.XPlus.Index()] = true
	w.m.registers = w.regs
	for _, n := range w.m.cfg.Topo.Neighbours {
		w.m.observeNeighbour(w.now, n)
	}
	if s := w.m.ledger.State("n1-0-0", fault.ComponentHost); s != fault.Failed {
		t.Fatalf("n1-0-0 is %s: the test tests nothing", s)
	}
	w.m.view.Take(&lofamov1.FaultUpdate{Node: "n0-0-0", Revision: 9, Parts: 1,
		Nodes: []*lofamov1.NodeView{{Id: "n1-0-0", State: lofamov1.State_FAILED}}})
	if w.m.view.DigestRevision() != 9 {
		t.Fatalf("view revision %d", w.m.view.DigestRevision())
	}
	w.step(Neighbours{halfcore.NewTopology("n0-0-0", grid.Coord{}, w.m.cfg.Topo.Dims, map[grid.Direction]fault.NodeID{grid.XPlus: "spare-0"})})
	if s := w.m.ledger.State("n1-0-0", fault.ComponentHost); s != fault.Unknown {
		t.Errorf("n1-0-0 is %s still", s)
	}
	if at, ok := w.m.cfg.Topo.At("spare-0"); !ok || at != (grid.Coord{X: 1}) || w.m.view.DigestRevision() != 0 ||
		w.m.view.Node("n1-0-0").GetState() != lofamov1.State_UNKNOWN {
		t.Errorf("spare-0 at %s %t, view revision %d, n1-0-0 %v", at, ok, w.m.view.DigestRevision(), w.m.view.Node("n1-0-0"))
	}
	w.m.view.Take(&lofamov1.FaultUpdate{Node: "n0-0-0", Revision: 9, Parts: 1,
		Nodes: []*lofamov1.NodeView{{Id: "spare-0", State: lofamov1.State_NORMAL}}})
	if w.m.view.DigestRevision() != 9 || w.m.view.Node("spare-0").GetState() != lofamov1.State_NORMAL {
		t.Errorf("view revision %d, spare-0 %v", w.m.view.DigestRevision(), w.m.view.Node("spare-0"))
	}
}

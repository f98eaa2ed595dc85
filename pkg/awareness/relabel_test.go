package awareness

import (
	"reflect"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestRelabelForgetsNothing checks that new labels keep every node's state, signs of life and registers, and that
// restated digests still apply.
func TestRelabelForgetsNothing(t *testing.T) {
	cfg := testConfig(grid.Dims{X: 4, Y: 4, Z: 1})
	label(&cfg, "rack", func(c grid.Coord) int { return c.X })
	w, err := newWorld(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	w.actor("n1-1-0", fault.HalfHost).alive = false
	w.run(3 * time.Second)
	before, wake := w.m.Nodes(), w.m.wake()
	out := w.m.Step(w.now, Labelled{Labels: map[fault.NodeID]map[string]string{"n0-0-0": {"power": "a"}, "nobody": {"power": "a"}},
		DomainLabels: []string{"power"}})
	if len(out.Changes)+len(out.Groups)+len(out.Challenges) != 0 || !out.Wake.Equal(wake) {
		t.Errorf("it has the machine say %+v, and wake at %s: want %s", out, out.Wake, wake)
	}
	if after := w.m.Nodes(); !reflect.DeepEqual(before, after) {
		t.Errorf("the nodes were\n%+v\nand are\n%+v", before, after)
	}
	a := w.actor("n0-0-0", fault.HalfHost)
	if out := w.m.Step(w.now, Restated{Origin: a.origin, Epoch: a.epoch, Seq: a.seq + 1, Path: fault.PathDirect}); out.Unknown {
		t.Error("what a digest says is forgotten")
	}
}

// TestRelabelInGrace checks that a machine in its grace period still finds no group early.
func TestRelabelInGrace(t *testing.T) {
	cfg := testConfig(grid.Dims{X: 4, Y: 1, Z: 1})
	m, err := New(cfg, epoch0, nil)
	if err != nil {
		t.Fatal(err)
	}
	label(&cfg, "rack", func(grid.Coord) int { return 0 })
	out := m.Step(epoch0, Labelled{Labels: cfg.Labels, DomainLabels: cfg.DomainLabels})
	if want := epoch0.Add(cfg.Grace); out.Wake.IsZero() || out.Wake.After(want) || m.common.look.Before(want) {
		t.Errorf("it wakes at %s and looks at %s: want %s", out.Wake, m.common.look, want)
	}
}

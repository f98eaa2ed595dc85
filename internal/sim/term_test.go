package sim

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestTimeInBacklogIsNoTimeOfLife: a digest that waited in a follower's backlog shows that its node lived before the wait.
func TestTimeInBacklogIsNoTimeOfLife(t *testing.T) {
	w, err := New(Config{Dims: grid.Dims{X: 2, Y: 2, Z: 1}, Periods: preset(t, config.PresetDefault), Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.Run(5 * time.Second)
	n := w.nodes[1]
	n.host.kill()
	n.dnp.kill()
	w.Run(2 * time.Second)
	for _, r := range w.replicas {
		if r.term == nil {
			continue
		}
		const held = time.Second
		origin := fault.Origin{Node: n.id(), Half: fault.HalfHost}
		next := r.term.inbox.Position(origin)
		r.term.take(input{
			reports: []fault.Report{{ID: fault.ReportID{Origin: origin, Epoch: next.Epoch, Seq: 1 << 20}, Digest: true}}, path: fault.PathDirect,
			to: ackTo{by: r, from: n}, arrived: w.now, held: held,
		})
		if got, want := r.term.machine.Life(n.id()), r.clock().Add(-held); got.Sub(want).Abs() > time.Millisecond {
			t.Errorf("node lived at %s: want %s", got, want)
		}
		return
	}
	t.Error("no replica leads")
}

package sim

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestResumedHalfKnowsItsBroadcasts: a DNP half that resumes from its copy goes on from the number of its last broadcast, as the daemon's
// does. Otherwise, when its own broadcast comes back, it takes it for one that a neighbour forged.
func TestResumedHalfKnowsItsBroadcasts(t *testing.T) {
	w, err := New(Config{Dims: grid.Dims{X: 2, Y: 2, Z: 1}, Periods: preset(t, config.PresetDefault), Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.Run(2 * time.Second)
	n := w.nodes[1]
	n.stepDNP(dnpcore.RaiseEureka{Raise: express.Raise{Topic: express.TopicJob, Body: []byte{1}}})
	last := n.dnpCore.ExpressNumber()
	n.recover(time.Second)
	w.Run(2 * time.Second)
	if got := n.dnpCore.ExpressNumber(); !n.dnp.running || last == 0 || got < last {
		t.Errorf("after its broadcast %d and a restart the half knows %d", last, got)
	}
}

package sim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/response/policy"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestColdStartIsNoStorm: the power of all machines fails and comes back. Six of 16 nodes start a minute later than the others, which
// start together with the supervisors, or before or after them. The breaker stays closed. A storm that follows opens it.
func TestColdStartIsNoStorm(t *testing.T) {
	docs, err := policy.Parse([]byte(eager))
	if err != nil {
		t.Fatal(err)
	}
	periods, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	for name, waits := range map[string]struct{ supervisors, nodes string }{
		"together": {"0s", "0s"}, "supervisors first": {"0s", "30s"}, "nodes first": {"30s", "0s"},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := New(Config{Dims: grid.Dims{X: 4, Y: 2, Z: 2}, Periods: periods, Seed: 1,
				Responses: &Responses{Limits: responseLimits(), Policies: policy.Policies(docs)}})
			if err != nil {
				t.Fatal(err)
			}
			r := &runner{World: w, periods: periods}
			do := func(line string) {
				t.Helper()
				if err := r.do(strings.Fields(line)); err != nil || len(w.broken) > 0 {
					t.Fatalf("%s: %v\n%s", line, err, strings.Join(w.broken, "\n"))
				}
			}
			start := func(nodes []*node) {
				for _, n := range nodes {
					do(fmt.Sprintf("start %s node", n.topo.Coord))
				}
			}
			do("settle")
			for i := range w.replicas {
				do(fmt.Sprint("kill-supervisor s", i))
			}
			for _, n := range w.nodes {
				do(fmt.Sprintf("kill %s node", n.topo.Coord))
			}
			do("run 30s")
			if waits.nodes == "0s" {
				start(w.nodes[:10])
			}
			do("run " + waits.supervisors)
			for i := range w.replicas {
				do(fmt.Sprint("start-supervisor s", i))
			}
			do("run " + waits.nodes)
			if waits.nodes != "0s" {
				start(w.nodes[:10])
			}
			do("run 60s")
			late := 0
			for _, k := range w.Known() {
				if strings.Contains(fmt.Sprint(k), " node NORMAL→") {
					late++
					t.Log(k)
				}
			}
			if late < 6 {
				t.Errorf("%d nodes were called bad: want the 6 that start late, or the test shows nothing", late)
			}
			start(w.nodes[10:])
			do("settle 60s")
			if !w.responses.opened.IsZero() {
				t.Errorf("the breaker opened: %s", w.responses.breaker.Detail)
			}
			for _, n := range w.nodes[:6] {
				do(fmt.Sprintf("kill %s node", n.topo.Coord))
			}
			if do("run 10s"); !w.responses.breaker.Open {
				t.Error("the breaker stayed closed when 6 of 16 nodes died after the cold start")
			}
		})
	}
}

package sim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestEverySetOfLiars: whichever of a node's neighbours lie, fewer than the quorum, they do not have it
// called dead while it lives, with its service network or without; and when it dies, the honest ones are
// believed and the replays are not. (faults.md row 17)
func TestEverySetOfLiars(t *testing.T) {
	tori := []grid.Dims{{X: 3, Y: 1, Z: 1}, {X: 2, Y: 2, Z: 1}, {X: 3, Y: 3, Z: 1}, {X: 2, Y: 2, Z: 2}}
	if testing.Short() {
		tori = tori[:2]
	}
	for _, dims := range tori {
		near := dims.Neighbours(grid.Coord{})
		for set := 1; set < 1<<len(near); set++ {
			var liars []string
			for i, c := range near {
				if set&(1<<i) != 0 {
					liars = append(liars, c.String())
				}
			}
			if len(liars) >= awareness.Quorum(len(near)) {
				continue
			}
			t.Run(fmt.Sprint(dims, liars), func(t *testing.T) {
				t.Parallel()
				script := "torus %s\nsettle\nliar %s\nbegin\nrun 3s\ncut-service 0,0,0\nrun 4s\nnever 0,0,0 node FAILED\n" +
					"kill 0,0,0 node\nexpect 0,0,0 node FAILED within 5s\nrun 5s\nmap 0,0,0 node FAILED"
				s, err := ParseScript(strings.NewReader(fmt.Sprintf(script, dims, strings.Join(liars, " "))))
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Run(dims, uint64(set)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestClocksOfProcessesDiffer: every process has its own clock, hours apart from the others. A machine that mixed two
// of them up would fail soon.
func TestClocksOfProcessesDiffer(t *testing.T) {
	w, err := New(Config{Dims: grid.Dims{X: 2, Y: 2, Z: 1}, Periods: preset(t, config.PresetDefault), Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.Run(1)
	seen := make(map[int64]bool)
	for _, n := range w.nodes {
		seen[int64(n.host.wall)] = true
	}
	for _, r := range w.replicas {
		seen[int64(r.wall)] = true
	}
	if len(seen) < len(w.nodes)+len(w.replicas) {
		t.Errorf("%d clocks differ", len(seen))
	}
}

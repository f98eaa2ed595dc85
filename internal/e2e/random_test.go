package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	random "github.com/lofamo/lofamo/internal/testing/trial"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestRandomFaultsBreakNoInvariant is the short form of `make trial`: some rounds of random faults against ground truth.
func TestRandomFaultsBreakNoInvariant(t *testing.T) {
	dir, err := random.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the cluster's directory with its logs is kept: %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	// With the preset's periods, a machine that pauses for 0.1 s makes healthy links silent. These periods outlast it.
	periods, soon := patient(), config.Duration(500*time.Millisecond) // recoveries wait for the hold-off
	periods.LinkHoldOff = &soon
	r, err := random.Run(t.Context(), random.Options{
		Shape:   random.Shape{Dims: grid.Dims{X: 2, Y: 2, Z: 1}, Supervisors: 3},
		Preset:  config.PresetDefault,
		Periods: periods,
		Seed:    shortSeed, Rounds: 8, Duration: 40 * time.Second, Dir: dir, BinDir: binaries, Out: lines{t},
		Patience: 10, // beside other tests this machine may stall for seconds
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Violations {
		t.Errorf("seed %d: %s", shortSeed, v)
	}
	if r.Rounds == 0 || r.Events == 0 || r.Steps[random.Inject.String()] == 0 {
		t.Errorf("%d rounds with %d events and %v: want some of each", r.Rounds, r.Events, r.Steps)
	}
}

// shortSeed gives faults of halves, nodes, links and sensors, and outages of supervisors.
const shortSeed = 1

// lines writes to the log of a test.
type lines struct{ t *testing.T }

func (l lines) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimRight(string(b), "\n"))
	return len(b), nil
}

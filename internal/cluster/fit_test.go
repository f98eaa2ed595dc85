package cluster

import (
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestPresetFitsMachine(t *testing.T) {
	for _, c := range []struct {
		dims          string
		spares, cores int
		want          string
	}{
		{"2x2x2", 0, 2, config.PresetDefault},
		{"7x2", 0, 2, config.PresetDefault},
		{"5x3", 0, 2, config.PresetRelaxed},
		{"7x2", 1, 2, config.PresetRelaxed},
		{"3x3x3", 0, 2, config.PresetRelaxed},
		{"3x3x3", 0, 4, config.PresetDefault},
		{"4x4x4", 0, 2, config.PresetRelaxed},
		{"4x4x4", 0, 16, config.PresetDefault},
		{"2x2x2", 0, 1, config.PresetRelaxed},
		{"2x1x1", 0, 1, config.PresetDefault},
	} {
		d, err := grid.ParseDims(c.dims)
		if err != nil {
			t.Fatal(err)
		}
		f := FitPreset(d, c.spares, c.cores)
		if f.Preset != c.want {
			t.Errorf("%s and %d spares on %d cores: %+v: want %s", c.dims, c.spares, c.cores, f, c.want)
		}
		if s := f.String(); c.want == config.PresetRelaxed &&
			(!strings.HasPrefix(s, "preset relaxed ") || !strings.Contains(s, "--preset default") || strings.Contains(s, "\n")) {
			t.Errorf("%s on %d cores: %q: want one line with the preset and the way to the default", c.dims, c.cores, s)
		}
	}
}

// TestHalvesLeaveRoomForSupervisors: all budgets together are at most half of the machine, except where that is less
// than twice the steady cost.
func TestHalvesLeaveRoomForSupervisors(t *testing.T) {
	for _, c := range []struct {
		preset       string
		nodes, cores int
		want         float64
	}{
		{config.PresetDefault, 4, 2, 10},
		{config.PresetDefault, 8, 2, 6.3},
		{config.PresetDefault, 27, 2, 3.4},
		{config.PresetRelaxed, 27, 2, 1.9},
		{config.PresetRelaxed, 64, 2, 1.1},
		{config.PresetDefault, 27, 16, 10},
		{config.PresetFast, 8, 2, 10},
		{config.PresetRelaxed, 1000, 1, 1.1},
	} {
		if got := halfBudget(c.preset, c.nodes, c.cores); got != c.want {
			t.Errorf("%d nodes at %s on %d cores: %v %%: want %v", c.nodes, c.preset, c.cores, got, c.want)
		}
	}
}

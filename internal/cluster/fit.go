package cluster

import (
	"fmt"
	"math"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Fit is the preset that suits a machine, and the steady costs behind the choice.
type Fit struct {
	Preset string
	// Cost is the steady cost of the cluster at the preset "default", in % of a core.
	Cost float64
	// Limit is the cost up to which "default" is chosen, in % of a core.
	Limit float64
}

const (
	// costPerNode is the steady cost of one node at the preset "default" with its share of three supervisors, in % of
	// a core: 90 % for 27 nodes, measured by `lofamo-bench -starts`.
	costPerNode = 3.4
	// fitShare is the share of the machine that the steady state may use. A start costs several times as much, and
	// halves have real-time priority: with less room, supervisors answer too late.
	fitShare = 0.25
)

// steadyCost returns the cost of a running cluster in % of a core: at "relaxed" a third of that at "default", at "fast"
// three times as much.
func steadyCost(preset string, nodes int) float64 {
	cost := costPerNode * float64(nodes)
	switch preset {
	case config.PresetRelaxed:
		return cost / 3
	case config.PresetFast:
		return 3 * cost
	}
	return cost
}

// FitPreset returns "default" if the machine has room for that many nodes at that preset, and otherwise "relaxed".
func FitPreset(d grid.Dims, spares, cores int) Fit {
	f := Fit{Preset: config.PresetDefault, Cost: steadyCost(config.PresetDefault, d.Nodes()+spares), Limit: 100 * fitShare * float64(cores)}
	if f.Cost > f.Limit {
		f.Preset = config.PresetRelaxed
	}
	return f
}

// String explains in one line why the preset is not "default".
func (f Fit) String() string {
	return fmt.Sprintf("preset %s suits this machine: %s would use about %.0f %% of a core, more than a quarter of all cores (%.0f %%); "+
		"--preset %s selects it anyway",
		f.Preset, config.PresetDefault, f.Cost, f.Limit, config.PresetDefault)
}

// halfShare is the share of the machine that all halves together may use: the rest is for supervisors and others.
const halfShare = 0.5

// halfBudget returns the processor budget of each half, in percent of one core: an equal part of halfShare of the machine,
// but at least twice the steady cost of a half, and at most the default of a node that has a machine of its own.
func halfBudget(preset string, nodes, cores int) float64 {
	halves := float64(2 * nodes)
	percent := max(100*halfShare*float64(cores)/halves, 2*steadyCost(preset, nodes)/halves)
	return min(config.DefaultBudget, math.Round(percent*10)/10)
}

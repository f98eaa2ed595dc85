package reliability

import "slices"

// Chip is a microcircuit by the handbook that is the source of the paper's rates (Mil-Hdbk-217F; seed 003 §3.4.1,
// Table 2).
type Chip struct {
	Die         float64 // C1, by the number of gates
	Package     float64 // C2, by the number of pins
	Temperature float64 // π_T
	Environment float64 // π_E
	Quality     float64 // π_Q
	Learning    float64 // π_L
}

// PerMillionHours returns failures in 10⁶ hours.
func (c Chip) PerMillionHours() float64 {
	return (c.Die*c.Temperature + c.Package*c.Environment) * c.Quality * c.Learning
}

// Table2 returns the router chip with the low, the baseline and the high values.
func Table2() (low, baseline, high Chip) {
	return Chip{0.16, 0.053, 0.16, 0.5, 2, 1}, Chip{0.16, 0.053, 0.35, 0.5, 10, 2}, Chip{0.16, 0.053, 0.71, 0.5, 10, 2}
}

// The paper's other parts, in failures in 10⁶ hours (§3.4.1): a connector of 100 pins, λ_b π_K π_P π_E, and a board
// with 5,000 plated holes in 5 layers, λ_b N π_C π_Q π_E.
const (
	connectorPerMillionHours = 0.00028 * 2.0 * 25 * 2.0
	boardPerMillionHours     = 0.000041 * 5000 * 1.8 * 2.0 * 1.0
)

// The paper's network (§3.3, §3.4): 64 boards of 16 routers and 32 connectors; 15 fifos of 20 flits of 16 bits in a
// router; one error in 10⁸ hours in each bit.
const (
	boards             = 64
	routersPerBoard    = 16
	connectorsPerBoard = 32
	bitsPerRouter      = 15 * 20 * 16
	bitPerMillionHours = 1e-8 * 1e6
)

// PaperModel returns the paper's network of 1,024 nodes with such chips and so much of its buffers in use, from 0 to
// 1. The paper's Tables 6 and 7 are of the baseline chip and 1/3.
func PaperModel(chip Chip, full float64) Model {
	bits := Coverage{0.95, 1.0} // classes of which faults show as wrong bits
	other := Coverage{0.5, 0.9} // all others
	router := func(datapath, decision, control float64) []Class {
		return []Class{{Name: "datapath", Weight: datapath, Coverage: slices.Clone(bits)},
			{Name: "routing decision logic", Weight: decision, Coverage: slices.Clone(other)},
			{Name: "router control logic", Weight: control, Coverage: slices.Clone(other)}}
	}
	return Model{
		Name: "network of 1024 Chaos routers, seed 003 §5.4", Hours: HoursPerYear, Estimates: []string{"low", "moderate"},
		Faults: []Kind{
			{
				Name: "hard",
				Sources: []Source{
					{Name: "router chip", PerMillionHours: chip.PerMillionHours(), Count: boards * routersPerBoard},
					{Name: "connector of 100 pins", PerMillionHours: connectorPerMillionHours, Count: boards * connectorsPerBoard},
					{Name: "board", PerMillionHours: boardPerMillionHours, Count: boards},
				},
				// The paper leaves the weights of routers and links out, for their coverages are close (§5.4).
				Classes: []Class{
					{Name: "router", Weight: 1, Classes: router(75, 10, 15)},
					{Name: "links", Weight: 1, Classes: []Class{{Name: "data lines", Weight: 80, Coverage: slices.Clone(bits)},
						{Name: "control lines", Weight: 20, Coverage: slices.Clone(other)}}},
				},
			},
			{
				Name: "soft",
				Sources: []Source{{Name: "bit of a fifo in use", PerMillionHours: bitPerMillionHours,
					Count: boards * routersPerBoard * bitsPerRouter * full}},
				Classes: router(90, 4, 6),
			},
		},
	}
}

// Table7Row is a row of the paper's Table 7, as printed. Rates are in failures in 10³ hours, times in hours.
type Table7Row struct {
	Name                     string
	Rate, MTTF               float64
	CoverageLow, CoverageMod float64 // 0 where the table has none
	RateLow, RateMod         float64
	MTTFLow, MTTFMod         float64
	GainLow, GainMod         float64
}

// Table7 returns the paper's Table 7.
func Table7() []Table7Row {
	return []Table7Row{
		{"hard", 1.79, 557, 0.84, 0.97, 0.286, 0.054, 3497, 18520, 6.3, 33.2},
		{"soft", 16.4, 61, 0.90, 0.99, 1.64, 0.164, 610, 6100, 10, 100},
		{"overall", 18.2, 55, 0, 0, 1.93, 0.218, 518, 4587, 9.4, 83.4},
	}
}

// Table6Row is a row of the paper's Table 6, as printed: a class, or with Percent 0 the coverage of those above it.
type Table6Row struct {
	Name                     string
	Percent                  float64
	Low, Mod                 float64 // coverage
	WeightedLow, WeightedMod float64 // weighted; of a sum the coverage
}

// Table6 returns the paper's Table 6.
func Table6() []Table6Row {
	return []Table6Row{
		{"datapath", 75, 0.95, 1.0, 0.71, 0.75},
		{"routing decision logic", 10, 0.5, 0.9, 0.05, 0.09},
		{"router control logic", 15, 0.5, 0.9, 0.07, 0.13},
		{"router", 0, 0, 0, 0.83, 0.97},
		{"data lines", 80, 0.95, 1.0, 0.76, 0.80},
		{"control lines", 20, 0.5, 0.9, 0.10, 0.18},
		{"links", 0, 0, 0, 0.86, 0.98},
		{"hard", 0, 0, 0, 0.84, 0.97},
		{"datapath", 90, 0.95, 1.0, 0.85, 0.90},
		{"routing decision logic", 4, 0.5, 0.9, 0.02, 0.04},
		{"router control logic", 6, 0.5, 0.9, 0.03, 0.05},
		{"soft", 0, 0, 0, 0.90, 0.99},
	}
}

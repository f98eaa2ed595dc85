package diameter

import "math"

// Figure is a figure of many runs: of a row of Table 3 by one definition.
type Figure struct {
	Trials    int
	Mean      float64 // of the greatest diameters, hops
	Deviation float64 // of a sample, as in the paper
	Min, Max  int
	Faults    float64     // mean of Maximum.Faults
	Count     map[int]int // runs by their greatest diameter
}

// StandardError returns that of the mean.
func (f Figure) StandardError() float64 { return f.Deviation / math.Sqrt(float64(f.Trials)) }

// Bound returns the paper's margin: mean and three deviations.
func (f Figure) Bound() float64 { return f.Mean + 3*f.Deviation }

// Study makes a number of runs, at least 2, with orders of failing drawn from r, and returns their figures by
// definition.
func Study(n *Network, p Parts, trials int, r Rand) map[Definition]Figure {
	maxima := make([]Maxima, trials)
	for i := range maxima {
		maxima[i] = Run(n, p, Order(n, p, r))
	}
	out := make(map[Definition]Figure)
	for _, d := range Definitions() {
		out[d] = figure(maxima, d)
	}
	return out
}

func figure(maxima []Maxima, d Definition) Figure {
	f := Figure{Trials: len(maxima), Count: make(map[int]int)}
	n := float64(len(maxima))
	for i, all := range maxima {
		m := all.Of(d)
		f.Mean += float64(m.Diameter) / n
		f.Faults += float64(m.Faults) / n
		f.Count[m.Diameter]++
		f.Max = max(f.Max, m.Diameter)
		if i == 0 || m.Diameter < f.Min {
			f.Min = m.Diameter
		}
	}
	for _, all := range maxima {
		off := float64(all.Of(d).Diameter) - f.Mean
		f.Deviation += off * off / (n - 1)
	}
	f.Deviation = math.Sqrt(f.Deviation)
	return f
}

// Point is the network after so many faults.
type Point struct {
	Faults  int
	AnyPair int // the diameters, hops
	Largest int
	Pieces  int // of one node or more
	Nodes   int // of the largest piece
}

// Curve returns the network after each fault of a run, the first without any: Figure 5. It searches all pairs each
// time.
func Curve(n *Network, p Parts, order []int) []Point {
	s := n.NewState(true, true)
	out := []Point{s.point(0)}
	for i, part := range order {
		if p == Links {
			s.SetLink(part, false)
		} else {
			s.SetNode(part, false)
		}
		out = append(out, s.point(i+1))
	}
	return out
}

func (s *State) point(faults int) Point {
	at := Point{Faults: faults}
	for _, p := range s.Pieces() {
		at.Pieces++
		at.AnyPair = max(at.AnyPair, p.Diameter)
		if p.Nodes > at.Nodes || p.Nodes == at.Nodes && p.Diameter > at.Largest {
			at.Nodes, at.Largest = p.Nodes, p.Diameter
		}
	}
	return at
}

// PaperRow is one row of the paper's Table 3: 100 trials with link faults in a square mesh.
type PaperRow struct {
	Nodes           int
	Mean, Deviation float64 // of the greatest diameter, hops
	Bound           float64 // mean and three deviations
	Ratio           float64 // of the bound to the side
}

// Side returns the length of the mesh in each dimension.
func (r PaperRow) Side() int { return int(math.Round(math.Sqrt(float64(r.Nodes)))) }

// Table3 returns the paper's table.
func Table3() []PaperRow {
	return []PaperRow{
		{16, 8.9, 1.5, 13.4, 3.4},
		{64, 21.8, 3.5, 32.2, 4.0},
		{100, 28.9, 4.7, 43.0, 4.3},
		{144, 35.8, 5.4, 52.1, 4.3},
		{196, 42.8, 6.7, 63.0, 4.5},
		{256, 49.7, 7.0, 70.8, 4.4},
		{400, 61.9, 8.4, 87.0, 4.3},
		{576, 76.5, 11.9, 112.3, 4.7},
		{784, 92.8, 14.9, 137.6, 4.9},
		{1024, 109.5, 14.9, 154.1, 4.8},
	}
}

// PaperTrials is the number of runs behind each row of the paper's table.
const PaperTrials = 100

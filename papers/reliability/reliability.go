// Package reliability computes the value of the coverage of faults: failure rates, mean times to failure and
// reliability of a system without and with fault tolerance (seed 003 §3.3, §3.4, §5.4: Tables 1, 2, 6 and 7).
//
// The rule is the paper's: a covered fault is found and corrected, so the system goes on; an uncovered one may take
// it down. So
//
//	λ_FT = (1 - coverage) λ_baseline     MTTF = 1/λ     R(t) = e^(-λt)
//
// with constant rates, which add up over all parts. It does not model repair, redundancy that is used up, or faults
// that come together: where failed parts stay in place until many have gathered, the numbers are too good. It reads
// no files and uses no network.
package reliability

import "math"

// Rate is a failure rate in failures an hour.
type Rate float64

// MTTF returns the mean time to failure in hours, +Inf when nothing fails.
func (r Rate) MTTF() float64 {
	if r == 0 {
		return math.Inf(1)
	}
	return 1 / float64(r)
}

// Reliability returns the probability that nothing has failed after so many hours.
func (r Rate) Reliability(hours float64) float64 { return math.Exp(-float64(r) * hours) }

// Tolerant returns the rate of those failures that are not covered. The coverage is from 0 to 1.
func (r Rate) Tolerant(coverage float64) Rate { return Rate(1-coverage) * r }

// HoursPerYear is a year of 365 days.
const HoursPerYear = 8760

// Model is a user's description of a system: its faults, their rates, and how much of them is covered.
type Model struct {
	// Name is printed above the answer; it may be empty.
	Name string `json:"name,omitempty"`
	// Hours is the time t of the reported R(t); above 0. The default is a year.
	Hours float64 `json:"hours,omitempty"`
	// Estimates are the names of as many estimates of each coverage, such as low and moderate. The default is one,
	// "coverage".
	Estimates []string `json:"estimates,omitempty"`
	// Faults are the kinds of faults whose rates add up, such as hard and soft ones. At least one.
	Faults []Kind `json:"faults"`
}

// Kind is a kind of faults, with the parts in which they come and the classes by which they are covered.
type Kind struct {
	// Name is unique in the model.
	Name string `json:"name"`
	// Sources are the parts that fail. At least one.
	Sources []Source `json:"sources"`
	// Classes divide the faults. At least one.
	Classes []Class `json:"classes"`
}

// Source is a part of which there are many. Exactly one of its three rates is set.
type Source struct {
	// Name is unique in its kind.
	Name string `json:"name"`
	// PerMillionHours is the number of failures of one part in 10⁶ hours, as in handbooks (a thousandth of the FIT
	// number). Above 0.
	PerMillionHours float64 `json:"perMillionHours,omitempty"`
	// PerYear is the number of failures of one part in 8,760 hours. Above 0.
	PerYear float64 `json:"perYear,omitempty"`
	// MTTFHours is the mean time to failure of one part. Above 0.
	MTTFHours float64 `json:"mttfHours,omitempty"`
	// Count is the number of these parts. Above 0.
	Count float64 `json:"count"`
}

// Rate returns that of all of them together.
func (s Source) Rate() Rate {
	one := s.PerMillionHours / 1e6
	switch {
	case s.PerYear != 0:
		one = s.PerYear / HoursPerYear
	case s.MTTFHours != 0:
		one = 1 / s.MTTFHours
	}
	return Rate(one * s.Count)
}

// Class is a share of faults with their coverage, or is divided further.
type Class struct {
	// Name is unique beside its like.
	Name string `json:"name"`
	// Weight is its share, against the sum of the weights beside it. Above 0.
	Weight float64 `json:"weight"`
	// Coverage is the probability from 0 to 1 that such a fault is found and corrected, once for each of the model's
	// estimates.
	Coverage Coverage `json:"coverage,omitempty"`
	// Classes divide it further, in place of Coverage.
	Classes []Class `json:"classes,omitempty"`
}

// Coverage is one probability for each estimate. In a file one number will do where there is one estimate, or all
// agree.
type Coverage []float64

// Rounding says how intermediate results are rounded.
type Rounding uint8

// How to round.
const (
	// Exact rounds nothing.
	Exact Rounding = iota + 1
	// AsPaper rounds as seed 003 does in Tables 6 and 7: each weighted coverage and each sum of them to two decimals,
	// halves down; the rates to three digits, and no finer than 10⁻⁶. The mean time without tolerance is of the exact
	// rate.
	AsPaper
)

func (r Rounding) coverage(v float64) float64 {
	if r == Exact {
		return v
	}
	// A half that the sum of two binary fractions has made a little greater is still a half.
	return math.Ceil(v*100-0.5-1e-9) / 100
}

func (r Rounding) rate(v Rate) Rate {
	if r == Exact || v <= 0 {
		return v
	}
	step := math.Max(1e-6, math.Pow(10, math.Floor(math.Log10(float64(v)))-2))
	return Rate(math.Round(float64(v)/step) * step)
}

// Result is the evaluation of a model.
type Result struct {
	Faults  []Row // one for each kind, in the model's order
	Overall Row   // all kinds together; it has no classes
}

// Row is one kind of faults: a row of the paper's Table 7.
type Row struct {
	Name     string
	Base     Rate    // without fault tolerance
	BaseMTTF float64 // hours
	Classes  []ClassRow
	With     []Tolerance // one for each estimate
}

// Tolerance is the effect of one estimate of the coverage on a rate.
type Tolerance struct {
	Coverage float64
	Rate     Rate
	MTTF     float64 // hours; +Inf when all is covered
	Gain     float64 // MTTF over that without fault tolerance
}

// ClassRow is one class: a row of the paper's Table 6.
type ClassRow struct {
	Name     string
	Depth    int       // 0 for a class of the kind, 1 for one in a class, and so on
	Share    float64   // of those beside it, 0 to 1
	Coverage []float64 // one for each estimate
	Weighted []float64 // Share times Coverage
}

// Evaluate computes the result of a model that Validate has accepted.
func (m Model) Evaluate(r Rounding) Result {
	m = m.withDefaults()
	out := Result{Overall: Row{Name: "overall"}}
	sum := make([]Rate, len(m.Estimates))
	for _, k := range m.Faults {
		row := k.evaluate(len(m.Estimates), r)
		out.Faults = append(out.Faults, row)
		for e, w := range row.With {
			sum[e] += w.Rate
		}
	}
	base := m.rate()
	out.Overall.base(base, r)
	for e := range m.Estimates {
		out.Overall.with(1-float64(sum[e]/base), sum[e], r)
	}
	return out
}

// rate returns the rate of all faults without fault tolerance.
func (m Model) rate() Rate {
	var sum Rate
	for _, k := range m.Faults {
		sum += k.Rate()
	}
	return sum
}

// Rate returns that of all faults of a kind without fault tolerance.
func (k Kind) Rate() Rate {
	var sum Rate
	for _, s := range k.Sources {
		sum += s.Rate()
	}
	return sum
}

func (k Kind) evaluate(estimates int, r Rounding) Row {
	row := Row{Name: k.Name}
	row.base(k.Rate(), r)
	for _, c := range row.divide(k.Classes, estimates, 0, r) {
		row.with(c, row.Base.Tolerant(c), r)
	}
	return row
}

func (row *Row) base(base Rate, r Rounding) {
	row.Base, row.BaseMTTF = r.rate(base), base.MTTF()
}

func (row *Row) with(coverage float64, tolerant Rate, r Rounding) {
	tolerant = r.rate(tolerant)
	row.With = append(row.With, Tolerance{coverage, tolerant, tolerant.MTTF(), tolerant.MTTF() / row.BaseMTTF})
}

// divide lists classes, each before those in it, and returns the coverage of all of them together by estimate.
func (row *Row) divide(classes []Class, estimates, depth int, r Rounding) []float64 {
	total := 0.0
	for _, c := range classes {
		total += c.Weight
	}
	sum := make([]float64, estimates)
	for _, c := range classes {
		at := len(row.Classes)
		row.Classes = append(row.Classes, ClassRow{Name: c.Name, Depth: depth, Share: c.Weight / total})
		var coverage []float64
		if len(c.Classes) > 0 {
			coverage = row.divide(c.Classes, estimates, depth+1, r)
		} else {
			coverage = c.Coverage.of(estimates)
		}
		weighted := make([]float64, estimates)
		for e := range weighted {
			weighted[e] = r.coverage(c.Weight / total * coverage[e])
			sum[e] += weighted[e]
		}
		row.Classes[at].Coverage, row.Classes[at].Weighted = coverage, weighted
	}
	for e := range sum {
		// Shares may add up to a little more than 1 in binary fractions; a coverage does not.
		sum[e] = min(1, r.coverage(sum[e]))
	}
	return sum
}

// of repeats a single number for all estimates.
func (c Coverage) of(estimates int) []float64 {
	out := make([]float64, estimates)
	for e := range out {
		out[e] = c[min(e, len(c)-1)]
	}
	return out
}

package main

import (
	"math"

	"github.com/lofamo/lofamo/papers/reliability"
)

// The output for programs. Rates are in failures an hour, times in hours; an infinite time is omitted, and so is its
// gain.
type (
	answer struct {
		Name    string      `json:"name"`
		Hours   float64     `json:"hours"`
		Faults  []answerRow `json:"faults"`
		Overall answerRow   `json:"overall"`
		// Rounded is the same with the paper's rounding; only of the paper's model.
		Rounded *answer `json:"rounded,omitempty"`
	}
	answerRow struct {
		Name      string           `json:"name"`
		Rate      float64          `json:"failuresPerHour"`
		MTTF      *float64         `json:"mttfHours,omitempty"`
		R         float64          `json:"reliability"`
		Classes   []answerClass    `json:"classes,omitempty"`
		Estimates []answerEstimate `json:"estimates"`
	}
	answerClass struct {
		Name     string    `json:"name"`
		Depth    int       `json:"depth"`
		Share    float64   `json:"share"`
		Coverage []float64 `json:"coverage"`
		Weighted []float64 `json:"weighted"`
	}
	answerEstimate struct {
		Name     string   `json:"name"`
		Coverage float64  `json:"coverage"`
		Rate     float64  `json:"failuresPerHour"`
		MTTF     *float64 `json:"mttfHours,omitempty"`
		Gain     *float64 `json:"gain,omitempty"`
		R        float64  `json:"reliability"`
	}
)

func answerTo(m reliability.Model, paper bool) answer {
	out := answerOf(m, reliability.Exact)
	if paper {
		rounded := answerOf(m, reliability.AsPaper)
		out.Rounded = &rounded
	}
	return out
}

func answerOf(m reliability.Model, r reliability.Rounding) answer {
	res := m.Evaluate(r)
	out := answer{Name: m.Name, Hours: m.Hours, Overall: rowOf(m, res.Overall)}
	for _, k := range res.Faults {
		out.Faults = append(out.Faults, rowOf(m, k))
	}
	return out
}

func rowOf(m reliability.Model, k reliability.Row) answerRow {
	out := answerRow{Name: k.Name, Rate: float64(k.Base), MTTF: finite(k.BaseMTTF), R: k.Base.Reliability(m.Hours)}
	for _, c := range k.Classes {
		out.Classes = append(out.Classes, answerClass(c))
	}
	for e, w := range k.With {
		out.Estimates = append(out.Estimates, answerEstimate{Name: m.Estimates[e], Coverage: w.Coverage, Rate: float64(w.Rate),
			MTTF: finite(w.MTTF),
			Gain: finite(w.Gain), R: w.Rate.Reliability(m.Hours)})
	}
	return out
}

func finite(v float64) *float64 {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return nil
	}
	return &v
}

package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/lofamo/lofamo/bench/measure"
)

// quantity is a measured quantity of the sections on load, from which the model extrapolates.
type quantity struct {
	Name, Unit string
	Per        string // unit of the size, such as nodes
	Terms      [2]measure.Term
	Points     [][2]float64 // size and value, as published
	Sizes      []float64    // to extrapolate to; none for a quantity that the model does not fit
}

// scale holds the published points.
//
//go:embed scale.json
var scale []byte

func quantities() (out []quantity, err error) {
	if err = json.Unmarshal(scale, &out); err != nil {
		return nil, fmt.Errorf("scale.json: %w", err)
	}
	return out, nil
}

func (q quantity) model() (measure.Model, error) {
	points := make([]measure.Point, len(q.Points))
	for i, p := range q.Points {
		points[i] = measure.Point{Size: p[0], Value: p[1]}
	}
	m, err := measure.NewModel(q.Terms, points)
	if err != nil {
		return m, fmt.Errorf("model of %s: %w", q.Name, err)
	}
	return m, nil
}

// model prints what larger tori would cost, by curves through the published points.
func model(_ context.Context, o options) error {
	list, err := quantities()
	if err != nil {
		return err
	}
	o.out.f("\n### A model of larger tori\n\nEach row is a curve of two terms through the points of the tables above, fitted by least " +
		"relative errors. *Error* is the largest deviation from a point. *Left out* is the largest deviation at a point of a curve through " +
		"the other points, and *beyond* that at the largest size: the test of an extrapolation, which here goes further.\n\n")
	o.out.f("| quantity | size | measured at | model | error | left out | beyond | extrapolated |\n|---|---|---|---|---|---|---|---|\n")
	for _, q := range list {
		row, err := q.row()
		if err != nil {
			return err
		}
		o.out.f("%s\n", row)
	}
	return nil
}

// row returns the quantity's row of the table.
func (q quantity) row() (string, error) {
	m, err := q.model()
	if err != nil {
		return "", err
	}
	var sizes, far []string
	for _, p := range q.Points {
		sizes = append(sizes, number(p[0]))
	}
	for _, size := range q.Sizes {
		far = append(far, fmt.Sprintf("%s: %s %s", number(size), number(significant(m.At(size))), q.Unit))
	}
	if len(far) == 0 {
		far = []string{"none: the errors are too large"}
	}
	return fmt.Sprintf("| %s | %s | %s | %s %s | %s | %s | %s | %s |", q.Name, q.Per, strings.Join(sizes, ", "), m.Curve, q.Unit,
		fraction(m.Worst), fraction(m.LeftOut), fraction(m.Beyond), strings.Join(far, "; ")), nil
}

// fraction prints an error in percent, "-" for none.
func fraction(f float64) string {
	if math.IsNaN(f) {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*f)
}

// significant rounds to two digits: more would claim more than the model knows.
func significant(v float64) float64 {
	if v == 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-1)
	return math.Round(v/unit) * unit
}

// number prints a number with commas between thousands.
func number(v float64) string {
	if v < 1000 {
		return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", v), "0"), ".")
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

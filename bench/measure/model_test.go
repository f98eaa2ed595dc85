package measure

import (
	"math"
	"testing"
)

func TestFitFindsTheCurveOfExactPoints(t *testing.T) {
	for _, want := range []Curve{
		{[2]Term{Constant, Linear}, 0.3, 2.5e-5}, {[2]Term{Constant, Log}, 130, 26}, {[2]Term{Root, Linear}, 4, 0.02},
		{[2]Term{Constant, SizeRoot}, 150, 0.2}, {[2]Term{Constant, Root}, 0.3, 0.02},
	} {
		var points []Point
		for _, size := range []float64{10, 2000, 8000, 12000, 20000} {
			points = append(points, Point{size, want.At(size)})
		}
		m, err := NewModel(want.Terms, points)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(m.A/want.A-1) > 1e-6 || math.Abs(m.B/want.B-1) > 1e-6 || m.Worst > 1e-6 || m.LeftOut > 1e-6 || m.Beyond > 1e-6 {
			t.Errorf("%+v: want %+v without errors", m, want)
		}
	}
}

// TestModelShowsItsErrors fits a line to values that grow with the square of the size: the error at a point is larger
// when that point does not take part.
func TestModelShowsItsErrors(t *testing.T) {
	m, err := NewModel([2]Term{Constant, Linear}, []Point{{1, 1}, {2, 4}, {3, 9}, {4, 16}})
	if err != nil {
		t.Fatal(err)
	}
	if m.Worst < 0.1 || m.Beyond < 0.2 || m.LeftOut < m.Worst || m.LeftOut < m.Beyond {
		t.Errorf("%+v: want errors of more than a tenth, of a fifth beyond the points, and none larger than that left out", m)
	}
}

// Negative factors would make an extrapolation negative.
func TestFitHasNoNegativeFactor(t *testing.T) {
	line := [2]Term{Constant, Linear}
	c, err := Fit(line, []Point{{10, 5}, {20, 20}, {30, 40}})
	if err != nil || c.A != 0 || c.B <= 0 {
		t.Errorf("%+v, %v: want a line through 0", c, err)
	}
	c, err = Fit(line, []Point{{10, 40}, {20, 20}, {30, 5}})
	if err != nil || c.A <= 0 || c.B != 0 {
		t.Errorf("%+v, %v: want a constant", c, err)
	}
}

func TestFitRefusesPointsWithoutACurve(t *testing.T) {
	line := [2]Term{Constant, Linear}
	for name, points := range map[string][]Point{
		"none": nil, "one size": {{1, 2}, {1, 3}}, "no value": {{1, 2}, {2, 0}}, "no size": {{0, 2}, {2, 1}}, "not a number": {{1, math.NaN()}},
	} {
		if c, err := Fit(line, points); err == nil {
			t.Errorf("%s: %+v: want an error", name, c)
		}
	}
	for _, terms := range [][2]Term{{Constant, "cube"}, {Linear, Linear}} {
		if c, err := Fit(terms, []Point{{1, 2}, {2, 3}}); err == nil {
			t.Errorf("%q: %+v: want an error", terms, c)
		}
	}
	if m, err := NewModel(line, []Point{{1, 2}, {2, 3}}); err != nil || !math.IsNaN(m.LeftOut) || !math.IsNaN(m.Beyond) {
		t.Errorf("two sizes: %+v, %v: want no error of a point left out", m, err)
	}
}

func TestCurvePrintsItsFormula(t *testing.T) {
	for want, c := range map[string]Curve{
		"0.139 + 8.12e-05·size": {[2]Term{Constant, Linear}, 0.139, 8.12e-5}, "0.000693·size": {[2]Term{Constant, Linear}, 0, 0.000693},
		"4.1·√size + 0.0245·size": {[2]Term{Root, Linear}, 4.1, 0.0245}, "7": {[2]Term{Constant, Log}, 7, 0},
	} {
		if got := c.String(); got != want {
			t.Errorf("%s: want %s", got, want)
		}
	}
}

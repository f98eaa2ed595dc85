package measure

import (
	"math"
	"testing"
)

func TestFitFindsTheLineOfExactPoints(t *testing.T) {
	want := Line{Base: 0.3, Slope: 2.5e-5}
	var points []Point
	for _, size := range []float64{2000, 8000, 12000, 20000} {
		points = append(points, Point{size, want.At(size)})
	}
	m, err := NewModel(points)
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(m.Base-want.Base) > 1e-9 || math.Abs(m.Slope-want.Slope) > 1e-12 || m.Worst > 1e-9 || m.Beyond > 1e-9 {
		t.Errorf("%+v: want %+v without errors", m, want)
	}
}

// TestModelShowsItsErrors fits a line to values that grow with the square of the size: the error at the largest size is larger
// when that point does not take part.
func TestModelShowsItsErrors(t *testing.T) {
	m, err := NewModel([]Point{{1, 1}, {2, 4}, {3, 9}, {4, 16}})
	if err != nil {
		t.Fatal(err)
	}
	if m.Worst < 0.1 || m.Beyond < 0.2 {
		t.Errorf("%+v: want errors of more than a tenth, and of a fifth beyond the points", m)
	}
}

func TestFitWithoutABaseBelowNothing(t *testing.T) {
	l, err := Fit([]Point{{10, 5}, {20, 20}, {30, 40}})
	if err != nil || l.Base != 0 || l.Slope <= 0 {
		t.Errorf("%+v, %v: want a line through 0", l, err)
	}
}

func TestFitRefusesPointsWithoutALine(t *testing.T) {
	for name, points := range map[string][]Point{"none": nil, "one size": {{1, 2}, {1, 3}}, "no value": {{1, 2}, {2, 0}}} {
		if l, err := Fit(points); err == nil {
			t.Errorf("%s: %+v: want an error", name, l)
		}
	}
	if m, err := NewModel([]Point{{1, 2}, {2, 3}}); err != nil || !math.IsNaN(m.Beyond) {
		t.Errorf("two sizes: %+v, %v: want no error beyond them", m, err)
	}
}

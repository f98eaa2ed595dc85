package measure

import (
	"errors"
	"fmt"
	"math"
)

// Point is a measured value of a quantity at a size.
type Point struct{ Size, Value float64 }

// Line is the model Base + Slope·size of a quantity.
type Line struct{ Base, Slope float64 }

// At returns the model's value at a size.
func (l Line) At(size float64) float64 { return l.Base + l.Slope*size }

// Fit returns the line with the least relative errors, squared, and a Base of at least 0. It needs points of two sizes or more,
// with positive values.
func Fit(points []Point) (Line, error) {
	var w, wx, wy, wxx, wxy float64
	for _, p := range points {
		if p.Value <= 0 || p.Size < 0 {
			return Line{}, fmt.Errorf("fit a line: point %+v: want a positive value and a size of 0 or more", p)
		}
		weight := 1 / (p.Value * p.Value)
		w, wx, wy = w+weight, wx+weight*p.Size, wy+weight*p.Value
		wxx, wxy = wxx+weight*p.Size*p.Size, wxy+weight*p.Size*p.Value
	}
	det := w*wxx - wx*wx
	if det <= 1e-12*w*wxx {
		return Line{}, errors.New("fit a line: want points of two sizes or more")
	}
	l := Line{Base: (wxx*wy - wx*wxy) / det, Slope: (w*wxy - wx*wy) / det}
	if l.Base < 0 {
		l = Line{Slope: wxy / wxx}
	}
	return l, nil
}

// Model is a fitted line, with its errors as fractions of the measured values.
type Model struct {
	Line
	Worst float64 // at any of the points that it was fitted to
	// Beyond is the error at the largest size of a line that was fitted to the other points: how far an extrapolation errs. It
	// is NaN if these are points of one size only.
	Beyond float64
}

// NewModel fits a model and checks it against its points.
func NewModel(points []Point) (Model, error) {
	l, err := Fit(points)
	if err != nil {
		return Model{}, err
	}
	m := Model{Line: l, Beyond: math.NaN()}
	largest := points[0]
	for _, p := range points {
		m.Worst = max(m.Worst, l.deviation(p))
		if p.Size > largest.Size {
			largest = p
		}
	}
	var others []Point
	for _, p := range points {
		if p.Size < largest.Size {
			others = append(others, p)
		}
	}
	if smaller, err := Fit(others); err == nil {
		m.Beyond = smaller.deviation(largest)
	}
	return m, nil
}

func (l Line) deviation(p Point) float64 { return math.Abs(l.At(p.Size)-p.Value) / p.Value }

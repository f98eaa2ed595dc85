package measure

import (
	"errors"
	"fmt"
	"math"
)

// Point is a measured value of a quantity at a size.
type Point struct{ Size, Value float64 }

// Term is a function of the size: how a part of a quantity grows.
type Term string

// The terms, by growth.
const (
	Constant Term = "1"
	Log      Term = "log₂ size"
	Root     Term = "√size"
	Linear   Term = "size"
	SizeRoot Term = "size·√size"
)

// at returns the term's value at a size, and NaN for an unknown term.
func (t Term) at(size float64) float64 {
	switch t {
	case Constant:
		return 1
	case Log:
		return math.Log2(size)
	case Root:
		return math.Sqrt(size)
	case Linear:
		return size
	case SizeRoot:
		return size * math.Sqrt(size)
	}
	return math.NaN()
}

// Curve is the model A·Terms[0] + B·Terms[1] of a quantity.
type Curve struct {
	Terms [2]Term
	A, B  float64 // 0 or more
}

// At returns the model's value at a size.
func (c Curve) At(size float64) float64 { return c.A*c.Terms[0].at(size) + c.B*c.Terms[1].at(size) }

// String prints the formula, with three digits.
func (c Curve) String() string {
	part := func(factor float64, t Term) string {
		if t == Constant {
			return fmt.Sprintf("%.3g", factor)
		}
		return fmt.Sprintf("%.3g·%s", factor, t)
	}
	switch {
	case c.A == 0:
		return part(c.B, c.Terms[1])
	case c.B == 0:
		return part(c.A, c.Terms[0])
	}
	return part(c.A, c.Terms[0]) + " + " + part(c.B, c.Terms[1])
}

// Fit returns the curve with the least relative errors, squared, and no negative factor. It needs points of two sizes or
// more, of 1 or more, with positive values.
func Fit(terms [2]Term, points []Point) (Curve, error) {
	c := Curve{Terms: terms}
	var aa, ab, bb, ay, by float64
	for _, p := range points {
		if !(p.Value > 0) || p.Size < 1 {
			return c, fmt.Errorf("fit a curve: point %+v: want a positive value and a size of 1 or more", p)
		}
		a, b := terms[0].at(p.Size)/p.Value, terms[1].at(p.Size)/p.Value
		if math.IsNaN(a + b) {
			return c, fmt.Errorf("fit a curve: terms %q: want known ones", terms)
		}
		aa, ab, bb, ay, by = aa+a*a, ab+a*b, bb+b*b, ay+a, by+b
	}
	det := aa*bb - ab*ab
	if det <= 1e-12*aa*bb {
		return c, errors.New("fit a curve: want two terms, and points of two sizes or more")
	}
	c.A, c.B = (bb*ay-ab*by)/det, (aa*by-ab*ay)/det
	switch {
	case c.A < 0:
		c.A, c.B = 0, by/bb
	case c.B < 0:
		c.A, c.B = ay/aa, 0
	}
	return c, nil
}

// Model is a fitted curve, with its errors as fractions of the measured values.
type Model struct {
	Curve
	Worst float64 // at any of the points that it was fitted to
	// LeftOut is the largest error at a point of a curve that was fitted to the other points. It is NaN if the other points
	// of one are of one size only.
	LeftOut float64
	// Beyond is the same at the points of the largest size: how far an extrapolation errs.
	Beyond float64
}

// NewModel fits a model and checks it against its points.
func NewModel(terms [2]Term, points []Point) (Model, error) {
	c, err := Fit(terms, points)
	if err != nil {
		return Model{}, err
	}
	m := Model{Curve: c}
	largest := 0.0
	for _, p := range points {
		m.Worst, largest = max(m.Worst, c.deviation(p)), max(largest, p.Size)
	}
	for _, left := range points {
		var others []Point
		for _, p := range points {
			if p.Size != left.Size {
				others = append(others, p)
			}
		}
		deviation := math.NaN()
		if o, err := Fit(terms, others); err == nil {
			deviation = o.deviation(left)
		}
		m.LeftOut = max(m.LeftOut, deviation) // NaN stays
		if left.Size == largest {
			m.Beyond = max(m.Beyond, deviation)
		}
	}
	return m, nil
}

func (c Curve) deviation(p Point) float64 { return math.Abs(c.At(p.Size)-p.Value) / p.Value }

package experiment

import "math"

// Fit is a least-squares line with the terms of its 95 % intervals.
type Fit struct {
	Slope, Intercept          float64
	SlopeError, SigmaResid    float64 // standard error of the slope; standard deviation about the line
	MeanX, SpreadX            float64 // mean and sum of squared deviations of x
	N                         int
	R2                        float64
	InterceptLow, InterceptUp float64
}

// Line fits y over x; at least 3 points with two different x.
func Line(x, y []float64) Fit {
	f := Fit{N: len(x)}
	n := float64(f.N)
	meanY := 0.0
	for i := range x {
		f.MeanX += x[i] / n
		meanY += y[i] / n
	}
	sxy, syy := 0.0, 0.0
	for i := range x {
		dx, dy := x[i]-f.MeanX, y[i]-meanY
		f.SpreadX += dx * dx
		sxy += dx * dy
		syy += dy * dy
	}
	f.Slope = sxy / f.SpreadX
	f.Intercept = meanY - f.Slope*f.MeanX
	rest := syy - f.Slope*sxy
	f.SigmaResid = math.Sqrt(max(rest, 0) / (n - 2))
	f.SlopeError = f.SigmaResid / math.Sqrt(f.SpreadX)
	f.R2 = 1 - rest/syy
	_, f.InterceptLow, f.InterceptUp = f.At(0)
	return f
}

// At is the line's value at x, with the interval of 95 % for the mean there.
func (f Fit) At(x float64) (value, low, high float64) {
	value = f.Intercept + f.Slope*x
	d := x - f.MeanX
	half := T95(f.N-2) * f.SigmaResid * math.Sqrt(1/float64(f.N)+d*d/f.SpreadX)
	return value, value - half, value + half
}

// SlopeInterval is the interval of 95 % of the slope.
func (f Fit) SlopeInterval() (low, high float64) {
	half := T95(f.N-2) * f.SlopeError
	return f.Slope - half, f.Slope + half
}

// T95 is the 97.5 % quantile of Student's distribution, by the expansion of Cornish and Fisher: right to 1 % from 4
// degrees of freedom on.
func T95(degrees int) float64 {
	const z = 1.959963984540054
	v := float64(max(degrees, 1))
	z3, z5, z7 := z*z*z, z*z*z*z*z, z*z*z*z*z*z*z
	return z + (z3+z)/(4*v) + (5*z5+16*z3+3*z)/(96*v*v) + (3*z7+19*z5+17*z3-15*z)/(384*v*v*v)
}

// Mean is a mean with its standard error.
type Mean struct {
	Mean, Error float64
	N           int
}

// MeanOf returns the mean of a sample.
func MeanOf(x []float64) Mean {
	m := Mean{N: len(x)}
	for _, v := range x {
		m.Mean += v / float64(len(x))
	}
	if len(x) > 1 {
		sum := 0.0
		for _, v := range x {
			sum += (v - m.Mean) * (v - m.Mean)
		}
		m.Error = math.Sqrt(sum / float64(len(x)-1) / float64(len(x)))
	}
	return m
}

// Wilson is the interval of 95 % for a probability of which k of n trials came true.
func Wilson(k, n int) (low, high float64) {
	const z = 1.959963984540054
	p, m := float64(k)/float64(n), float64(n)
	mid := (p + z*z/(2*m)) / (1 + z*z/m)
	half := z / (1 + z*z/m) * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	return max(mid-half, 0), min(mid+half, 1)
}

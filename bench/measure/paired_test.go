package measure

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The ranks of the sign test as tables have them.
func TestSignRank(t *testing.T) {
	for n, want := range map[int]int{1: 0, 5: 0, 6: 1, 8: 1, 9: 2, 12: 3, 20: 6, 50: 18, 100: 40} {
		if got := signRank(n); got != want {
			t.Errorf("n=%d: %d, want %d", n, got, want)
		}
	}
}

func TestMedianInterval(t *testing.T) {
	if i := MedianInterval(nil); !math.IsNaN(i.Median) || !math.IsInf(i.High, 1) {
		t.Errorf("%+v", i)
	}
	if i := MedianInterval([]float64{3, 1, 2}); i.Median != 2 || !math.IsInf(i.Low, -1) || i.N != 3 {
		t.Errorf("%+v", i)
	}
	if i := MedianInterval([]float64{9, 1, 2, 3, 4, 5, 6, 7, 8}); i.Median != 5 || i.Low != 2 || i.High != 8 {
		t.Errorf("%+v", i)
	}
	// The interval holds the true median in at least 95 % of the cases.
	rng := rand.New(rand.NewPCG(1, 2))
	held := 0
	const times = 2000
	for range times {
		var s []float64
		for range 30 {
			s = append(s, math.Exp(rng.NormFloat64()))
		}
		if i := MedianInterval(s); i.Low <= 1 && 1 <= i.High {
			held++
		}
	}
	if held < times*95/100 || held > times*99/100 {
		t.Errorf("held %d of %d times", held, times)
	}
}

func TestPaired(t *testing.T) {
	var p Paired
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		base := 100 + 50*rng.Float64() // drifts far more than the difference
		p.Add(base, base+3+rng.Float64())
	}
	if i := p.Percent(); i.Median < 2.4 || i.Median > 3.2 || i.Low < 2.2 || i.High > 3.4 {
		t.Errorf("%s", i)
	}
}

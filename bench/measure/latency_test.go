package measure

import (
	"testing"
	"time"
)

func TestQuantiles(t *testing.T) {
	var l Latencies
	if l.Median() != 0 || l.Max() != 0 {
		t.Error("no samples give a figure")
	}
	for i := 300; i >= 1; i-- {
		l = append(l, time.Duration(i)*time.Millisecond)
	}
	for q, want := range map[float64]int{0: 1, 0.5: 150, 0.99: 297, 1: 300} {
		if got := l.Quantile(q); got != time.Duration(want)*time.Millisecond {
			t.Errorf("quantile %v of 1..300 ms: %v, want %d ms", q, got, want)
		}
	}
	if l[0] != 300*time.Millisecond {
		t.Error("the samples were reordered")
	}
	if got := Millis(1234 * time.Microsecond); got != "1.2" {
		t.Error(got)
	}
}

func TestMicrosAndOver(t *testing.T) {
	if got := Micros(1250 * time.Nanosecond); got != "1.2" && got != "1.3" {
		t.Errorf("got %s", got)
	}
	if got := Over(150*time.Microsecond, 100*time.Microsecond); got < 49.9 || got > 50.1 {
		t.Errorf("got %g %%, want 50", got)
	}
	if got := Over(time.Second, 0); got != 0 {
		t.Errorf("without a bound: got %g", got)
	}
}

package hostcore

import (
	"math"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

var epoch0 = time.Unix(1_000_000, 0)

func at(s float64) time.Time { return epoch0.Add(time.Duration(s * float64(time.Second))) }

func TestMovingValuesAreSent(t *testing.T) {
	var tr deadbands
	temp := func(s, v float64) {
		tr.Measure(at(s), fault.ComponentTemperature, fault.QuantityTemperature, v, Above(80))
	}
	for s := range 600 { // it stands still, within less than a step
		temp(float64(s), 50+0.7*float64(s%2))
		if due := tr.Due(at(float64(s)), 3); due != nil {
			t.Fatalf("after %d s at rest: %+v", s, due)
		}
	}
	var sent []fault.Reading
	for s := 600.0; s < 660; s += 0.5 {
		temp(s, 50+(s-600)/10)
		sent = append(sent, tr.Due(at(s), 3)...)
	}
	if len(sent) < 8 || len(sent) > 12 {
		t.Errorf("%d readings in a minute of rising", len(sent))
	}
	for _, r := range sent {
		if r.Threshold != 80 || r.Check() != nil {
			t.Errorf("%+v: %v", r, r.Check())
		}
	}
	last := 0.0
	for s := 660.0; s < 1000; s += 0.5 { // and rests again
		temp(s, 56)
		if tr.Due(at(s), 3) != nil {
			last = s
		}
	}
	if rested := last - 660; rested < 60 || rested > holds.Seconds() {
		t.Errorf("sent until %v s after it came to rest", rested)
	}
}

// TestFallingValueHeadsForLowThreshold checks that a falling value heads for the low threshold, and is not sent without one.
func TestFallingValueHeadsForLowThreshold(t *testing.T) {
	for _, tc := range []struct {
		name   string
		limits Limits
		to     float64
		want   float32 // 0: nothing is sent
	}{
		{"up to the high one", Limits{Low: 11.4, High: 12.6}, 12.3, 12.6},
		{"down to the low one", Limits{Low: 11.4, High: 12.6}, 11.7, 11.4},
		{"down, and there is no low one", Above(12.6), 11.7, 0},
		{"up, and there is no high one", Limits{Low: 11.4, High: math.NaN()}, 12.3, 0},
		{"no number", Limits{Low: 11.4, High: 12.6}, math.NaN(), 0},
		{"not by a step", Limits{Low: 11.4, High: 12.6}, 12.1, 0},
	} {
		var tr deadbands
		tr.Measure(at(0), fault.ComponentVoltage, fault.QuantityVoltage, 12, tc.limits)
		tr.Measure(at(1), fault.ComponentVoltage, fault.QuantityVoltage, tc.to, tc.limits)
		due := tr.Due(at(1), 3)
		if got := len(due) == 1 && due[0].Threshold == tc.want; got != (tc.want != 0) {
			t.Errorf("%s: %+v", tc.name, due)
		}
	}
}

// TestLongestWaitingValueGoesFirst checks that the value that waited longest goes first, and that stale values do not go.
func TestLongestWaitingValueGoesFirst(t *testing.T) {
	var tr deadbands
	for s := 0.0; s <= 1; s++ {
		tr.Measure(at(s), fault.ComponentTemperature, fault.QuantityTemperature, 50+10*s, Above(80))
		tr.Measure(at(s), fault.ComponentPower, fault.QuantityPower, 100+50*s, Above(300))
		tr.Measure(at(s), fault.ComponentMemory, fault.QuantityCorrectedErrors, 0.001*s, Above(0.003))
	}
	first, second := tr.Due(at(1), 2), tr.Due(at(2), 2)
	if len(first) != 2 || len(second) != 1 || second[0].Component == first[0].Component || second[0].Component == first[1].Component ||
		second[0].Age != time.Second {
		t.Errorf("%+v, then %+v", first, second)
	}
	if due := tr.Due(at(40), 3); due != nil {
		t.Errorf("of old measurements: %+v", due)
	}
}

// TestUnsendableReadingIsLeftOut: a reading that no report may have would hold the whole digest back.
func TestUnsendableReadingIsLeftOut(t *testing.T) {
	for _, tc := range []struct {
		name   string
		value  float64
		limits Limits
	}{
		{"its threshold is gone", 60, Limits{Low: math.NaN(), High: math.NaN()}},
		{"too large a value", 1e300, Above(80)},
		{"too large a threshold", 60, Above(1e300)},
	} {
		var tr deadbands
		tr.Measure(at(0), fault.ComponentTemperature, fault.QuantityTemperature, 50, Above(80))
		tr.Measure(at(1), fault.ComponentTemperature, fault.QuantityTemperature, 55, Above(80))
		tr.Measure(at(1), fault.ComponentPower, fault.QuantityPower, 100, Above(300))
		tr.Measure(at(2), fault.ComponentPower, fault.QuantityPower, 150, Above(300))
		tr.Measure(at(2), fault.ComponentTemperature, fault.QuantityTemperature, tc.value, tc.limits)
		due := tr.Due(at(2), 1)
		if len(due) != 1 || due[0].Component != fault.ComponentPower {
			t.Errorf("%s: %+v", tc.name, due)
		}
	}
}

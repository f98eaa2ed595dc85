package sensor

import (
	"math"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
	"github.com/lofamo/lofamo/pkg/sensor/source/sourcetest"
)

func TestScenarios(t *testing.T) {
	quantities := map[string]Quantity{"temperature": Temperature, "voltage": Voltage, "power": Power}
	sourcetest.Run(t, "testdata/hwmon/*.txt", func(name, root string, _ source.Clock) source.Source {
		q, rest, _ := strings.Cut(name, "_")
		cfg := HwmonConfig{Sysfs: root, Quantity: quantities[q], Bounds: NoBounds()}
		if rest == "configured" {
			cfg.Chip, cfg.Label = "k10temp", "Tccd1"
			cfg.Bounds.WarnHigh, cfg.Bounds.AlarmHigh = 60, 70
		}
		return NewHwmon(cfg)
	})
}

// TestThisMachine reads the existing inputs: they must be judged or unknown, and never an error.
func TestThisMachine(t *testing.T) {
	for _, q := range []Quantity{Temperature, Voltage, Power} {
		src := NewHwmon(HwmonConfig{Sysfs: "/sys", Quantity: q, Bounds: NoBounds()})
		r, err := src.Read(t.Context())
		if err != nil {
			t.Errorf("%s: %v", q, err)
		}
		sourcetest.Check(t, src, r)
		t.Logf("%s: %+v", q, r)
	}
}

func TestValuesAreClassifiedByBounds(t *testing.T) {
	b := Bounds{-10, 5, 75, 90}
	n := math.NaN()
	for _, tc := range []struct {
		b    Bounds
		v    float64
		want fault.State
	}{
		{b, -10.1, fault.Failed}, {b, -10, fault.Sick}, {b, 4.9, fault.Sick}, {b, 5, fault.Normal},
		{b, 75, fault.Normal}, {b, 75.1, fault.Sick}, {b, 90, fault.Sick}, {b, 90.1, fault.Failed},
		{b, math.Inf(1), fault.Failed}, {b, n, fault.Unknown},
		{Bounds{n, n, 75, n}, -300, fault.Normal}, {Bounds{n, n, 75, n}, 80, fault.Sick},
		{Bounds{n, n, n, 90}, 91, fault.Failed},
	} {
		if got := tc.b.Classify(tc.v); got != tc.want {
			t.Errorf("%v: %v is %s, want %s", tc.b, tc.v, got, tc.want)
		}
	}
}

// TestMiddleValueClearsAnyState checks that from any state a value in the middle of the bounds is normal again.
func TestMiddleValueClearsAnyState(t *testing.T) {
	for _, q := range []Quantity{Temperature, Voltage, Power} {
		for _, b := range []Bounds{{-10, 5, 75, 90}, {0.9, 0.99, 1.01, 1.1}, {-1, -1e-9, 1e-9, 1}} {
			mid := (b.WarnLow + b.WarnHigh) / 2
			for _, last := range []fault.State{0, fault.Unknown, fault.Normal, fault.Sick, fault.Failed} {
				if got := b.classifyFrom(last, mid, q.kind()); got != fault.Normal {
					t.Errorf("%s %v: %v after %s is %s", q, b, mid, last, got)
				}
			}
		}
	}
	if Quantity(0).String() != "Quantity(0)" {
		t.Error("the zero quantity has a name")
	}
}

// TestBoundsOfWhatDecided checks that Bounds returns the limits of the deciding input, with the configured ones in
// place of its own.
func TestBoundsOfWhatDecided(t *testing.T) {
	n := math.NaN()
	root := t.TempDir()
	src := NewHwmon(HwmonConfig{Sysfs: root, Quantity: Temperature, Bounds: Bounds{n, -5, n, n}})
	read := func(want Bounds) {
		t.Helper()
		if _, err := src.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := src.Bounds(); !same(got, want) {
			t.Errorf("bounds %v, want %v", got, want)
		}
	}
	read(Bounds{n, -5, n, n})
	for file, value := range map[string]string{"name": "coretemp", "temp1_input": "60000", "temp1_max": "70000", "temp1_crit": "80000",
		"temp2_input": "20000", "temp2_lcrit": "-20000", "temp2_min": "0", "temp2_max": "90000"} {
		sourcetest.Write(t, root, "class/hwmon/hwmon0/"+file, value)
	}
	read(Bounds{n, -5, 70, 80})
	sourcetest.Write(t, root, "class/hwmon/hwmon0/temp2_input", "95000")
	read(Bounds{-20, -5, 90, n})
}

// TestFailingSensorIsNotAbsent: only a quantity for which no input has given a value is absent.
func TestFailingSensorIsNotAbsent(t *testing.T) {
	root := t.TempDir()
	src := NewHwmon(HwmonConfig{Sysfs: root, Quantity: Voltage, Bounds: NoBounds()})
	read := func(when string, want bool) {
		t.Helper()
		r, err := src.Read(t.Context())
		if err != nil || r.Absent != want {
			t.Errorf("%s: %+v, %v: want absent: %t", when, r, err, want)
		}
	}
	read("without a chip", true)
	sourcetest.Write(t, root, "class/hwmon/hwmon0/name", "nct6775")
	sourcetest.Write(t, root, "class/hwmon/hwmon0/temp1_input", "50000")
	read("with a chip that measures no voltage", true)
	sourcetest.Write(t, root, "class/hwmon/hwmon0/in0_input", "12000")
	read("with a sensor", false)
	sourcetest.Write(t, root, "class/hwmon/hwmon0/in0_fault", "1")
	read("with a failing sensor", false)
	src = NewHwmon(HwmonConfig{Sysfs: root, Quantity: Voltage, Bounds: NoBounds()})
	read("with a sensor that has given no value", true)
}

func same(a, b Bounds) bool {
	eq := func(x, y float64) bool { return x == y || math.IsNaN(x) && math.IsNaN(y) }
	return eq(a.AlarmLow, b.AlarmLow) && eq(a.WarnLow, b.WarnLow) && eq(a.WarnHigh, b.WarnHigh) && eq(a.AlarmHigh, b.AlarmHigh)
}

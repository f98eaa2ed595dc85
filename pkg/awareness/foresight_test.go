package awareness

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// measured returns the component whose quantity a scenario measures; X+ for links.
func measured(q fault.Quantity) fault.Component {
	for _, c := range fault.Components() {
		if q.Of(c) {
			return c
		}
	}
	return 0
}

// measure executes NODE/HALF QUANTITY THRESHOLD EVERY VALUE...
func (s *scenario) measure(f []string) error {
	as, err := s.find(f[0])
	if err != nil {
		return err
	}
	q, err := fault.ParseQuantity(f[1])
	if err != nil {
		return err
	}
	threshold, err := strconv.ParseFloat(f[2], 32)
	if err != nil {
		return err
	}
	every, err := time.ParseDuration(f[3])
	if err != nil {
		return err
	}
	for _, v := range f[4:] {
		value, err := strconv.ParseFloat(v, 32)
		if err != nil {
			return err
		}
		as[0].readings = []fault.Reading{{Component: measured(q), Quantity: q, Value: float32(value), Threshold: float32(threshold)}}
		s.w.digest(as[0])
		s.w.run(every)
	}
	return nil
}

// TestFitIsExactOnALine checks that the fit is exact on a line, and that its error reflects the scatter.
func TestFitIsExactOnALine(t *testing.T) {
	var exact, scattered []point
	for i := range 10 {
		at := epoch0.Add(time.Duration(i) * 5 * time.Second)
		exact = append(exact, point{at: at, value: 40 + 0.5*float64(i)})
		scattered = append(scattered, point{at: at, value: 40 + float64(i%2)})
	}
	l := fit(exact)
	if diff := l.slope - 0.1; diff > 1e-9 || diff < -1e-9 || l.value < 44.49 || l.value > 44.51 || l.err > 1e-9 || l.span != 45*time.Second {
		t.Errorf("%+v", l)
	}
	if l := fit(scattered); l.err == 0 || l.slope > believeErrors*l.err {
		t.Errorf("scatter is believed: %+v", l)
	}
	if l := fit(exact[:1]); l.slope != 0 || l.value != 40 {
		t.Errorf("one point: %+v", l)
	}
}

// TestLineOfTheNewest checks that the shortest stretch that is a line beyond doubt counts, and a merely possible line
// does not.
func TestLineOfTheNewest(t *testing.T) {
	for _, tc := range []struct {
		name     string
		values   []float64
		readings int
		slope    float64 // per reading
	}{
		{"falls, then rises", []float64{66, 62, 57, 52, 47, 42, 40, 45, 50, 55, 60}, 5, 5},
		{"rises, then falls", []float64{40, 45, 50, 55, 60, 65, 64, 60, 56, 52, 48}, 5, -4},
		{"ever faster", []float64{50, 50.5, 51, 51.5, 52, 54, 56, 58, 60, 62}, 5, 2},
		{"all along, with scatter", []float64{50, 52.5, 53, 56.5, 57, 60.5, 61}, 7, 1.9},
	} {
		var tr trend
		for i, v := range tc.values {
			tr.points = append(tr.points, point{at: epoch0.Add(time.Duration(i) * 5 * time.Second), value: v})
		}
		l, readings, ok := tr.line(believeErrors)
		if !ok || readings != tc.readings || math.Abs(5*l.slope-tc.slope) > 0.1 {
			t.Errorf("%s: %+v over %d readings, %v", tc.name, l, readings, ok)
		}
	}
	flat := trend{}
	for i := range trendPoints {
		flat.points = append(flat.points, point{at: epoch0.Add(time.Duration(i) * 5 * time.Second), value: 50})
	}
	if l, _, ok := flat.line(believeErrors); ok {
		t.Errorf("what does not move is believed to: %+v", l)
	}
}

// TestScatterSeldomWarns checks that values which scatter without a trend seldom cause a warning, and that a slope above the scatter
// always does in time.
func TestScatterSeldomWarns(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	warned := 0
	const rounds = 300
	for range rounds {
		w := startedForesight(t)
		for range trendPoints {
			w.reading(t, 60+rnd.NormFloat64(), 5*time.Second)
		}
		warned += len(w.m.Warnings())
	}
	if warned > rounds/50 {
		t.Errorf("%d warnings on %d series of noise", warned, rounds)
	}
	for range rounds {
		w := startedForesight(t)
		for i := range trendPoints {
			w.reading(t, 60+0.5*float64(i)+0.3*rnd.NormFloat64(), 5*time.Second)
		}
		if len(w.m.Warnings()) != 1 {
			t.Fatal("no warning of a rise of 6 °C a minute")
		}
	}
}

type foresightWorld struct {
	*world
	seq fault.Seq
}

func startedForesight(t *testing.T) *foresightWorld {
	t.Helper()
	cfg := testConfig(grid.Dims{X: 2, Y: 1, Z: 1})
	cfg.Horizon = time.Hour
	w, err := newWorld(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &foresightWorld{world: w}
}

func (w *foresightWorld) delivery(value float64) fault.Delivery {
	w.seq++
	return fault.Delivery{Path: fault.PathDirect, Report: fault.Report{
		ID:     fault.ReportID{Origin: fault.Origin{Node: "n0-0-0", Half: fault.HalfHost}, Epoch: 1, Seq: w.seq},
		Digest: true,
		Readings: []fault.Reading{{
			Component: fault.ComponentTemperature, Quantity: fault.QuantityTemperature, Value: float32(value), Threshold: 80,
		}},
	}}
}

func (w *foresightWorld) reading(t *testing.T, value float64, wait time.Duration) {
	t.Helper()
	w.step(Evidence{w.delivery(value)})
	w.now = w.now.Add(wait)
}

// TestReadingsInAnyOrder checks that reordered and duplicated readings give the same trend.
func TestReadingsInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := testConfig(grid.Dims{X: 2, Y: 1, Z: 1})
		cfg.Horizon = time.Hour
		count := rapid.IntRange(1, trendPoints).Draw(t, "readings")
		source := &foresightWorld{}
		var ds []fault.Delivery
		for i := range count {
			d := source.delivery(50 + float64(i)*rapid.Float64Range(0, 2).Draw(t, "step"))
			d.Report.Readings[0].Age = time.Duration(count-i) * 2 * time.Second
			ds = append(ds, d)
		}
		play := func(order []int) string {
			m, err := New(cfg, epoch0, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range order {
				m.Step(epoch0.Add(time.Minute), Evidence{ds[i]})
			}
			return fmt.Sprint(m.nodes[0].trends[0].points, m.nodes[0].trends[0].threshold, m.nodes[0].readings)
		}
		var inOrder []int
		for i := range ds {
			inOrder = append(inOrder, i)
		}
		shuffled := append(rapid.Permutation(inOrder).Draw(t, "order"), rapid.SampledFrom(inOrder).Draw(t, "again"))
		if want, got := play(inOrder), play(shuffled); want != got {
			t.Fatalf("in order:\n%s\nshuffled:\n%s", want, got)
		}
	})
}

func TestRestoreWarningRefuses(t *testing.T) {
	w := startedForesight(t)
	for name, bad := range map[string]WarningStatus{
		"unknown node":      {Node: "x", Component: fault.ComponentTemperature, Quantity: fault.QuantityTemperature},
		"no such link":      {Node: "n0-0-0", Component: fault.Link(grid.ZPlus), Quantity: fault.QuantityCRCRatio},
		"a wrong quantity":  {Node: "n0-0-0", Component: fault.ComponentMemory, Quantity: fault.QuantityVoltage},
		"quantity of zero":  {Node: "n0-0-0", Component: fault.ComponentMemory},
		"component of zero": {Node: "n0-0-0", Quantity: fault.QuantityVoltage},
	} {
		if err := w.m.RestoreWarning(bad); err == nil {
			t.Errorf("%s: restored", name)
		}
	}
}

// TestWarningOfLinkEndsWithLink: a warning on a link ends when the link leads nowhere, or elsewhere. A later machine can restore the
// rest.
func TestWarningOfLinkEndsWithLink(t *testing.T) {
	for name, places := range map[string]struct {
		dims  grid.Dims
		empty grid.Coord
		fill  bool // the place is empty first, and then has a node
	}{
		"nowhere":   {grid.Dims{X: 2, Y: 2, Z: 1}, grid.Coord{X: 1, Y: 1}, false},
		"elsewhere": {grid.Dims{X: 4, Y: 1, Z: 1}, grid.Coord{X: 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := places.dims
			after, err := before.Without(places.empty)
			if err != nil {
				t.Fatal(err)
			}
			if places.fill {
				before, after = after, before
			}
			cfg := testConfig(before)
			cfg.Horizon = time.Hour
			m, err := New(cfg, epoch0, nil)
			if err != nil {
				t.Fatal(err)
			}
			id := fault.DefaultNodeID(grid.Coord{Y: places.empty.Y}) // before the place on its line
			w := WarningStatus{Node: id, Component: fault.Link(grid.XPlus), Quantity: fault.QuantityCRCRatio, Threshold: 1}
			if err := m.RestoreWarning(w); err != nil {
				t.Fatal(err)
			}
			ids := testConfig(after).IDs
			out := m.Step(epoch0.Add(time.Second), Moved{Dims: after, IDs: ids})
			if len(out.Warnings) != 1 || !out.Warnings[0].Ended || len(m.Warnings()) != 0 {
				t.Errorf("%+v: want the end of the warning; %d stand", out.Warnings, len(m.Warnings()))
			}
			cfg.Dims, cfg.IDs = after, ids
			if _, err := New(cfg, epoch0, m.Nodes()); err != nil {
				t.Error(err)
			}
			if !places.fill {
				return
			}
			// The half does not know the new link yet: its readings are of the former one.
			for i := range 7 {
				now := epoch0.Add(time.Second + time.Duration(i)*2*time.Second)
				out := m.Step(now, Evidence{fault.Delivery{Path: fault.PathDirect, Report: fault.Report{
					ID: fault.ReportID{Origin: fault.Origin{Node: id, Half: fault.HalfHost}, Epoch: 1, Seq: fault.Seq(1 + i)}, Digest: true,
					Readings: []fault.Reading{{Component: w.Component, Quantity: w.Quantity, Value: 0.1 * float32(1+i), Threshold: 1}},
				}}})
				if len(out.Warnings) > 0 {
					t.Fatalf("a warning on the new link from readings of the former one: %+v", out.Warnings)
				}
			}
		})
	}
}

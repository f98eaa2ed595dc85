package reliability_test

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lofamo/lofamo/papers/reliability"
)

func near(got, want, relative float64) bool { return math.Abs(got-want) <= relative*math.Abs(want) }

// TestBaseline: Table 2 and the rates of §3.4.1 and §3.4.2, to the last printed digit.
func TestBaseline(t *testing.T) {
	low, baseline, high := reliability.Table2()
	for _, tc := range []struct {
		what        string
		got, want   float64
		lastDecimal float64
	}{
		{"chip, low", low.PerMillionHours(), 0.104, 1e-3},
		{"chip, baseline", baseline.PerMillionHours(), 1.65, 1e-2},
		{"chip, high", high.PerMillionHours(), 2.80, 1e-2},
		{"hard, baseline, MTTF", hard(baseline).MTTF(), 557, 1},
		{"hard, baseline, failures in 1000 hours", 1e3 * float64(hard(baseline)), 1.79, 1e-2},
		// 1/0.00297: here the paper has taken the rounded rate.
		{"hard, high, MTTF", reliability.Rate(math.Round(1e5*float64(hard(high))) / 1e5).MTTF(), 337, 1},
		{"hard, high, failures in 1000 hours", 1e3 * float64(hard(high)), 2.97, 1e-2},
		{"soft, buffers 1/3 full, MTTF", soft(1.0 / 3).MTTF(), 61, 1},
		{"soft, buffers 1/3 full, failures in 1000 hours", 1e3 * float64(soft(1.0/3)), 16.4, 1e-1},
		{"soft, buffers full, MTTF", soft(1).MTTF(), 20, 1},
		{"soft, buffers full, failures in 1000 hours", 1e3 * float64(soft(1)), 49.2, 1e-1},
	} {
		if math.Abs(tc.got-tc.want) > tc.lastDecimal/2+1e-9 {
			t.Errorf("%s: %v, the paper has %v", tc.what, tc.got, tc.want)
		}
	}
}

func hard(c reliability.Chip) reliability.Rate { return reliability.PaperModel(c, 1).Faults[0].Rate() }

func soft(full float64) reliability.Rate {
	_, c, _ := reliability.Table2()
	return reliability.PaperModel(c, full).Faults[1].Rate()
}

func paper() reliability.Model {
	_, baseline, _ := reliability.Table2()
	return reliability.PaperModel(baseline, 1.0/3)
}

// TestTable6: with the paper's rounding every number of the table.
func TestTable6(t *testing.T) {
	res := paper().Evaluate(reliability.AsPaper)
	var got []reliability.Table6Row
	for _, k := range res.Faults {
		var open []reliability.ClassRow // classes of which the parts come first in the table
		shut := func(depth int) {
			for n := len(open) - 1; n >= 0 && open[n].Depth >= depth; n-- {
				got = append(got, reliability.Table6Row{Name: open[n].Name, WeightedLow: open[n].Coverage[0], WeightedMod: open[n].Coverage[1]})
				open = open[:n]
			}
		}
		for i, c := range k.Classes {
			shut(c.Depth)
			if i+1 < len(k.Classes) && k.Classes[i+1].Depth > c.Depth {
				open = append(open, c)
				continue
			}
			got = append(got, reliability.Table6Row{Name: c.Name, Percent: 100 * c.Share, Low: c.Coverage[0], Mod: c.Coverage[1],
				WeightedLow: c.Weighted[0], WeightedMod: c.Weighted[1]})
		}
		shut(0)
		got = append(got, reliability.Table6Row{Name: k.Name, WeightedLow: k.With[0].Coverage, WeightedMod: k.With[1].Coverage})
	}
	same := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
	if d := cmp.Diff(reliability.Table6(), got, same); d != "" {
		t.Errorf("the paper's (-) and ours (+):\n%s", d)
	}
}

// TestTable7: with the paper's rounding every number as printed, except the times of soft faults: the paper
// multiplies 61 hours by ten and a hundred, which is 0.04 % more than the result of its rates.
func TestTable7(t *testing.T) {
	res := paper().Evaluate(reliability.AsPaper)
	for i, row := range append(res.Faults, res.Overall) {
		want := reliability.Table7()[i]
		type number struct {
			what             string
			got, want, digit float64
		}
		numbers := []number{
			{"rate", 1e3 * float64(row.Base), want.Rate, 0.01},
			{"MTTF", row.BaseMTTF, want.MTTF, 1},
			{"low: rate", 1e3 * float64(row.With[0].Rate), want.RateLow, 0.001},
			{"moderate: rate", 1e3 * float64(row.With[1].Rate), want.RateMod, 0.001},
			{"low: gain", row.With[0].Gain, want.GainLow, 0.1},
			{"moderate: gain", row.With[1].Gain, want.GainMod, 0.1},
		}
		if want.Name != "overall" {
			numbers = append(numbers, number{"low: coverage", row.With[0].Coverage, want.CoverageLow, 0.01},
				number{"moderate: coverage", row.With[1].Coverage, want.CoverageMod, 0.01})
		}
		for _, n := range numbers {
			slack := n.digit/2 + 1e-9
			if want.Name == "soft" && n.what == "moderate: gain" {
				slack = 0.001 * n.want
			}
			if math.Abs(n.got-n.want) > slack {
				t.Errorf("%s, %s: %v, the paper has %v", want.Name, n.what, n.got, n.want)
			}
		}
		for e, w := range []float64{want.MTTFLow, want.MTTFMod} {
			// Four digits are printed.
			if !near(row.With[e].MTTF, w, 5e-4) {
				t.Errorf("%s, %s: MTTF %v, the paper has %v", want.Name, paper().Estimates[e], row.With[e].MTTF, w)
			}
		}
	}
}

// TestExact: without rounding the coverages are greater, and the moderate MTTF of hard faults is a third greater than
// in the paper: 1 - 0.9775 instead of 1 - 0.97.
func TestExact(t *testing.T) {
	res := paper().Evaluate(reliability.Exact)
	for _, tc := range []struct {
		what      string
		got, want float64
	}{
		{"hard, low", res.Faults[0].With[0].Coverage, 0.84875},
		{"hard, moderate", res.Faults[0].With[1].Coverage, 0.9775},
		{"soft, low", res.Faults[1].With[0].Coverage, 0.905},
		{"soft, moderate", res.Faults[1].With[1].Coverage, 0.99},
		{"hard, low, MTTF", res.Faults[0].With[0].MTTF, 1 / (0.15125 * 1.794176e-3)},
		{"hard, moderate, MTTF", res.Faults[0].With[1].MTTF, 1 / (0.0225 * 1.794176e-3)},
		{"overall, low, MTTF", res.Overall.With[0].MTTF, 1 / (0.15125*1.794176e-3 + 0.095*16.384e-3)},
		{"overall, moderate, coverage", res.Overall.With[1].Coverage, 1 - (0.0225*1.794176e-3+0.01*16.384e-3)/(1.794176e-3+16.384e-3)},
	} {
		if !near(tc.got, tc.want, 1e-9) {
			t.Errorf("%s: %v, want %v", tc.what, tc.got, tc.want)
		}
	}
}

func TestRates(t *testing.T) {
	r := reliability.Rate(0.001)
	if r.MTTF() != 1000 || !near(r.Reliability(1000), math.Exp(-1), 1e-12) || r.Reliability(0) != 1 {
		t.Errorf("MTTF %v, R(1000) %v", r.MTTF(), r.Reliability(1000))
	}
	if got := r.Tolerant(0.9); !near(float64(got), 0.0001, 1e-12) {
		t.Errorf("with coverage 0.9: %v", got)
	}
	if none := r.Tolerant(1); !math.IsInf(none.MTTF(), 1) || none.Reliability(1e9) != 1 {
		t.Errorf("with coverage 1: MTTF %v", none.MTTF())
	}
	for _, s := range []reliability.Source{{PerMillionHours: 100, Count: 3}, {PerYear: 0.876, Count: 3}, {MTTFHours: 1e4, Count: 3}} {
		if !near(float64(s.Rate()), 3e-4, 1e-12) {
			t.Errorf("%+v: %v, want 3e-4 an hour", s, s.Rate())
		}
	}
}

const good = `
name: ours
hours: 720
faults:
- name: nodes
  sources:
  - {name: node, mttfHours: 50000, count: 64}
  classes:
  - {name: halves, weight: 3, coverage: 0.99}
  - name: rest
    weight: 1
    classes:
    - {name: links, weight: 1, coverage: 0.9}
    - {name: disks, weight: 1, coverage: [0.5]}
`

func TestParse(t *testing.T) {
	m, err := reliability.Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	res := m.Evaluate(reliability.Exact)
	want := 0.75*0.99 + 0.25*0.7
	if got := res.Overall.With[0].Coverage; !near(got, want, 1e-12) || m.Hours != 720 || len(m.Estimates) != 1 {
		t.Errorf("coverage %v, want %v; %v hours, estimates %q", got, want, m.Hours, m.Estimates)
	}
	if got := res.Overall.BaseMTTF; !near(got, 50000.0/64, 1e-12) {
		t.Errorf("MTTF %v", got)
	}
}

// TestParseRefuses: an error names the field, the given value and the allowed values.
func TestParseRefuses(t *testing.T) {
	for _, tc := range []struct{ from, to, want string }{
		{"hours: 720", "hours: -1", "hours: -1: want a number above 0"},
		{"hours: 720", "hour: 720", `unknown field "hour"`},
		{"mttfHours: 50000", "perYear: -2", "faults[0].sources[0].perYear: -2: want a number above 0"},
		{"mttfHours: 50000, ", "", "0 rates: want exactly one of perMillionHours, perYear and mttfHours"},
		{"mttfHours: 50000", "mttfHours: 50000, perYear: 1", "2 rates: want exactly one"},
		{"count: 64", "count: 0", "faults[0].sources[0].count: 0: want a number above 0"},
		{"mttfHours: 50000, count: 64", "mttfHours: 1e300, count: 1e-300", "add up to 0 failures an hour"},
		{"coverage: 0.99", "coverage: 1.01", "faults[0].classes[0].coverage: 1.01: want 0 to 1"},
		{"coverage: 0.99", "coverage: [0.9, 0.99]", "2 numbers: want one, or one for each of the 1 estimates"},
		{"coverage: 0.99", "coverage: most", `coverage "most": want a number from 0 to 1`},
		{"coverage: 0.99", "coverage: null", "coverage null: want a number from 0 to 1"},
		{"weight: 3", "weight: 0", "faults[0].classes[0].weight: 0: want a number above 0"},
		{"name: disks", "name: links", `name "links" is there twice`},
		{"name: halves, ", "", "faults[0].classes[0]: no name"},
		{"  - name: rest\n", "  - name: rest\n    coverage: 1\n", "coverage and classes: want one of them"},
		{good, "name: empty", "faults: none: want at least one kind"},
		{good, "faults: [{name: a}]", "faults[0].sources: none"},
		{"hours: 720", "estimates: [a, a]", `estimates[1]: name "a" is there twice`},
		{"hours: 720", "estimates: [a, b, c, d, e, f, g, h, i]", "estimates: given 9: want at most 8"},
	} {
		_, err := reliability.Parse([]byte(strings.Replace(good, tc.from, tc.to, 1)))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q in place of %q: error %v, want one with %q", tc.to, tc.from, err, tc.want)
		}
	}
}

func TestParseSaysAllAtOnce(t *testing.T) {
	_, err := reliability.Parse([]byte(strings.NewReplacer("count: 64", "count: -1", "weight: 3", "weight: -1").Replace(good)))
	if err == nil || strings.Count(err.Error(), "want a number above 0") != 2 {
		t.Errorf("error %v, want both numbers named", err)
	}
}

func TestParseRefusesDepth(t *testing.T) {
	b := strings.Repeat(`[{"name":"c","weight":1,"classes":`, 9) + `[{"name":"c","weight":1,"coverage":1}]` + strings.Repeat("}]", 9)
	_, err := reliability.Parse([]byte(`{"faults":[{"name":"f","sources":[{"name":"s","perYear":1,"count":1}],"classes":` + b + `}]}`))
	if err == nil || !strings.Contains(err.Error(), "within one another: want at most 8") {
		t.Errorf("error %v", err)
	}
}

// The rates of each kind are finite, and their sum is not.
func TestParseRefusesSum(t *testing.T) {
	kind := func(name string) string {
		return `{"name":"` + name +
			`","sources":[{"name":"s","perMillionHours":1e308,"count":1.5e6}],"classes":[{"name":"c","weight":1,"coverage":1}]}`
	}
	if _, err := reliability.Parse([]byte(`{"faults":[` + kind("a") + `]}`)); err != nil {
		t.Fatal(err)
	}
	_, err := reliability.Parse([]byte(`{"faults":[` + kind("a") + "," + kind("b") + `]}`))
	if err == nil || !strings.Contains(err.Error(), "faults: the rates of all kinds add up to +Inf failures an hour") {
		t.Errorf("error %v", err)
	}
}

// FuzzParse: an accepted model can be evaluated, with coverages from 0 to 1 and rates that coverage does not raise.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add(
		[]byte(
			`{"estimates":["a","b"],"faults":[{"name":"f","sources":[{"name":"s","perYear":1,"count":1}],"classes":[{"name":"c","weight":1,` +
				`"coverage":[0,1]}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := reliability.Parse(b)
		if err != nil {
			return
		}
		res := m.Evaluate(reliability.Exact)
		for _, row := range append(res.Faults, res.Overall) {
			if !(row.Base > 0) || len(row.With) != len(m.Estimates) {
				t.Fatalf("%s: rate %v, %d estimates", row.Name, row.Base, len(row.With))
			}
			for _, w := range row.With {
				if !(w.Coverage >= -1e-9 && w.Coverage <= 1) || !(float64(w.Rate) >= 0) || float64(w.Rate) > float64(row.Base)*(1+1e-9) {
					t.Fatalf("%s: %+v of rate %v", row.Name, w, row.Base)
				}
			}
		}
	})
}

package main

import (
	"os"
	"strings"
	"testing"
)

// TestModelFitsThePublishedFigures: each extrapolated quantity's curve fits its points, a curve through the others predicts
// each point, and the page on figures has the model's rows.
func TestModelFitsThePublishedFigures(t *testing.T) {
	page, err := os.ReadFile("../../../docs/figures.md")
	if err != nil {
		t.Fatal(err)
	}
	list, err := quantities()
	if err != nil || len(list) == 0 {
		t.Fatalf("%d quantities, %v", len(list), err)
	}
	for _, q := range list {
		m, err := q.model()
		if err != nil {
			t.Error(err)
			continue
		}
		fits := m.Worst <= 0.4 && m.LeftOut <= 0.4 && m.Beyond <= 0.4
		if fits != (len(q.Sizes) > 0) {
			t.Errorf("%s: the model errs by %s at a measured point, by %s at one left out, by %s beyond the others: want at most 40 %% "+
				"for an extrapolation, given %v", q.Name, fraction(m.Worst), fraction(m.LeftOut), fraction(m.Beyond), q.Sizes)
		}
		row, err := q.row()
		if err != nil {
			t.Error(err)
		}
		if !strings.Contains(string(page), row+"\n") {
			t.Errorf("%s: docs/figures.md lacks the row\n%s", q.Name, row)
		}
	}
}

func TestNumbersHaveCommas(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.25: "0.25", 12: "12", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := number(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
	if got := number(significant(123456)); got != "120,000" {
		t.Errorf("two digits of 123456: %s", got)
	}
}

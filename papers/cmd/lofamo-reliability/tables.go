package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/lofamo/lofamo/papers/reliability"
)

// printer ignores write errors.
type printer struct{ w io.Writer }

func (p printer) f(format string, args ...any) { _, _ = fmt.Fprintf(p.w, format, args...) }

// table prints rows in columns; the first is the heading.
func table(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		if _, err := fmt.Fprintln(tw, strings.Join(r, "\t")); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// printTables prints tables: the classes when wide, then the rates; of the paper's model the same as the paper
// rounds, beside its own.
func printTables(w io.Writer, m reliability.Model, wide, paper bool) error {
	p := printer{w}
	if m.Name != "" {
		p.f("%s\n\n", m.Name)
	}
	res := m.Evaluate(reliability.Exact)
	if wide {
		if err := table(w, coverageRows(m, res)); err != nil {
			return err
		}
		p.f("\n")
	}
	if err := table(w, rateRows(m, res)); err != nil {
		return err
	}
	if !paper {
		return nil
	}
	p.f("\nRounded at each step as in the paper, beside what its Table 7 has:\n\n")
	return table(w, table7Rows(m, m.Evaluate(reliability.AsPaper)))
}

// coverageRows are in the kind of the paper's Table 6.
func coverageRows(m reliability.Model, res reliability.Result) [][]string {
	head := []string{"CLASS", "SHARE"}
	for _, e := range m.Estimates {
		head = append(head, strings.ToUpper(e))
	}
	for _, e := range m.Estimates {
		head = append(head, "WEIGHTED "+strings.ToUpper(e))
	}
	rows := [][]string{head}
	for _, k := range res.Faults {
		r := []string{k.Name, "-"}
		for _, w := range k.With {
			r = append(r, digits(w.Coverage))
		}
		rows = append(rows, append(r, slices.Repeat([]string{"-"}, len(k.With))...))
		for _, c := range k.Classes {
			r := []string{strings.Repeat("  ", c.Depth+1) + c.Name, digits(100*c.Share) + " %"}
			for _, v := range c.Coverage {
				r = append(r, digits(v))
			}
			for _, v := range c.Weighted {
				r = append(r, digits(v))
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// rateRows are in the kind of the paper's Table 7.
func rateRows(m reliability.Model, res reliability.Result) [][]string {
	rows := [][]string{{"FAULTS", "ESTIMATE", "COVERAGE", "FAILURES/1000H", "MTTF", "GAIN", "R(" + digits(m.Hours) + "H)"}}
	for _, k := range append(res.Faults[:len(res.Faults):len(res.Faults)], res.Overall) {
		rows = append(rows, []string{k.Name, "not tolerated", "-", digits(1e3 * float64(k.Base)), hours(k.BaseMTTF), "-",
			digits(k.Base.Reliability(m.Hours))})
		for e, w := range k.With {
			rows = append(rows, []string{k.Name, m.Estimates[e], digits(w.Coverage), digits(1e3 * float64(w.Rate)), hours(w.MTTF),
				gain(w.Gain), digits(w.Rate.Reliability(m.Hours))})
		}
	}
	return rows
}

func table7Rows(m reliability.Model, res reliability.Result) [][]string {
	rows := [][]string{{"FAULTS", "ESTIMATE", "COVERAGE", "PAPER", "FAILURES/1000H", "PAPER", "MTTF", "PAPER", "GAIN", "PAPER"}}
	for i, k := range append(res.Faults[:len(res.Faults):len(res.Faults)], res.Overall) {
		p := reliability.Table7()[i]
		rows = append(rows, []string{k.Name, "not tolerated", "-", "-", digits(1e3 * float64(k.Base)), digits(p.Rate), hours(k.BaseMTTF),
			hours(p.MTTF), "-", "-"})
		for e, of := range [][4]float64{{p.CoverageLow, p.RateLow, p.MTTFLow, p.GainLow}, {p.CoverageMod, p.RateMod, p.MTTFMod, p.GainMod}} {
			w := k.With[e]
			covered := digits(of[0])
			if of[0] == 0 {
				covered = "-"
			}
			rows = append(rows, []string{k.Name, m.Estimates[e], digits(w.Coverage), covered, digits(1e3 * float64(w.Rate)), digits(of[1]),
				hours(w.MTTF), hours(of[2]), gain(w.Gain), gain(of[3])})
		}
	}
	return rows
}

// digits prints four digits.
func digits(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

func hours(v float64) string {
	if math.IsInf(v, 1) {
		return "never fails"
	}
	if v < 10 {
		return digits(v) + "h"
	}
	return strconv.FormatFloat(v, 'f', 0, 64) + "h"
}

func gain(v float64) string {
	if math.IsInf(v, 1) {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

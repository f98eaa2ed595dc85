package ctl

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/pkg/reliability"
)

// maxReliabilityFile bounds a model, in bytes.
const maxReliabilityFile = 1 << 20

// reliabilityFlags say which model is meant: exactly one of the three.
type reliabilityFlags struct {
	file    string
	classes []string
	paper   bool
	over    time.Duration // 0: the model's
	model   bool          // print the model instead
}

func (a *app) reliabilityCommand() *cobra.Command {
	var f reliabilityFlags
	cmd := &cobra.Command{
		Use:   "reliability (-f FILE | --class NAME=RATE,COUNT,COVERAGE[,COVERAGE…]… | --paper)",
		Short: "What the coverage of faults is worth: failure rate, MTTF and R(t) from your own numbers",
		Long: `Computes, from how often parts fail and how much of that is covered (found and corrected), the failure rate, the mean
time to failure and the reliability R(t) of the whole, without and with fault tolerance:

  rate with tolerance = (1 - coverage) x rate without      MTTF = 1 / rate      R(t) = e^(-rate x t)

It is arithmetic on the numbers given, and asks no cluster. Rates are constant and add up; what is left broken until much of
it has gathered is not accounted for.

A file is YAML: see docs/operations.md, or print one with --paper --print-model. With --class a part of which there are COUNT,
each failing RATE times in 10^6 hours, is a class of its own; with several COVERAGEs, from 0 to 1, as many estimates are made.
--paper takes the network of 1024 nodes of the thesis on the Chaos router (its Tables 6 and 7), rounded as there and exactly.`,
		Example: `  lofamoctl reliability --class nodes=20,64,0.99 --class links=1.5,192,0.95
  lofamoctl reliability -f model.yaml --over 720h -o json
  lofamoctl reliability --paper
  lofamoctl reliability --paper --print-model > model.yaml`,
		Args: exactly(),
	}
	cmd.Flags().StringVarP(&f.file, "filename", "f", "", "a model in YAML or JSON; - for the standard input")
	cmd.Flags().StringArrayVar(&f.classes, "class", nil, "NAME=RATE,COUNT,COVERAGE[,COVERAGE…]: a part that fails RATE times in 10^6 hours, and of which there are COUNT; may be repeated")
	cmd.Flags().BoolVar(&f.paper, "paper", false, "the paper's network, beside the paper's numbers")
	cmd.Flags().DurationVar(&f.over, "over", 0, "t of R(t), such as 720h (default: the model's, else a year)")
	cmd.Flags().BoolVar(&f.model, "print-model", false, "print the model as YAML instead, to edit it")
	o := addOutputFlag(cmd, formatTable, formatWide, formatJSON, formatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		m, err := f.read(cmd.InOrStdin())
		if err != nil {
			return err
		}
		switch {
		case f.model:
			b, err := yaml.Marshal(m)
			if err != nil {
				return fmt.Errorf("print model: %w", err)
			}
			_, err = a.env.Stdout.Write(b)
			return err
		case o.format == formatJSON || o.format == formatYAML:
			b, err := json.Marshal(reliabilityAnswerOf(m, f.paper))
			if err != nil {
				return fmt.Errorf("print answer: %w", err)
			}
			return a.printJSON(o.format, b)
		default:
			return a.printReliability(m, o.format == formatWide || f.paper, f.paper)
		}
	}
	return cmd
}

func (f reliabilityFlags) read(stdin io.Reader) (reliability.Model, error) {
	given := 0
	for _, is := range []bool{f.file != "", len(f.classes) > 0, f.paper} {
		if is {
			given++
		}
	}
	if given != 1 {
		return reliability.Model{}, usagef("%d models: want exactly one of -f FILE, --class and --paper", given)
	}
	if f.over < 0 {
		return reliability.Model{}, usagef("--over %s: want a time above 0", f.over)
	}
	var m reliability.Model
	var err error
	switch {
	case f.paper:
		_, baseline, _ := reliability.Table2()
		m = reliability.PaperModel(baseline, 1.0/3)
	case f.file != "":
		m, err = readReliability(f.file, stdin)
	default:
		m, err = classesModel(f.classes)
	}
	if f.over > 0 {
		m.Hours = f.over.Hours()
	}
	return m, err
}

func readReliability(file string, stdin io.Reader) (reliability.Model, error) {
	b, name, err := readBounded(file, stdin, maxReliabilityFile)
	if err != nil {
		return reliability.Model{}, err
	}
	m, err := reliability.Parse(b)
	if err != nil {
		return reliability.Model{}, usageError{fmt.Errorf("%s: %w", name, err)}
	}
	return m, nil
}

// classesModel makes a model of the --class flags: each is a kind of fault with one source and one class.
func classesModel(classes []string) (reliability.Model, error) {
	m := reliability.Model{Hours: reliability.HoursPerYear}
	for _, arg := range classes {
		name, rest, ok := strings.Cut(arg, "=")
		parts := strings.Split(rest, ",")
		if !ok || name == "" || len(parts) < 3 {
			return m, usagef("--class %q: want NAME=RATE,COUNT,COVERAGE[,COVERAGE…] such as nodes=20,64,0.99", arg)
		}
		numbers := make([]float64, len(parts))
		for i, p := range parts {
			v, err := strconv.ParseFloat(p, 64)
			if err != nil {
				return m, usagef("--class %q: %q is no number", arg, p)
			}
			numbers[i] = v
		}
		if n := len(numbers) - 2; n > max(1, len(m.Estimates)) {
			m.Estimates = estimateNames(n)
		}
		m.Faults = append(m.Faults, reliability.Kind{
			Name:    name,
			Sources: []reliability.Source{{Name: name, PerMillionHours: numbers[0], Count: numbers[1]}},
			Classes: []reliability.Class{{Name: name, Weight: 1, Coverage: numbers[2:]}},
		})
	}
	if err := m.Validate(); err != nil {
		return m, usageError{fmt.Errorf("--class: %w", err)}
	}
	if len(m.Estimates) == 0 {
		m.Estimates = []string{"coverage"}
	}
	return m, nil
}

func estimateNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "estimate " + strconv.Itoa(i+1)
	}
	return out
}

// printReliability prints tables: the classes when wide, then the rates; of the paper's model the same as the paper rounds, beside its own.
func (a *app) printReliability(m reliability.Model, wide, paper bool) error {
	if m.Name != "" {
		a.printf("%s\n\n", m.Name)
	}
	res := m.Evaluate(reliability.Exact)
	if wide {
		if err := table(a.env.Stdout, coverageRows(m, res)); err != nil {
			return err
		}
		a.printf("\n")
	}
	if err := table(a.env.Stdout, rateRows(m, res)); err != nil {
		return err
	}
	if !paper {
		return nil
	}
	a.printf("\nRounded at each step as in the paper, beside what its Table 7 has:\n\n")
	return table(a.env.Stdout, table7Rows(m, m.Evaluate(reliability.AsPaper)))
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
		rows = append(rows, []string{k.Name, "not tolerated", "-", digits(1e3 * float64(k.Base)), hours(k.BaseMTTF), "-", digits(k.Base.Reliability(m.Hours))})
		for e, w := range k.With {
			rows = append(rows, []string{k.Name, m.Estimates[e], digits(w.Coverage), digits(1e3 * float64(w.Rate)), hours(w.MTTF), gain(w.Gain), digits(w.Rate.Reliability(m.Hours))})
		}
	}
	return rows
}

func table7Rows(m reliability.Model, res reliability.Result) [][]string {
	rows := [][]string{{"FAULTS", "ESTIMATE", "COVERAGE", "PAPER", "FAILURES/1000H", "PAPER", "MTTF", "PAPER", "GAIN", "PAPER"}}
	for i, k := range append(res.Faults[:len(res.Faults):len(res.Faults)], res.Overall) {
		p := reliability.Table7()[i]
		rows = append(rows, []string{k.Name, "not tolerated", "-", "-", digits(1e3 * float64(k.Base)), digits(p.Rate), hours(k.BaseMTTF), hours(p.MTTF), "-", "-"})
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

// What programs get. Rates are in failures an hour, times in hours; a time that never ends is left out, and so is its gain.
type (
	reliabilityAnswer struct {
		Name    string           `json:"name"`
		Hours   float64          `json:"hours"`
		Faults  []reliabilityRow `json:"faults"`
		Overall reliabilityRow   `json:"overall"`
		// Rounded is the same with the paper's rounding; only of the paper's model.
		Rounded *reliabilityAnswer `json:"rounded,omitempty"`
	}
	reliabilityRow struct {
		Name      string                `json:"name"`
		Rate      float64               `json:"failuresPerHour"`
		MTTF      *float64              `json:"mttfHours,omitempty"`
		R         float64               `json:"reliability"`
		Classes   []reliabilityClass    `json:"classes,omitempty"`
		Estimates []reliabilityEstimate `json:"estimates"`
	}
	reliabilityClass struct {
		Name     string    `json:"name"`
		Depth    int       `json:"depth"`
		Share    float64   `json:"share"`
		Coverage []float64 `json:"coverage"`
		Weighted []float64 `json:"weighted"`
	}
	reliabilityEstimate struct {
		Name     string   `json:"name"`
		Coverage float64  `json:"coverage"`
		Rate     float64  `json:"failuresPerHour"`
		MTTF     *float64 `json:"mttfHours,omitempty"`
		Gain     *float64 `json:"gain,omitempty"`
		R        float64  `json:"reliability"`
	}
)

func reliabilityAnswerOf(m reliability.Model, paper bool) reliabilityAnswer {
	out := answerOf(m, reliability.Exact)
	if paper {
		rounded := answerOf(m, reliability.AsPaper)
		out.Rounded = &rounded
	}
	return out
}

func answerOf(m reliability.Model, r reliability.Rounding) reliabilityAnswer {
	res := m.Evaluate(r)
	out := reliabilityAnswer{Name: m.Name, Hours: m.Hours, Overall: answerRow(m, res.Overall)}
	for _, k := range res.Faults {
		out.Faults = append(out.Faults, answerRow(m, k))
	}
	return out
}

func answerRow(m reliability.Model, k reliability.Row) reliabilityRow {
	out := reliabilityRow{Name: k.Name, Rate: float64(k.Base), MTTF: finite(k.BaseMTTF), R: k.Base.Reliability(m.Hours)}
	for _, c := range k.Classes {
		out.Classes = append(out.Classes, reliabilityClass(c))
	}
	for e, w := range k.With {
		out.Estimates = append(out.Estimates, reliabilityEstimate{Name: m.Estimates[e], Coverage: w.Coverage, Rate: float64(w.Rate), MTTF: finite(w.MTTF),
			Gain: finite(w.Gain), R: w.Rate.Reliability(m.Hours)})
	}
	return out
}

func finite(v float64) *float64 {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return nil
	}
	return &v
}

// Command lofamo-reliability computes the worth of fault coverage: failure rate, mean time to failure and R(t),
// without and with fault tolerance. It is arithmetic on the numbers given; it asks no cluster.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/papers/reliability"
)

const usage = `usage: lofamo-reliability (-f FILE | -class NAME=RATE,COUNT,COVERAGE[,COVERAGE…]… | -paper)

Computes, from how often parts fail and how much of that is covered (found and corrected), the failure rate, the mean
time to failure and the reliability R(t) of the whole, without and with fault tolerance:

  rate with tolerance = (1 - coverage) x rate without      MTTF = 1 / rate      R(t) = e^(-rate x t)

It is arithmetic on the numbers given, and asks no cluster. Rates are constant and add up. The model assumes repair in time.

A file is YAML: see docs/operations.md, or print one with -paper -print-model. With -class a part of which there are COUNT,
each failing RATE times in 10^6 hours, is a class of its own; with several COVERAGEs, from 0 to 1, as many estimates are made.
-paper takes the network of 1024 nodes of the thesis on the Chaos router (its Tables 6 and 7), rounded as there and exactly.

  lofamo-reliability -class nodes=20,64,0.99 -class links=1.5,192,0.95
  lofamo-reliability -f model.yaml -over 720h -o json
  lofamo-reliability -paper
  lofamo-reliability -paper -print-model > model.yaml

`

// maxFile bounds a model, in bytes.
const maxFile = 1 << 20

// options choose the model, by exactly one of file, classes and paper, and the format.
type options struct {
	file    string
	classes []string
	paper   bool
	over    time.Duration // 0: the model's
	model   bool          // print the model instead
	format  string        // table, wide, json or yaml
}

type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func main() {
	err := run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, new(usageError)):
		fmt.Fprintln(os.Stderr, "lofamo-reliability:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "lofamo-reliability:", err)
		os.Exit(1)
	}
}

// run prints the answer to out, and the help to help.
func run(args []string, in io.Reader, out, help io.Writer) error {
	var o options
	f := flag.NewFlagSet("lofamo-reliability", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.file, "f", "", "a model in YAML or JSON; - for the standard input")
	f.Func("class", "NAME=RATE,COUNT,COVERAGE[,COVERAGE…]: a part that fails RATE times in 10^6 hours, and of which there are COUNT; may be "+
		"repeated",
		func(c string) error { o.classes = append(o.classes, c); return nil })
	f.BoolVar(&o.paper, "paper", false, "the paper's network, beside the paper's numbers")
	f.DurationVar(&o.over, "over", 0, "t of R(t), such as 720h (default: the model's, else a year)")
	f.BoolVar(&o.model, "print-model", false, "print the model as YAML instead, to edit it")
	f.StringVar(&o.format, "o", "table", "table, wide, json or yaml")
	f.Usage = func() {}
	if err := f.Parse(args); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			return usageError{err}
		}
		printer{help}.f("%s", usage)
		f.SetOutput(help)
		f.PrintDefaults()
		return err
	}
	if f.NArg() > 0 {
		return usagef("argument %q: want none", f.Arg(0))
	}
	if !slices.Contains([]string{"table", "wide", "json", "yaml"}, o.format) {
		return usagef("-o %q: want table, wide, json or yaml", o.format)
	}
	m, err := o.read(in)
	if err != nil {
		return err
	}
	switch {
	case o.model:
		return printYAML(out, m)
	case o.format == "yaml":
		return printYAML(out, answerTo(m, o.paper))
	case o.format == "json":
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(answerTo(m, o.paper))
	default:
		return printTables(out, m, o.format == "wide" || o.paper, o.paper)
	}
}

func (o options) read(in io.Reader) (reliability.Model, error) {
	given := 0
	for _, is := range []bool{o.file != "", len(o.classes) > 0, o.paper} {
		if is {
			given++
		}
	}
	if given != 1 {
		return reliability.Model{}, usagef("%d models: want exactly one of -f FILE, -class and -paper", given)
	}
	if o.over < 0 {
		return reliability.Model{}, usagef("-over %s: want a time above 0", o.over)
	}
	var m reliability.Model
	var err error
	switch {
	case o.paper:
		_, baseline, _ := reliability.Table2()
		m = reliability.PaperModel(baseline, 1.0/3)
	case o.file != "":
		m, err = readFile(o.file, in)
	default:
		m, err = classesModel(o.classes)
	}
	if o.over > 0 {
		m.Hours = o.over.Hours()
	}
	return m, err
}

// readFile reads a model from a file, or from in for the name "-".
func readFile(file string, in io.Reader) (reliability.Model, error) {
	if file == "-" {
		file = "standard input"
	} else {
		opened, err := os.Open(file)
		if err != nil {
			return reliability.Model{}, usageError{err}
		}
		defer func() { _ = opened.Close() }()
		in = opened
	}
	b, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return reliability.Model{}, fmt.Errorf("read %s: %w", file, err)
	}
	if len(b) > maxFile {
		return reliability.Model{}, usagef("%s: more than %d bytes", file, maxFile)
	}
	m, err := reliability.Parse(b)
	if err != nil {
		return reliability.Model{}, usageError{fmt.Errorf("%s: %w", file, err)}
	}
	return m, nil
}

func printYAML(out io.Writer, v any) error {
	b, err := yaml.Marshal(v)
	if err != nil {
		return fmt.Errorf("print YAML: %w", err)
	}
	_, err = out.Write(b)
	return err
}

// classesModel makes a model of the -class flags: each is a kind of fault with one source and one class.
func classesModel(classes []string) (reliability.Model, error) {
	m := reliability.Model{Hours: reliability.HoursPerYear}
	for _, arg := range classes {
		name, rest, ok := strings.Cut(arg, "=")
		parts := strings.Split(rest, ",")
		if !ok || name == "" || len(parts) < 3 {
			return m, usagef("-class %q: want NAME=RATE,COUNT,COVERAGE[,COVERAGE…] such as nodes=20,64,0.99", arg)
		}
		numbers := make([]float64, len(parts))
		for i, p := range parts {
			v, err := strconv.ParseFloat(p, 64)
			if err != nil {
				return m, usagef("-class %q: %q is no number", arg, p)
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
		return m, usageError{fmt.Errorf("-class: %w", err)}
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

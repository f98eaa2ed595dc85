// Command lofamo-figures makes the figures and tables of docs/papers/chaos.md and chaos-router.md: it reproduces with
// our models, in two and three dimensions, the experiments of the thesis on the Chaos router (seed 003).
//
// Pictures and their numbers go to files, the tables for the document to the standard output, progress to the
// standard error. A seed gives the same bytes each time; how long a study took is only in the progress.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lofamo/lofamo/papers/figure"
)

// options are common to all studies.
type options struct {
	seed   uint64
	trials int  // runs behind each number that is a mean
	short  bool // small networks and few runs: to see that it works
	out    printer
}

// printer ignores write errors.
type printer struct{ w io.Writer }

func (p printer) f(format string, args ...any) { _, _ = fmt.Fprintf(p.w, format, args...) }

// picture is a figure with the name of its file.
type picture struct {
	name   string
	figure figure.Figure
}

// study makes some of the figures, and prints the tables that belong to them.
type study struct {
	name  string
	about string
	run   func(options) ([]picture, error)
}

func studies() []study {
	return []study{
		{"table3", "Table 3: greatest diameter of square meshes under link and router faults", table3},
		{"figure5", "Figure 5: the diameter of one 8x8 mesh, fault by fault", figure5},
		{"figure6", "Figure 6: the snake", figure6},
		{"diameter3d", "Table 3 for cubes and tori", diameter3D},
		{"shares", "the diameter while a share of the links is gone", shares},
		{"figure3", "Figures 3 and 11: a broadcast around faults, a node that cannot be reached", figure3},
		{"drain", "Figures 9 and 10: system drain times", drainTimes},
		{"drain-choices", "Figures 9 and 11: the effect of choices that the text leaves open; the unreachable node", drainVariants},
		{"obstacles", "Figures 14 to 17: walls, concave regions, their closing", obstacles},
		{"compare", "throughput and latency of three algorithms, with and without faults", compare},
		{"reliability", "Tables 6 and 7: R(t) without and with fault tolerance", reliabilityOverTime},
	}
}

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, new(usageError)):
		fmt.Fprintln(os.Stderr, "lofamo-figures:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "lofamo-figures:", err)
		os.Exit(1)
	}
}

type usageError struct{ error }

func run(args []string, out, progress io.Writer) error {
	f := flag.NewFlagSet("lofamo-figures", flag.ContinueOnError)
	f.SetOutput(progress)
	dir := f.String("out", "", "directory for the pictures; it must exist")
	only := f.String("only", "", "only these studies, with commas between: "+strings.Join(names(), ", "))
	seed := f.Uint64("seed", 1, "of all that is random")
	trials := f.Int("trials", 1000, "runs behind each mean; 2 to 1000000")
	short := f.Bool("short", false, "small networks and few runs: to see that it works")
	png := f.Bool("png", false, "PNG beside SVG, to look at")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	chosen, err := choose(*only)
	if err != nil {
		return usageError{err}
	}
	if *dir == "" || *trials < 2 || *trials > 1000000 || f.NArg() > 0 {
		return usageError{fmt.Errorf("out %q (a directory), trials %d (2 to 1000000), arguments %q (none): outside these ranges", *dir,
			*trials, f.Args())}
	}
	o := options{seed: *seed, trials: *trials, short: *short, out: printer{out}}
	if *short {
		o.trials = min(o.trials, 20)
	}
	for _, s := range chosen {
		begun := time.Now()
		pictures, err := s.run(o)
		if err != nil {
			return fmt.Errorf("study %s: %w", s.name, err)
		}
		for _, p := range pictures {
			if err := write(*dir, p, *png); err != nil {
				return err
			}
		}
		printer{progress}.f("%s: %s, %d pictures, %s\n", s.name, s.about, len(pictures), time.Since(begun).Round(10*time.Millisecond))
	}
	return nil
}

func names() []string {
	var out []string
	for _, s := range studies() {
		out = append(out, s.name)
	}
	return out
}

func choose(only string) ([]study, error) {
	if only == "" {
		return studies(), nil
	}
	var out []study
next:
	for name := range strings.SplitSeq(only, ",") {
		for _, s := range studies() {
			if s.name == name {
				out = append(out, s)
				continue next
			}
		}
		return nil, fmt.Errorf("study %q: want some of %s", name, strings.Join(names(), ", "))
	}
	return out, nil
}

func write(dir string, p picture, png bool) error {
	if err := figure.Write(dir, p.name, p.figure); err != nil {
		return err
	}
	if !png {
		return nil
	}
	w, err := os.Create(filepath.Join(dir, p.name+".png"))
	if err != nil {
		return err
	}
	return errors.Join(figure.PNG(w, p.figure), w.Close())
}

// row prints a line of a table in Markdown.
func (p printer) row(cells ...string) { p.f("| %s |\n", strings.Join(cells, " | ")) }

// head prints the heading of a table in Markdown.
func (p printer) head(cells ...string) {
	p.f("\n")
	p.row(cells...)
	p.f("|%s\n", strings.Repeat("---|", len(cells)))
}

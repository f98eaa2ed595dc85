// Command lofamo-trial injects random faults and load into a local cluster for a given time, and compares the fault map
// with the ground truth. It prints one line per step and a summary. The exit code is 1 after a violation, and 2 if the
// trial failed without one. It keeps the logs of a cluster with a violation.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/internal/testing/trial"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// The record, the score of the simulator, and the page, from the folder of this module.
const (
	recordFile = "../internal/testing/trial/testdata/trials.json"
	scoreFile  = "../internal/testing/trial/testdata/incidents.json"
	page       = "../docs/trials.md"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == "load" {
		fmt.Fprintln(os.Stderr, "lofamo-trial:", trial.LoadMain(os.Args[2:]))
		os.Exit(2)
	}
	o, record, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	violated := false
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		violated, err = run(ctx, o, record)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lofamo-trial:", err)
	}
	os.Exit(exitCode(violated, err))
}

// exitCode is 1 after a violation, also of a trial that failed then.
func exitCode(violated bool, err error) int {
	switch {
	case violated:
		return 1
	case err != nil:
		return 2
	}
	return 0
}

func parse(args []string) (o trial.Options, record bool, err error) {
	f := flag.NewFlagSet("lofamo-trial", flag.ContinueOnError)
	dims := f.String("dims", "2x2x2", "sizes of the torus: at least four nodes")
	minutes := f.Float64("minutes", 10, "begin no round after so many minutes; 0: no limit")
	rounds := f.Int("rounds", 0, "end after so many rounds; 0: no limit")
	faults := f.Int("faults", 0, "end with the round that has this fault; 0: no limit")
	seed := f.Uint64("seed", 0, "of the plan; 0: one is chosen and printed")
	load := f.Int("load", 0, "the largest number of busy loops in a round: 0, 4 or 16; 16 brings pressure on memory and disk")
	supervisors := f.Int("supervisors", 3, "replicas: 1, 3 or 5")
	preset := f.String("preset", "", "of the periods; empty: what lofamoctl up chooses for this machine")
	restart := f.Bool("restart", false, "daemons restart halves, and the plan has planned restarts")
	kinds := f.String("unharmed", "", "what no step ends or stops, for slopes of an hour: supervisors, daemons, or supervisors,daemons")
	f.BoolVar(&record, "record", false, "add the result to "+recordFile+" and print "+page)
	if err := f.Parse(args); err != nil {
		return o, false, err
	}
	d, err := grid.ParseDims(*dims)
	if err != nil {
		return o, false, err
	}
	if d.Nodes() < 4 {
		return o, false, fmt.Errorf("dims %s: %d nodes: want at least 4, so that a dead node has witnesses", d, d.Nodes())
	}
	if *load != 0 && *load != 4 && *load != 16 {
		return o, false, fmt.Errorf("load %d: want 0, 4 or 16", *load)
	}
	if *minutes < 0 || *rounds < 0 || *faults < 0 || *minutes == 0 && *rounds == 0 && *faults == 0 || f.NArg() > 0 {
		return o, false, fmt.Errorf("minutes %v, rounds %d, faults %d, arguments %q: want a limit above 0, and no arguments", *minutes, *rounds,
			*faults, f.Args())
	}
	unharmed, err := trial.ParseUnharmed(*kinds)
	if err != nil {
		return o, false, err
	}
	for *seed == 0 {
		*seed = rand.Uint64() >> 32
	}
	self, err := os.Executable()
	if err != nil {
		return o, false, err
	}
	return trial.Options{
		Shape:  trial.Shape{Dims: d, Supervisors: *supervisors, Restarts: *restart, Load: *load, Unharmed: unharmed},
		Preset: *preset, Seed: *seed, Rounds: *rounds, Faults: *faults, Duration: time.Duration(*minutes * float64(time.Minute)),
		Load: []string{self, "load"}, Out: os.Stdout,
	}, record, nil
}

// run runs the trial and reports whether there was a violation.
func run(ctx context.Context, o trial.Options, record bool) (violated bool, err error) {
	if o.Dir, err = trial.TempDir(); err != nil {
		return false, err
	}
	printer{os.Stdout}.f("trial of a %s torus, seed %d; its files are in %s\n", o.Dims, o.Seed, o.Dir)
	r, err := trial.Run(ctx, o)
	if r == nil {
		return false, err
	}
	violated = len(r.Violations) > 0
	if err != nil {
		r.Failure, _, _ = strings.Cut(err.Error(), "\n") // the ends of logs follow
	}
	summary(printer{os.Stdout}, r)
	if record {
		all, rerr := trial.AppendRecord(recordFile, r)
		simulated, serr := trial.ReadScore(scoreFile)
		if rerr = errors.Join(rerr, serr); rerr == nil {
			rerr = os.WriteFile(page, trial.Document(all, simulated), 0o644)
		}
		err = errors.Join(err, rerr)
	}
	if violated || err != nil {
		printer{os.Stdout}.f("the logs are kept in %s\n", filepath.Join(o.Dir, "c"))
		return violated, err
	}
	return violated, os.RemoveAll(o.Dir)
}

// printer ignores write errors, because nothing could be done about them.
type printer struct{ w io.Writer }

func (p printer) f(format string, args ...any) { _, _ = fmt.Fprintf(p.w, format, args...) }

// summary prints the result for a terminal.
func summary(p printer, r *trial.Record) {
	p.f("\n%d rounds in %s, %d events, %d changes of the leader, %d changes to SICK without a fault\n", r.Rounds, r.Took, r.Events, r.Leaders,
		r.Sick)
	for _, d := range r.Faults {
		p.f("  %-42s %2d loops: %3d named, median %8s, p99 %8s, bound %s, %d beyond, %d not named\n", d.Kind, d.Loops, len(d.Took),
			trial.Quantile(d.Took, 0.5).Round(time.Millisecond), trial.Quantile(d.Took, 0.99).Round(time.Millisecond), d.Bound, d.Beyond, d.Missed)
	}
	for _, d := range r.Normal {
		p.f("  %-42s %2d loops: %3d, median %s, p99 %s, bound %s\n", "heal until NORMAL", d.Loops, len(d.Took),
			trial.Quantile(d.Took, 0.5).Round(time.Millisecond), trial.Quantile(d.Took, 0.99).Round(time.Millisecond), d.Bound)
	}
	for _, u := range r.Usages {
		p.f("  %-12s %3d processes: at most %.0f MB, %.0f descriptors, %.0f threads; steepest %.2f MB/h (anonymous %.2f) of %d over up to %s\n",
			u.Role, u.Processes, u.Resident, u.Descriptors, u.Threads, u.Steepest, u.Parts.Anonymous.Steepest, u.Sloped, u.Longest)
	}
	if s := r.Incidents; s != nil {
		p.f("  incidents of %d faults in %d rounds: missed %d, spurious %d, wrongly merged %d\n", s.Faults, s.Rounds, s.Missed,
			s.Spurious, s.Merged)
	}
	for _, v := range r.Violations {
		p.f("VIOLATION %s\n", v)
	}
	p.f("%d violations; seed %d repeats the plan\n", len(r.Violations), r.Seed)
}

// Command lofamo-bench produces the project's published measurements: awareness latencies of every kind of fault on a
// real local cluster, beside the bounds that follow from the periods and beside memberlist, and the cost of an idle
// node. It also runs the soak test, and series of cluster starts.
//
// Times are taken on CLOCK_MONOTONIC, from before the injection to the receipt of the watch event.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/lab"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

type options struct {
	supervisors int // of a cluster; 0: three
	dims        grid.Dims
	presets     []string
	kills       int
	others      int
	idle        time.Duration
	soak        time.Duration
	peers       int
	relays      int
	only        string
	rows        *rows
	short       bool
	seed        uint64
	starts      int    // number of starts; 0: none
	steady      int    // starts whose steady cost is measured
	live        int    // starts that restarts follow
	preset      string // of the starts; empty: chosen by lofamoctl up
	record      string // file of the starts; empty: none
	out         printer
	progress    printer
}

func printed(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// printer ignores write errors, because nothing could be done about them.
type printer struct{ w io.Writer }

func (p printer) f(format string, args ...any) { _, _ = fmt.Fprintf(p.w, format, args...) }

func main() {
	if len(os.Args) == 2 && os.Args[1] == "busy-loop" {
		for n := 0; ; n++ { // spinning is the purpose
			_ = n
		}
	}
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lofamo-bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lofamo-bench:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	f := flag.NewFlagSet("lofamo-bench", flag.ContinueOnError)
	dims := f.String("dims", "2x2x2", "sizes of the torus")
	presets := f.String("presets", "default,fast", "presets to measure, with commas between; empty for none")
	kills := f.Int("kills", 300, "samples of each of kill-host, kill-dnp, kill-node, hang-node; 1 to 100000")
	others := f.Int("others", 50, "samples of every other kind, at the first preset; 0 to 100000")
	idle := f.Duration("idle", 30*time.Second, "for how long to measure an idle node at each preset; 0 for not at all")
	soak := f.Duration("soak", 0, "instead: run so long with eight busy loops on each core beside the cluster, and fail if "+
		"anything healthy "+
		"is called FAILED")
	peers := f.Int("peers", 5, "samples of memberlist's death detection with 8 members; 0 for none")
	relays := f.Int("relays", 100, "reports to send through the torus while the service network is cut; 1 to 10000")
	only := f.String("only", "", "only faults whose name contains this, or only the section: "+strings.Join(sectionNames(), ", "))
	rowNames := f.String("rows", "", "of a section on load, only rows whose name contains this, such as \"25x20x20 1000 scattered\"")
	short := f.Bool("short", false, "few samples, default preset only: to see that it works")
	seed := f.Uint64("seed", 1, "of the choice of nodes and phases")
	var o options
	o.startFlags(f)
	if err := f.Parse(args); err != nil {
		return options{}, err
	}
	d, err := grid.ParseDims(*dims)
	if err != nil {
		return options{}, err
	}
	if *kills < 1 || *kills > 100000 || *others < 0 || *others > 100000 || *peers < 0 || *relays < 1 || *relays > 10000 || f.NArg() > 0 {
		return options{}, fmt.Errorf("kills %d (1 to 100000), others %d (0 to 100000), peers %d (0 or more), relays %d (1 to "+
			"10000), arguments %q (none): outside these ranges", *kills, *others, *peers, *relays, f.Args())
	}
	if !section(*only) && !slices.ContainsFunc(experiments(config.Periods{}),
		func(e experiment) bool { return strings.Contains(e.fault.String(), *only) }) {
		return options{}, fmt.Errorf("only: given %q: want a part of the name of a fault, or one of the sections %s", *only,
			strings.Join(sectionNames(), ", "))
	}
	if *rowNames != "" && !slices.ContainsFunc(loads(), func(s named) bool { return s.name == *only }) {
		return options{}, fmt.Errorf("rows: given %q, with -only %q: want -only with a section on load: %s", *rowNames, *only,
			strings.Join(namesOf(loads()), ", "))
	}
	names := strings.FieldsFunc(*presets, func(r rune) bool { return r == ',' })
	if *soak > 0 && len(names) == 0 {
		return options{}, errors.New("soak needs a preset")
	}
	if err := o.checkStarts(); err != nil {
		return options{}, err
	}
	o.dims, o.presets, o.kills, o.others, o.idle, o.soak, o.peers, o.relays = d, names, *kills, *others, *idle, *soak, *peers, *relays
	o.only, o.rows, o.short, o.seed, o.out, o.progress = *only, &rows{part: *rowNames}, *short, *seed, printer{os.Stdout}, printer{os.Stderr}
	if *short {
		o.presets, o.kills, o.others, o.idle, o.peers, o.relays = []string{"default"}, 3, 1, time.Second, 1, 1
	}
	return o, nil
}

func run(ctx context.Context, o options) error {
	if o.soak > 0 {
		return soak(ctx, o)
	}
	conditions(o)
	if o.starts > 0 {
		return starts(ctx, o)
	}
	if section(o.only) {
		return deliverySections(ctx, o)
	}
	for i, p := range o.presets {
		if i > 0 {
			o.others = 0
		}
		if err := preset(ctx, o, p); err != nil {
			return fmt.Errorf("preset %s: %w", p, err)
		}
	}
	if err := peers(o); err != nil || o.only != "" {
		return err
	}
	return deliverySections(ctx, o)
}

// sections are those that can be selected by name, in order: the figures on delivery and on load.
func sections() []named {
	return []named{
		{"delivery", deliveries},
		{"copy", copies},
		{"sizes", sizes},
		{"checksums", func(_ context.Context, o options) error { return checksums(o) }},
		{"stream", streams},
		{"relay", relays},
		{"selftest", selfTests},
		{"selftest-sizes", testedSizes},
		{"eureka", eurekas},
		{"diagnose", diagnoses},
		{"kubernetes", kubernetesActs},
		{"policies", policies},
	}
}

// named is a section.
type named struct {
	name string
	run  func(context.Context, options) error
}

func sectionNames() []string { return namesOf(append(sections(), loads()...)) }

func namesOf(list []named) (out []string) {
	for _, s := range list {
		out = append(out, s.name)
	}
	return out
}

func section(name string) bool { return slices.Contains(sectionNames(), name) }

// deliverySections prints the sections.
func deliverySections(ctx context.Context, o options) error {
	o.out.f("\n## Delivery\n")
	for _, s := range append(sections(), loads()...) {
		if o.only != "" && o.only != s.name {
			continue
		}
		if err := s.run(ctx, o); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return o.rows.check()
}

// preset measures one preset on a cluster of its own.
func preset(ctx context.Context, o options, name string) (err error) {
	l, dir, err := start(ctx, o, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(), os.RemoveAll(dir)) }()
	periods, err := l.Cluster.Periods()
	if err != nil {
		return err
	}
	o.out.f("\n## Preset %s\n\n", name)
	if o.idle > 0 {
		if err := idle(ctx, o, l); err != nil {
			return err
		}
	}
	return latencies(ctx, o, l, periods)
}

func start(ctx context.Context, o options, preset string) (*lab.Lab, string, error) {
	dir, err := os.MkdirTemp("", "lofamo-bench-")
	if err != nil {
		return nil, "", err
	}
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	// Only good news waits for the hold-off: a short one changes no latency, and saves two seconds
	// a sample.
	holdOff := config.Duration(200 * time.Millisecond)
	l, err := lab.Start(starting, cluster.Options{
		Dir: dir, Dims: o.dims, Supervisors: cmp.Or(o.supervisors,
			3), Preset: preset, LogLevel: "warn", Periods: &config.PeriodsOverride{LinkHoldOff: &holdOff},
	})
	if err != nil {
		return nil, "", errors.Join(err, os.RemoveAll(dir))
	}
	return l, dir, nil
}

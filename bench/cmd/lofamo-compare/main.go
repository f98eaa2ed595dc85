// Command lofamo-compare kills members of LO|FA|MO, memberlist, serf, consul and Kubernetes' node leases under the same
// loads on one machine, and prints docs/compare.md.
//
// Each cell (one system, one size, one load) runs in its own Linux namespaces, which end with the cell: see
// namespace.go. It requires root, ip and nft. The members of memberlist, serf and Kubernetes are processes of this
// program.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/bench/compare"
)

func main() {
	status, err := dispatch(os.Args[1:])
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "lofamo-compare:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// dispatch runs one of this program's processes: a member, a cell, process 1 of its namespaces, or the whole run.
func dispatch(args []string) (status int, err error) {
	role := ""
	if len(args) > 0 {
		role = args[0]
	}
	switch {
	case role == "busy-loop":
		for n := 0; ; n++ { // spinning is the purpose
			_ = n
		}
	case role == "init":
		return beInit(args[1:])
	case role == "cell" && len(args) == 2:
		return 0, beCell(context.Background(), args[1], os.Stdout)
	case role == "kubelet" && len(args) == 5:
		return 0, beKubelet(args[1], args[2], args[3], args[4])
	case role == "member" && len(args) == 4:
		var n [2]int
		for i := range n {
			if n[i], err = strconv.Atoi(args[2+i]); err != nil {
				return 2, err
			}
		}
		return 0, beMember(args[1], n[0], n[1])
	}
	o, err := parse(args)
	if err != nil {
		return 2, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return 0, run(ctx, o)
}

// options are the command line.
type options struct {
	systems []string
	plan    []compare.Condition
	kills   int
	seed    uint64
	limit   time.Duration
	steady  time.Duration
	budget  time.Duration // of a cell
	whole   time.Duration // no cell begins later
	lanes   string
	consul  string
	beside  string
	page    string
	record  string
	short   bool
	missing bool // only cells that the record lacks
	fresh   bool // begin a new record
}

// wholePlan returns the plan of the whole form as text.
func wholePlan() string {
	var parts []string
	for _, c := range compare.Plan() {
		load := strconv.Itoa(c.Load.Loops)
		if c.Load.Loss > 0 {
			load = fmt.Sprintf("%d%%", c.Load.Loss)
		}
		parts = append(parts, fmt.Sprintf("%d:%s", c.Members, load))
	}
	return strings.Join(parts, ",")
}

// Values of -lanes.
const (
	alone     = "alone"
	peersOnce = "peers"
	allOnce   = "all"
)

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("lofamo-compare", flag.ContinueOnError)
	systems := f.String("systems", strings.Join(systemNames(), ";"), "systems to compare, with semicolons between")
	plan := f.String("plan", wholePlan(), "MEMBERS:LOAD with commas between, in order; MEMBERS: 8, 16, 27, 32 or 64; LOAD: 0 to 256 busy "+
		"loops, or 1% to 90% of the packets lost")
	f.IntVar(&o.kills, "kills", 20, "kills in a cell: 1 to 1000")
	f.Uint64Var(&o.seed, "seed", 1, "of victims and moments")
	f.DurationVar(&o.limit, "limit", 2*time.Minute, "time in which all must know a kill: 1s to 10m")
	f.DurationVar(&o.steady, "steady", 10*time.Second, "time over which costs are measured: 1s to 10m")
	f.DurationVar(&o.budget, "budget", 5*time.Minute, "no kill of a cell begins later than this after the load began: 1s to 24h")
	f.DurationVar(&o.whole, "time", 24*time.Hour, "no cell begins later than this after the run began: 1s to 48h")
	f.StringVar(&o.lanes, "lanes", alone, "without busy loops: alone: one system after the other; peers: all but ours side by side; "+
		"all: all side by side. With busy loops, each system is alone with them")
	f.StringVar(&o.consul, "consul", os.Getenv("LOFAMO_CONSUL"), "consul's program; without it consul is left out")
	f.StringVar(&o.beside, "beside", "not stated", "other work on the machine, for the page")
	f.StringVar(&o.page, "out", "", "file for the page; empty: standard output")
	f.StringVar(&o.record, "record", "", "file for the record of the run, which keeps the cells that it has from earlier runs; empty: none")
	f.BoolVar(&o.missing, "missing", false, "measure only cells that the record lacks; with -time the next piece of the plan")
	f.BoolVar(&o.fresh, "fresh", false, "begin a new record: drop the cells of earlier runs")
	f.BoolVar(&o.short, "short", false, "the short form: 8 members, no load, 5 kills each, all side by side, 3 minutes at most")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("arguments %q: want only flags", f.Args())
	}
	if o.short {
		o.kills, o.steady, o.budget, o.lanes = 5, 5*time.Second, 40*time.Second, allOnce
		*plan = "8:0"
	}
	o.systems = strings.Split(*systems, ";")
	var err error
	o.plan, err = parsePlan(*plan)
	return o, errors.Join(err, o.check())
}

func parsePlan(text string) (out []compare.Condition, err error) {
	for part := range strings.SplitSeq(text, ",") {
		size, load, ok := strings.Cut(strings.TrimSpace(part), ":")
		percent, isLoss := strings.CutSuffix(load, "%")
		members, err := strconv.Atoi(size)
		n, failed := strconv.Atoi(percent)
		if !ok || err != nil || failed != nil {
			return nil, fmt.Errorf("plan %q: want MEMBERS:LOAD, such as 8:16 or 8:20%%", part)
		}
		c := compare.Condition{Members: members, Load: compare.Load{Loops: n}}
		if isLoss {
			c.Load = compare.Load{Loss: n}
			err = within("plan: loss", n, 1, 90)
		} else {
			err = within("plan: loops", n, 0, 256)
		}
		if _, badSize := dimsOf(members); err != nil || badSize != nil {
			return nil, fmt.Errorf("plan %q: %w", part, errors.Join(err, badSize))
		}
		out = append(out, c)
	}
	return out, nil
}

func (o options) check() error {
	errs := []error{
		within("kills", o.kills, 1, 1000), within("limit", o.limit, time.Second, 10*time.Minute),
		within("steady", o.steady, time.Second, 10*time.Minute), within("budget", o.budget, time.Second, 24*time.Hour),
		within("time", o.whole, time.Second, 48*time.Hour),
	}
	for _, s := range o.systems {
		if _, ok := known()[s]; !ok {
			errs = append(errs, fmt.Errorf("systems: %q: want some of %q", s, systemNames()))
		}
	}
	if o.lanes != alone && o.lanes != peersOnce && o.lanes != allOnce {
		errs = append(errs, fmt.Errorf("lanes %q: want %s, %s or %s", o.lanes, alone, peersOnce, allOnce))
	}
	if o.missing && (o.record == "" || o.fresh) {
		errs = append(errs, errors.New("missing: want a record, and not -fresh"))
	}
	return errors.Join(errs...)
}

func within[T int | time.Duration](name string, v, least, most T) error {
	if v < least || v > most {
		return fmt.Errorf("%s %v: want %v to %v", name, v, least, most)
	}
	return nil
}

// runCell runs one cell in new namespaces. A cell that cannot report is a failed cell.
func runCell(ctx context.Context, o order) (r compare.Cell, err error) {
	failed := compare.Cell{System: o.System, Members: o.Members, Load: o.Load}
	if o.Dir, err = os.MkdirTemp("", "lofamo-compare-"); err != nil {
		return failed, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.Dir)) }()
	self, err := os.Executable()
	if err != nil {
		return failed, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return failed, err
	}
	var out, complaints bytes.Buffer
	cmd := isolated(self, "cell", string(text))
	cmd.Stdout, cmd.Stderr = &out, &complaints
	ended, err := startKept(cmd)
	if err != nil {
		return failed, fmt.Errorf("start a cell in new namespaces (root is required): %w", err)
	}
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = errors.Join(ctx.Err(), cmd.Process.Kill(), <-ended)
		return failed, err
	case <-time.After(o.hardBound()):
		failed.Failure = fmt.Sprintf("the cell took longer than %s", o.hardBound())
		_ = errors.Join(cmd.Process.Kill(), <-ended) // it was killed: the failure says why
		return failed, nil
	}
	if err != nil {
		return failed, fmt.Errorf("cell %s, %d members, %s: %w: %s", o.System, o.Members, o.Load, err, tail(complaints.Bytes()))
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return failed, fmt.Errorf("result of a cell: %w: %s", err, tail(out.Bytes()))
	}
	missed := slices.ContainsFunc(r.Kills, func(k compare.Kill) bool { return k.All == compare.Missed })
	if r.Failure != "" || missed {
		log, _ := os.ReadFile(o.Dir + "/log") // only help for a person; its absence says nothing
		fmt.Fprintf(os.Stderr, "%s\n", tail(log))
	}
	return r, nil
}

func tail(b []byte) []byte { return b[max(0, len(b)-2000):] }

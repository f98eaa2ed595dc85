// Command lofamo-deaths plays a campaign of random deaths on kernels in virtual machines, and compares the fault map with the
// ground truth. It prints one line per round and a summary. The exit code is 1 after a failed round, and 2 if the campaign
// was interrupted or could not go on. It keeps the logs of a campaign that failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/internal/testing/deaths"
)

// The record and the page, from the folder of this module.
const (
	recordFile = "../internal/testing/deaths/testdata/deaths.jsonl"
	page       = "../docs/deaths.md"
	kit        = "../hack/vm"
)

func main() {
	o, record, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	failed := 0
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		failed, err = run(ctx, o, record)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lofamo-deaths:", err)
	}
	os.Exit(exitCode(failed, err))
}

func exitCode(failed int, err error) int {
	switch {
	case err != nil:
		return 2
	case failed > 0:
		return 1
	}
	return 0
}

// most bounds a campaign: its machines keep their logs in memory.
const most = 24 * time.Hour

func parse(args []string) (o deaths.Options, record bool, err error) {
	f := flag.NewFlagSet("lofamo-deaths", flag.ContinueOnError)
	f.IntVar(&o.Rounds, "rounds", 20, "number of rounds, 1 to 9999")
	minutes := f.Float64("minutes", 0, "begin no round later than this, in minutes, 0 to 1440; 0: no limit")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of the plan; 0 chooses one and prints it")
	f.IntVar(&o.Nodes, "nodes", deaths.LeastNodes, fmt.Sprintf("number of nodes in the ring, %d to %d", deaths.LeastNodes, deaths.MostNodes))
	f.Func("only", "play only kinds of death whose name matches this regular expression; not with -record", func(s string) (err error) {
		o.Only, err = regexp.Compile(s)
		return err
	})
	f.StringVar(&o.Image, "image", "../.tools/vm/image", "folder that hack/vm/build makes")
	f.StringVar(&o.Bin, "bin", "../.tools/vm/bin", "folder with static programs")
	f.StringVar(&o.Conditions, "conditions", "", "other load on this machine, for the record")
	f.BoolVar(&record, "record", false, "add the result to "+recordFile+" and print "+page)
	if err := f.Parse(args); err != nil {
		return o, false, err
	}
	o.Duration = time.Duration(*minutes * float64(time.Minute))
	if o.Rounds < 1 || o.Rounds > 9999 || !(*minutes >= 0) || o.Duration > most || f.NArg() > 0 {
		return o, false, fmt.Errorf("rounds %d, minutes %v, arguments %q: want 1 to 9999 rounds, 0 to 1440 minutes and no arguments",
			o.Rounds, *minutes, f.Args())
	}
	if o.Nodes < deaths.LeastNodes || o.Nodes > deaths.MostNodes {
		return o, false, fmt.Errorf("nodes %d: want %d to %d", o.Nodes, deaths.LeastNodes, deaths.MostNodes)
	}
	if o.Only != nil && record {
		return o, false, errors.New("-only cannot be combined with -record: the record holds only plans of all kinds")
	}
	for o.Seed == 0 {
		o.Seed = rand.Uint64() >> 32
	}
	o.Kit, o.Out, o.Limit = kit, os.Stdout, most
	for _, path := range []*string{&o.Image, &o.Bin, &o.Kit} {
		if *path, err = filepath.Abs(*path); err != nil {
			return o, false, err
		}
	}
	return o, record, nil
}

// run plays the campaign and returns how many rounds failed.
func run(ctx context.Context, o deaths.Options, record bool) (failed int, err error) {
	if o.Dir, err = os.MkdirTemp("", "lofamo-deaths."); err != nil {
		return 0, err
	}
	var lines []deaths.Line
	o.Record = func(l deaths.Line) error {
		lines = append(lines, l)
		if !record {
			return nil
		}
		return deaths.Append(recordFile, l)
	}
	fmt.Printf("campaign of deaths, seed %d; its files are in %s\n", o.Seed, o.Dir)
	passed, failed, err := deaths.Run(ctx, o)
	fmt.Print(deaths.Summary(lines))
	fmt.Printf("seed %d repeats the plan\n%d passed, %d failed\n", o.Seed, passed, failed)
	if record {
		all, rerr := deaths.Read(recordFile)
		if rerr == nil {
			rerr = os.WriteFile(page, deaths.Document(all), 0o644) //nolint:gosec // published
		}
		err = errors.Join(err, rerr)
	}
	if failed > 0 || err != nil {
		fmt.Printf("the logs are kept in %s\n", o.Dir)
		return failed, err
	}
	return 0, os.RemoveAll(o.Dir)
}

// Command lofamo-deaths plays a campaign of random deaths on kernels in virtual machines, and compares the fault map with the
// ground truth. It prints one line per round and a summary. The exit code is 1 after a failed round, and 2 if the campaign
// was interrupted or could not go on. It keeps the logs of a campaign that failed. With -play it only starts the machines, for a person.
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
	o, what, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	failed := 0
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		if what.play {
			err = play(ctx, o)
		} else {
			failed, err = run(ctx, o, what.record)
		}
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

// mode is what to do beside, or instead of, the rounds.
type mode struct {
	record bool // keep the result
	play   bool // no rounds: a person has the ring
}

func parse(args []string) (o deaths.Options, what mode, err error) {
	f := flag.NewFlagSet("lofamo-deaths", flag.ContinueOnError)
	f.IntVar(&o.Rounds, "rounds", 20, "number of rounds, 1 to 9999")
	minutes := f.Float64("minutes", 0, "begin no round later than this, in minutes, 0 to 1440; 0: no limit")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of the plan; 0 chooses one and prints it")
	f.IntVar(&o.Nodes, "nodes", deaths.LeastNodes, fmt.Sprintf("number of nodes in the ring, %d to %d", deaths.LeastNodes, deaths.MostNodes))
	f.BoolVar(&o.Cards, "cards", false, "each node has two kernels: a host and a card, which runs the DNP half")
	f.Func("only", "play only kinds of death whose name matches this regular expression", func(s string) (err error) {
		o.Only, err = regexp.Compile(s)
		return err
	})
	f.StringVar(&o.Image, "image", "../.tools/vm/image", "folder that hack/vm/build makes")
	f.StringVar(&o.Bin, "bin", "../.tools/vm/bin", "folder with static programs")
	f.StringVar(&o.Conditions, "conditions", "", "other load on this machine, for the record")
	f.BoolVar(&what.play, "play", false, "play no rounds: start the ring, print how to reach it, and keep it until Ctrl-C; not with -record")
	f.BoolVar(&what.record, "record", false, "add the result to "+recordFile+" and print "+page)
	if err := f.Parse(args); err != nil {
		return o, what, err
	}
	o.Duration = time.Duration(*minutes * float64(time.Minute))
	if o.Rounds < 1 || o.Rounds > 9999 || !(*minutes >= 0) || o.Duration > most || f.NArg() > 0 {
		return o, what, fmt.Errorf("rounds %d, minutes %v, arguments %q: want 1 to 9999 rounds, 0 to 1440 minutes and no arguments",
			o.Rounds, *minutes, f.Args())
	}
	if o.Nodes < deaths.LeastNodes || o.Nodes > deaths.MostNodes {
		return o, what, fmt.Errorf("nodes %d: want %d to %d", o.Nodes, deaths.LeastNodes, deaths.MostNodes)
	}
	if what.play && what.record {
		return o, what, errors.New("-play cannot be combined with -record: there are no rounds")
	}
	for o.Seed == 0 {
		o.Seed = rand.Uint64() >> 32
	}
	o.Kit, o.Out, o.Limit = kit, os.Stdout, most
	for _, path := range []*string{&o.Image, &o.Bin, &o.Kit} {
		if *path, err = filepath.Abs(*path); err != nil {
			return o, what, err
		}
	}
	return o, what, nil
}

// play starts a ring for a person.
func play(ctx context.Context, o deaths.Options) (err error) {
	if o.Dir, err = os.MkdirTemp("", "lofamo-ring."); err != nil {
		return err
	}
	return errors.Join(deaths.Play(ctx, o), os.RemoveAll(o.Dir))
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
	also := ""
	if o.Only != nil {
		also = fmt.Sprintf(" with -only '%s'", o.Only)
	}
	fmt.Printf("seed %d%s repeats the plan\n%d passed, %d failed\n", o.Seed, also, passed, failed)
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

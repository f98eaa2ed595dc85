// Command checkpoint is an example of a job that survives the loss of nodes (seed 003 §6.1). One process on each node
// of the job computes a part of one result. All processes checkpoint at barriers, each with a second copy in the
// directory that stands for a neighbour's disk (one shared directory tree; the example sends no data over a network).
// When a node dies, the remaining processes roll back to the last complete checkpoint, share the dead node's part, and
// compute the correct result. The example shows the use of package jobs; its computation has no purpose.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/pkg/jobs"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	cancel()
	os.Exit(code)
}

// execute returns 0, 1 for a failure and 2 for wrong usage.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "checkpoint:", err)
		return 2
	}
	if o.serial {
		_, _ = fmt.Fprintln(stdout, "result", digest(serial(o.cells, o.steps)))
		return 0
	}
	if err := work(ctx, o, stdout, stderr); err != nil {
		_, _ = fmt.Fprintln(stderr, "checkpoint:", err)
		return 1
	}
	return 0
}

// options are the flags.
type options struct {
	job, node, socket, dir string
	members                []string
	cells, steps, every    int
	pause, patience        time.Duration
	serial                 bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var members string
	f := flag.NewFlagSet("checkpoint", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.job, "job", "", "name of this run of the job, another one each time")
	f.StringVar(&o.node, "node", "", "id of the node that this process runs on")
	f.StringVar(&members, "members", "", "ids of all nodes of the job, with commas")
	f.StringVar(&o.socket, "socket", "", "the node's socket for jobs (default: $"+jobs.EnvSocket+", or "+jobs.DefaultSocket+")")
	f.StringVar(&o.dir, "dir", "", "directory in which each node has one of its own, which stands for its disk")
	f.IntVar(&o.cells, "cells", 4096, "size of the problem")
	f.IntVar(&o.steps, "steps", 100, "steps of the computation")
	f.IntVar(&o.every, "every", 10, "steps from one checkpoint to the next")
	f.DurationVar(&o.pause, "pause", 0, "rest after each step, for people to watch")
	f.DurationVar(&o.patience, "patience", time.Minute, "how long to wait for members that are late and are not known to be dead")
	f.BoolVar(&o.serial, "serial", false, "compute the result alone, to compare")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if members != "" {
		o.members = strings.Split(members, ",")
	}
	slices.Sort(o.members)
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("given %q: want flags alone", f.Arg(0))
	case o.cells < 1 || o.cells > 1<<24:
		return o, fmt.Errorf("-cells: given %d: want 1 to %d", o.cells, 1<<24)
	case o.steps < 1 || o.every < 1:
		return o, fmt.Errorf("-steps and -every: given %d and %d: want at least 1", o.steps, o.every)
	case o.serial:
		return o, nil
	case o.job == "" || o.dir == "":
		return o, fmt.Errorf("-job and -dir: given %q and %q: want both", o.job, o.dir)
	case !slices.Contains(o.members, o.node):
		return o, fmt.Errorf("-node: given %q: want one of -members, %q", o.node, members)
	case len(o.members) > o.cells:
		return o, fmt.Errorf("-members: given %d: want at most one for each of the %d cells", len(o.members), o.cells)
	}
	return o, nil
}

func work(ctx context.Context, o options, stdout, stderr io.Writer) error {
	client, err := jobs.Dial(o.socket)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{
		options: o, client: client, disk: disk{dir: o.dir, node: o.node},
		log: log.New(stderr, o.node+" ", log.Ltime|log.Lmicroseconds), words: make(chan word, 1024),
	}
	listening, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- r.listen(ctx, listening) }()
	select {
	case <-listening:
	case err := <-ended:
		return err
	}
	r.join(o.members)
	result, err := r.compute(ctx)
	if err != nil {
		return err
	}
	if result != nil {
		_, _ = fmt.Fprintln(stdout, "result", digest(result))
	}
	return nil
}

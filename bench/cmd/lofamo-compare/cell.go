package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/lofamo/lofamo/bench/compare"
	"github.com/lofamo/lofamo/internal/cluster"
)

// Bounds of the phases of a cell.
const (
	startBound   = 4 * time.Minute
	startReport  = 5 * time.Second // of startBound, for what the start waited for
	restoreBound = 2 * time.Minute
	settle       = 2 * time.Second // between the begin of the load and the measurement
	// roundWindow is the time in which the overlapping kills of a round fall.
	roundWindow = 5 * time.Second
	// phaseWindow is the time in which a single kill falls: longer than every probe interval.
	phaseWindow = time.Second
	// leastSurvivors remain of every round.
	leastSurvivors = 3
)

// system is one of the compared systems in a cell.
type system interface {
	// start begins all members and returns when they serve; the board learns their states.
	start(ctx context.Context) error
	// session returns the ID of the session with all processes of a member.
	session(member int) int
	// restart begins a killed member again.
	restart(ctx context.Context, member int) error
	// overlap reports that kills may overlap, because the judge of a member does not depend on other members.
	overlap() bool
	// note is a remark on the settings of this cell.
	note() string
}

// order is the command for one cell; the parent passes it as JSON.
type order struct {
	System  string
	Members int
	Load    compare.Load
	Kills   int
	Seed    uint64
	Limit   time.Duration // for one kill
	Steady  time.Duration
	Budget  time.Duration // no kill begins later than this after the load began
	Dir     string
	Consul  string // the program
}

// hardBound is the time after which the parent ends a cell.
func (o order) hardBound() time.Duration {
	return startBound + settle + o.Steady + o.Budget + o.Limit + 2*restoreBound
}

// cell runs one system under one load in this process' namespaces.
type cell struct {
	order
	members int
	dir     string
	self    string
	log     *os.File
	board   *board
	loops   []int
}

// beCell runs a cell and writes its result to out as JSON. A failure of the system is a result.
func beCell(ctx context.Context, text string, out io.Writer) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return fmt.Errorf("order of a cell: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := &cell{order: o, members: o.Members, dir: o.Dir, self: self, board: newBoard(o.Members)}
	if c.log, err = os.Create(filepath.Join(o.Dir, "log")); err != nil {
		return fmt.Errorf("log of the cell: %w", err)
	}
	s, err := c.system()
	if err != nil {
		return err
	}
	r := compare.Cell{System: o.System, Members: o.Members, Load: o.Load}
	if err := c.run(ctx, s, &r); err != nil {
		r.Failure = err.Error()
	}
	r.Note = s.note()
	return json.NewEncoder(out).Encode(r)
}

func (c *cell) system() (system, error) {
	switch c.System {
	case ourName:
		return &lofamo{cell: c}, nil
	case memberlistLAN, memberlistTuned, serfLAN:
		return &gossip{cell: c, name: c.System}, nil
	case consulName:
		return &consul{cell: c, program: c.Consul}, nil
	case kubernetesName:
		return &kube{cell: c}, nil
	}
	return nil, fmt.Errorf("system %q: want one of %q", c.System, systemNames())
}

// run carries out the phases: start, load, costs, kills.
func (c *cell) run(ctx context.Context, s system, r *compare.Cell) error {
	// Watches live as long as the cell.
	starting, cancel := context.WithTimeoutCause(ctx, startBound, fmt.Errorf("longer than %s", startBound))
	defer cancel()
	began := make(chan error, 1)
	go func() { began <- s.start(ctx) }()
	select {
	case err := <-began:
		if err != nil {
			return fmt.Errorf("start: %w", err)
		}
	case <-starting.Done():
		return fmt.Errorf("start: %w", context.Cause(starting))
	}
	if err := c.board.waitComplete(starting); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if err := c.apply(); err != nil {
		return err
	}
	begun := time.Now()
	defer func() { r.False, r.Observed = c.board.falseDeaths(), time.Since(begun) }()
	wait := func(d time.Duration) error { return pause(ctx, d) }
	if err := wait(settle); err != nil {
		return err
	}
	k, err := measureCosts(c.Steady, append([]int{1, os.Getpid()}, c.loops...), wait)
	if err != nil {
		return err
	}
	r.CPU, r.Bytes, r.Memory = k.cpu, k.bytes/float64(c.members), k.memory/float64(c.members)
	return c.kills(ctx, s, begun.Add(c.Budget), r)
}

// apply begins the load.
func (c *cell) apply() error {
	for range c.Load.Loops {
		cmd, err := session(c.log, c.log, c.self, "busy-loop")
		if err != nil {
			return err
		}
		c.loops = append(c.loops, cmd.Process.Pid)
		reap(cmd)
	}
	if c.Load.Loss > 0 {
		return lose(c.Load.Loss)
	}
	return nil
}

// kills kills members in rounds, and adds the results to r. Every member is killed once before any is killed again: a daemon that was
// started more than five times a minute would leave its halves down.
func (c *cell) kills(ctx context.Context, s system, until time.Time, r *compare.Cell) error {
	rnd := rand.New(rand.NewPCG(c.Seed, uint64(c.members)))
	var turn []int // members that are not yet killed in this turn
	for len(r.Kills) < c.Kills && time.Now().Before(until) {
		size, window := 1, phaseWindow
		if s.overlap() {
			size, window = min(c.Kills-len(r.Kills), c.members-leastSurvivors), roundWindow
		}
		if len(turn) < size {
			turn = append(turn, slices.DeleteFunc(rnd.Perm(c.members), func(m int) bool { return slices.Contains(turn, m) })...)
		}
		victims := turn[:size]
		turn = turn[size:]
		if err := c.strike(ctx, s, rnd, victims, window); err != nil {
			return err
		}
		waiting, cancel := context.WithTimeout(ctx, c.Limit)
		times, err := c.board.waitKnown(waiting, victims)
		cancel()
		if err != nil {
			return err
		}
		r.Kills = append(r.Kills, times...)
		if err := c.restore(ctx, s, victims); err != nil {
			return fmt.Errorf("after kill %d: restart: %w", len(r.Kills), err)
		}
	}
	return nil
}

// strike kills the victims at random moments within a window for each, or later, when all observers know the victim alive.
func (c *cell) strike(ctx context.Context, s system, rnd *rand.Rand, victims []int, window time.Duration) error {
	for _, v := range victims {
		if err := pause(ctx, time.Duration(rnd.Int64N(int64(window)))/time.Duration(len(victims))); err != nil {
			return err
		}
		if err := c.die(ctx, v); err != nil {
			return err
		}
		if err := killSession(s.session(v)); err != nil {
			return err
		}
	}
	return nil
}

// die notes on the board that a member is killed now, as soon as all living observers know it alive.
func (c *cell) die(ctx context.Context, member int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, restoreBound, fmt.Errorf("longer than %s", restoreBound))
	defer cancel()
	for !c.board.kill(member, cluster.Monotonic()) {
		if err := c.board.waitAlive(ctx, member); err != nil {
			return err
		}
	}
	return nil
}

func (c *cell) restore(ctx context.Context, s system, victims []int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, restoreBound, fmt.Errorf("longer than %s", restoreBound))
	defer cancel()
	for _, v := range victims {
		c.board.restart(v)
		if err := s.restart(ctx, v); err != nil {
			return err
		}
	}
	return c.board.waitComplete(ctx)
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), context.Cause(ctx))
	}
}

// reap waits for a process in the background.
func reap(cmd *exec.Cmd) {
	go func() { _ = cmd.Wait() }() // it ends by SIGKILL, or with the namespace
}

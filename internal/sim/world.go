// Package sim runs a whole cluster of the real machines in one process, in virtual time: the host
// and DNP cores of every node, their registers and mailboxes, the links, the service network, and a
// supervisor's inbox and awareness. A seed decides all delays and losses, so that a run replays.
//
// It stands in for processes, sockets, cryptography and the store, and for nothing that decides:
// every decision is taken by the same code as in the daemons.
package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Config sets a world.
type Config struct {
	Dims    grid.Dims
	Periods config.Periods
	Seed    uint64
	// Interfaces of every node on the service network: 1 when zero.
	Interfaces int
}

// Known is a change of the fault map and when it was committed.
type Known struct {
	awareness.Change
	At time.Time
}

// String prints the change in one line.
func (k Known) String() string {
	return fmt.Sprintf("%s %s %s→%s cause %s path %s by %s: %s", k.Node, k.Component, k.From, k.To, k.Cause, k.Path, k.Observer, k.Reason)
}

// World is one simulated cluster. It is not safe for concurrent use: one goroutine, one heap.
type World struct {
	cfg   Config
	now   time.Time
	rnd   *rand.Rand
	queue eventQueue
	order uint64

	nodes      []*node // by rank
	supervisor *supervisor
	// supervisorCut: the supervisor is not reached, and the rest of the service network lives.
	supervisorCut bool
	deliveries    deliveries
	known         []Known
	broken        []string // invariants that did not hold
}

// New returns a world in which every half has just been started.
func New(cfg Config) (*World, error) {
	if err := cfg.Dims.Validate(); err != nil {
		return nil, err
	}
	if err := cfg.Periods.Validate(); err != nil {
		return nil, err
	}
	cfg.Interfaces = max(1, cfg.Interfaces)
	w := &World{cfg: cfg, now: time.Unix(1_000_000, 0), rnd: rand.New(rand.NewPCG(cfg.Seed, 1)), deliveries: newDeliveries()}
	var err error
	if w.supervisor, err = newSupervisor(w); err != nil {
		return nil, err
	}
	for rank := range cfg.Dims.Nodes() {
		w.nodes = append(w.nodes, newNode(w, cfg.Dims.At(rank)))
	}
	for _, n := range w.nodes {
		for _, h := range []fault.Half{fault.HalfDNP, fault.HalfHost} {
			// Not in step: a real cluster never starts at one instant.
			w.after(w.between(0, cfg.Periods.TRead), func() { n.start(h) })
		}
	}
	return w, nil
}

// Now returns the virtual time.
func (w *World) Now() time.Time { return w.now }

// Known returns the changes committed so far.
func (w *World) Known() []Known { return w.known }

// Broken lists the invariants that did not hold, in words; empty in a sound system.
func (w *World) Broken() []string { return w.broken }

// Nodes returns the fault map.
func (w *World) Nodes() []awareness.NodeStatus { return w.supervisor.machine.Nodes() }

// Run advances the time by d.
func (w *World) Run(d time.Duration) { w.RunUntil(d, func() bool { return false }) }

// RunUntil advances the time until done, or by limit, and says whether it was done.
func (w *World) RunUntil(limit time.Duration, done func() bool) bool {
	end := w.now.Add(limit)
	for !done() {
		if len(w.queue) == 0 || w.queue[0].at.After(end) {
			w.now = end
			return false
		}
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.do()
	}
	return true
}

func (w *World) after(d time.Duration, do func()) { w.at(w.now.Add(d), do) }

func (w *World) at(t time.Time, do func()) {
	if t.Before(w.now) {
		t = w.now
	}
	w.order++
	heap.Push(&w.queue, event{t, w.order, do})
}

// between returns a random duration from lo to hi.
func (w *World) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.rnd.Int64N(int64(hi-lo)+1))
}

// chance says yes with probability p.
func (w *World) chance(p float64) bool { return p > 0 && w.rnd.Float64() < p }

func (w *World) violate(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf("%s: %s", w.now.Sub(time.Unix(1_000_000, 0)), fmt.Sprintf(format, args...)))
}

// Delays of the parts that are simulated.
const (
	linkDelayMin, linkDelayMax       = 50 * time.Microsecond, 500 * time.Microsecond
	serviceDelayMin, serviceDelayMax = 100 * time.Microsecond, time.Millisecond
	wakeDelayMin, wakeDelayMax       = 20 * time.Microsecond, 300 * time.Microsecond // timers, doorbells, mailboxes
	commitDelayMin, commitDelayMax   = time.Millisecond, 8 * time.Millisecond
)

type event struct {
	at    time.Time
	order uint64 // breaks ties: first in, first out
	do    func()
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].order < q[j].order
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

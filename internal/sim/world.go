// Package sim runs a whole cluster of the real machines in one process, in virtual time: the host and DNP cores of
// every node, their registers and mailboxes, the links, the service network, and three or five supervisors with their
// inboxes, their awareness and a shared store. A seed determines all delays and losses, so that a run can be replayed.
//
// It simulates processes, sockets, cryptography and etcd, but no decisions: the same code as in the daemons decides
// about every fault. Only the loop of a supervisor's term (internal/supervisor/engine) has a second implementation
// here, without goroutines: see term.
//
// While a world runs, the checks compare its map with the real state: see World.Broken. Plan and Campaign make random
// stories of faults; a failing story is reduced to its necessary parts.
package sim

import (
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
	// Supervisors: 3 when zero.
	Supervisors int
	// Racks are the failure domains of the nodes; nil: none.
	Racks map[grid.Coord]string
	// Responses: nil for none.
	Responses *Responses

	// Moves: nodes can join and leave.
	Moves bool
	// Ordered, with Moves: all nodes are spares, and orders give them their first places.
	Ordered bool

	// Fences gives every machine a hardware watchdog, which its recovery daemon feeds; nil: none has one. The other checks of
	// verdicts are off then.
	Fences *Fences

	// Synchronous: the supervisors' wall clocks agree to a second.
	Synchronous bool

	// StopLimit is that of the supervisors; 0: they excuse no announced stop.
	StopLimit time.Duration

	bug bug // planted, to show that the checks find it
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

	nodes    []*node // by rank
	ids      map[fault.NodeID]*node
	replicas []*replica
	store    *store
	// supervisorCut: no node reaches a supervisor, and the rest of the service network lives.
	supervisorCut bool
	responses     *responses // nil: none
	fenced        []fenced   // in the order of time
	resets        int        // by hardware watchdogs
	moves         *moves     // nil: no node joins or leaves
	deliveries    deliveries
	truth         truth
	known         []Known
	broken        []string // invariants that did not hold
}

// began is when every world begins; its processes think otherwise.
var began = time.Unix(1_000_000, 0)

// maxWall is the maximum initial error of the machines' wall clocks.
const maxWall = time.Hour

// New returns a world in which every process has just been started.
func New(cfg Config) (*World, error) {
	if err := cfg.Dims.Validate(); err != nil {
		return nil, err
	}
	if err := cfg.Periods.Validate(); err != nil {
		return nil, err
	}
	cfg.Interfaces = max(1, cfg.Interfaces)
	if cfg.Supervisors == 0 {
		cfg.Supervisors = 3
	}
	w := &World{
		cfg: cfg, now: began, rnd: rand.New(rand.NewPCG(cfg.Seed, 1)), deliveries: newDeliveries(),
		ids: make(map[fault.NodeID]*node),
	}
	w.store = newStore(w)
	if cfg.Responses != nil {
		w.responses = newResponses(w, *cfg.Responses)
	}
	for at := range cfg.Dims.All() {
		n := newNode(w, fault.DefaultNodeID(at), at)
		w.nodes = append(w.nodes, n)
		w.ids[n.id()] = n
	}
	if cfg.Moves {
		w.moves = &moves{revision: 1, ruled: began}
		for _, n := range w.nodes {
			n.settleIn()
		}
		w.after(orderEvery, w.sendOrders)
	}
	if cfg.Fences != nil {
		for _, n := range w.nodes {
			n.machine = newComputer(n, *cfg.Fences)
		}
	}
	for i := range cfg.Supervisors {
		w.replicas = append(w.replicas, newReplica(w, i))
	}
	for _, n := range w.nodes {
		wall := w.between(-maxWall, maxWall)
		n.host.wall, n.dnp.wall = wall, wall
	}
	w.truth = newTruth(w)
	for _, r := range w.replicas {
		w.after(w.between(0, cfg.Periods.TRead), r.start)
	}
	w.startNodes(cfg.Periods.TRead)
	w.startMachines()
	w.at(w.now, w.watch)
	return w, nil
}

// startNodes starts every half within a time: a real cluster never starts at one instant.
func (w *World) startNodes(within time.Duration) {
	for _, n := range w.nodes {
		for _, h := range []fault.Half{fault.HalfDNP, fault.HalfHost} {
			w.after(w.between(0, within), func() { n.start(h) })
		}
	}
}

// Known returns the changes committed so far.
func (w *World) Known() []Known { return w.known }

// Run advances the time by d.
func (w *World) Run(d time.Duration) { w.RunUntil(d, func() bool { return false }) }

// RunUntil advances the time until done, or by limit, and returns the last result of done. It ends early when an
// invariant breaks.
func (w *World) RunUntil(limit time.Duration, done func() bool) bool {
	end := w.now.Add(limit)
	last := int64(end.Sub(began))
	for !done() {
		if len(w.broken) > 0 {
			return false
		}
		if len(w.queue) == 0 || w.queue[0].at > last {
			w.now = end
			return false
		}
		e := w.queue.pop()
		w.now = began.Add(time.Duration(e.at))
		e.do()
	}
	return true
}

func (w *World) after(d time.Duration, do func()) { w.at(w.now.Add(max(d, 0)), do) }

func (w *World) at(t time.Time, do func()) {
	if t.Before(w.now) {
		t = w.now
	}
	w.order++
	w.queue.push(event{int64(t.Sub(began)), w.order, do})
}

// between returns a random duration from lo to hi.
func (w *World) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.rnd.Int64N(int64(hi-lo)+1))
}

// chance returns true with probability p.
func (w *World) chance(p float64) bool { return p > 0 && w.rnd.Float64() < p }

func (w *World) violate(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf("%s: %s", w.now.Sub(began), fmt.Sprintf(format, args...)))
}

func (w *World) find(id fault.NodeID) *node {
	if n := w.ids[id]; n != nil {
		return n
	}
	panic("sim: no node " + string(id))
}

// Delays of the parts that are simulated.
const (
	linkDelayMin, linkDelayMax       = 50 * time.Microsecond, 500 * time.Microsecond
	serviceDelayMin, serviceDelayMax = 100 * time.Microsecond, time.Millisecond
	wakeDelayMin, wakeDelayMax       = 20 * time.Microsecond, 300 * time.Microsecond // timers, doorbells, mailboxes
	commitDelayMin, commitDelayMax   = time.Millisecond, 8 * time.Millisecond
)

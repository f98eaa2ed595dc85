// Package trial runs random faults and load against a local cluster of real processes and compares the fault map with
// the ground truth. `make trial` starts it through bench/cmd/lofamo-trial; internal/e2e has the short form.
//
// A trial is a series of rounds. Each round injects faults, waits until the map names them, heals everything, and waits
// until everything is NORMAL again. Begin with Plan, which draws the rounds from a seed, and Truth, which knows the
// consequences that a fault may have. Checker compares every watched event with the truth, and the watch with the lists
// and the history. Ledger holds acknowledged changes. These are pure. Run executes a plan, Resources samples the
// processes, and Document prints the records.
//
// The package judges only what docs/awareness.md promises. It is no benchmark: other programs may load the machine.
package trial

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Op is the kind of a step.
type Op uint8

// The kinds of steps.
const (
	Inject           Op = iota + 1 // a fault in the syntax of `lofamoctl inject`
	KillDaemon                     // signal 9 to the recovery daemon of a node; its halves live on
	Restart                        // planned restart of both halves of a node
	KillSupervisor                 // signal 9
	StopSupervisor                 // SIGSTOP
	StartSupervisors               // starts dead supervisors and continues stopped ones
	ApplyPolicy                    // applies a policy that only observes
	Mask                           // masks a link, or restores it if it is masked
	Maintain                       // puts a node under maintenance, or ends its maintenance
	Pause                          // lets time pass
)

// String returns the name of the kind.
func (o Op) String() string {
	names := [...]string{"", "inject", "kill-daemon", "restart", "kill-supervisor", "stop-supervisor", "start-supervisors", "apply-policy",
		"mask", "maintain", "pause"}
	if int(o) < len(names) && o > 0 {
		return names[o]
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// Step is one action of a plan.
type Step struct {
	Op    Op
	At    grid.Coord    // node of Inject, KillDaemon, Restart, Mask and Maintain
	Fault string        // of Inject, in the syntax of `lofamoctl inject`; of Mask the direction
	Who   string        // of KillSupervisor and StopSupervisor: "leader", "all", or a number from 0
	Wait  time.Duration // of Pause
}

// String prints a step in one line.
func (s Step) String() string {
	switch s.Op {
	case Inject, Mask:
		return fmt.Sprintf("%s %s %s", s.Op, s.At, s.Fault)
	case KillDaemon, Restart, Maintain:
		return fmt.Sprintf("%s %s", s.Op, s.At)
	case KillSupervisor, StopSupervisor:
		return fmt.Sprintf("%s %s", s.Op, s.Who)
	case Pause:
		return fmt.Sprintf("%s %s", s.Op, s.Wait)
	case StartSupervisors, ApplyPolicy:
	}
	return s.Op.String()
}

// Round is a set of faults that exist together. Everything is healed at its end.
type Round struct {
	Number int // from 1
	// Loops is the number of busy loops during the round. Pressure adds load on memory and disk.
	Loops    int
	Pressure bool
	Steps    []Step
}

// Rand is the source of chance: *rand.Rand of math/rand/v2.
type Rand interface{ IntN(n int) int }

// Plan draws rounds. The same seed and shape give the same rounds.
type Plan struct {
	rnd   Rand
	shape Shape
	round int
	// reserved nodes of the present round have a fault or are next to a faulty link.
	reserved map[grid.Coord]bool
}

// Shape is the cluster that a plan is for.
type Shape struct {
	Dims        grid.Dims
	Supervisors int
	// Restarts means that daemons restart halves, so that planned restarts are possible.
	Restarts bool
	// Load is the largest number of busy loops: 0, 4 or 16.
	Load     int
	Unharmed Unharmed
}

// NewPlan returns the plan for a source of chance.
func NewPlan(rnd Rand, s Shape) *Plan { return &Plan{rnd: rnd, shape: s} }

// Next draws the next round.
func (p *Plan) Next() Round {
	p.round++
	p.reserved = make(map[grid.Coord]bool)
	r := Round{Number: p.round}
	p.drawLoad(&r)
	themes := []func() []Step{p.faults, p.faults, p.faults}
	if !p.shape.Unharmed.Supervisors {
		themes = append(themes, p.supervisors, p.supervisors)
	}
	themes = append(themes, p.operators)
	if !p.shape.Unharmed.Daemons {
		themes = append(themes, p.daemon)
	}
	if p.shape.Restarts {
		themes = append(themes, p.restarts)
	}
	r.Steps = themes[p.rnd.IntN(len(themes))]()
	return r
}

// drawLoad chooses no load in half of the rounds.
func (p *Plan) drawLoad(r *Round) {
	heavy := p.rnd.IntN(4)
	switch {
	case p.shape.Load >= 16 && heavy == 3:
		r.Loops, r.Pressure = 16, true
	case p.shape.Load >= 4 && heavy >= 2:
		r.Loops = 4
	}
}

// faults draws one to three faults of nodes.
func (p *Plan) faults() []Step {
	most := min(3, max(1, p.shape.Dims.Nodes()/3))
	var out []Step
	for range 1 + p.rnd.IntN(most) {
		out = append(out, p.fault()...)
		if p.rnd.IntN(3) == 0 {
			out = append(out, p.pause(1500))
		}
	}
	return out
}

func (p *Plan) pause(most int) Step {
	return Step{Op: Pause, Wait: time.Duration(1+p.rnd.IntN(most)) * time.Millisecond}
}

// fault draws a fault at nodes that have none in this round; nothing if it finds no room.
func (p *Plan) fault() []Step {
	kinds := []string{"kill-host", "kill-dnp", "kill-node", "hang-host", "hang-dnp", "cut-service", "cut-link", "cut-link-one-way",
		"corrupt-link", "sensor temperature 110", "sensor voltage 20", "sensor power 5000", "sensor memory-ue 5", "sensor peripheral/0 2",
		"sensor carrier 0"}
	kind := kinds[p.rnd.IntN(9)]
	if p.rnd.IntN(5) == 0 {
		kind = kinds[9+p.rnd.IntN(len(kinds)-9)]
	}
	at := p.node()
	area := []grid.Coord{at}
	if strings.Contains(kind, "link") {
		d := p.direction(at)
		peer, _ := p.shape.Dims.Neighbour(at, d)
		area = append(area, peer)
		kind = map[string]string{"cut-link": "cut-link %s", "cut-link-one-way": "cut-link %s --one-way",
			"corrupt-link": "corrupt-link %s 0.3"}[kind]
		kind = fmt.Sprintf(kind, d)
	}
	if slices.ContainsFunc(area, func(c grid.Coord) bool { return p.reserved[c] }) {
		return nil
	}
	for _, c := range area {
		p.reserved[c] = true
	}
	return []Step{{Op: Inject, At: at, Fault: kind}}
}

func (p *Plan) node() grid.Coord { return p.shape.Dims.Node(p.rnd.IntN(p.shape.Dims.Nodes())) }

func (p *Plan) direction(at grid.Coord) grid.Direction {
	links := p.shape.Dims.LinksOf(at)
	return links[p.rnd.IntN(len(links))]
}

// supervisors draws an outage of supervisors with faults beside it.
func (p *Plan) supervisors() []Step {
	op := []Op{KillSupervisor, StopSupervisor}[p.rnd.IntN(2)]
	who := []string{"leader", "leader", "all", fmt.Sprint(p.rnd.IntN(p.shape.Supervisors))}[p.rnd.IntN(4)]
	most := 4000
	if p.rnd.IntN(4) == 0 {
		most = 20_000 // long enough for every back-off and every time-out of a node without a leader
	}
	out := []Step{{Op: op, Who: who}, p.pause(most)}
	if p.rnd.IntN(2) == 0 {
		out = append(out, p.fault()...)
		out = append(out, p.pause(4000))
	}
	return append(out, Step{Op: StartSupervisors})
}

// operators draws changes by operators, and a change of the leader after them unless supervisors stay unharmed.
func (p *Plan) operators() []Step {
	out := []Step{{Op: ApplyPolicy}}
	if p.rnd.IntN(2) == 0 {
		out = append(out, p.mask())
	}
	if p.rnd.IntN(2) == 0 {
		out = append(out, Step{Op: Maintain, At: p.node()})
	}
	if !p.shape.Unharmed.Supervisors {
		op := []Op{KillSupervisor, StopSupervisor}[p.rnd.IntN(2)]
		out = append(out, Step{Op: op, Who: "leader"}, p.pause(3000), Step{Op: StartSupervisors})
	}
	return append(out, p.fault()...)
}

// mask draws a link, as its lower end names it, to mask.
func (p *Plan) mask() Step {
	at := p.node()
	d := p.direction(at)
	if !d.Positive() {
		d = d.Opposite() // every node has both or none
	}
	return Step{Op: Mask, At: at, Fault: d.String()}
}

// daemon kills a recovery daemon, with a fault elsewhere beside it.
func (p *Plan) daemon() []Step {
	at := p.node()
	p.reserved[at] = true
	return append([]Step{{Op: KillDaemon, At: at}, p.pause(2000)}, p.fault()...)
}

// restarts draws planned restarts of one to three nodes.
func (p *Plan) restarts() []Step {
	var out []Step
	for range 1 + p.rnd.IntN(3) {
		if at := p.node(); !p.reserved[at] {
			p.reserved[at] = true
			out = append(out, Step{Op: Restart, At: at})
		}
	}
	return out
}

package view

import (
	"math"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// packed is an Entry in about 300 bytes instead of 1,700: a map may have 100,000 entries.
type packed struct {
	id         fault.NodeID
	revision   uint64
	since      int64 // see nanos
	hostEpoch  fault.Epoch
	dnpEpoch   fault.Epoch
	state      fault.State
	cause      fault.Cause
	platform   fault.Platform
	flags      flags
	rule       uint8 // see rules
	components [fault.NumComponents]packedComponent
	extra      *extra // nil mostly
}

type flags uint8

const (
	flagSingle flags = 1 << iota
	flagInferred
	flagUnreachable
	flagFlapping // of a component
	flagHostGivenUp
	flagDNPGivenUp
	flagAbsent // of a component
)

func flag(f flags, on bool) flags {
	if on {
		return f
	}
	return 0
}

// rules numbers the short names of rules, of which there are few. Versions of a map share them: names are only
// added. Number 0 is the empty name, and also replaces all names beyond the first 255.
type rules struct {
	names   []string
	numbers map[string]uint8
}

func newRules() rules { return rules{[]string{""}, map[string]uint8{"": 0}} }

func (r *rules) number(name string) uint8 {
	n, ok := r.numbers[name]
	if !ok && len(r.names) <= math.MaxUint8 {
		n = uint8(len(r.names))
		r.names, r.numbers[name] = append(r.names, name), n
	}
	return n
}

// packedComponent is one component; state 0 means that the node lacks it.
type packedComponent struct {
	since int64
	state fault.State
	cause fault.Cause
	flags flags
	rule  uint8
}

// extra holds data that few nodes have.
type extra struct {
	restart  awareness.Restart
	stop     awareness.Stop
	evidence []componentEvidence
	faults   []FaultEvidence
	watchdog *lofamov1.HardwareWatchdog
	kernels  [2]awareness.KernelVerdict
}

type componentEvidence struct {
	component fault.Component
	list      []awareness.EvidenceStatus
}

// pack is the inverse of unpack, without the sign of life. Of an absent component it keeps only that the node itself said so: many nodes
// have several.
func (b *Builder) pack(e Entry) *packed {
	st := &e.Status
	p := &packed{
		id: st.ID, revision: e.Revision, since: nanos(st.Since), hostEpoch: st.HostEpoch, dnpEpoch: st.DNPEpoch, platform: st.Platform,
		state: st.State, cause: st.Cause, rule: b.rules.number(st.Rule),
		flags: flag(flagSingle, st.SingleWitness) | flag(flagInferred, st.Inferred) | flag(flagUnreachable, st.Unreachable) |
			flag(flagHostGivenUp, e.GivenUp[0]) | flag(flagDNPGivenUp, e.GivenUp[1]),
	}
	var x extra
	for i := range st.Components {
		c := &st.Components[i]
		p.components[c.Component] = packedComponent{
			since: nanos(c.Since), state: c.State, cause: c.Cause, flags: flag(flagFlapping, c.Flapping), rule: b.rules.number(c.Rule),
		}
		switch list := kept(*c); {
		case len(list) == 0:
		case c.State == fault.Unknown:
			p.components[c.Component].flags |= flagAbsent
		default:
			x.evidence = append(x.evidence, componentEvidence{c.Component, list})
		}
	}
	x.restart, x.stop, x.faults, x.watchdog, x.kernels = st.Restart, st.Stop, e.Faults, e.Watchdog, e.Kernels
	if x.watchdog != nil || x.kernels != ([2]awareness.KernelVerdict{}) || x.evidence != nil || x.faults != nil ||
		x.restart.Half != 0 || x.stop.Reason != 0 {
		p.extra = &x
	}
	return p
}

// unpack returns the entry without its components.
func (p *packed) unpack(at grid.Coord, rules []string) Entry {
	st := awareness.NodeStatus{
		ID: p.id, Coord: at, State: p.state, Cause: p.cause, SingleWitness: p.flags&flagSingle != 0,
		Inferred: p.flags&flagInferred != 0, Unreachable: p.flags&flagUnreachable != 0, Rule: rules[p.rule],
		Since: fromNanos(p.since), HostEpoch: p.hostEpoch, DNPEpoch: p.dnpEpoch, Platform: p.platform,
	}
	e := Entry{Status: st, Revision: p.revision, GivenUp: p.givenUp()}
	if p.extra != nil {
		e.Status.Restart, e.Status.Stop, e.Faults = p.extra.restart, p.extra.stop, p.extra.faults
		e.Watchdog, e.Kernels = p.extra.watchdog, p.extra.kernels
	}
	return e
}

func (p *packed) unpackComponents(rules []string) []awareness.ComponentStatus {
	n := 0
	for i := range p.components {
		if p.components[i].state != 0 {
			n++
		}
	}
	out := make([]awareness.ComponentStatus, 0, n)
	for i := range p.components {
		if c := &p.components[i]; c.state != 0 {
			out = append(out, awareness.ComponentStatus{
				Component: fault.Component(i), State: c.state, Cause: c.cause, Since: fromNanos(c.since),
				Flapping: c.flags&flagFlapping != 0, Rule: rules[c.rule], Evidence: p.evidence(fault.Component(i)),
			})
		}
	}
	return out
}

// givenUp returns Entry.GivenUp.
func (p *packed) givenUp() [2]bool {
	return [2]bool{p.flags&flagHostGivenUp != 0, p.flags&flagDNPGivenUp != 0}
}

func (p *packed) evidence(c fault.Component) []awareness.EvidenceStatus {
	if p.components[c].flags&flagAbsent != 0 {
		return []awareness.EvidenceStatus{{Kind: fault.KindAbsent, Observer: string(p.id), State: fault.Unknown}}
	}
	if p.extra == nil {
		return nil
	}
	for _, e := range p.extra.evidence {
		if e.component == c {
			return e.list
		}
	}
	return nil
}

// counts returns the node's share of a map's counts.
func (p *packed) counts() Counts {
	var c Counts
	c.Nodes[p.state]++
	for _, d := range grid.Directions() {
		if s := p.components[fault.Link(d)].state; s != 0 {
			c.Links[s]++
		}
	}
	if p.notNormal() {
		c.NotNormal++
	}
	return c
}

// notNormal reports whether the node is not NORMAL, or has a component that is SICK or FAILED.
func (p *packed) notNormal() bool {
	if p.state != fault.Normal {
		return true
	}
	for i := range p.components[:] {
		if faulty(p.components[i].state) {
			return true
		}
	}
	return false
}

// flapping reports whether a component changes its state often.
func (p *packed) flapping() bool {
	for i := range p.components[:] {
		if p.components[i].flags&flagFlapping != 0 {
			return true
		}
	}
	return false
}

func faulty(s fault.State) bool { return s == fault.Sick || s == fault.Failed }

// nanos returns nanoseconds since 1970; the least number stands for an unknown time.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return math.MinInt64
	}
	return t.UnixNano()
}

func fromNanos(n int64) time.Time {
	if n == math.MinInt64 {
		return time.Time{}
	}
	return time.Unix(0, n)
}

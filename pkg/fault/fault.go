// Package fault is the vocabulary of the project: the reporters (nodes and their halves), the subjects (components),
// the statements (states, observations, reports) and their support (evidence kinds, paths).
//
// It holds types, their names, and comparisons of times. It decides nothing, encodes nothing and reads no clock; pkg/servicenet puts
// reports on the wire and pkg/awareness draws conclusions from them.
package fault

import (
	"fmt"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// NodeID names a node. By default it is derived from the coordinate: see DefaultNodeID.
type NodeID string

// DefaultNodeID returns the id of a node without a configured one: n1-0-1 at 1,0,1.
func DefaultNodeID(c grid.Coord) NodeID {
	return NodeID(fmt.Sprintf("n%d-%d-%d", c.X, c.Y, c.Z))
}

// Epoch is a half's boot epoch: it increases by at least one with every start and never decreases. The first is 1.
type Epoch uint64

// Seq numbers the reports of one half within one boot epoch, from 1.
type Seq uint64

// Half is one of the two processes of a node.
type Half uint8

// The halves.
const (
	HalfHost Half = iota + 1 // the paper's Host Fault Manager
	HalfDNP                  // the paper's DNP Fault Manager
)

// Other returns the half that watches h.
func (h Half) Other() Half {
	if h == HalfHost {
		return HalfDNP
	}
	return HalfHost
}

// Platform is the platform of a node's two halves. Zero: not stated, as by agents of an earlier version.
type Platform uint8

// The platforms.
const (
	PlatformSharedKernel Platform = iota + 1 // one kernel under both halves: both die with it
	PlatformDPU                              // the DNP half has its own processor and outlives the host
)

// State is the known condition of a component. The order is that of severity, except for Unknown.
type State uint8

// The states (seed 001 §III names sick and failed).
const (
	Unknown State = iota + 1 // no evidence, or evidence too old
	Normal
	Sick   // an error rate beyond the threshold: may need action
	Failed // permanently wrong, or no longer participating: needs action
)

// Cause is the faulty part of a node that is not normal. Severity compares causes.
type Cause uint8

// The causes.
const (
	CauseNone Cause = iota + 1
	CauseSensor
	CausePeripheral
	CauseMemory
	CauseLink
	CauseServiceNetwork
	CauseDNP
	CauseHost
	CauseNode
	CauseBus
)

// Severity ranks causes: the higher one is graver. The bus ranks below both halves and above all else, because the
// halves of a node whose bus has failed no longer watch each other.
func (c Cause) Severity() int {
	switch {
	case c == CauseBus:
		return int(CauseDNP)
	case c >= CauseDNP:
		return int(c) + 1
	default:
		return int(c)
	}
}

// Component is a part of a node with a state of its own. ComponentNode is the node itself.
type Component uint8

// The components. The links follow ComponentLinkBase in the order of grid.Directions; use Link.
const (
	ComponentNode Component = iota + 1
	ComponentHost
	ComponentDNP     // the DNP half as such: its FAILED is the paper's melt-down
	ComponentDNPCore // commission faults of the DNP logic: exception registers (Table VI)
	ComponentServiceNetwork
	ComponentMemory
	ComponentPeripheral0
	ComponentPeripheral1
	ComponentTemperature
	ComponentPower
	ComponentVoltage
	componentLinkBase // plus direction index
)

// ComponentBus is the path between the two halves of a node with two kernels (PlatformDPU). A node with one kernel has
// no bus of its own.
const ComponentBus = componentLinkBase + grid.NumDirections

// NumComponents bounds Component values from above, for arrays.
const NumComponents = int(ComponentBus) + 1

// Link returns the component for the link in direction d, from the point of view of this node.
func Link(d grid.Direction) Component { return componentLinkBase + Component(d.Index()) }

// LinkDirection returns the direction of a link component, and false for any other.
func (c Component) LinkDirection() (grid.Direction, bool) {
	if c < componentLinkBase || c >= ComponentBus {
		return 0, false
	}
	return grid.Directions()[c-componentLinkBase], true
}

// Valid reports whether c is one of the components.
func (c Component) Valid() bool { return c >= ComponentNode && int(c) < NumComponents }

// Components lists every component in order.
func Components() []Component {
	out := make([]Component, 0, NumComponents-1)
	for c := ComponentNode; c.Valid(); c++ {
		out = append(out, c)
	}
	return out
}

// Cause returns the cause that a fault of the component sets on its node.
func (c Component) Cause() Cause {
	switch c {
	case ComponentNode:
		return CauseNode
	case ComponentHost:
		return CauseHost
	case ComponentDNP, ComponentDNPCore:
		return CauseDNP
	case ComponentServiceNetwork:
		return CauseServiceNetwork
	case ComponentMemory:
		return CauseMemory
	case ComponentPeripheral0, ComponentPeripheral1:
		return CausePeripheral
	case ComponentTemperature, ComponentPower, ComponentVoltage:
		return CauseSensor
	case ComponentBus:
		return CauseBus
	default:
		if _, ok := c.LinkDirection(); ok {
			return CauseLink
		}
		return CauseNone
	}
}

// Kind is the observer's source for an observation. It determines the observation's weight (pkg/awareness).
type Kind uint8

// The kinds of evidence.
const (
	KindSelf       Kind = iota + 1 // a half on a component that it owns or measures itself
	KindWatchdog                   // a half on its other half: Valid still 0 when read (§III-E)
	KindDescriptor                 // a neighbour's DNP or host, from the torus (Table V)
	KindSilence                    // no authentic frame from the neighbour, or from the node's other half, within the timeout
	KindHandshake                  // the neighbour's frames arrive, but report that ours do not
	KindErrorRatio                 // the ratio of errors to received frames exceeded the threshold (§IV-B)
	KindGossip                     // memberlist's opinion: a hint, never proof
	KindChallenge                  // a challenge, answered or not
	KindVotes                      // a verdict of the supervisor over several observers
	KindDigest                     // missing digests: they show age, never health
	KindAbsent                     // a half on a sensor or peripheral that its node does not have; the state is UNKNOWN
)

// Path is the rail by which a report arrived.
type Path uint8

// The rails, in order of escalation.
const (
	PathDirect Path = iota + 1
	PathGossip
	PathTorus
)

// Origin is the reporting half.
type Origin struct {
	Node NodeID
	Half Half
}

// String returns "node/half".
func (o Origin) String() string { return string(o.Node) + "/" + o.Half.String() }

// NodeOf returns the node in the text of an Origin.
func NodeOf(origin string) NodeID {
	node, _, _ := strings.Cut(origin, "/")
	return NodeID(node)
}

// ReportID identifies a report for ever: duplicates share it.
type ReportID struct {
	Origin Origin
	Epoch  Epoch
	Seq    Seq
}

// String returns "node/half@epoch#seq".
func (id ReportID) String() string {
	return fmt.Sprintf("%s@%d#%d", id.Origin, id.Epoch, id.Seq)
}

// Newer reports whether id was made after other by the same origin.
func (id ReportID) Newer(other ReportID) bool {
	if id.Epoch != other.Epoch {
		return id.Epoch > other.Epoch
	}
	return id.Seq > other.Seq
}

// Observation is one statement about one component.
type Observation struct {
	Node      NodeID // the node of the component
	Component Component
	State     State
	Kind      Kind
	// Age is the time, on the observer's own clock, from the first sign of this state to the sending of the report; for
	// silence, from the last frame received.
	Age    time.Duration
	Detail string // for people: at most MaxDetail bytes, never parsed
	// Ended states that a kernel reported the end of the process behind a FAILED half (WATCHDOG) or a FAILED link
	// (SILENCE). It is a hint: it may shorten a wait for an answer, and proves nothing.
	Ended bool
}

// Registers are the three LO|FA|MO words of a node (registers.md), as last read by the origin.
type Registers struct {
	DNPWatchdog           uint32
	HostWatchdog          uint32
	RemoteFaultDescriptor uint32
}

// Report is a half's statement at one time. A digest states everything that the half knows; any other report only the
// changes. The newest report on a component counts.
type Report struct {
	ID     ReportID
	Digest bool
	// Partial marks a digest that did not fit into one report: it restates its statements, but does not withdraw those
	// that it omits.
	Partial      bool
	Observations []Observation
	// Readings are moving values, for trend warnings; a digest contains them now and then.
	Readings  []Reading
	Registers Registers // of the origin's node
	// Uptime of the half; it reveals a restart.
	Uptime time.Duration
	// Platform is the platform of the origin's halves.
	Platform Platform
	// Restart announces or ends a planned restart of a half of the origin's node. Zero: neither.
	Restart RestartNotice
	// Stop announces a planned stop of the origin's node, or its return. Zero: neither.
	Stop Stop
}

// RestartNotice announces a planned restart of a half, or ends the announcement. Only the node itself can send it,
// because the notice applies to the node that signed it.
type RestartNotice struct {
	Half   Half          // the half to be restarted; 0: no notice
	Within time.Duration // until the half is back, in whole milliseconds; 0: the restart is over
}

// MaxRestart is the longest time that one notice may announce.
const MaxRestart = 30 * time.Second

// Hop is one station on a report's way and how long it held the report. Hops are information, never proof.
type Hop struct {
	Node NodeID
	Half Half
	Held time.Duration
}

// Delivery is a verified report together with its path.
type Delivery struct {
	Report Report
	Path   Path
	Hops   []Hop
	// Waited is how long supervisors held the report. Ages of its observations include it.
	Waited time.Duration
}

// Age returns the time between the start of the observed state and the delivery, as the sum of the observer's and the
// hops' own clocks; time on the wire is not included.
func (d Delivery) Age(o Observation) time.Duration {
	age := o.Age
	for _, h := range d.Hops {
		age += h.Held
	}
	return age
}

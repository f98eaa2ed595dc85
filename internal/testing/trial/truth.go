package trial

import (
	"fmt"
	"slices"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Truth is the ground truth: the faults that exist, and the consequences that the map may show. A fault's consequences
// end when the map has been NORMAL after its end.
type Truth struct {
	dims     grid.Dims
	restarts bool // daemons restart halves
	faults   []Fault
	// outage is true from a fault of a supervisor until the next settled state; dark if it left no quorum.
	outage, dark bool
	busy         bool // planned restarts are under way
}

// NewTruth returns the truth of a healthy cluster.
func NewTruth(d grid.Dims, restarts bool) *Truth { return &Truth{dims: d, restarts: restarts} }

// Fault is one injected fault.
type Fault struct {
	At   grid.Coord
	Kind string         // "kill-host", …, "cut-link", "corrupt-link"; of a sensor its component
	Dir  grid.Direction // of a link
	Text string         // as injected
}

// NodeID returns the name of a node in the map.
func NodeID(c grid.Coord) string { return string(fault.DefaultNodeID(c)) }

// sensorComponents are the components that sensor faults concern.
var sensorComponents = map[string]string{
	"temperature": "temperature", "voltage": "voltage", "power": "power", "memory-ue": "memory", "peripheral/0": "peripheral/0",
	"carrier": "service-network",
}

// ParseFault reads the fault of a step.
func ParseFault(at grid.Coord, text string) (Fault, error) {
	f := Fault{At: at, Text: text}
	words := strings.Fields(text)
	if len(words) == 0 {
		return f, fmt.Errorf("fault at %s: none given", at)
	}
	f.Kind = words[0]
	switch f.Kind {
	case "kill-host", "kill-dnp", "kill-node", "hang-host", "hang-dnp", "hang-node", "cut-service":
		return f, nil
	case "cut-link", "corrupt-link":
		if len(words) < 2 {
			return f, fmt.Errorf("fault %q: no direction", text)
		}
		var err error
		f.Dir, err = grid.ParseDirection(words[1])
		return f, err
	case "sensor":
		if len(words) < 2 || sensorComponents[words[1]] == "" {
			return f, fmt.Errorf("fault %q: unknown sensor", text)
		}
		f.Kind = sensorComponents[words[1]]
		return f, nil
	}
	return f, fmt.Errorf("fault %q: unknown", text)
}

// host reports whether the fault silences the host half.
func (f Fault) host() bool {
	return slices.Contains([]string{"kill-host", "hang-host", "kill-node", "hang-node"}, f.Kind)
}

// dnp reports whether the fault silences the DNP half.
func (f Fault) dnp() bool {
	return slices.Contains([]string{"kill-dnp", "hang-dnp", "kill-node", "hang-node"}, f.Kind)
}

// node reports whether the fault silences both halves.
func (f Fault) node() bool { return f.host() && f.dnp() }

func (f Fault) link() bool { return f.Kind == "cut-link" || f.Kind == "corrupt-link" }

// Begin adds a fault. Call it before the injection.
func (t *Truth) Begin(f Fault) { t.faults = append(t.faults, f) }

// Outage records that supervisors are killed or stopped; dark if no quorum is left.
func (t *Truth) Outage(dark bool) { t.outage, t.dark = true, t.dark || dark }

// Restarting records a planned restart.
func (t *Truth) Restarting() { t.busy = true }

// Settled ends everything: all faults are healed and the map is NORMAL.
func (t *Truth) Settled() { t.faults, t.outage, t.dark, t.busy = nil, false, false, false }

// MayFail reports whether some fault explains that a component is FAILED.
func (t *Truth) MayFail(node, component string) bool {
	host, dnp := false, false
	for _, f := range t.faults {
		if t.explains(f, node, component) {
			return true
		}
		if NodeID(f.At) == node {
			host, dnp = host || f.host(), dnp || f.dnp()
		}
	}
	switch component {
	case "node":
		return host && dnp
	case "service-network":
		// Without a quorum no node gets an answer, and its report arrives when the quorum is back.
		return t.dark
	}
	return false
}

// explains reports whether one fault explains that a component is FAILED.
func (t *Truth) explains(f Fault, node, component string) bool {
	own := NodeID(f.At) == node
	switch {
	case f.link():
		peer, _ := t.dims.Neighbour(f.At, f.Dir)
		return own && component == "link/"+f.Dir.String() || NodeID(peer) == node && component == "link/"+f.Dir.Opposite().String()
	case own && f.host() && component == "host", own && f.dnp() && (component == "dnp" || component == "dnp-core"):
		return true
	case f.dnp() && strings.HasPrefix(component, "link/"):
		return own || t.faces(node, component, f.At)
	case own && f.Kind == "cut-service":
		return component == "service-network"
	}
	return own && f.Kind == component
}

// faces reports whether a link of a node leads to a place.
func (t *Truth) faces(node, component string, to grid.Coord) bool {
	d, err := grid.ParseDirection(strings.TrimPrefix(component, "link/"))
	if err != nil {
		return false
	}
	peer, ok := t.dims.Neighbour(to, d.Opposite())
	return ok && NodeID(peer) == node
}

// MayBelong reports whether a node may be a member of a group fault.
func (t *Truth) MayBelong(node string) bool {
	return t.dark || slices.ContainsFunc(t.faults, func(f Fault) bool {
		return slices.ContainsFunc(t.area(f), func(c grid.Coord) bool { return NodeID(c) == node })
	})
}

// MayDiffer reports whether some fault explains that a component is not NORMAL. It is wider than MayFail: parts of a
// node without a host half are UNKNOWN, and links beside a restart are SICK.
func (t *Truth) MayDiffer(node, component string) bool {
	if t.outage || t.busy || t.MayFail(node, component) {
		return true
	}
	return slices.ContainsFunc(t.faults, func(f Fault) bool {
		if NodeID(f.At) == node {
			return true
		}
		return f.dnp() && strings.HasPrefix(component, "link/") && t.faces(node, component, f.At)
	})
}

// Named reports whether an event names a fault.
func (t *Truth) Named(f Fault, e *lofamov1.Event) bool {
	recovered := e.GetKind() == lofamov1.EventKind_RECOVERY_CHANGED
	if e.GetKind() != lofamov1.EventKind_COMPONENT_CHANGED && (!recovered || !t.restarts) {
		return false
	}
	bad := e.GetTo() == lofamov1.State_FAILED || e.GetTo() == lofamov1.State_SICK
	failed := e.GetTo() == lofamov1.State_FAILED
	own := e.GetNode() == NodeID(f.At)
	half := own && (f.host() && e.GetComponent() == "host" || f.dnp() && e.GetComponent() == "dnp")
	if t.restarts && half {
		return recovered || bad
	}
	switch {
	case f.node():
		return own && e.GetComponent() == "node" && failed
	case f.host() || f.dnp():
		return half && failed
	case f.link():
		return bad && t.explains(f, e.GetNode(), e.GetComponent())
	}
	return bad && t.explains(f, e.GetNode(), e.GetComponent())
}

// Bounds are the longest times from a fault to its name in the map, without load.
type Bounds struct{ Half, Node, Single, Link, Corrupt, Service, Sensor, Peripheral time.Duration }

// Bound returns the bound of a fault. A dead node beside another fault may have fewer witnesses than its quorum.
func (t *Truth) Bound(b Bounds, f Fault) time.Duration {
	switch {
	case f.node() && t.alone(f):
		return b.Node
	case f.node():
		return b.Single
	case f.host() || f.dnp():
		return b.Half
	case f.Kind == "cut-link":
		return b.Link
	case f.Kind == "corrupt-link":
		return b.Corrupt
	case f.Kind == "cut-service":
		return b.Service
	case f.Kind == "peripheral/0":
		return b.Peripheral
	}
	return b.Sensor
}

// alone reports whether no neighbour of a fault's node has a fault.
func (t *Truth) alone(f Fault) bool {
	near := t.dims.Neighbours(f.At)
	return !slices.ContainsFunc(t.faults, func(o Fault) bool {
		return o.At != f.At && slices.ContainsFunc(t.area(o), func(c grid.Coord) bool { return slices.Contains(near, c) })
	})
}

// area returns the nodes that a fault touches: both ends of a link.
func (t *Truth) area(f Fault) []grid.Coord {
	if !f.link() {
		return []grid.Coord{f.At}
	}
	peer, _ := t.dims.Neighbour(f.At, f.Dir)
	return []grid.Coord{f.At, peer}
}

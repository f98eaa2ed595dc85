package awareness

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Machine is the fault map and what it rests on. It is owned by one goroutine.
type Machine struct{ cfg Config }

// New returns a machine with the map that was committed last, if any.
func New(cfg Config, now time.Time, saved []NodeStatus) (*Machine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Machine{cfg: cfg}, nil
}

// Step takes in one event.
func (m *Machine) Step(now time.Time, ev Event) Output { return Output{} }

// Nodes returns the whole map by rank.
func (m *Machine) Nodes() []NodeStatus { return nil }

// Node returns one node.
func (m *Machine) Node(id fault.NodeID) (NodeStatus, bool) { return NodeStatus{}, false }

// Links returns every link end by rank and direction.
func (m *Machine) Links() []LinkStatus { return nil }

package chaos

import (
	"errors"
	"fmt"
)

// Algorithm says how packets are routed.
type Algorithm uint8

// The algorithms of seed 003 §1.3 and §2.
const (
	Chaotic         Algorithm = iota + 1 // minimal adaptive while that is possible, derouting under pressure
	MinimalAdaptive                      // any profitable channel; waits for one
	DimensionOrder                       // the lowest dimension that is not done yet
)

func (a Algorithm) String() string {
	switch a {
	case Chaotic:
		return "chaos"
	case MinimalAdaptive:
		return "minimal adaptive"
	case DimensionOrder:
		return "dimension order"
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// Limits of a network.
const (
	MaxDims  = 6       // dimensions; a packet's list is a mask of 32 channels and lanes
	MaxRadix = 1 << 10 // nodes along one dimension
	MaxNodes = 1 << 20
	maxSlots = 16 // of a multiqueue
)

// Config is a network. Its zero value is none; Default makes the paper's.
type Config struct {
	Dims      []int // nodes along each dimension, 2 to MaxRadix
	Mesh      bool  // no links between the ends of a dimension; else a torus
	Algorithm Algorithm

	Flits      int // of a packet, 2 to 1,000; all are as long as the longest (20)
	Multiqueue int // slots, 1 to 16 (5); only Chaotic has them
	Decode     int // cycles from a header's arrival in an input frame until it can be routed, 0 to 100
	InputWait  int // cycles that a header which cannot go on waits before it enters the multiqueue, 0 to 1,000
	EjectGap   int // cycles lost between two packets to the processor, 0 to 1,000

	// FullDuplex: packets cross a channel both ways at a time. Otherwise, as in the basic Chaos router (§5.2.1.2:
	// bidirectional data lines, ownership by three rules), one at a time.
	FullDuplex bool
	TurnAround int // cycles that a change of ownership costs, 0 to 100

	// The additions of the fault-tolerant router (§5.2.3.1). Mask: routers know which of their channels are dead.
	// Otherwise a packet may be routed to a dead one, and stays in its output frame (§2.1).
	Mask, FastDeroute, NoRouteback bool

	// DerouteOnDemand: a full multiqueue deroutes only while a packet waits to enter it. The paper's text (§2) has it
	// whenever it is full and nothing of it can go.
	DerouteOnDemand bool
	// InjectToQueue: packets of the own processor enter the multiqueue like others. Otherwise they are never derouted
	// where they begin (§5.2.2.1), unless fast derouting requires it.
	InjectToQueue bool

	Seed uint64
}

// Default is the paper's router on a torus: 20 flits, 5 slots, half-duplex channels, with the fault-tolerant
// additions. A blocked packet enters the multiqueue when it has arrived completely.
func Default(dims ...int) Config {
	return Config{
		Dims: dims, Algorithm: Chaotic, Flits: 20, Multiqueue: 5, Decode: 1, InputWait: 20,
		Mask: true, FastDeroute: true, NoRouteback: true, Seed: 1,
	}
}

// Validate names every field that is out of its range.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	between := func(name string, v, lo, hi int) {
		if v < lo || v > hi {
			bad("%s is %d, must be %d to %d", name, v, lo, hi)
		}
	}
	between("Dims: their number", len(c.Dims), 1, MaxDims)
	nodes := 1
	for i, k := range c.Dims {
		between(fmt.Sprintf("Dims[%d]", i), k, 2, MaxRadix)
		if nodes *= max(k, 1); nodes > MaxNodes {
			bad("Dims %v are more than %d nodes", c.Dims, MaxNodes)
			break
		}
	}
	if c.Algorithm < Chaotic || c.Algorithm > DimensionOrder {
		bad("Algorithm is %d, must be %d to %d", c.Algorithm, Chaotic, DimensionOrder)
	}
	between("Flits", c.Flits, 2, 1000)
	if c.Algorithm == Chaotic {
		between("Multiqueue", c.Multiqueue, 1, maxSlots)
	}
	between("Decode", c.Decode, 0, 100)
	between("InputWait", c.InputWait, 0, 1000)
	between("EjectGap", c.EjectGap, 0, 1000)
	between("TurnAround", c.TurnAround, 0, 100)
	return errors.Join(errs...)
}

// BuffersPerRouter returns the number of packets that a router holds: 15 in the paper's two-dimensional one.
func (c Config) BuffersPerRouter() int {
	lanes, slots := c.lanes(), 0
	if c.Algorithm == Chaotic {
		slots = c.Multiqueue
	}
	return 2*(2*len(c.Dims)*lanes+1) + slots
}

func (c Config) lanes() int {
	if c.Algorithm == MinimalAdaptive {
		return 2
	}
	return 1
}

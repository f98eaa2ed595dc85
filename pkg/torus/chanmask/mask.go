// Package chanmask holds the channel mask of a node (seed 003 §5.2.3.1), and combines the masks of all nodes for the
// supervisors (§5.2.3.2). A mask says which links may carry messages; other traffic is not affected.
//
// A node has masks of its own (State.Own from its diagnosis, State.Held from a person at the node) and one from the
// supervisors (State.Ordered). The channels in force are those that all of these allow. A link is used only while
// neither of its ends masks it, so one faulty end activates nothing: both ends must restore a link (§6.1).
//
// The supervisors' orders are numbered, and a node refuses an order that is not newer than the last. So an old order
// that arrives again, late or by another way, undoes nothing.
//
// The rest serves the supervisors. Find returns the concave faulty regions of a torus, where a message that follows
// the Chaos router's rules may be trapped forever (Figure 16). Close masks more links until no message is trapped
// (Figure 17). Plan assigns mappers to the unknown parts of a map, and Extend and Merge combine maps (Figure 18,
// §6.1).
//
// The package is pure: it keeps no file (internal/agent/storage does), sends nothing, and routes no message
// (pkg/torus/routing does).
package chanmask

import (
	"fmt"
	"strings"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Mask says for each of a node's six channels whether it may carry messages: bit i is the direction with Index i (X+
// X- Y+ Y- Z+ Z-), 1: usable. It is the value of the register watchdog.AddrChannelMask. Channels that the torus does
// not have are ignored.
type Mask uint8

// All has all channels usable.
const All Mask = 1<<grid.NumDirections - 1

// Usable reports whether the channel in a direction may carry messages.
func (m Mask) Usable(d grid.Direction) bool { return m>>d.Index()&1 == 1 }

// With returns the mask with one channel usable, or not.
func (m Mask) With(d grid.Direction, usable bool) Mask {
	if usable {
		return m | 1<<d.Index()
	}
	return m &^ (1 << d.Index())
}

// Without returns the mask with these channels masked.
func (m Mask) Without(dirs ...grid.Direction) Mask {
	for _, d := range dirs {
		m = m.With(d, false)
	}
	return m
}

// Masked returns the channels that may not carry messages, in the order of the directions.
func (m Mask) Masked() []grid.Direction {
	var out []grid.Direction
	for _, d := range grid.Directions() {
		if !m.Usable(d) {
			out = append(out, d)
		}
	}
	return out
}

// String is "all usable", or which are not: "masked X+ Z-".
func (m Mask) String() string {
	dirs := m.Masked()
	if len(dirs) == 0 {
		return "all usable"
	}
	names := make([]string, len(dirs))
	for i, d := range dirs {
		names[i] = d.String()
	}
	return "masked " + strings.Join(names, " ")
}

// Parse reads the bits of a mask.
func Parse(v uint32) (Mask, error) {
	if v > uint32(All) {
		return 0, fmt.Errorf("channel mask 0x%x: want bits 0 to %d at most, 0x%02x", v, grid.NumDirections-1, uint8(All))
	}
	return Mask(v), nil
}

// Used reports whether a link carries messages: neither end masks it.
func Used(mine Mask, d grid.Direction, peerMasks bool) bool { return mine.Usable(d) && !peerMasks }

// State holds all masks of a node. Its zero value masks everything and is of no use: begin with Fresh.
type State struct {
	Own     Mask   // the node's own word, of its diagnosis
	Held    Mask   // channels that a person at the node has taken out: 1: masked. No diagnosis restores them
	Ordered Mask   // the supervisors' word
	Number  uint64 // of the supervisors' order, from 1: its revision in the store; 0: no order yet
}

// Fresh returns the state of a node that has received no order, or that has lost its orders: all channels are usable
// until the supervisors say otherwise.
func Fresh() State { return State{Own: All, Ordered: All} }

// InForce returns the channels that all masks leave usable: the supervisors' mask merged with the node's, so that
// only channels alive in both live (§6.1).
func (s State) InForce() Mask { return s.OwnWord() & s.Ordered }

// OwnWord returns the channels that the node itself leaves usable.
func (s State) OwnWord() Mask { return s.Own &^ s.Held }

// Verdict is the outcome of an order.
type Verdict uint8

// The verdicts.
const (
	Taken Verdict = iota + 1 // it is the supervisors' word now
	Known                    // it was that already
	Stale                    // an older one: refused
)

// String returns the verdict's name.
func (v Verdict) String() string {
	switch v {
	case Taken:
		return "taken"
	case Known:
		return "known"
	case Stale:
		return "stale"
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Order applies the supervisors' mask with its number, and returns the outcome. Two different masks with the same
// number cannot be ordered by age, so the first one stays.
func (s State) Order(number uint64, m Mask) (State, Verdict) {
	switch {
	case number < s.Number || number == 0:
		return s, Stale
	case number == s.Number && m == s.Ordered:
		return s, Known
	case number == s.Number:
		return s, Stale
	}
	s.Ordered, s.Number = m&All, number
	return s, Taken
}

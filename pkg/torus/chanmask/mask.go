// Package chanmask is the channel mask of a node (seed 003 §5.2.3.1), and what the supervisors make of all masks
// (§5.2.3.2): which links may carry messages, whatever else goes over them.
//
// A node has a word of its own (State.Own: its diagnosis; State.Held: a person at the node), and that of the supervisors
// (State.Ordered). In force is what is usable by all. A link is used only while neither of its ends masks it, so
// one end that is wrong activates nothing: a link is restored by both ends (§6.1).
//
// The supervisors' words have numbers, and one that is not newer than the last is refused: an old order that
// comes again, late or by another way, undoes nothing.
//
// The rest is the supervisors': Find tells which faulty regions of a torus are concave, so that a message that
// goes by the Chaos router's rules may be caught there for ever (Figure 16); Close masks more links until
// none is caught (Figure 17); Plan says who is to map what the map does not know, and Extend and Merge put maps together
// (Figure 18, §6.1).
//
// It is pure: it keeps no file (internal/agent/maskfile does), sends nothing, and decides no message's way (pkg/torus/routing
// does).
package chanmask

import (
	"fmt"
	"strings"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Mask says of each of a node's six channels whether it may carry messages: bit i is that of the direction with
// Index i (X+ X- Y+ Y- Z+ Z-), 1: usable. It is the value of the register watchdog.AddrChannelMask. A channel that the torus
// does not have counts for nothing.
type Mask uint8

// All has all channels usable.
const All Mask = 1<<grid.NumDirections - 1

// Usable says whether the channel in a direction may carry messages.
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

// Used says whether a link carries messages: neither end masks it.
func Used(mine Mask, d grid.Direction, peerMasks bool) bool { return mine.Usable(d) && !peerMasks }

// State is what a node holds of its mask. Its zero value masks everything and is of no use: begin with Fresh.
type State struct {
	Own     Mask   // the node's own word, of its diagnosis
	Held    Mask   // channels that a person at the node has taken out: 1: masked. No diagnosis restores them
	Ordered Mask   // the supervisors' word
	Number  uint64 // of the supervisors' word, from 1: the store's revision that it is of; 0: they have not spoken
}

// Fresh is the state of a node that was told nothing, or that has lost what it was told: all channels are usable, until
// the supervisors say otherwise.
func Fresh() State { return State{Own: All, Ordered: All} }

// InForce is what all words leave usable: the supervisors' merged with the node's, so that only what is alive in both
// lives (§6.1).
func (s State) InForce() Mask { return s.OwnWord() & s.Ordered }

// OwnWord is what the node itself leaves usable.
func (s State) OwnWord() Mask { return s.Own &^ s.Held }

// Verdict is what became of an order.
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

// Order takes the supervisors' word with its number, and says what became of it. Two different words of one number cannot
// be told apart by age: the first that came stays.
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

// Package routing decides which way a message takes through the torus (seed 003 §1.3, §2, §5.2.3.1), reassembles
// messages of several pieces (§5.2.1.3), and decides when senders should slow down (§4.4.2).
//
// # Ways
//
// A node knows its own links and nothing else. A channel is *profitable* for a message when it leads nearer to the
// destination on a shortest way, and *functional* when messages may go by it now. Three algorithms choose among them:
//
//	dimension order    the first dimension that is not done, in one direction; if that channel is not functional the message is stuck
//	minimal adaptive   any channel that is profitable and functional; if there is none the message is stuck
//	chaos              the same; if there is none, *fast derouting*: any functional channel, at random
//
// The criterion *No Routeback* excludes the channel by which the message came, unless no other is functional. Without
// it the next node returns a derouted message, because there the way back is the profitable one.
//
// Of several channels, Decide takes the one with the fewest waiting messages, and breaks ties at random. Chance is
// what makes chaos free of livelock: where a way out exists from everywhere, a message is still under way after n
// hops with a probability that falls to 0 as n grows (§2). Livelock remains possible in *concave* regions, where
// every way out must be undone by locally profitable hops (§5.2.3.2, Figure 16): so hops are bounded, by HopBound.
//
// Beyond the thesis, a node remembers by which channels a message has left (Query.Left). A message that comes again
// goes round in a circle, and leaves by another channel, a profitable one if any is left. When it has left by all, it
// makes a detour at random, every other time. The thesis avoided a history in the packet; this one is in the nodes,
// and they need it anyway to end floods. With it a message tries all ways out of a concave region one after the
// other, and arrives wherever a way exists.
//
// Decide is a function of its arguments; the caller supplies the randomness. internal/agent/dnp/dnpcore decides how a
// node treats messages that are stuck, or have no hops left, and how it stores them.
package routing

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Algorithm is a way of choosing. The zero value is none.
type Algorithm uint8

// The algorithms.
const (
	DimensionOrder Algorithm = iota + 1
	MinimalAdaptive
	Chaos
)

var algorithmNames = [...]string{DimensionOrder: "dimension-order", MinimalAdaptive: "minimal-adaptive", Chaos: "chaos"}

// String returns the algorithm's name, as Parse reads it.
func (a Algorithm) String() string {
	if a >= 1 && int(a) < len(algorithmNames) {
		return algorithmNames[a]
	}
	return fmt.Sprintf("Algorithm(%d)", uint8(a))
}

// Parse reads the name of an algorithm.
func Parse(s string) (Algorithm, error) {
	if i := slices.Index(algorithmNames[1:], s); i >= 0 {
		return Algorithm(i + 1), nil
	}
	return 0, fmt.Errorf("routing %q: want chaos, minimal-adaptive or dimension-order", s)
}

// Set is a set of channels: bit i is the direction of Index i.
type Set uint8

// SetOf returns the set of the directions given.
func SetOf(ds ...grid.Direction) (s Set) {
	for _, d := range ds {
		s |= 1 << d.Index()
	}
	return s
}

// Has reports whether d, a valid direction, is in the set.
func (s Set) Has(d grid.Direction) bool { return s>>d.Index()&1 != 0 }

// Profitable returns the channels that lead from one node nearer to another. In a torus without empty places these are
// the first hops of all shortest paths.
func Profitable(dims grid.Dims, at, dst grid.Coord) Set { return Set(dims.Nearer(at, dst)) }

// Diameter returns the longest Distance between two places of a torus.
func Diameter(dims grid.Dims) int { return dims.X/2 + dims.Y/2 + dims.Z/2 }

// Hops that a message is allowed by default.
const (
	minBound   = 32  // the bound of a torus that configures none
	maxBound   = 255 // the register has 8 bits (watchdog.AddrMaxHops)
	slackBound = 20  // for derouting, besides a second way across
)

// HopBound returns the default bound on a message's hops in a torus: twice the diameter, so that it may be led astray
// all the way once, and some for the deroutes themselves. The range is 32 to 255.
func HopBound(dims grid.Dims) uint8 {
	return uint8(min(max(2*Diameter(dims)+slackBound, minBound), maxBound))
}

// Query is a node's knowledge when it has to forward a message.
type Query struct {
	Dims    grid.Dims
	At, Dst grid.Coord     // inside Dims, and not the same
	From    grid.Direction // channel by which the message came; invalid: it begins here
	// Functional channels may be used at all; Ready ones have room for a message now.
	Functional, Ready Set
	// Load is the number of messages that wait at each channel, or any other cost that grows with the wait.
	Load [grid.NumDirections]int
	// Left are the channels by which the message has left from here before, as far as this node remembers.
	Left Set
	// Routeback is to do without No Routeback, to compare.
	Routeback bool
}

// Outcome is the result of Decide.
type Outcome uint8

// The outcomes.
const (
	Route   Outcome = iota + 1 // nearer, by the direction
	Deroute                    // not nearer, by the direction
	Wait                       // a channel would do, and has no room for a message now
	Stuck                      // the algorithm has no way
)

var outcomeNames = [...]string{Route: "route", Deroute: "deroute", Wait: "wait", Stuck: "stuck"}

// String returns the outcome's name.
func (o Outcome) String() string {
	if o >= 1 && int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Decide returns the channel that a message takes. The direction is valid with Route and Deroute. chance returns a
// uniform random number from 0 to n-1; Decide calls it only when there is a choice.
func (a Algorithm) Decide(q *Query, chance func(n int) int) (grid.Direction, Outcome) {
	profitable := Profitable(q.Dims, q.At, q.Dst)
	if a == DimensionOrder { // oblivious: neither load nor where it came from counts
		return q.pick(profitable&-profitable&q.Functional, Route, chance)
	}
	allowed := q.allowed()
	s := profitable & allowed
	if a == Chaos && q.Left != 0 {
		s = q.another(profitable, allowed, chance)
	} else if a == Chaos && s == 0 {
		s = allowed
	}
	d, how := q.pick(s, Route, chance)
	if how == Route && !profitable.Has(d) {
		how = Deroute
	}
	return d, how
}

// another returns the channels for a message that has been here before: those by which it has not left, with the way
// by which it came as the last resort. If there are none, it returns the profitable ones or all.
func (q *Query) another(profitable, allowed Set, chance func(n int) int) Set {
	for _, s := range [...]Set{profitable & allowed, allowed, q.Functional} {
		if s &^= q.Left; s != 0 {
			return s
		}
	}
	if s := profitable & allowed; s == allowed || s != 0 && chance(2) == 0 {
		return s
	}
	return allowed
}

// Swap reports whether a message that waits here may go by a channel, profitable or not, because the neighbour there
// has one for this node and neither has room. That is the deroute under pressure of traffic (§2), which keeps every
// channel moving. Only chaos may deroute, and then by any channel: the message swapped back is another one than the
// one that comes.
func (a Algorithm) Swap(q *Query, d grid.Direction) (Outcome, bool) {
	switch {
	case Profitable(q.Dims, q.At, q.Dst).Has(d):
		return Route, a != DimensionOrder
	case a == Chaos:
		return Deroute, q.Functional.Has(d)
	}
	return Stuck, false
}

// allowed is the functional channels with No Routeback applied. On a line of two nodes both channels lead back.
func (q *Query) allowed() Set {
	if q.Routeback || !q.From.Valid() {
		return q.Functional
	}
	back := SetOf(q.From)
	if n, ok := q.Dims.Neighbour(q.At, q.From); ok {
		if other, _ := q.Dims.Neighbour(q.At, q.From.Opposite()); other == n {
			back |= SetOf(q.From.Opposite())
		}
	}
	if q.Functional&^back == 0 {
		return q.Functional
	}
	return q.Functional &^ back
}

// pick returns the channel of s where the fewest wait.
func (q *Query) pick(s Set, as Outcome, chance func(n int) int) (grid.Direction, Outcome) {
	if s == 0 {
		return 0, Stuck
	}
	var best Set
	least := 0
	for r := s & q.Ready; r != 0; r &= r - 1 {
		i := bits.TrailingZeros8(uint8(r))
		switch load := q.Load[i]; {
		case best == 0 || load < least:
			best, least = 1<<i, load
		case load == least:
			best |= 1 << i
		}
	}
	n := bits.OnesCount8(uint8(best))
	if n == 0 {
		return 0, Wait
	}
	if n > 1 {
		for range chance(n) {
			best &= best - 1
		}
	}
	return grid.Direction(bits.TrailingZeros8(uint8(best)) + 1), as
}

// Random is a source of chance for one owner (SplitMix64). It is not secret: an observer of enough numbers can
// predict the rest.
type Random struct{ state uint64 }

// NewRandom returns a source; the same seed gives the same numbers.
func NewRandom(seed uint64) *Random { return &Random{seed} }

// IntN returns a number from 0 to n-1; n is at least 1, and so small that the bias of 2^-32·n does not matter.
func (r *Random) IntN(n int) int {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return int(z >> 32 * uint64(n) >> 32)
}

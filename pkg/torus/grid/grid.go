// Package grid is the geometry of the torus: coordinates, directions, and neighbours.
//
// It is for one to three dimensions of any size, as the DNP has them (seed 001 §III-A). Places may be empty, so that any
// number of nodes makes a torus: a link leads to the next place in its direction that has a node. Placement, Arrange
// and Join rate and choose the places of nodes by their failure domains. The package knows nothing of links, states or
// packets; those are in pkg/torus. Together with pkg/fault it is the bottom of the project: it imports nothing of ours.
package grid

import (
	"fmt"
	"strconv"
	"strings"
	"unique"
)

// MaxSize is the largest size of one dimension: coordinates are 16 bits wide on the wire.
const MaxSize = 1 << 16

// MaxNodes bounds the product of the sizes, so that a node's rank fits 31 bits everywhere.
const MaxNodes = 1 << 31

// Direction is one of the six ways out of a node. The zero value is no direction.
type Direction uint8

// The directions, in the order in which this project lists them.
const (
	XPlus Direction = iota + 1
	XMinus
	YPlus
	YMinus
	ZPlus
	ZMinus
)

// NumDirections is the number of directions of a three-dimensional torus.
const NumDirections = 6

var directions = [NumDirections]Direction{XPlus, XMinus, YPlus, YMinus, ZPlus, ZMinus}

// Directions returns all six directions in order.
func Directions() [NumDirections]Direction { return directions }

var directionNames = [...]string{"invalid", "X+", "X-", "Y+", "Y-", "Z+", "Z-"}

// String returns the direction's name: X+, X-, Y+, Y-, Z+ or Z-.
func (d Direction) String() string {
	if !d.Valid() {
		return fmt.Sprintf("Direction(%d)", uint8(d))
	}
	return directionNames[d]
}

// Valid reports whether d is one of the six.
func (d Direction) Valid() bool { return d >= XPlus && d <= ZMinus }

// Index returns 0 to 5, for arrays of NumDirections. It panics on an invalid direction.
func (d Direction) Index() int {
	if !d.Valid() {
		panic(fmt.Sprintf("grid: index of invalid direction %d", uint8(d)))
	}
	return int(d) - 1
}

// Opposite returns the direction that points back along the same dimension.
func (d Direction) Opposite() Direction {
	switch d {
	case XPlus, YPlus, ZPlus:
		return d + 1
	case XMinus, YMinus, ZMinus:
		return d - 1
	}
	return 0
}

// Axis returns 0, 1 or 2 for X, Y or Z.
func (d Direction) Axis() int { return d.Index() / 2 }

// Positive reports whether d points towards growing coordinates.
func (d Direction) Positive() bool { return d == XPlus || d == YPlus || d == ZPlus }

// ParseDirection reads a name as String prints it.
func ParseDirection(s string) (Direction, error) {
	for i := 1; i < len(directionNames); i++ {
		if s == directionNames[i] {
			return Direction(i), nil
		}
	}
	return 0, fmt.Errorf("direction %q: want one of X+ X- Y+ Y- Z+ Z-", s)
}

// Coord is a node's place in the torus. Unused dimensions are 0.
type Coord struct{ X, Y, Z int }

// String returns "x,y,z".
func (c Coord) String() string {
	return strconv.Itoa(c.X) + "," + strconv.Itoa(c.Y) + "," + strconv.Itoa(c.Z)
}

// ParseCoord reads "x", "x,y" or "x,y,z" of non-negative decimal numbers; missing ones are 0.
func ParseCoord(s string) (Coord, error) {
	v, err := parseInts(s, ",", 0)
	if err != nil {
		return Coord{}, fmt.Errorf("coordinate %q: want x,y,z, each 0 to %d: %w", s, MaxSize-1, err)
	}
	return Coord{v[0], v[1], v[2]}, nil
}

// Dims are the sizes of the torus in X, Y and Z, each at least 1, and the places that have no node. A dimension of size 1
// has no links; two nodes that are alone on a line have two distinct links to each other. Equal tori compare equal
// with ==. A literal with only the sizes has a node at every place. The zero value, "0x0x0", is the torus before the first
// nodes have joined: it has no place.
type Dims struct {
	X, Y, Z int

	empty unique.Handle[emptyPlaces] // the zero handle: none
}

// String returns "XxYxZ", and then the empty places if there are any, as ParseDims reads them.
func (d Dims) String() string {
	s := strconv.Itoa(d.X) + "x" + strconv.Itoa(d.Y) + "x" + strconv.Itoa(d.Z)
	if d.Full() {
		return s
	}
	return s + without + d.emptyRanges()
}

// ParseDims reads "4", "4x4" or "4x4x4"; missing sizes are 1, and "0x0x0" is the torus without a place. Empty places follow
// the word "without", in ranges by rank:
// "3x2x2 without 2,0,0 1,1,1..2,1,1".
func ParseDims(s string) (Dims, error) {
	sizes, empty, some := strings.Cut(s, without)
	v, err := parseInts(sizes, "x", 1)
	if err != nil {
		return Dims{}, fmt.Errorf("dims %q: want one to three sizes as in 2x2x2, each 1 to %d: %w", sizes, MaxSize, err)
	}
	d := Dims{X: v[0], Y: v[1], Z: v[2]}
	if d == (Dims{}) && !some {
		return d, nil
	}
	if err := d.Validate(); err != nil {
		return Dims{}, err
	}
	if some {
		return d.parseEmpty(empty)
	}
	return d, nil
}

func parseInts(s, sep string, absent int) ([3]int, error) {
	v := [3]int{absent, absent, absent}
	parts := strings.Split(s, sep)
	if len(parts) > 3 {
		return v, fmt.Errorf("%d parts", len(parts))
	}
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 17)
		if err != nil {
			return v, fmt.Errorf("part %d, %q, is not such a number", i+1, p)
		}
		v[i] = int(n)
	}
	return v, nil
}

// Validate refuses sizes outside 1 to MaxSize and products above MaxNodes.
func (d Dims) Validate() error {
	n := 1
	for i, s := range [3]int{d.X, d.Y, d.Z} {
		if s < 1 || s > MaxSize {
			return fmt.Errorf("dims %s: size of %c is %d: want 1 to %d", d, "XYZ"[i], s, MaxSize)
		}
		n *= s
		if n > MaxNodes {
			return fmt.Errorf("dims %s: more than %d places", d, MaxNodes)
		}
	}
	return nil
}

// Places returns the number of places, with and without a node: ranks are below it.
func (d Dims) Places() int { return d.X * d.Y * d.Z }

func (d Dims) size(axis int) int { return [3]int{d.X, d.Y, d.Z}[axis] }

func (d Dims) inside(c Coord) bool {
	return c.X >= 0 && c.X < d.X && c.Y >= 0 && c.Y < d.Y && c.Z >= 0 && c.Z < d.Z
}

// Contains reports whether c is a place of the torus that has a node.
func (d Dims) Contains(c Coord) bool { return d.inside(c) && !d.emptyAt(c) }

// Check is Contains as an error that names the coordinate and the allowed ones.
func (d Dims) Check(c Coord) error {
	switch {
	case d == (Dims{}):
		return fmt.Errorf("coordinate %s: the torus has no place yet", c)
	case !d.inside(c):
		return fmt.Errorf("coordinate %s: outside the %s torus: want 0,0,0 to %d,%d,%d", c, d.Box(), d.X-1, d.Y-1, d.Z-1)
	case d.emptyAt(c):
		return fmt.Errorf("coordinate %s: an empty place of the %s torus: want one with a node", c, d.Box())
	}
	return nil
}

// Rank numbers the places from 0, X fastest. The coordinate must lie inside.
func (d Dims) Rank(c Coord) int { return c.X + d.X*(c.Y+d.Y*c.Z) }

// At is the inverse of Rank.
func (d Dims) At(rank int) Coord {
	return Coord{X: rank % d.X, Y: rank / d.X % d.Y, Z: rank / (d.X * d.Y)}
}

// HasLink reports whether a node of this torus can have a link in direction dir.
func (d Dims) HasLink(dir Direction) bool { return d.size(dir.Axis()) > 1 }

// Links returns the directions in which nodes can have links, in order. Where no place is empty every node has them all.
func (d Dims) Links() []Direction {
	var out []Direction
	for _, dir := range directions {
		if d.HasLink(dir) {
			out = append(out, dir)
		}
	}
	return out
}

// LinksOf returns the directions in which the node at c has a link, in order.
func (d Dims) LinksOf(c Coord) []Direction {
	var out []Direction
	for _, dir := range directions {
		if _, ok := d.Neighbour(c, dir); ok {
			out = append(out, dir)
		}
	}
	return out
}

// Neighbour returns the node at the other end of c's link in direction dir: the next one on the line. It returns false
// where there is no such link, because no other node is on the line.
func (d Dims) Neighbour(c Coord, dir Direction) (Coord, bool) {
	axis := dir.Axis()
	size, at := d.size(axis), [3]*int{&c.X, &c.Y, &c.Z}[axis]
	for range size - 1 {
		switch {
		case !dir.Positive():
			*at = (*at - 1 + size) % size
		default:
			*at = (*at + 1) % size
		}
		if !d.emptyAt(c) {
			return c, true
		}
	}
	return Coord{}, false
}

// Neighbours returns the distinct neighbours of c in the order of the directions that lead to
// them. Their number is D, the degree that quorums are counted against: 3 in a 2x2x2 torus, 6
// from 3x3x3 on.
func (d Dims) Neighbours(c Coord) []Coord {
	var out []Coord
next:
	for _, dir := range directions {
		n, ok := d.Neighbour(c, dir)
		if !ok {
			continue
		}
		for _, seen := range out {
			if seen == n {
				continue next
			}
		}
		out = append(out, n)
	}
	return out
}

// LinksTo returns the directions of c's links that end at n: two where no other node is on the line.
func (d Dims) LinksTo(c, n Coord) []Direction {
	var out []Direction
	for _, dir := range directions {
		if m, ok := d.Neighbour(c, dir); ok && m == n {
			out = append(out, dir)
		}
	}
	return out
}

// Distance returns the length of a shortest path between two places in hops, as if every place had a node.
func (d Dims) Distance(a, b Coord) (hops int) {
	for _, v := range [3][3]int{{a.X, b.X, d.X}, {a.Y, b.Y, d.Y}, {a.Z, b.Z, d.Z}} {
		up := (v[1] - v[0] + v[2]) % v[2]
		hops += min(up, v[2]-up)
	}
	return hops
}

// Nearer returns the directions of c's links that end nearer to a place, by Distance: bit i is the direction of Index i.
// Around empty places there may be none.
func (d Dims) Nearer(c, to Coord) (s uint8) {
	if d.Full() {
		return nearerFull([3][3]int{{c.X, to.X, d.X}, {c.Y, to.Y, d.Y}, {c.Z, to.Z, d.Z}})
	}
	here := d.Distance(c, to)
	for _, dir := range directions {
		if n, ok := d.Neighbour(c, dir); ok && d.Distance(n, to) < here {
			s |= 1 << dir.Index()
		}
	}
	return s
}

// nearerFull returns, for each axis on which the coordinates differ, the shorter direction, or both if they are equally
// long.
func nearerFull(axes [3][3]int) (s uint8) {
	for axis, v := range axes {
		up := (v[1] - v[0] + v[2]) % v[2]
		if up == 0 {
			continue
		}
		if 2*up <= v[2] {
			s |= 1 << (2 * axis)
		}
		if 2*up >= v[2] {
			s |= 2 << (2 * axis)
		}
	}
	return s
}

package grid

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"iter"
	"math/bits"
	"strings"
	"unique"
)

// MaxPlaces bounds the number of places of a torus with empty ones: it records a bit for each.
const MaxPlaces = 1 << 20

// MaxText bounds the text of the empty places, in bytes.
const MaxText = 64 << 10

// MaxShort bounds the length of Short, in bytes.
const MaxShort = 32

// without separates the sizes from the empty places in the text of Dims.
const without = " without "

// emptyPlaces is a set of places. It is immutable.
type emptyPlaces struct {
	bits string // of rank r: bit r%8 of byte r/8
	n    int
}

// Full reports whether every place has a node.
func (d Dims) Full() bool { return d.empty == unique.Handle[emptyPlaces]{} }

// Nodes returns the number of nodes.
func (d Dims) Nodes() int {
	if d.Full() {
		return d.Places()
	}
	return d.Places() - d.empty.Value().n
}

// emptyAt reports whether a place inside the torus has no node.
func (d Dims) emptyAt(c Coord) bool { return !d.Full() && d.emptyRank(d.Rank(c)) }

func (d Dims) emptyRank(r int) bool { return d.empty.Value().bits[r/8]>>(r%8)&1 != 0 }

// Box returns the sizes alone: the torus with a node at every place.
func (d Dims) Box() Dims { return Dims{X: d.X, Y: d.Y, Z: d.Z} }

// Empty returns the places without a node, by rank.
func (d Dims) Empty() []Coord {
	var out []Coord
	if d.Full() {
		return nil
	}
	for r := range d.Places() {
		if d.emptyRank(r) {
			out = append(out, d.At(r))
		}
	}
	return out
}

// All gives the places with a node, by rank.
func (d Dims) All() iter.Seq[Coord] {
	return func(yield func(Coord) bool) {
		for r := range d.Places() {
			if (d.Full() || !d.emptyRank(r)) && !yield(d.At(r)) {
				return
			}
		}
	}
}

// Short returns a name of at most MaxShort bytes: the sizes, and a 64-bit checksum of the empty places if there are any.
// Different tori have different names unless checksums collide. Without empty places it equals String.
func (d Dims) Short() string {
	if d.Full() {
		return d.String()
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(d.empty.Value().bits)) // never fails
	return fmt.Sprintf("%s-%016x", d.Box(), h.Sum64())
}

// Index numbers the nodes from 0, by rank; without empty places it is Rank. The place must have a node.
func (d Dims) Index(c Coord) int {
	r := d.Rank(c)
	if d.Full() {
		return r
	}
	set := d.empty.Value().bits
	n := r - bits.OnesCount8(set[r/8]&(1<<(r%8)-1))
	for i := range r / 8 {
		n -= bits.OnesCount8(set[i])
	}
	return n
}

// Node is the inverse of Index.
func (d Dims) Node(index int) Coord {
	if d.Full() {
		return d.At(index)
	}
	for c := range d.All() {
		if index--; index < 0 {
			return c
		}
	}
	panic("grid: node outside the torus")
}

// Without returns the torus with these places empty as well. One place at least must keep its node, and a torus of more
// than MaxPlaces places has no empty ones.
func (d Dims) Without(places ...Coord) (Dims, error) {
	for _, c := range places {
		if !d.inside(c) {
			return Dims{}, d.Check(c)
		}
	}
	return d.withoutRanks(func(set func(rank int)) error {
		for _, c := range places {
			set(d.Rank(c))
		}
		return nil
	})
}

// withoutRanks returns the torus with the places empty that f sets.
func (d Dims) withoutRanks(f func(set func(rank int)) error) (Dims, error) {
	if n := d.Places(); n > MaxPlaces {
		return Dims{}, fmt.Errorf("dims %s: %d places: want at most %d if some are empty", d, n, MaxPlaces)
	}
	set := make([]byte, (d.Places()+7)/8)
	if !d.Full() {
		copy(set, d.empty.Value().bits)
	}
	if err := f(func(rank int) { set[rank/8] |= 1 << (rank % 8) }); err != nil {
		return Dims{}, err
	}
	n := 0
	for _, b := range set {
		n += bits.OnesCount8(b)
	}
	switch n {
	case 0:
		return d.Box(), nil
	case d.Places():
		return Dims{}, fmt.Errorf("dims %s: all %d places are empty: want at least one node", d.Box(), n)
	}
	out := d.Box()
	out.empty = unique.Make(emptyPlaces{bits: string(set), n: n})
	return out, nil
}

// parseEmpty reads the empty places as emptyRanges prints them.
func (d Dims) parseEmpty(s string) (Dims, error) {
	if n := len(s); n > MaxText {
		return Dims{}, fmt.Errorf("dims %s: %d bytes of empty places: want at most %d", d, n, MaxText)
	}
	return d.withoutRanks(func(set func(rank int)) error {
		ranges, given := strings.Fields(s), 0
		if len(ranges) == 0 {
			return fmt.Errorf("dims %s: no place after %q: want places as in 3x2x2 without 2,0,0 1,1,1..2,1,1", d, strings.TrimSpace(without))
		}
		for _, r := range ranges {
			first, last, isRange := strings.Cut(r, "..")
			if !isRange {
				last = first
			}
			from, err := d.parsePlace(first)
			if err != nil {
				return fmt.Errorf("empty place %q: %w", r, err)
			}
			to, err := d.parsePlace(last)
			if err != nil {
				return fmt.Errorf("empty place %q: %w", r, err)
			}
			if to < from {
				return fmt.Errorf("empty places %q: the last is before the first: want them in the order of ranks, X fastest", r)
			}
			if given += to - from + 1; given > d.Places() {
				return fmt.Errorf("empty places %q: more than the torus has, with those before: want each place once", r)
			}
			for rank := from; rank <= to; rank++ {
				set(rank)
			}
		}
		return nil
	})
}

func (d Dims) parsePlace(s string) (rank int, err error) {
	c, err := ParseCoord(s)
	if err != nil {
		return 0, err
	}
	if !d.inside(c) {
		return 0, d.Check(c)
	}
	return d.Rank(c), nil
}

// emptyRanges prints the empty places, each stretch of ranks as "FIRST..LAST".
func (d Dims) emptyRanges() string {
	var parts []string
	n := d.Places()
	for r := 0; r < n; r++ {
		if !d.emptyRank(r) {
			continue
		}
		first := r
		for r+1 < n && d.emptyRank(r+1) {
			r++
		}
		part := d.At(first).String()
		if r > first {
			part += ".." + d.At(r).String()
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, " ")
}

// ParseTorus is ParseDims for a torus of nodes that work together: it refuses one in several parts.
func ParseTorus(s string) (Dims, error) {
	d, err := ParseDims(s)
	if err != nil {
		return Dims{}, err
	}
	if err := d.CheckConnected(); err != nil {
		return Dims{}, err
	}
	return d, nil
}

// CheckConnected returns an error if the nodes are in several parts without a link between them.
func (d Dims) CheckConnected() error {
	if d.Full() {
		return nil
	}
	reached, queue := make([]bool, d.Places()), []Coord{d.Node(0)}
	reached[d.Rank(queue[0])] = true
	n := 0
	for ; n < len(queue); n++ {
		for _, dir := range directions {
			if c, ok := d.Neighbour(queue[n], dir); ok && !reached[d.Rank(c)] {
				reached[d.Rank(c)] = true
				queue = append(queue, c)
			}
		}
	}
	if n < d.Nodes() {
		return fmt.Errorf("dims %s: links lead from %s to %d of %d nodes only: want a torus in one part", d.Short(), queue[0], n, d.Nodes())
	}
	return nil
}

// MaxEncoding bounds what AppendBinary appends in an order to a node, in bytes: the order must fit a datagram.
const MaxEncoding = 1024

// AppendBinary appends a short form of the torus: its sizes, then by rank the lengths of the stretches that have nodes
// and, in turn, those that have none, without the last stretch of nodes. All are varints. It never fails.
func (d Dims) AppendBinary(b []byte) ([]byte, error) {
	for _, size := range d.sizes() {
		b = binary.AppendUvarint(b, uint64(size))
	}
	if d.Full() {
		return b, nil
	}
	empty, run := false, 0
	for r := range d.Places() {
		if d.emptyRank(r) != empty {
			b = binary.AppendUvarint(b, uint64(run))
			empty, run = !empty, 0
		}
		run++
	}
	if empty {
		b = binary.AppendUvarint(b, uint64(run))
	}
	return b, nil
}

// MaxBinary bounds the places of a torus that FromBinary reads: the check that it is in one part visits each.
const MaxBinary = 1 << 16

// FromBinary reads what AppendBinary writes, and nothing else. It refuses a torus in several parts, and one of more than
// MaxBinary places.
func FromBinary(b []byte) (Dims, error) {
	bad := func(format string, args ...any) (Dims, error) {
		return Dims{}, fmt.Errorf("torus of %d bytes: "+format, append([]any{len(b)}, args...)...)
	}
	next := func() (uint64, bool) {
		v, n := binary.Uvarint(b)
		if n <= 0 || n > 1 && b[n-1] == 0 { // the latter is a longer form of the same number
			return 0, false
		}
		b = b[n:]
		return v, true
	}
	var sizes [3]uint64
	for i := range sizes {
		v, ok := next()
		if !ok || v == 0 || v > MaxPlaces {
			return bad("size %d of 3: want a varint from 1 to %d", i+1, MaxPlaces)
		}
		sizes[i] = v
	}
	d := Dims{X: int(sizes[0]), Y: int(sizes[1]), Z: int(sizes[2])}
	if err := d.Validate(); err != nil {
		return bad("%w", err)
	}
	if n := d.Places(); n > MaxBinary {
		return bad("%d places: want at most %d", n, MaxBinary)
	}
	if len(b) == 0 {
		return d, nil
	}
	d, err := d.withoutRanks(func(set func(rank int)) error {
		at := 0
		for empty := false; len(b) > 0; empty = !empty {
			run, ok := next()
			if !ok || run == 0 && (empty || at > 0) || run > uint64(d.Places()-at) {
				return fmt.Errorf("stretch from rank %d: want 1 to %d places", at, d.Places()-at)
			}
			for range run {
				if empty {
					set(at)
				}
				at++
			}
			if !empty && len(b) == 0 {
				return fmt.Errorf("the stretch up to rank %d has nodes: want the last to have none", at)
			}
		}
		return nil
	})
	if err != nil {
		return bad("%w", err)
	}
	if err := d.CheckConnected(); err != nil {
		return bad("%w", err)
	}
	return d, nil
}

// Vacant reports whether the place is one of the torus, and has no node.
func (d Dims) Vacant(c Coord) bool {
	return d.inside(c) && !d.Contains(c)
}

func (d Dims) sizes() [3]int { return [3]int{d.X, d.Y, d.Z} }

// Filled returns the torus with a node at the place, which is empty or beyond the present sizes. In the latter case the
// torus grows by planes that are otherwise empty. Only links of the lines through the place change.
func (d Dims) Filled(c Coord) (Dims, error) {
	if c.X < 0 || c.Y < 0 || c.Z < 0 {
		return Dims{}, fmt.Errorf("place %s: want coordinates of 0 or more", c)
	}
	if d.Contains(c) {
		return Dims{}, fmt.Errorf("place %s: has a node: want an empty place, or one beyond the %s torus", c, d.Box())
	}
	out := Dims{X: max(d.X, c.X+1), Y: max(d.Y, c.Y+1), Z: max(d.Z, c.Z+1)}
	if err := out.Validate(); err != nil {
		return Dims{}, err
	}
	return out.withoutRanks(func(set func(rank int)) error {
		for r := range out.Places() {
			if at := out.At(r); at != c && !d.Contains(at) {
				set(r)
			}
		}
		return nil
	})
}

package grid

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// drawDims draws a torus, with empty places or without.
func drawDims(t *rapid.T) Dims {
	size := rapid.IntRange(1, 6)
	d := Dims{X: size.Draw(t, "x"), Y: size.Draw(t, "y"), Z: size.Draw(t, "z")}
	var empty []Coord
	for r := range d.Places() {
		if rapid.IntRange(0, 3).Draw(t, "empty") == 0 {
			empty = append(empty, d.At(r))
		}
	}
	if len(empty) == d.Places() {
		empty = empty[1:]
	}
	out, err := d.Without(empty...)
	if err != nil {
		t.Fatal(err)
	}
	if got := out.Empty(); !slices.Equal(got, empty) || out.Nodes() != d.Places()-len(empty) {
		t.Fatalf("%s: empty %v, %d nodes; want %v", out, got, out.Nodes(), empty)
	}
	return out
}

// A link leads to the next place with a node, and back by the opposite direction.
func TestLinkLeadsToNextNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDims(t)
		i := -1
		for c := range d.All() {
			i++
			if d.Index(c) != i || d.Node(i) != c || !d.Contains(c) || d.Check(c) != nil {
				t.Fatalf("%s: %s is number %d, want %d", d, c, d.Index(c), i)
			}
			total := 0
			for _, n := range d.Neighbours(c) {
				total += len(d.LinksTo(c, n))
			}
			if links := d.LinksOf(c); total != len(links) {
				t.Fatalf("%s: %d links of %s to its neighbours, want %d", d, total, c, len(links))
			}
			for _, dir := range Directions() {
				n, ok := d.Neighbour(c, dir)
				want, found := nextByBox(d, c, dir)
				if ok != found || ok && n != want {
					t.Fatalf("%s: %s %s leads to %s, %t; want %s, %t", d, c, dir, n, ok, want, found)
				}
				if back, _ := d.Neighbour(n, dir.Opposite()); ok && back != c {
					t.Fatalf("%s: %s %s leads to %s, and that back to %s", d, c, dir, n, back)
				}
			}
		}
	})
}

// nextByBox goes from place to place of the torus without empty places.
func nextByBox(d Dims, c Coord, dir Direction) (Coord, bool) {
	at := c
	for {
		next, ok := d.Box().Neighbour(at, dir)
		if !ok || next == c {
			return Coord{}, false
		}
		if !slices.Contains(d.Empty(), next) {
			return next, true
		}
		at = next
	}
}

// Nearer names the links that end nearer, and in a torus without empty places those of the shortest ways.
func TestNearer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDims(t)
		pick := rapid.SampledFrom(slices.Collect(d.All()))
		a, b := pick.Draw(t, "from"), pick.Draw(t, "to")
		for _, dir := range Directions() {
			n, ok := d.Neighbour(a, dir)
			want := ok && d.Distance(n, b) < d.Distance(a, b)
			if got := d.Nearer(a, b)>>dir.Index()&1 == 1; got != want {
				t.Fatalf("%s: %s from %s leads nearer to %s: %t, want %t", d, dir, a, b, got, want)
			}
		}
	})
}

// The text of a torus makes the same torus, which is equal by ==.
func TestDimsTextIsWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDims(t)
		back, err := ParseDims(d.String())
		if err != nil || back != d || back.String() != d.String() {
			t.Fatalf("%s: parsed as %s, %v", d, back, err)
		}
		if n := len(d.Short()); n > MaxShort || (d.Short() == d.String()) != (d == d.Box()) {
			t.Fatalf("%s: short name %s", d, d.Short())
		}
		if other := drawDims(t); other != d && other.Short() == d.Short() {
			t.Fatalf("%s and %s have the same short name %s", d, other, d.Short())
		}
	})
}

func TestEmptyPlacesText(t *testing.T) {
	d, err := ParseDims("3x2x2 without 2,0,0 1,1,1..2,1,1")
	if err != nil || d.Nodes() != 9 || d.Places() != 12 {
		t.Fatalf("%s of %d nodes, %v", d, d.Nodes(), err)
	}
	if n, ok := d.Neighbour(Coord{1, 0, 0}, XPlus); !ok || n != (Coord{}) {
		t.Errorf("X+ of 1,0,0 leads to %s, %t: want 0,0,0, past the empty place", n, ok)
	}
	if full, err := ParseDims("3x2x2"); err != nil || full != d.Box() || full == d {
		t.Errorf("box %s, %v", d.Box(), err)
	}
	if err := d.Check(Coord{2, 0, 0}); err == nil || !strings.Contains(err.Error(), "2,0,0: an empty place") {
		t.Errorf("Check of an empty place: %v", err)
	}
	for _, bad := range []struct{ in, names string }{
		{"2x2 without ", "no place"}, {"2x2 without 2,0", "2,0,0: outside"}, {"2x2 without 0,0..", `"0,0.."`},
		{"2x2 without 1,1..0,0", "before the first"}, {"2 without 0..1", "all 2 places"}, {"4096x4096 without 0", "at most 1048576"},
		{"2x2 without x", `"x"`}, {"2x2 without 0,0..1,1 0,0", "want each place once"},
		{"64x64 without " + strings.Repeat("0 ", MaxText/2+1), "want at most 65536"},
	} {
		if _, err := ParseDims(bad.in); err == nil || !strings.Contains(err.Error(), bad.names) {
			t.Errorf("ParseDims(%q): error %v, want one that names %q", bad.in, err, bad.names)
		}
	}
	for text, ok := range map[string]bool{"3x2 without 1,0": true, "2x2 without 1,0 0,1": false, "3x3": true,
		"4x4 without 2,0..3,0 2,1..3,1 0,2..1,2 0,3..1,3": false} {
		d, err := ParseDims(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.CheckConnected(); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "one part") {
			t.Errorf("%s: connected: %v, want %t", text, err, ok)
		}
	}
	if _, err := (Dims{X: 2, Y: 1, Z: 1}).Without(Coord{2, 0, 0}); err == nil {
		t.Error("Without: no error for a place outside")
	}
}

// Fit makes a torus of any number of nodes, in which a way leads from every node to every other. From six nodes on each
// has two neighbours at least, so that no node's death rests on one witness.
func TestFitAnyNumber(t *testing.T) {
	most := 1000
	if testing.Short() {
		most = 200
	}
	for n := 1; n <= most; n++ {
		d, err := Fit(n)
		if err != nil || d.Nodes() != n {
			t.Fatalf("Fit(%d) = %s, %v", n, d, err)
		}
		if reached := reach(d); reached != n {
			t.Fatalf("%s: %d of %d nodes reached from the first", d, reached, n)
		}
		if least, _ := d.witnesses(); least < min(2, n-1) {
			t.Errorf("%s: a node has %d neighbours", d, least)
		}
	}
	for _, bad := range []int{0, -1, MaxFit + 1} {
		if _, err := Fit(bad); err == nil || !strings.Contains(err.Error(), "1 to 10000") {
			t.Errorf("Fit(%d): %v", bad, err)
		}
	}
}

// reach counts the nodes that are connected with the first.
func reach(d Dims) int {
	queue := []Coord{d.Node(0)}
	seen := map[Coord]bool{queue[0]: true}
	for ; len(queue) > 0; queue = queue[1:] {
		for _, n := range d.Neighbours(queue[0]) {
			if !seen[n] {
				seen[n] = true
				queue = append(queue, n)
			}
		}
	}
	return len(seen)
}

// The short form of a torus makes the same torus, and no other bytes do.
func TestDimsBinaryIsWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDims(t)
		b, _ := d.AppendBinary(nil)
		back, err := FromBinary(b)
		if connected := d.CheckConnected() == nil; connected != (err == nil) || connected && back != d {
			t.Fatalf("%s: %x is read as %s, %v", d, b, back, err)
		}
		if _, err := FromBinary(append(b, 0)); err == nil {
			t.Fatalf("%s: %x with a byte more is accepted", d, b)
		}
	})
	for _, bad := range [][]byte{nil, {2, 2}, {0, 1, 1}, {2, 2, 1, 4}, {2, 2, 1, 0, 4}, {2, 2, 1, 1, 0}, {2, 2, 1, 3, 2}, {0x82, 0, 1, 1},
		{2, 2, 1, 3, 1, 0}, {2, 2, 1, 1, 2}} {
		if d, err := FromBinary(bad); err == nil {
			t.Errorf("%x is read as %s", bad, d)
		}
	}
}

func FuzzFromBinary(f *testing.F) {
	f.Add([]byte{3, 2, 2, 1, 1, 6, 2})
	f.Add([]byte{0x80, 2, 3, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := FromBinary(b)
		if err != nil {
			return
		}
		if again, _ := d.AppendBinary(nil); !slices.Equal(again, b) {
			t.Errorf("%x is read as %s, which is written as %x", b, d, again)
		}
	})
}

// A node that joins changes only links of the lines through its place.
func TestFilledChangesItsLinesOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDims(t)
		c := Coord{X: rapid.IntRange(0, d.X).Draw(t, "x"), Y: rapid.IntRange(0, d.Y).Draw(t, "y"), Z: rapid.IntRange(0, d.Z).Draw(t, "z")}
		grown, err := d.Filled(c)
		if d.Contains(c) {
			if err == nil {
				t.Fatalf("%s: %s is filled twice", d, c)
			}
			return
		}
		if err != nil || grown.Nodes() != d.Nodes()+1 || !grown.Contains(c) {
			t.Fatalf("%s: with %s: %s, %v", d, c, grown, err)
		}
		ends := 0
		for at := range d.All() {
			for _, dir := range Directions() {
				was, had := d.Neighbour(at, dir)
				is, has := grown.Neighbour(at, dir)
				if had == has && was == is {
					continue
				}
				if ends++; is != c {
					t.Fatalf("%s: with %s, link %s of %s leads to %s, not to the new node", d, c, dir, at, is)
				}
			}
		}
		if ends != len(grown.LinksOf(c)) || ends > NumDirections {
			t.Fatalf("%s: with %s, %d ends of other nodes change, want %d", d, c, ends, len(grown.LinksOf(c)))
		}
	})
}

// Tori of every size up to 1,000 nodes with random empty places: a way leads from every node to every other, and each node
// has all witnesses that its place allows: two on each of its lines, or the only other node there.
func TestEverySizeWithRandomEmptyPlaces(t *testing.T) {
	most := 1000
	if testing.Short() {
		most = 100
	}
	random := dice(11)
	for n := 1; n <= most; n++ {
		d := scattered(t, n, &random)
		if reached := reach(d); reached != n || d.Nodes() != n {
			t.Fatalf("%s: %d of %d nodes reached from the first", d.Short(), reached, n)
		}
		var onLine [3]map[Coord]int // nodes of each line, by its first place
		for axis := range onLine {
			onLine[axis] = make(map[Coord]int)
			for c := range d.All() {
				onLine[axis][lineOf(c, axis)]++
			}
		}
		for c := range d.All() {
			want := 0
			for axis := range onLine {
				want += min(2, onLine[axis][lineOf(c, axis)]-1)
			}
			if got := len(d.Neighbours(c)); got != want {
				t.Fatalf("%s: %s has %d witnesses, want %d", d.Short(), c, got, want)
			}
		}
	}
}

// lineOf returns the first place of a place's line along an axis.
func lineOf(c Coord, axis int) Coord {
	*[3]*int{&c.X, &c.Y, &c.Z}[axis] = 0
	return c
}

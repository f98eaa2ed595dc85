package grid

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNeighboursByHand(t *testing.T) {
	for _, tc := range []struct {
		dims  Dims
		at    Coord
		dir   Direction
		want  Coord
		found bool
	}{
		{Dims{X: 2, Y: 2, Z: 2}, Coord{X: 0, Y: 0, Z: 0}, XPlus, Coord{X: 1, Y: 0, Z: 0}, true},
		{Dims{X: 2, Y: 2, Z: 2}, Coord{X: 0, Y: 0, Z: 0}, XMinus, Coord{X: 1, Y: 0, Z: 0}, true},
		{Dims{X: 3, Y: 3, Z: 3}, Coord{X: 0, Y: 0, Z: 0}, XMinus, Coord{X: 2, Y: 0, Z: 0}, true},
		{Dims{X: 3, Y: 3, Z: 3}, Coord{X: 2, Y: 1, Z: 2}, ZPlus, Coord{X: 2, Y: 1, Z: 0}, true},
		{Dims{X: 4, Y: 1, Z: 1}, Coord{X: 3, Y: 0, Z: 0}, XPlus, Coord{X: 0, Y: 0, Z: 0}, true},
		{Dims{X: 4, Y: 1, Z: 1}, Coord{X: 3, Y: 0, Z: 0}, YPlus, Coord{}, false},
		{Dims{X: 1, Y: 1, Z: 1}, Coord{X: 0, Y: 0, Z: 0}, XPlus, Coord{}, false},
	} {
		got, ok := tc.dims.Neighbour(tc.at, tc.dir)
		if got != tc.want || ok != tc.found {
			t.Errorf("%s: neighbour of %s in %s = %s, %t; want %s, %t", tc.dims, tc.at, tc.dir, got, ok, tc.want, tc.found)
		}
	}
}

func TestDegree(t *testing.T) {
	for _, tc := range []struct {
		dims            string
		links, distinct int
	}{
		{"1", 0, 0}, {"2", 2, 1}, {"3", 2, 2}, {"2x2", 4, 2}, {"3x2", 4, 3}, {"2x2x2", 6, 3}, {"3x3x3", 6, 6}, {"3x1x2", 4, 3},
	} {
		d, err := ParseDims(tc.dims)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(d.Links()); got != tc.links {
			t.Errorf("%s: %d links, want %d", tc.dims, got, tc.links)
		}
		if got := len(d.Neighbours(Coord{})); got != tc.distinct {
			t.Errorf("%s: %d distinct neighbours, want %d", tc.dims, got, tc.distinct)
		}
	}
}

func TestGeometryHolds(t *testing.T) {
	size := rapid.IntRange(1, 7)
	rapid.Check(t, func(t *rapid.T) {
		d := Dims{X: size.Draw(t, "x"), Y: size.Draw(t, "y"), Z: size.Draw(t, "z")}
		c := d.At(rapid.IntRange(0, d.Nodes()-1).Draw(t, "rank"))
		if !d.Contains(c) || d.At(d.Rank(c)) != c {
			t.Fatalf("%s: %s and its rank %d do not agree", d, c, d.Rank(c))
		}
		total := 0
		for _, n := range d.Neighbours(c) {
			total += len(d.LinksTo(c, n))
		}
		if total != len(d.Links()) {
			t.Fatalf("%s: links to neighbours of %s add up to %d, want %d", d, c, total, len(d.Links()))
		}
		for _, dir := range d.Links() {
			n, _ := d.Neighbour(c, dir)
			if back, ok := d.Neighbour(n, dir.Opposite()); !ok || back != c {
				t.Fatalf("%s: %s %s is %s, but the way back ends at %s", d, c, dir, n, back)
			}
			if n == c {
				t.Fatalf("%s: %s is its own neighbour in %s", d, c, dir)
			}
		}
	})
}

func TestParse(t *testing.T) {
	for _, dir := range Directions() {
		if got, err := ParseDirection(dir.String()); err != nil || got != dir {
			t.Errorf("ParseDirection(%q) = %v, %v", dir, got, err)
		}
	}
	if c, err := ParseCoord("1,0,2"); err != nil || c != (Coord{1, 0, 2}) {
		t.Errorf("ParseCoord = %v, %v", c, err)
	}
	for _, bad := range []struct{ in, names string }{
		{"0x2x2", "size of X is 0"}, {"2x2x2x2", "4 parts"}, {"", "part 1"}, {"2x-1", "part 2"}, {"2 x 2", "part 1"},
		{"70000", "65536"}, {"65536x65536x2", "more than"},
	} {
		if _, err := ParseDims(bad.in); err == nil || !strings.Contains(err.Error(), bad.names) || !strings.Contains(err.Error(), "dims") {
			t.Errorf("ParseDims(%q): error %v, want one that names %q", bad.in, err, bad.names)
		}
	}
	for _, bad := range []string{"", "1,2,3,4", "a,b,c", "-1,0,0", "1,,2"} {
		if _, err := ParseCoord(bad); err == nil {
			t.Errorf("ParseCoord(%q): no error", bad)
		}
	}
	if _, err := ParseDirection("W+"); err == nil {
		t.Error("ParseDirection(W+): no error")
	}
	if err := (Dims{X: 2, Y: 2, Z: 2}).Check(Coord{2, 0, 0}); err == nil || !strings.Contains(err.Error(), "2x2x2") {
		t.Errorf("Check: %v", err)
	}
}

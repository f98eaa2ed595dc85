package grid

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// joined returns a placement of n unlabelled nodes that joined one after the other.
func joined(t interface{ Fatal(...any) }, n int) *Placement {
	p, err := Place(Dims{X: 1, Y: 1, Z: 1}, NewDomains(nil, make([]map[string]string, n)), []Coord{{}})
	for err == nil && p.Placed() < n {
		p, err = p.Join()
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// walked returns the first occupied places that a walk from a place meets along each of the six directions, each once.
func walked(box Dims, occupied map[Coord]bool, from Coord) (out []Coord) {
	sizes := [3]int{box.X, box.Y, box.Z}
	for axis, size := range sizes {
		for _, step := range []int{1, size - 1} {
			at := from
			coordinate := [3]*int{&at.X, &at.Y, &at.Z}[axis]
			for range size - 1 {
				*coordinate = (*coordinate + step) % size
				if occupied[at] {
					if !slices.Contains(out, at) {
						out = append(out, at)
					}
					break
				}
			}
		}
	}
	return out
}

func TestQualityListsNodesWithFewWitnesses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := joined(t, rapid.IntRange(1, 30).Draw(t, "nodes"))
		at := p.coords()
		at = at[:len(at)-rapid.IntRange(0, len(at)-1).Draw(t, "none leaves but these")]
		at = rapid.Permutation(at).Draw(t, "at")
		occupied := map[Coord]bool{}
		for _, c := range at {
			occupied[c] = true
		}
		var empty []Coord
		for c := range p.Dims().Box().All() {
			if !occupied[c] {
				empty = append(empty, c)
			}
		}
		d, err := p.Dims().Box().Without(empty...)
		if err != nil {
			t.Fatal(err)
		}
		p, err = Place(d, NewDomains(nil, make([]map[string]string, len(at))), at)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for i, c := range at {
			if w := walked(d.Box(), occupied, c); len(w) < min(len(at)-1, 2) {
				want = append(want, fmt.Sprint(i, w))
			}
		}
		var got []string
		for _, f := range p.Quality().Few {
			got = append(got, fmt.Sprint(f.Node, f.Witnesses))
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("%s: few witnesses: %v, want %v", d, got, want)
		}
	})
}

// A torus that grows along a further axis begins there with a single node. Only one other node is on its line along that axis,
// and none on its other lines. Later sizes have no such node.
func TestFirstNodeOfSecondRowOrLayerHasSingleWitness(t *testing.T) {
	var got []string
	for n := 1; n <= 120; n++ {
		p := joined(t, n)
		for _, f := range p.Quality().Few {
			got = append(got, fmt.Sprintf("%d nodes: %s has %v", n, p.Coord(f.Node), f.Witnesses))
		}
	}
	if want := []string{"5 nodes: 0,1,0 has [0,0,0]", "82 nodes: 0,0,1 has [0,0,0]"}; !slices.Equal(got, want) {
		t.Errorf("nodes with few witnesses:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// One move gives each of five joined nodes two witnesses. Where none helps, or the torus is large, Mend finds none.
func TestMendGivesSecondWitness(t *testing.T) {
	for _, tc := range []struct {
		dims string
		node int
		want string
	}{
		{"4x2 without 1,1..3,1", 4, "1,0,0 to 2,1,0"},
		{"2x2 without 1,1", 1, ""}, // three nodes at a corner: two stay apart wherever one of them goes
		{"2", 0, ""},
		{"5", 0, ""},
		{"9x9x2 without 1,0,1..8,8,1", 81, ""},
	} {
		d, err := ParseDims(tc.dims)
		if err != nil {
			t.Fatal(err)
		}
		p := inOrder(t, d, NewDomains(nil, make([]map[string]string, d.Nodes())))
		s, ok := p.Mend(tc.node)
		got := ""
		if ok {
			got = s.From.String() + " to " + s.To.String()
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", tc.dims, got, tc.want)
		}
	}
}

// Of moves that leave equally few nodes with few witnesses, Mend takes the one that exposes the fewest nodes to failure domains.
func TestMendRespectsFailureDomains(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, err := ParseDims("4x2 without 1,1..3,1")
		if err != nil {
			t.Fatal(err)
		}
		p := inOrder(t, d, NewDomains(twoKeys, drawLabels(t, 5)))
		s, ok := p.Mend(4)
		if !ok {
			t.Fatal("no move")
		}
		mended, err := p.moved(p.where[s.Node], s.To)
		if err != nil || len(mended.Quality().Few) > 0 {
			t.Fatalf("%+v leaves %v, %v", s, mended.Quality().Few, err)
		}
		for _, from := range p.where {
			for _, to := range d.Empty() {
				if q, err := p.moved(from, to); err == nil && len(q.Quality().Few) == 0 && q.total() < mended.total() {
					t.Fatalf("%+v: cost %x; a move from %s to %s: %x", s, mended.total(), d.At(int(from)), to, q.total())
				}
			}
		}
	})
}

package grid

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// racks returns labels of nodes in racks, one byte each; '.' has no rack.
func racks(text string) []map[string]string {
	var out []map[string]string
	for _, r := range text {
		l := map[string]string{}
		if r != '.' {
			l["rack"] = string(r)
		}
		out = append(out, l)
	}
	return out
}

func inOrder(t interface{ Fatal(...any) }, d Dims, ds Domains) *Placement {
	p, err := Place(d, ds, slices.Collect(d.All())[:min(d.Nodes(), ds.nodes)])
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// drawLabels draws labels of nodes for two keys. Some nodes have none.
func drawLabels(t *rapid.T, nodes int) []map[string]string {
	out := make([]map[string]string, nodes)
	values := rapid.IntRange(0, 5)
	for i := range out {
		out[i] = map[string]string{}
		for _, key := range []string{"rack", "power"} {
			if v := values.Draw(t, key); v > 0 {
				out[i][key] = strconv.Itoa(v)
			}
		}
	}
	return out
}

// naive rates places by the words of Quality alone: the exposures, the fewest witnesses, and their sum.
func naive(d Dims, keys []string, labels []map[string]string, at []Coord) (exposures []string, least, sum int) {
	by := map[Coord]map[string]string{}
	for i, c := range at {
		by[c] = labels[i]
	}
	least = NumDirections
	for _, key := range keys {
		for c := range d.All() {
			near := d.Neighbours(c)
			if key == keys[0] {
				least, sum = min(least, len(near)), sum+len(near)
			}
			if len(near) == 0 {
				continue
			}
			v := by[near[0]][key]
			if v != "" && v != by[c][key] && !slices.ContainsFunc(near, func(n Coord) bool { return by[n][key] != v }) {
				exposures = append(exposures, fmt.Sprintf("%s: %s=%s", c, key, v))
			}
		}
	}
	return exposures, least, sum
}

func exposuresOf(p *Placement, q Quality) (out []string) {
	for _, k := range q.Keys {
		for _, e := range k.Exposed {
			out = append(out, fmt.Sprintf("%s: %s=%s", p.Coord(e.Node), k.Key, e.Value))
		}
	}
	return out
}

var twoKeys = []string{"rack", "power"}

func TestQualityByHand(t *testing.T) {
	for _, tc := range []struct{ dims, racks, want string }{
		{"2", "ab", "witnesses 1; rack: least 1 of 2 at node 0, exposed [{0 b} {1 a}]"},
		{"2", "aa", "witnesses 1; rack: least 1 of 1 at node 0, exposed []"},
		{"2x2", "abba", "witnesses 2; rack: least 1 of 2 at node 0, exposed [{0 b} {1 a} {2 a} {3 b}]"},
		{"2x2", "aabb", "witnesses 2; rack: least 2 of 2 at node 0, exposed []"},
		{"4", "abab", "witnesses 2; rack: least 1 of 2 at node 0, exposed [{0 b} {1 a} {2 b} {3 a}]"},
		{"4", "abcb", "witnesses 2; rack: least 1 of 3 at node 0, exposed [{0 b} {2 b}]"},
		{"3", "a..", "witnesses 2; rack: least 2 of 1 at node 0, exposed []"},
		{"2", ".a", "witnesses 1; rack: least 1 of 1 at node 0, exposed [{0 a}]"},
		{"3x2 without 2,0 2,1", "aabb", "witnesses 2; rack: least 2 of 2 at node 0, exposed []"},
		{"1", "a", "witnesses 0; rack: least 0 of 1 at node 0, exposed []"},
		{"2x2", "....", "witnesses 2"},
	} {
		d, err := ParseDims(tc.dims)
		if err != nil {
			t.Fatal(err)
		}
		q := inOrder(t, d, NewDomains([]string{"rack", "power"}, racks(tc.racks))).Quality()
		parts := []string{fmt.Sprintf("witnesses %d", q.Witnesses)}
		for _, k := range q.Keys {
			parts = append(parts, fmt.Sprintf("%s: least %d of %d at node %d, exposed %v", k.Key, k.Least, k.Domains, k.Worst, k.Exposed))
		}
		if got := strings.Join(parts, "; "); got != tc.want {
			t.Errorf("%s %s: %s, want %s", tc.dims, tc.racks, got, tc.want)
		}
	}
}

func TestQualityCountsAsNaiveRuleDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDims(t)
		labels := drawLabels(t, d.Nodes())
		at := rapid.Permutation(slices.Collect(d.All())).Draw(t, "at")
		p, err := Place(d, NewDomains(twoKeys, labels), at)
		if err != nil {
			t.Fatal(err)
		}
		for r := range d.Places() {
			for i, dir := range directions {
				c, ok := d.Neighbour(d.At(r), dir)
				if to := p.links[r][i]; ok != (to != none) || ok && d.Rank(c) != int(to) {
					t.Fatalf("%s: %s of %s leads to %d, want %s, %t", d, dir, d.At(r), to, c, ok)
				}
			}
		}
		q := p.Quality()
		got := exposuresOf(p, q)
		want, least, _ := naive(d, twoKeys, labels, at)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || q.Witnesses != least || q.Exposed() != len(want) {
			t.Fatalf("%s: exposed %v, %d witnesses; want %v, %d", d, got, q.Witnesses, want, least)
		}
	})
}

func TestPlaceRefuses(t *testing.T) {
	ds := NewDomains([]string{"rack"}, racks("ab"))
	for _, tc := range []struct {
		d  Dims
		at []Coord
	}{
		{Dims{X: 2, Y: 1, Z: 1}, []Coord{{}, {}}},
		{Dims{X: 2, Y: 1, Z: 1}, []Coord{{X: 2}}},
		{Dims{X: 3, Y: 1, Z: 1}, []Coord{{}, {X: 1}, {X: 2}}},
		{Dims{X: 1 << 11, Y: 1 << 11, Z: 1}, nil},
	} {
		if _, err := Place(tc.d, ds, tc.at); err == nil {
			t.Errorf("%s %v: no error", tc.d, tc.at)
		}
	}
	if _, err := inOrder(t, Dims{X: 2, Y: 1, Z: 1}, ds).Join(); err == nil {
		t.Error("Join without another node: no error")
	}
	if _, err := Arrange(Dims{X: 3, Y: 1, Z: 1}, ds, nil); err == nil {
		t.Error("Arrange with too few nodes: no error")
	}
}

// naiveWeakness is 2 if all neighbours have one value that the node has not, 1 if all have the node's, and 0 otherwise.
func naiveWeakness(d Dims, key string, by map[Coord]map[string]string, at Coord) int {
	near := d.Neighbours(at)
	if len(near) == 0 {
		return 0
	}
	v := by[near[0]][key]
	switch {
	case v == "" || slices.ContainsFunc(near, func(n Coord) bool { return by[n][key] != v }):
		return 0
	case v == by[at][key]:
		return 1
	}
	return 2
}

// naiveJoin rates by the words of Choose the join of the last node, whose place is empty before: lower is better.
func naiveJoin(before, d Dims, labels []map[string]string, at []Coord) []int {
	by := map[Coord]map[string]string{}
	for i, c := range at {
		by[c] = labels[i]
	}
	joiner := at[len(at)-1]
	own, others := [3]int{}, [3]int{}
	for _, key := range twoKeys {
		own[naiveWeakness(d, key, by, joiner)]++
		for _, c := range at[:len(at)-1] {
			if is := naiveWeakness(d, key, by, c); is > naiveWeakness(before, key, by, c) {
				others[is]++
			}
		}
	}
	exposures, least, sum := naive(d, twoKeys, labels, at)
	shared := 0
	for _, key := range twoKeys {
		for c := range d.All() {
			near, domains := d.Neighbours(c), map[string]bool{}
			for i, n := range near {
				domains[cmp.Or(by[n][key], fmt.Sprint(i, " alone"))] = true
			}
			shared += (len(near) - len(domains)) * (len(near) - len(domains))
		}
	}
	return []int{own[2], own[1], others[2], others[1], len(exposures), -len(d.Neighbours(joiner)), -least, -sum, shared}
}

// Of the permitted places the joining node takes the one that the naive rule finds best; its torus stays in one part.
func TestJoinTakesBestPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDims(t)
		labels := drawLabels(t, d.Nodes()+1)
		at := slices.Collect(d.All())
		p := inOrder(t, d, NewDomains(twoKeys, labels))
		forbidden := map[Coord]bool{}
		for range rapid.IntRange(0, 3).Draw(t, "forbidden") {
			if c, _, err := p.Choose(func(_ Dims, c Coord) bool { return !forbidden[c] }); err == nil {
				forbidden[c] = true
			}
		}
		c, in, err := p.Choose(func(_ Dims, c Coord) bool { return !forbidden[c] })
		some := slices.ContainsFunc(placesToJoin(d), func(to joining) bool { return !forbidden[to.at] && len(to.dims.Neighbours(to.at)) > 0 })
		if !some && errors.Is(err, ErrNoPlace) {
			return
		}
		if err != nil || !some {
			t.Fatalf("%s without %v: place %s, %v; any place: %t", d, forbidden, c, err, some)
		}
		dims, err := in.Filled(c)
		if err != nil || d.CheckConnected() == nil && dims.CheckConnected() != nil {
			t.Fatalf("%s: with the node at %s: %v, %v", d, c, err, dims.CheckConnected())
		}
		if len(forbidden) == 0 {
			q, err := p.Join()
			if err != nil || q.Dims() != dims || !slices.Equal(q.coords(), append(slices.Clone(at), c)) {
				t.Fatalf("%s: node joins at %s of %s, %v, not at %s of %s", d, q.coords(), q.Dims(), err, c, dims)
			}
		}
		if d.Full() && dims.Places() != in.Places() {
			t.Fatalf("%s: grows to %s, not %s", d, dims, in)
		}
		is := naiveJoin(d, dims, labels, append(slices.Clone(at), c))
		for _, to := range placesToJoin(d) {
			if len(to.dims.Neighbours(to.at)) == 0 || forbidden[to.at] || d.Full() && to.dims.Box() != dims.Box() {
				continue
			}
			other := naiveJoin(d, to.dims, labels, append(slices.Clone(at), to.at))
			if o := slices.Compare(other, is); o < 0 || o == 0 && to.dims.Rank(to.at) < dims.Rank(c) {
				t.Fatalf("%s: the node joins at %s of %s, rated %v; %s of %s is rated %v", d, c, dims, is, to.at, to.dims, other)
			}
		}
	})
}

// A full torus grows along its shortest dimension, or along another one if that separates domains and is not too long.
func TestChooseKeepsTorusCompact(t *testing.T) {
	byX := func(c Coord) map[string]string { return map[string]string{"rack": strconv.Itoa(c.X)} }
	none := func(Coord) map[string]string { return nil }
	for _, tc := range []struct {
		dims, want string
		labels     func(Coord) map[string]string
	}{
		{"2", "3x1x1", none},
		{"3", "4x1x1", none},
		{"4", "4x2x1", none},
		{"4x3", "4x4x1", none},
		{"4", "5x1x1", byX}, // the first node of a second row would have one witness
		{"7", "7x2x1", byX}, // a ring stays no ring for ever
		{"4x3", "5x3x1", byX},
		{"7x3", "7x4x1", byX},
		{"3x3", "4x3x1", none},
		{"9x9", "9x9x2", none},
	} {
		d, err := ParseDims(tc.dims)
		if err != nil {
			t.Fatal(err)
		}
		var labels []map[string]string
		for c := range d.All() {
			labels = append(labels, tc.labels(c))
		}
		labels = append(labels, map[string]string{"rack": "new"})
		if tc.labels(Coord{}) == nil {
			labels[len(labels)-1] = nil
		}
		q, err := inOrder(t, d, NewDomains([]string{"rack"}, labels)).Join()
		if err != nil || q.Dims().Box().String() != tc.want {
			t.Errorf("%s: %v, %v: want %s", tc.dims, q.Dims(), err, tc.want)
		}
	}
}

type joining struct {
	dims Dims
	at   Coord
}

// placesToJoin lists every place for one more node, with the torus that has it.
func placesToJoin(d Dims) (out []joining) {
	boxes := []Dims{d.Box()}
	if d.Full() {
		boxes = []Dims{{X: d.X + 1, Y: d.Y, Z: d.Z}, {X: d.X, Y: d.Y + 1, Z: d.Z}, {X: d.X, Y: d.Y, Z: d.Z + 1}}
	}
	for _, box := range boxes {
		for c := range box.All() {
			if d.Contains(c) {
				continue
			}
			var empty []Coord
			for e := range box.All() {
				if e != c && !d.Contains(e) {
					empty = append(empty, e)
				}
			}
			dims, err := box.Without(empty...)
			if err != nil {
				panic(err)
			}
			out = append(out, joining{dims, c})
		}
	}
	return out
}

// An exhaustive search finds no placement with fewer exposed nodes.
func TestArrangeSeparatesWhereAnyPlacementCould(t *testing.T) {
	for _, dims := range []string{"2", "3", "5", "2x2", "3x2", "2x2x2", "3x2 without 2,1", "3x3 without 0,0 2,2", "2x2x2 without 1,1,1"} {
		d, err := ParseDims(dims)
		if err != nil {
			t.Fatal(err)
		}
		for _, all := range []string{"aabbaabb", "aaaabbbb", "abababab", "aaabbbcc", "aabbccdd", "abcdaaaa", "aaaaaaab", "ab.ab.ab", "aaabbb.."} {
			labels := racks(all[:d.Nodes()])
			for i := range labels {
				labels[i]["power"] = string(all[(3*i+1)%len(all)])
			}
			p, err := Arrange(d, NewDomains(twoKeys, labels), nil)
			if err != nil {
				t.Fatal(err)
			}
			best := exhaustive(inOrder(t, d, NewDomains(twoKeys, labels)))
			if p.total() != best {
				t.Errorf("%s %s: cost %x, %d exposed; an exhaustive search finds cost %x", dims, all, p.total(), p.Quality().Exposed(), best)
			}
		}
	}
}

// exhaustive returns the lowest cost of any arrangement of the nodes.
func exhaustive(p *Placement) int64 {
	best := p.total()
	places := slices.Clone(p.where)
	keys := len(p.domains.keys)
	var from func(i int)
	from = func(i int) {
		if i == len(places) {
			best = min(best, p.total())
			return
		}
		tried := map[string]bool{}
		for _, b := range places[i:] {
			if labels := fmt.Sprint(p.values[int(b)*keys:][:keys]); !tried[labels] {
				tried[labels] = true
				p.swap(places[i], b)
				from(i + 1)
				p.swap(places[i], b)
			}
		}
	}
	from(0)
	return best
}

// Tori of every size up to 1,000 nodes, with random empty places and four racks of equal size: no rack's death takes all
// witnesses of a node outside it.
func TestArrangeSeparatesEverySize(t *testing.T) {
	random := dice(7)
	for n := 1; n <= 1_000; n++ {
		if n > 20 && n%(7+n/8) != 0 { // some sizes are enough: the search takes its time
			continue
		}
		d := scattered(t, n, &random)
		labels := make([]map[string]string, n)
		for i := range labels {
			labels[i] = map[string]string{"rack": strconv.Itoa(i * 4 / n), "power": strconv.Itoa(i % 2)}
		}
		p, err := Arrange(d, NewDomains(twoKeys, labels), nil)
		if err != nil {
			t.Fatal(err)
		}
		if p.Dims() != d {
			t.Fatalf("%s became %s", d, p.Dims())
		}
		if got := p.Quality().Exposed(); got > 0 && n > 3 { // 3 nodes with 2 power feeds: one is exposed
			t.Errorf("%d nodes, %s: %d exposed: %v", n, d.Short(), got, exposuresOf(p, p.Quality()))
		}
	}
}

// scattered returns a torus in one part of n nodes with random empty places, whose nodes have at least two neighbours where
// that can be.
func scattered(t *testing.T, n int, random *dice) Dims {
	t.Helper()
	for try := 0; ; try++ {
		fit, err := Fit(n + 1 + random.below(n/4+1))
		if err != nil {
			t.Fatal(err)
		}
		places := slices.Collect(fit.Box().All())
		order := make([]int, len(places))
		for i := range order {
			order[i] = i
		}
		random.shuffle(order)
		var empty []Coord
		for _, i := range order[n:] {
			empty = append(empty, places[i])
		}
		d, err := fit.Box().Without(empty...)
		if err != nil {
			t.Fatal(err)
		}
		if least, _ := d.witnesses(); d.CheckConnected() == nil && (least >= 2 || n <= 2) {
			return d
		}
		if try > 1000 {
			t.Fatalf("%d nodes: no torus in one part found", n)
		}
	}
}

func TestArrangeKeepsFixedNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDims(t)
		if d.Nodes() > 40 {
			return
		}
		labels := drawLabels(t, d.Nodes())
		fixed := rapid.Permutation(slices.Collect(d.All())).Draw(t, "at")[:rapid.IntRange(0, d.Nodes()).Draw(t, "fixed")]
		p, err := Arrange(d, NewDomains(twoKeys, labels), fixed)
		if err != nil {
			t.Fatal(err)
		}
		at := p.coords()
		if !slices.Equal(at[:len(fixed)], fixed) {
			t.Fatalf("%s: fixed nodes at %v, want %v", d, at, fixed)
		}
		again, err := Arrange(d, NewDomains(twoKeys, labels), fixed)
		if err != nil || !slices.Equal(again.coords(), at) {
			t.Fatalf("%s: once %v, then %v, %v", d, at, again.coords(), err)
		}
		slices.SortFunc(at, func(a, b Coord) int { return d.Rank(a) - d.Rank(b) })
		if !slices.Equal(at, slices.Collect(d.All())) {
			t.Fatalf("%s: places %v", d, at)
		}
	})
}

// Each step leaves fewer nodes exposed, and no node with fewer witnesses than the worst had.
func TestEachStepOfImproveHelps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDims(t)
		if d.CheckConnected() != nil {
			return
		}
		labels := drawLabels(t, d.Nodes())
		at := rapid.Permutation(slices.Collect(d.All())).Draw(t, "at")
		p, err := Place(d, NewDomains(twoKeys, labels), at)
		if err != nil {
			t.Fatal(err)
		}
		better, steps, err := p.Improve(4)
		if err != nil {
			t.Fatal(err)
		}
		exposed, fewest, _ := naive(d, twoKeys, labels, at)
		for i, s := range steps {
			if at[s.Node] != s.From || s.With != none && at[s.With] != s.To {
				t.Fatalf("%s: step %+v, but the nodes are at %v", d, s, at)
			}
			at[s.Node] = s.To
			if s.With != none {
				at[s.With] = s.From
			} else {
				var empty []Coord
				for c := range d.Box().All() {
					if !slices.Contains(at, c) {
						empty = append(empty, c)
					}
				}
				if d, err = d.Box().Without(empty...); err != nil || d.CheckConnected() != nil {
					t.Fatalf("%s after %+v: %v", d, s, firstOf(err, d))
				}
			}
			now, least, _ := naive(d, twoKeys, labels, at)
			if len(now) >= len(exposed) || least < fewest {
				t.Fatalf("%s: step %d leads from %v to %v, from %d witnesses to %d", d, i, exposed, now, fewest, least)
			}
			exposed = now
		}
		if !slices.Equal(better.coords(), at) || better.Dims() != d {
			t.Fatalf("%s: the steps lead to %v, not to %v", d, at, better.coords())
		}
	})
}

func firstOf(err error, d Dims) error {
	if err != nil {
		return err
	}
	return d.CheckConnected()
}

// Where no exchange helps, a node moves to an empty place.
func TestImproveMovesNodeToEmptyPlace(t *testing.T) {
	d, err := ParseDims("2x2x3 without 1,0,0 0,1,0 1,0,1 0,1,1")
	if err != nil {
		t.Fatal(err)
	}
	p := inOrder(t, d, NewDomains([]string{"rack"}, racks("abbcaaaa")))
	q, steps, err := p.Improve(8)
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{{Node: 2, From: Coord{Z: 1}, To: Coord{X: 1}, With: none}}
	if !slices.Equal(steps, want) || p.Quality().Exposed() != 1 || q.Quality().Exposed() != 0 {
		t.Errorf("%d exposed, then %d after %+v: want 1, then 0 after %+v", p.Quality().Exposed(), q.Quality().Exposed(), steps, want)
	}
}

// FuzzPlacement: any labels and empty places. Nothing panics, and Improve never leaves more nodes exposed.
func FuzzPlacement(f *testing.F) {
	f.Add(uint8(2), uint8(2), uint8(2), []byte("abcabcab"))
	f.Add(uint8(3), uint8(2), uint8(1), []byte("a bb a"))
	f.Add(uint8(1), uint8(1), uint8(1), []byte(""))
	f.Fuzz(func(t *testing.T, x, y, z uint8, text []byte) {
		box := Dims{X: int(x)%5 + 1, Y: int(y)%5 + 1, Z: int(z)%5 + 1}
		var empty []Coord
		var labels []map[string]string
		for c := range box.All() {
			switch r := box.Rank(c); {
			case r < len(text) && text[r] == ' ' && r > 0:
				empty = append(empty, c)
			case r < len(text) && text[r] != '.':
				labels = append(labels, map[string]string{"rack": strconv.Itoa(int(text[r]) % 8)})
			default:
				labels = append(labels, nil)
			}
		}
		d, err := box.Without(empty...)
		if err != nil {
			t.Fatal(err)
		}
		p := inOrder(t, d, NewDomains([]string{"rack"}, labels))
		better, _, err := p.Improve(2)
		if err != nil || better.Quality().Exposed() > p.Quality().Exposed() {
			t.Fatalf("%s %q: %d exposed, then %d, %v", d, text, p.Quality().Exposed(), better.Quality().Exposed(), err)
		}
		more := inOrder(t, d, NewDomains([]string{"rack"}, append(labels, map[string]string{"rack": "1"})))
		if q, err := more.Join(); err != nil || q.Dims().Nodes() != d.Nodes()+1 {
			t.Fatalf("%s %q: join: %v", d, text, err)
		}
	})
}

func benchmarkLabels(n int) Domains {
	labels := make([]map[string]string, n)
	for i := range labels {
		labels[i] = map[string]string{"rack": strconv.Itoa(i / 40), "power": strconv.Itoa(i / 320 % 2), "switch": strconv.Itoa(i / 20)}
	}
	return NewDomains([]string{"rack", "power", "switch"}, labels)
}

func BenchmarkPlacement(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		d, err := Fit(n)
		if err != nil {
			b.Fatal(err)
		}
		ds := benchmarkLabels(n)
		b.Run(fmt.Sprintf("quality/%d", n), func(b *testing.B) {
			for b.Loop() {
				inOrder(b, d, ds).Quality()
			}
		})
		b.Run(fmt.Sprintf("arrange/%d", n), func(b *testing.B) {
			for b.Loop() {
				p, err := Arrange(d, ds, nil)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(p.Quality().Exposed()), "exposed")
				b.ReportMetric(float64(inOrder(b, d, ds).Quality().Exposed()), "before")
			}
		})
		b.Run(fmt.Sprintf("improve/%d", n), func(b *testing.B) {
			labels := make([]map[string]string, 0, n)
			for c := range d.All() {
				labels = append(labels, map[string]string{"power": strconv.Itoa((c.X + c.Y + c.Z) % 2)})
			}
			p := inOrder(b, d, NewDomains([]string{"power"}, labels))
			for b.Loop() {
				_, steps, err := p.Improve(8)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(len(steps)), "steps")
			}
		})
		before, err := Fit(n - 1)
		if err != nil {
			b.Fatal(err)
		}
		p := inOrder(b, before, ds)
		b.Run(fmt.Sprintf("join/%d", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := p.Join(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

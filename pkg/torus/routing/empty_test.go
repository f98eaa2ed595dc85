package routing

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// In a torus of any number of nodes every message arrives within the hop bound, and in one with empty places anywhere
// wherever a way exists.
func TestMessagesPassEmptyPlaces(t *testing.T) {
	arrive := func(t *testing.T, d grid.Dims, bound int, pairs int) {
		t.Helper()
		f, rnd := newFaulty(d), NewRandom(1)
		for range pairs {
			src, dst := d.Rank(d.Node(rnd.IntN(d.Nodes()))), d.Rank(d.Node(rnd.IntN(d.Nodes())))
			if src == dst || f.search(dst, true)[src] < 0 {
				continue
			}
			if hops, how := f.travel(Chaos, src, dst, bound, Query{}, map[int]Set{}, rnd.IntN); how != Route {
				t.Fatalf("%s: %s to %s: %s after %d hops", d, d.At(src), d.At(dst), how, hops)
			}
		}
	}
	for n := 2; n <= 300; n++ {
		d, err := grid.Fit(n)
		if err != nil {
			t.Fatal(err)
		}
		arrive(t, d, int(HopBound(d)), 200)
	}
	for seed := range uint64(300) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 5))
			d := grid.Dims{X: 2 + rnd.IntN(5), Y: 1 + rnd.IntN(5), Z: 1 + rnd.IntN(4)}
			var empty []grid.Coord
			for c := range d.All() {
				if rnd.IntN(4) == 0 && c != (grid.Coord{}) {
					empty = append(empty, c)
				}
			}
			d, err := d.Without(empty...)
			if err != nil {
				t.Fatal(err)
			}
			arrive(t, d, 100_000, 100)
		})
	}
}

package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// All stories hold in tori with empty places: with the last ones empty, as Fit makes them, and with others.
func TestStoriesOfToriWithEmptyPlaces(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"3x2x2 without 2,1,1", "2x2x3 without 0,1,2..1,1,2", "3x3x3 without 1,0,2..2,2,2", "4x4x1 without 1,1,0 3,2,0", "5x1x1 without 2,0,0",
		"3x3x3 without 1,1,1",
	} {
		dims, err := grid.ParseDims(text)
		if err != nil {
			t.Fatal(err)
		}
		stories := uint64(24)
		if testing.Short() {
			stories = 3
		}
		for seed := range stories {
			t.Run(fmt.Sprintf("%s seed %d", text, seed), func(t *testing.T) {
				t.Parallel()
				g := author{rnd: rand.New(rand.NewPCG(seed, 7)), theme: theme(seed % uint64(numThemes)), times: 3}
				p := g.plan(seed, dims)
				if err := p.Run(); err != nil {
					t.Error(p.Story(err))
				}
			})
		}
	}
}

package chanmask

import (
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Finding and closing a pocket, in tori up to the largest supported size.
func BenchmarkCloseRegions(b *testing.B) {
	for _, dims := range []grid.Dims{{X: 8, Y: 8, Z: 8}, {X: 16, Y: 8, Z: 8}, {X: 16, Y: 16, Z: 16}} {
		b.Run(dims.String(), func(b *testing.B) {
			torus, err := NewTorus(dims)
			if err != nil {
				b.Fatal(err)
			}
			pocket(torus, 3, 4, 2, 2)
			// In three dimensions a pocket has a floor and a lid as well.
			for i := range 2 {
				for j := range 2 {
					c := grid.Coord{X: 3 + i, Y: 4 + j}
					torus.Cut(Link{c, grid.ZPlus})
					torus.Cut(linkAt(torus, grid.Coord{X: c.X, Y: c.Y}, grid.ZMinus))
				}
			}
			for b.Loop() {
				regions, traps := torus.Find()
				c := torus.Close(false, nil)
				if len(regions) != 1 || traps.States == 0 || c.Left.States != 0 {
					b.Fatalf("%d regions, %d states are caught, %d left", len(regions), traps.States, c.Left.States)
				}
			}
		})
	}
}

// Looking at whole tori with a pocket.
func BenchmarkTraps(b *testing.B) {
	for _, dims := range []grid.Dims{{X: 8, Y: 8, Z: 8}, {X: 16, Y: 16, Z: 16}} {
		b.Run(dims.String(), func(b *testing.B) {
			torus, err := NewTorus(dims)
			if err != nil {
				b.Fatal(err)
			}
			pocket(torus, 3, 4, 2, 2)
			for b.Loop() {
				torus.Traps()
			}
		})
	}
}

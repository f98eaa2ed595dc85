package diameter

import (
	"fmt"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Snake returns a square mesh and the links of it whose failing makes of it the snake of Figure 6: with side n, 7/2 n
// - 1 faults raise the diameter from 2n-2 to 5n. The figure's text gives these numbers and not the places, but they
// leave little choice: four walls between columns, open at alternate ends, make five corridors, each as long as the
// mesh, 6n-6 hops in all; every further link that one of the walls leaves whole takes two off; with n/2-2 of them
// left whole in one wall it is 5n, by 4(n-1) - (n/2-3) = 7/2 n - 1 faults. For the side 8 that is 27, 14 and 40. The
// side is even, 6 or more: below that the walls do not fit, and for odd sides the formula gives halves.
func Snake(side int) (*Network, []int, error) {
	if side < 6 || side%2 != 0 || side > 1<<8 {
		return nil, nil, fmt.Errorf("snake of side %d: want an even side from 6 to %d", side, 1<<8)
	}
	dims := grid.Dims{X: side, Y: side, Z: 1}
	n, err := Mesh(dims)
	if err != nil {
		return nil, nil, err
	}
	var faults []int
	for wall := range 4 {
		open := 1
		if wall == 3 {
			open = side/2 - 2
		}
		left := wallAfter(side, wall)
		for y := range side {
			// Open at the bottom, at the top, and so on.
			if y < open && wall%2 == 0 || y >= side-open && wall%2 == 1 {
				continue
			}
			l, _ := n.LinkBetween(dims.Rank(grid.Coord{X: left, Y: y}), dims.Rank(grid.Coord{X: left + 1, Y: y}))
			faults = append(faults, l)
		}
	}
	return n, faults, nil
}

// wallAfter returns the column on the left of a wall. The corridors at the two ends are one column wide, and the
// others as alike as can be.
func wallAfter(side, wall int) int { return wall * (side - 2) / 3 }

// Snake3D is the same idea in a cubic mesh: walls between all layers in Z, each open at one link, in opposite corners
// by turns. One wall costs n²-1 faults.
func Snake3D(side, walls int) (*Network, []int, error) {
	if side < 2 || side > 1<<5 || walls < 0 || walls > side-1 {
		return nil, nil, fmt.Errorf("snake of side %d with %d walls: want a side from 2 to %d and 0 walls to one less than that", side,
			walls, 1<<5)
	}
	dims := grid.Dims{X: side, Y: side, Z: side}
	n, err := Mesh(dims)
	if err != nil {
		return nil, nil, err
	}
	var faults []int
	for wall := range walls {
		open := grid.Coord{X: side - 1, Y: side - 1, Z: wall}
		if wall%2 == 1 {
			open.X, open.Y = 0, 0
		}
		for y := range side {
			for x := range side {
				below := grid.Coord{X: x, Y: y, Z: wall}
				if below == open {
					continue
				}
				l, _ := n.LinkBetween(dims.Rank(below), dims.Rank(grid.Coord{X: x, Y: y, Z: wall + 1}))
				faults = append(faults, l)
			}
		}
	}
	return n, faults, nil
}

// Broken returns the network with those links faulty.
func (n *Network) Broken(links []int) *State {
	s := n.NewState(true, true)
	for _, l := range links {
		s.SetLink(l, false)
	}
	return s
}

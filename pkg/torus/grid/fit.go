package grid

import (
	"fmt"
	"slices"
)

// MaxFit is the largest number of nodes that Fit places.
const MaxFit = 10_000

// small is the number of nodes from which every box is at least three wide.
const small = 64

// Fit returns a torus of 1 to MaxFit nodes. Its last places, by rank, are empty. It takes the box whose worst-connected
// node has the most distinct neighbours, since every neighbour is a witness. Ties go to the smaller diameter, then to the
// larger sum of neighbours, then to fewer places. From small nodes on, every box is close to a cube.
func Fit(nodes int) (Dims, error) {
	if nodes < 1 || nodes > MaxFit {
		return Dims{}, fmt.Errorf("nodes: given %d: want 1 to %d", nodes, MaxFit)
	}
	var best Dims
	var most [4]int
	for x := 1; x*x*x <= 2*nodes; x++ {
		for y := x; x*y*y <= 2*nodes; y++ {
			z := (nodes + x*y - 1) / (x * y)
			if z < y || nodes >= small && (x < 3 || z > 2*x+2) {
				continue
			}
			d, err := Dims{X: x, Y: y, Z: z}.first(nodes)
			if err != nil {
				return Dims{}, err
			}
			least, all := d.witnesses()
			if is := [4]int{least, -(x/2 + y/2 + z/2), all, -d.Places()}; best.X == 0 || slices.Compare(is[:], most[:]) > 0 {
				best, most = d, is
			}
		}
	}
	return best, nil
}

// first returns the box with its places empty from a rank on.
func (d Dims) first(nodes int) (Dims, error) {
	return d.withoutRanks(func(set func(int)) error {
		for r := nodes; r < d.Places(); r++ {
			set(r)
		}
		return nil
	})
}

// witnesses returns the smallest number of distinct neighbours that a node has, and their sum over all nodes.
func (d Dims) witnesses() (least, all int) {
	least = NumDirections
	for c := range d.All() {
		n := len(d.Neighbours(c))
		least, all = min(least, n), all+n
	}
	return least, all
}

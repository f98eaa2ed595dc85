package experiment

import (
	"fmt"

	"github.com/lofamo/lofamo/papers/chaos"
)

// Obstacle is a wall of dead links across the way along the first dimension, with side walls: Figure 14 (length 3),
// 15 (longer), 16 (with depth). It stands in a mesh: on a torus a trapped message goes right round the ring in the
// end, by chance.
type Obstacle struct {
	Dims   []int
	Length int // of the wall across each other dimension, odd; its middle is in the way
	Depth  int // of the side walls against the way, nodes: 0 for a linear obstacle
}

// far is the distance of source and destination from the wall.
const far = 4

// Place is where a packet begins, stands before the middle of the wall, and is to go.
type Place struct{ Source, Wall, Dest int }

// Build makes the network with the obstacle, its masks set.
func (o Obstacle) Build(cfg chaos.Config) (*chaos.Network, Place, error) {
	if o.Length < 1 || o.Length%2 == 0 || o.Depth < 0 {
		return nil, Place{}, fmt.Errorf("obstacle: Length is %d, Depth %d; must be odd and 1 or more, and 0 or more", o.Length, o.Depth)
	}
	for i, k := range cfg.Dims {
		if i > 0 && o.Length > k-3 || i == 0 && (k < 4*far+2 || o.Depth > far) {
			return nil, Place{}, fmt.Errorf("obstacle of length %d and depth %d does not fit in %v", o.Length, o.Depth, cfg.Dims)
		}
	}
	cfg.Mesh = true
	n, err := chaos.New(cfg)
	if err != nil {
		return nil, Place{}, err
	}
	at := make([]int, len(cfg.Dims))
	for i, k := range cfg.Dims {
		at[i] = k / 2
	}
	half := o.Length / 2
	inside := func(x []int) bool {
		for i := 1; i < len(x); i++ {
			if x[i] < at[i]-half || x[i] > at[i]+half {
				return false
			}
		}
		return true
	}
	for r := range n.Nodes() {
		x := n.Coord(r)
		if !inside(x) || x[0] > at[0] || x[0] < at[0]-max(o.Depth-1, 0) {
			continue
		}
		if x[0] == at[0] {
			n.KillLink(r, 0)
		}
		for i := 1; i < len(x) && o.Depth > 0; i++ {
			if x[i] == at[i]+half {
				n.KillLink(r, 2*i)
			}
			if x[i] == at[i]-half {
				n.KillLink(r, 2*i+1)
			}
		}
	}
	shift := func(by int) int {
		x := append([]int(nil), at...)
		x[0] += by
		return n.Node(x...)
	}
	return n, Place{Source: shift(-far), Wall: n.Node(at...), Dest: shift(far)}, n.Reconfigure()
}

// ObstacleResult compares the Markov chain with the model.
type ObstacleResult struct {
	Obstacle    Obstacle
	NoRouteback bool
	// Attempt is the probability that a packet before the middle of the wall gets round it before it stands there
	// again; the paper's is AttemptPaper, of two dimensions; 0 where it prints none.
	Attempt, AttemptPaper float64
	Delivered             float64 // at all
	Within                float64 // after at most Hops hops
	Hops                  int
	Simulated             int // of Trials packets in the model within Hops
	Trials                int
	Low, High             float64 // interval of 95 % of the simulated probability
	Long                  int     // the same with packets of 20 flits, which meet their own tails
}

// PaperAttempts returns the two probabilities that the paper prints for an attempt in two dimensions (§5.2.3.1,
// Figures 14 and 15), by wall length. For longer walls the paper says only that "the same pattern is followed".
func PaperAttempts() map[int]float64 { return map[int]float64{3: 0.5, 5: 0.25} }

// Run finds the probabilities for an obstacle; trials packets are sent through the model, each alone.
func (o Obstacle) Run(noRouteback bool, hops, trials int, seed uint64) (ObstacleResult, error) {
	res := ObstacleResult{Obstacle: o, NoRouteback: noRouteback, AttemptPaper: PaperAttempts()[o.Length], Hops: hops, Trials: trials}
	cfg := chaos.Default(o.Dims...)
	cfg.NoRouteback, cfg.Seed = noRouteback, seed
	n, at, err := o.Build(cfg)
	if err != nil {
		return res, err
	}
	w := n.Walk(at.Dest)
	res.Delivered = w.Delivered()[w.At(at.Source)]
	res.Within = w.Within(hops)[w.At(at.Source)]
	middle := n.Coord(at.Wall)
	beyond := w.Reach(func(r int) bool { return n.Coord(r)[0] > middle[0] }, func(r int) bool { return r == at.Wall })
	// It came along the way, by the channel against it.
	res.Attempt = w.Mean(beyond, w.Arrived(at.Wall, 1))
	for i, flits := range []int{2, 20} {
		cfg.Flits = flits
		n, at, err := o.Build(cfg)
		if err != nil {
			return res, err
		}
		k := Alone(n, at.Source, at.Dest, hops, trials)
		if i == 0 {
			res.Simulated = k
		} else {
			res.Long = k
		}
	}
	if trials > 0 {
		res.Low, res.High = Wilson(res.Simulated, trials)
	}
	return res, nil
}

// Alone sends packets through the model, one after another, and counts those that arrive after at most so many hops.
func Alone(n *chaos.Network, src, dst, hops, trials int) int {
	arrived := 0
	n.OnDelivery(func(d chaos.Delivery) {
		if d.Node == dst && d.Hops <= hops {
			arrived++
		}
	})
	defer n.OnDelivery(nil)
	for range trials {
		n.Send(src, dst)
		n.Step()
		for n.Population() > 0 && n.Wandered() <= hops {
			n.Run(64)
		}
		if n.Population() > 0 {
			n.DropPackets()
		}
	}
	return arrived
}

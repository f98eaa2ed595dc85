package experiment

import "github.com/lofamo/lofamo/papers/chaos"

// Certain is how close to 1 a probability of the chain must be to count as certain: it is solved to 1e-14 a sweep.
const Certain = 1e-9

// Delivery is how a network with faults serves its pairs, exactly.
type Delivery struct {
	Nodes   int     // that have a router and are joined to the largest part
	Pairs   int     // of such nodes
	Certain int     // of these, the pairs between which every packet arrives
	Never   int     // none arrives
	Mean    float64 // probability of arriving, over pairs
}

// DeliveryOf solves the Markov chain for every destination of the part that node in is joined to.
func DeliveryOf(n *chaos.Network, in int) Delivery {
	var d Delivery
	joined := n.Connected(in)
	for dst := range n.Nodes() {
		if !joined[dst] {
			continue
		}
		d.Nodes++
		w := n.Walk(dst)
		v := w.Delivered()
		for src := range n.Nodes() {
			if !joined[src] || src == dst {
				continue
			}
			p := v[w.At(src)]
			d.Pairs++
			d.Mean += p
			switch {
			case p > 1-Certain:
				d.Certain++
			case p < Certain:
				d.Never++
			}
		}
	}
	if d.Pairs > 0 {
		d.Mean /= float64(d.Pairs)
	}
	return d
}

// ClosePlanar reconfigures by the local rule of planar adaptive routing (§5.2.3.2, Figure 17(b)): a node with dead
// channels in two dimensions marks all of its own as dead, until no such node is left. It returns the nodes that are
// closed. The network must be empty; it closes concave regions, and more than that.
func ClosePlanar(n *chaos.Network, dims int) ([]int, error) {
	var closed []int
	for again := true; again; {
		again = false
		for r := range n.Nodes() {
			bad := 0
			for d := range dims {
				if dead(n, r, 2*d) || dead(n, r, 2*d+1) {
					bad++
				}
			}
			if bad >= 2 && !n.Dead(r) {
				n.KillNode(r)
				closed = append(closed, r)
				again = true
			}
		}
	}
	return closed, n.Reconfigure()
}

func dead(n *chaos.Network, r, c int) bool {
	_, ok := n.Neighbour(r, c)
	return ok && !n.Live(r, c)
}

// Faulty is the outcome of routing with random dead links.
type Faulty struct {
	Dims   []int
	Dead   int
	Trials int
	Seed   uint64
}

// FaultyResult is the mean over trials: part of the pairs between which delivery is certain.
type FaultyResult struct {
	Routeback   Mean // fast derouting without No Routeback
	NoRouteback Mean
	Closed      Mean    // and with concave regions closed by the planar rule; of the pairs that are left
	Lost        float64 // nodes that the rule gave up, mean
	AllCertain  int     // trials in which No Routeback alone made every pair certain
}

// Run solves the chains. Links are drawn so that the network stays connected.
func (f Faulty) Run() (FaultyResult, error) {
	var res FaultyResult
	var back, no, closed []float64
	for i := range f.Trials {
		share := func(noRouteback, closing bool) (Delivery, error) {
			cfg := chaos.Default(f.Dims...)
			cfg.NoRouteback, cfg.Seed = noRouteback, f.Seed+uint64(i)
			n, err := chaos.New(cfg)
			if err != nil {
				return Delivery{}, err
			}
			n.KillRandomLinks(f.Dead)
			if err := n.Reconfigure(); err != nil {
				return Delivery{}, err
			}
			if closing {
				given, err := ClosePlanar(n, len(f.Dims))
				if err != nil {
					return Delivery{}, err
				}
				res.Lost += float64(len(given)) / float64(f.Trials)
			}
			return DeliveryOf(n, largest(n)), nil
		}
		for _, c := range []struct {
			noRouteback, closing bool
			to                   *[]float64
		}{{false, false, &back}, {true, false, &no}, {true, true, &closed}} {
			d, err := share(c.noRouteback, c.closing)
			if err != nil {
				return res, err
			}
			*c.to = append(*c.to, float64(d.Certain)/float64(max(d.Pairs, 1)))
		}
		if no[len(no)-1] == 1 {
			res.AllCertain++
		}
	}
	res.Routeback, res.NoRouteback, res.Closed = MeanOf(back), MeanOf(no), MeanOf(closed)
	return res, nil
}

// largest is a node of the largest part.
func largest(n *chaos.Network) int {
	best, size := 0, 0
	seen := make([]bool, n.Nodes())
	for r := range n.Nodes() {
		if seen[r] || n.Dead(r) {
			continue
		}
		k := 0
		for b, joined := range n.Connected(r) {
			if joined {
				seen[b] = true
				k++
			}
		}
		if k > size {
			best, size = r, k
		}
	}
	return best
}

package experiment

import (
	"fmt"

	"github.com/lofamo/lofamo/papers/chaos"
)

// The paper's text on Figures 9 and 10 (§5.2.1.3): expected drain times of a completely full network under hot-spot
// traffic, cycles.
const (
	PaperFull16 = 4600
	PaperFull32 = 4700
)

// Drain is one of the four plots of Figures 9 and 10, with the parameters that the text leaves open.
type Drain struct {
	Network chaos.Config // its Seed is that of the first trial
	// Rate is a node's offered load while the network fills, relative to the capacity of its injection channel: one
	// packet in Flits cycles.
	Rate      float64
	HotSpots  int // nodes drawn in each trial; 0 for uniform traffic
	HotFactor float64
	// Levels are the populations to stop at, packets a router; each has so many Trials.
	Levels []float64
	Trials int
	// WarmUp, if not 0, replaces the populations: injection goes on for so many cycles, at each of Loads (like Rate),
	// and the resulting population is used.
	WarmUp int
	Loads  []float64
}

// DrainPoint is one trial.
type DrainPoint struct {
	Packets  int // in the network when injection stopped
	Cycles   int // until it was empty
	HotShare float64
	Most     int // packets for the node that has most of them
	Filled   int // cycle in which injection stopped
}

// Drained is the result of a study.
type Drained struct {
	Drain  Drain
	Points []DrainPoint
	Short  int // trials left out: this traffic does not bring the network to that population
	Fit    Fit
	// Full is the line at a completely full network, with its interval of 95 %.
	Full, FullLow, FullHigh float64
}

// fillLimit is the number of cycles after which a network counts as full under this traffic.
const fillLimit = 20000

// drainTimeout is far above the time of any drain: the bound for a 32x32 network full of packets for one node
// (§5.2.1.3).
const drainTimeout = 307200

// Run makes the study.
func (d Drain) Run() (Drained, error) {
	out := Drained{Drain: d}
	steps := d.Levels
	if d.WarmUp > 0 {
		steps = d.Loads
	}
	seed := d.Network.Seed
	for _, step := range steps {
		for range d.Trials {
			cfg := d.Network
			cfg.Seed = seed
			seed++
			p, ok, err := d.trial(cfg, step)
			if err != nil {
				return out, err
			}
			if !ok {
				out.Short++
				continue
			}
			out.Points = append(out.Points, p)
		}
	}
	if len(out.Points) < 3 {
		return out, fmt.Errorf("drain: %d of the trials reached their population, must be 3 for a line", len(out.Points))
	}
	var x, y []float64
	nodes := 1
	for _, k := range d.Network.Dims {
		nodes *= k
	}
	for _, p := range out.Points {
		x, y = append(x, float64(p.Packets)), append(y, float64(p.Cycles))
	}
	out.Fit = Line(x, y)
	out.Full, out.FullLow, out.FullHigh = out.Fit.At(float64(nodes * d.Network.BuffersPerRouter()))
	return out, nil
}

func (d Drain) trial(cfg chaos.Config, step float64) (DrainPoint, bool, error) {
	n, err := chaos.New(cfg)
	if err != nil {
		return DrainPoint{}, false, err
	}
	rate := d.Rate
	if d.WarmUp > 0 {
		rate = step
	}
	hot := n.Choose(d.HotSpots)
	if err := n.Offer(chaos.Traffic{Rate: rate / float64(cfg.Flits), HotSpots: hot, HotFactor: d.HotFactor}); err != nil {
		return DrainPoint{}, false, err
	}
	if d.WarmUp > 0 {
		n.Run(d.WarmUp)
	} else if n.Fill(int(step*float64(n.Nodes())), fillLimit) != nil {
		return DrainPoint{}, false, nil //nolint:nilerr // it cannot be filled so far: no point
	}
	p := DrainPoint{Packets: n.Population(), Filled: n.Now()}
	by := make([]int, n.Nodes())
	n.Destined(by)
	inHot := 0
	for _, r := range hot {
		inHot += by[r]
	}
	for _, k := range by {
		p.Most = max(p.Most, k)
	}
	p.HotShare = float64(inHot) / float64(max(p.Packets, 1))
	cycles, empty := n.Drain(drainTimeout)
	if !empty {
		return p, false, fmt.Errorf("drain: %d packets are left after %d cycles", n.Population(), cycles)
	}
	p.Cycles = cycles
	return p, true, nil
}

// CraniumBound is the paper's estimate for the drain time that a network interface bounds (§5.2.1.3): as many
// multipacket messages at once, of so many packets, 10 % more for single packets and 10 % for gaps at the processor's
// channel; cycles.
func CraniumBound(messages, packets, flits int) float64 {
	return float64(messages*packets) * 1.1 * 1.1 * float64(flits)
}

// PathologicalBound is the drain time of a full network all of whose packets are for one node (§5.2.1.3), cycles.
func PathologicalBound(nodes, buffers, flits int) int { return nodes * buffers * flits }

// Unreachable is Figure 11: traffic for a node all of whose links have died.
type Unreachable struct {
	Network chaos.Config
	Rate    float64 // like Drain.Rate
	WarmUp  int     // cycles of traffic before the links die
	After   int     // cycles of traffic after that
	Timeout int     // of the drain, cycles
	Share   float64 // how much more often than another the node is a destination, 1 or more
}

// Stranded is the outcome of Unreachable.
type Stranded struct {
	Before       int  // packets in the network when injection stopped
	ForIt        int  // of them for the node
	Drained      bool // within the time-out
	Left         int  // packets when the time-out came
	Misdelivered int  // given to the processor next to hand
	Cleared      int  // reported by
	Reporters    []chaos.Dropped
	Beside       int // of the reporters, how many are the node or its neighbours
	Population   int // in the end
}

// Run plays the scenario. With Config.Mask the network is drained when the links die and the routers' masks are set,
// as after a diagnosis, and then traffic goes on. Otherwise the routers never learn of the dead links.
func (u Unreachable) Run() (Stranded, error) {
	n, err := chaos.New(u.Network)
	if err != nil {
		return Stranded{}, err
	}
	middle := make([]int, len(u.Network.Dims))
	for i, k := range u.Network.Dims {
		middle[i] = k / 2
	}
	target := n.Node(middle...)
	traffic := chaos.Traffic{Rate: u.Rate / float64(u.Network.Flits), HotSpots: []int{target}, HotFactor: u.Share}
	if err := n.Offer(traffic); err != nil {
		return Stranded{}, err
	}
	n.Run(u.WarmUp)
	if u.Network.Mask {
		if _, ok := n.Drain(drainTimeout); !ok {
			return Stranded{}, fmt.Errorf("figure 11: the network without faults has not drained")
		}
	}
	near := map[int]bool{target: true}
	for c := range 2 * len(u.Network.Dims) {
		if b, ok := n.Neighbour(target, c); ok {
			near[b] = true
		}
		n.KillLink(target, c)
	}
	if u.Network.Mask {
		if err := n.Reconfigure(); err != nil {
			return Stranded{}, err
		}
		if err := n.Offer(traffic); err != nil {
			return Stranded{}, err
		}
	}
	n.Run(u.After)
	by := make([]int, n.Nodes())
	n.Destined(by)
	s := Stranded{Before: n.Population(), ForIt: by[target]}
	_, s.Drained = n.Drain(u.Timeout)
	s.Left = n.Population()
	if !s.Drained {
		s.Reporters = n.DropPackets()
	}
	s.Misdelivered, s.Cleared, s.Population = n.Count().Misdelivered, n.Count().Cleared, n.Population()
	for _, d := range s.Reporters {
		if near[d.Node] {
			s.Beside++
		}
	}
	return s, nil
}

package dnpcore

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
)

// chain is a ring of DNP halves. The second is killed at random before and after each store, and resumes from its copy
// 10 ms later. All links lose frames of hops. The link from the second to the third may be cut.
type chain struct {
	t     *testing.T
	rnd   *rand.Rand
	now   time.Time
	cfg   Config
	dims  grid.Dims
	nodes []*chainNode
	air   []underWay
	crash float64
	loss  float64
	cut   bool
	kills int
}

type chainNode struct {
	at     grid.Coord
	before bool     // of an earlier version, which knows no hops
	m      *Machine // nil: it is dead
	wake   time.Time
	back   time.Time
	hops   Hops
	links  Resume
	opened map[string]int
	heard  map[string]int // jobs' broadcasts, by their body
	kept   express.Resume
	stored [express.MaxHeld]time.Time
}

type underWay struct {
	at    time.Time
	to    *chainNode
	frame Frame
}

func newChain(t *testing.T, seed uint64, before bool) *chain {
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	c := &chain{t: t, rnd: rand.New(rand.NewPCG(seed, 7)), now: start, dims: grid.Dims{X: 5, Y: 1, Z: 1}}
	c.cfg = Config{Periods: p, MaxHops: 12, LinkGrace: time.Second}
	for i := range c.dims.Nodes() {
		n := &chainNode{at: c.dims.At(i), opened: map[string]int{}, heard: map[string]int{}}
		c.nodes = append(c.nodes, n)
	}
	if c.nodes[2].before = before; before {
		c.cfg.RelayRate = 1000 // messages above the rate do not come again
	}
	for _, n := range c.nodes {
		c.begin(n)
	}
	for _, n := range c.nodes {
		for _, d := range c.dims.Links() {
			c.step(n, Session{Dir: d, ID: 1})
		}
	}
	c.run(time.Second)
	return c
}

func (c *chain) begin(n *chainNode) {
	cfg := c.cfg
	cfg.Topo = halfcore.NewTopology(fault.DefaultNodeID(n.at), n.at, c.dims, nil)
	cfg.Hops, cfg.Resume, cfg.NoHops, cfg.NoExpress = n.hops, n.links, n.before, n.before
	for i := range n.kept.Held {
		n.kept.Held[i].Age = c.now.Sub(n.stored[i])
	}
	cfg.Express = n.kept
	m, err := New(cfg, c.now, 7)
	if err != nil {
		c.t.Fatal(err)
	}
	n.m = m
	c.step(n, Tick{})
}

func (c *chain) step(n *chainNode, ev Event) {
	if n.m != nil {
		c.apply(n, n.m.Step(c.now, ev))
	}
}

// apply is the shell: first it stores, with a possible crash before and after each store, and then it sends the frames.
func (c *chain) apply(n *chainNode, out Output) {
	n.wake = out.Wake
	m := n.m
	for _, d := range c.dims.Links() {
		if c.dies(n) {
			return
		}
		i := d.Index()
		n.links.Links[i] = m.LinkSnapshot(d)
		n.links.Has[i] = n.links.Links[i].TxSession != 0
	}
	if n.kept.Number = m.ExpressNumber(); c.dies(n) {
		return
	}
	for _, k := range out.KeepExpress {
		n.kept.Held[k.Place], n.stored[k.Place] = express.Kept{Bytes: bytes.Clone(k.Bytes)}, c.now
		if c.dies(n) {
			return
		}
	}
	if out.KeepSeen != nil {
		n.kept.Seen = bytes.Clone(out.KeepSeen)
	}
	for _, k := range out.Keep {
		if c.dies(n) {
			return
		}
		if k.Dir.Valid() {
			n.hops.Links[k.Dir.Index()] = bytes.Clone(k.Bytes)
		} else {
			n.hops.Held[k.Slot] = Held{Bytes: bytes.Clone(k.Bytes)}
		}
	}
	if len(out.Keep) > 0 && c.dies(n) {
		return
	}
	for _, f := range out.Frames {
		if (f.Frame.Type == torus.TypeHop || f.Frame.Type == torus.TypeEureka) && c.rnd.Float64() < c.loss {
			continue
		}
		to, _ := c.dims.Neighbour(n.at, f.Dir)
		if c.cut && n.at.X+to.X == 3 && n.at.X*to.X == 2 {
			continue
		}
		f.Frame.Payload = bytes.Clone(f.Frame.Payload)
		c.air = append(c.air, underWay{c.now.Add(time.Millisecond), c.nodes[c.dims.Rank(to)], Frame{Dir: f.Dir.Opposite(), Frame: f.Frame}})
	}
	for _, msg := range out.Eurekas {
		n.heard[string(msg.Body)]++
	}
	for _, b := range out.Open {
		n.opened[string(b)]++
	}
	if out.TakeHost {
		c.step(n, Host{Taken: true, Sample: watchdog.Sample{Valid: true}, Word: watchdog.HostWord{Valid: true}})
	}
}

// dies kills the second half, at random.
func (c *chain) dies(n *chainNode) bool {
	if n != c.nodes[1] || c.rnd.Float64() >= c.crash {
		return false
	}
	n.m, n.back = nil, c.now.Add(10*time.Millisecond)
	c.kills++
	return true
}

func (c *chain) run(d time.Duration) {
	for end := c.now.Add(d); c.now.Before(end); c.now = c.now.Add(time.Millisecond) {
		for len(c.air) > 0 && !c.air[0].at.After(c.now) {
			f := c.air[0]
			c.air = c.air[1:]
			c.step(f.to, &f.frame)
		}
		for _, n := range c.nodes {
			switch {
			case n.m == nil && !c.now.Before(n.back):
				c.begin(n)
			case n.m != nil && !n.wake.After(c.now):
				c.step(n, Tick{})
			}
		}
	}
}

// TestKilledBetweenAnyTwoStores checks that messages through a half that dies again and again arrive, and once, even
// when the only route is broken for a while. A half of an earlier version acknowledges nothing, so over a hop to it
// messages arrive at least once: when it has forgotten the first copy it takes the next for another message.
func TestKilledBetweenAnyTwoStores(t *testing.T) {
	for _, test := range []struct {
		name        string
		cut, before bool
	}{{name: "hops"}, {name: "broken link", cut: true}, {name: "neighbour of before", before: true}} {
		t.Run(test.name, func(t *testing.T) {
			kills, seeds, want := 0, uint64(20), 100
			if testing.Short() {
				seeds, want = 4, 20
			}
			for seed := range seeds {
				c := newChain(t, seed, test.before)
				kills += c.killed(seed, test.cut)
			}
			if kills < want {
				t.Errorf("%d kills: the test tests nothing", kills)
			}
		})
	}
}

// killed sends messages through the half that is killed, and returns the number of kills.
func (c *chain) killed(seed uint64, cut bool) int {
	c.crash, c.loss = 0.03, 0.2
	const messages = 60
	dst := c.nodes[2]
	for i := range messages {
		c.cut = cut && i >= 20 && i < 40
		c.step(c.nodes[0], FromHost{Message: halfcore.Relay{Kind: halfcore.RelayDown, Dst: dst.at, Envelope: fmt.Append(nil, i)}})
		c.run(time.Duration(5+c.rnd.IntN(10)) * time.Millisecond)
	}
	c.crash, c.loss = 0, 0
	c.run(2 * time.Second)
	for i := range messages {
		if n := dst.opened[fmt.Sprint(i)]; n < 1 || n > 1 && !dst.before {
			c.t.Errorf("seed %d: message %d arrived %d times", seed, i, n)
		}
	}
	for i, n := range c.nodes {
		if s := n.m.HopStats(); s.Held != 0 || s.Expired != 0 {
			c.t.Errorf("seed %d: half %d: %+v", seed, i, s)
		}
	}
	return c.kills
}

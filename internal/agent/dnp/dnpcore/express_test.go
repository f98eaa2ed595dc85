package dnpcore

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func eureka(body string) RaiseEureka {
	return RaiseEureka{Token: 1, Raise: express.Raise{Topic: express.TopicJob, Priority: 3, Body: []byte(body)}}
}

// A broadcast reaches the whole ring although its route leads through a half that is killed again and again, links lose
// frames and one of them is cut. No number is used twice.
func TestEurekaThroughAHalfThatDies(t *testing.T) {
	kills := 0
	for seed := range uint64(10) {
		c := newChain(t, seed, false)
		c.crash, c.loss, c.cut = 0.03, 0.2, true
		const eurekas = 30
		for i := range eurekas {
			c.step(c.nodes[0], eureka(fmt.Sprint(i)))
			c.run(time.Duration(20+c.rnd.IntN(30)) * time.Millisecond)
		}
		c.crash, c.loss = 0, 0
		c.run(express.Life + time.Second) // until messages at the cut link expire
		kills += c.kills
		for i := range eurekas {
			for j, n := range c.nodes {
				// The half may be killed after the broadcast was delivered but before that was recorded.
				if got := n.heard[fmt.Sprint(i)]; got < 1 || got > 1 && j != 1 {
					t.Errorf("seed %d: eureka %d reached half %d %d times", seed, i, j, got)
				}
			}
		}
		for j, n := range c.nodes {
			if s := n.m.ExpressStats(); s.Held != 0 || s.Bad != 0 {
				t.Errorf("seed %d: half %d: %+v", seed, j, s)
			}
		}
	}
	if kills < 100 {
		t.Errorf("%d kills: the test tests nothing", kills)
	}
}

// A neighbour of an earlier version gets no frames that it does not know; broadcasts reach the others around it.
func TestEurekaPassesAroundEarlierVersion(t *testing.T) {
	c := newChain(t, 1, true) // half 2
	for _, n := range c.nodes {
		if n.m.ExpressStats().Pings == 0 && !n.before {
			t.Errorf("%s asks nobody", n.at)
		}
	}
	c.step(c.nodes[1], eureka("fire"))
	c.run(100 * time.Millisecond)
	for i, n := range c.nodes {
		want := 1
		if n.before {
			want = 0
		}
		if got := n.heard["fire"]; got != want {
			t.Errorf("half %d heard it %d times, want %d", i, got, want)
		}
	}
	if s := c.nodes[1].m.express.ways; s.Open != express.MaskOf(grid.XMinus) {
		t.Errorf("ways of half 1: %+v", s)
	}
}

// A received frame is forwarded in the same step, before all other output. A tick sends due broadcasts first.
func TestEurekaOvertakesOtherFrames(t *testing.T) {
	w := newWorld(t, "3x3x1", "0,0,0")
	for _, p := range w.peers {
		p.status.Express = true
		w.receive(p, p.machine.NextFrame(p.status))
	}
	if w.m.express.ways.Good != express.MaskOf(w.m.cfg.Topo.Links...) {
		t.Fatalf("ways %+v", w.m.express.ways)
	}
	m := express.New(express.Config{Self: grid.Coord{X: 1}, Epoch: 1, Links: express.MaskOf(grid.XMinus), Period: time.Second,
		NoPings: true}, w.now)
	m.Step(w.now, express.Ways{Open: express.MaskOf(grid.XMinus), Good: express.MaskOf(grid.XMinus)})
	sent := m.Step(w.now, express.Raise{Topic: express.TopicJob, Priority: 5, Body: []byte("fire")}).Send[0]
	p := w.peer(grid.XPlus)
	f := torus.Frame{Type: torus.TypeEureka, Payload: slices.Clone(sent.Payload)}
	p.machine.Fill(&f)
	out := w.m.Step(w.now, &Frame{Dir: p.dir, Frame: f})
	if len(out.Eurekas) != 1 || string(out.Eurekas[0].Body) != "fire" || len(out.KeepExpress) != 1 || out.KeepSeen == nil {
		t.Fatalf("%+v", out)
	}
	var to []grid.Direction
	for _, f := range out.Frames {
		if f.Frame.Type != torus.TypeEureka {
			t.Errorf("a %s frame", f.Frame.Type)
		}
		to = append(to, f.Dir)
	}
	if !slices.Equal(to, []grid.Direction{grid.XMinus, grid.YPlus, grid.YMinus, grid.XPlus}) { // and the acknowledgement
		t.Errorf("sent to %v", to)
	}
	w.now = w.now.Add(w.m.cfg.Periods.LinkPeriod)
	out = w.m.Step(w.now, Tick{})
	last := -1
	for i, f := range out.Frames {
		if f.Frame.Type == torus.TypeEureka {
			if last != i-1 {
				t.Errorf("frame %d of the tick is a broadcast, behind others", i)
			}
			last = i
		}
	}
	if last < 2 {
		t.Errorf("nothing was repeated: %d frames", len(out.Frames))
	}
}

// Holding broadcasts adds no wake-ups to a half.
func TestHeldEurekaAddsNoWakeup(t *testing.T) {
	c := newChain(t, 1, false)
	c.cut = true
	before := c.nodes[2].wake
	c.step(c.nodes[2], eureka("fire"))
	if got := c.nodes[2].wake; got.Before(before) {
		t.Errorf("wakes at %s, would have at %s", got, before)
	}
}

// The host half gets the outcome of its request.
func TestRaiseEurekaIsAnswered(t *testing.T) {
	c := newChain(t, 1, false)
	m := c.nodes[0].m
	out := m.Step(c.now, eureka("fire"))
	if len(out.EurekasRaised) != 1 || out.EurekasRaised[0].Err != nil || out.EurekasRaised[0].ID.Number != 1 || len(out.Eurekas) != 1 {
		t.Errorf("%+v", out)
	}
	bad := eureka("")
	bad.Priority = 9
	out = m.Step(c.now, bad)
	if len(out.EurekasRaised) != 1 || !errors.Is(out.EurekasRaised[0].Err, express.ErrInvalid) || out.EurekasRaised[0].Token != 1 {
		t.Errorf("%+v", out)
	}
}

// A link that carries heartbeats but no broadcasts is sick, and says why (seed 003 §7.2).
func TestDeafLinkIsSick(t *testing.T) {
	w := newWorld(t, "3x3x1", "0,0,0")
	for _, p := range w.peers {
		p.status.Express = true
	}
	w.run(express.DeafGrace + 2*express.PingEvery) // the peers of this test answer no ping
	for _, p := range w.peers {
		l := w.m.link(p.dir)
		if d := l.detail; !d.ExpressDeaf || d.State() != torus.LinkSick {
			t.Errorf("link %s: %s", p.dir, d)
		}
	}
}

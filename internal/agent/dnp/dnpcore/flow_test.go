package dnpcore

import (
	"fmt"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/routing"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// overload makes all nodes of a torus of narrow links send chunks to one node, more than it can take, and orders to
// each other. It returns how many orders were sent, how many arrived, when the last one did, and how many chunks
// arrived.
func overload(t *testing.T, noFlow bool) (w *mesh, sent, arrived int, last time.Duration, chunks int) {
	w = newMesh(t, "4x4", 5, func(c *Config) { c.NoFlow, c.BulkRate, c.BulkBurst = noFlow, 100_000, 1000 })
	w.rate = 2
	const load = 2 * time.Second
	begun := w.now
	hot := w.nodes[0]
	for w.now.Sub(begun) < load {
		for _, n := range w.nodes {
			for range 3 {
				if n != hot {
					w.step(n, Back{Message: halfcore.Relay{Kind: halfcore.RelayBack, Dst: hot.at, Envelope: []byte("chunk")}})
				}
			}
			if w.now.UnixMilli()%8 == int64(w.dims.Rank(n.at)%8) {
				to := n
				for to == n {
					to = w.nodes[w.rnd.IntN(len(w.nodes))]
				}
				n.down(w, to.at, fmt.Sprint("order ", sent))
				sent++
			}
		}
		w.run(time.Millisecond)
	}
	count := func() (k int) {
		for _, n := range w.nodes {
			for _, c := range n.opened {
				if c != 1 {
					t.Errorf("an order came %d times", c)
				}
				k++
			}
		}
		return k
	}
	for arrived = count(); arrived < sent && w.now.Sub(begun) < 3*load; arrived = count() {
		w.run(10 * time.Millisecond)
		last = w.now.Sub(begun)
	}
	return w, sent, arrived, last, hot.back["chunk"]
}

// Under an overload by chunks the torus keeps working: nodes whose slots are nearly full announce it, chunks set out
// more slowly, no order is lost, and chunks still arrive. Then flow control ends. Without it orders are lost, or arrive
// later.
func TestFlowControlUnderOverload(t *testing.T) {
	w, sent, arrived, last, chunks := overload(t, false)
	h, _ := w.stats()
	var told, held uint64
	for _, n := range w.nodes {
		s := n.m.FlowStats(w.now)
		told += s.Announced
		held += s.Held
	}
	t.Logf("with: %d of %d orders, the last after %s; %d chunks, told %d times, %d held; %+v, %d frames lost", arrived, sent, last,
		chunks, told, held, h, w.lost)
	if arrived != sent || h.Expired != 0 {
		t.Errorf("%d of %d orders arrived, %+v", arrived, sent, h)
	}
	if told == 0 || held == 0 || chunks < 500 {
		t.Errorf("told %d times, %d chunks held, %d arrived", told, held, chunks)
	}
	w.noRuleBroken()
	w.run(3 * time.Second)
	for _, n := range w.nodes {
		if s := n.m.FlowStats(w.now); s.Level != routing.Free {
			t.Errorf("%s: %+v long after", n.at, s)
		}
	}

	w, sent0, arrived0, last0, chunks0 := overload(t, true)
	h0, _ := w.stats()
	t.Logf("without: %d of %d orders, the last after %s; %d chunks; %+v, %d frames lost", arrived0, sent0, last0, chunks0, h0, w.lost)
	if arrived0 == sent0 && last0 <= last && h0.Expired == 0 {
		t.Error("without flow control it goes as well: the test tests nothing")
	}
}

// Another half's announcement slows this node's chunks for a while; an invalid announcement does not.
func TestAnnouncedOverloadSlowsSenders(t *testing.T) {
	w := newMesh(t, "3x3", 1, nil)
	n := w.nodes[0]
	send := func() (set int) {
		was := n.m.FlowStats(w.now).Held
		for range 20 {
			w.step(n, Back{Message: halfcore.Relay{Kind: halfcore.RelayBack, Dst: grid.Coord{X: 1}, Envelope: []byte("chunk")}})
		}
		return 20 - int(n.m.FlowStats(w.now).Held-was)
	}
	if k := send(); k != 20 {
		t.Errorf("%d of 20 at first", k)
	}
	n.m.onFlow(w.now, []byte("nonsense"))
	if k := send(); k != 20 {
		t.Errorf("%d of 20 after nonsense", k)
	}
	n.m.onFlow(w.now, routing.AppendFlow(nil, routing.FlowLife))
	if k := send(); k != 1 {
		t.Errorf("%d of 20 while another is overloaded", k)
	}
	w.run(routing.FlowLife)
	if k := send(); k != 20 {
		t.Errorf("%d of 20 when that is over", k)
	}
}

package dnpcore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/mapping"
)

// mapIt orders a half to map all other nodes, or those of a region.
func (w *mesh) mapIt(n *meshNode, term, count uint64, region ...uint32) {
	if len(region) == 0 {
		for r := range w.dims.Nodes() {
			if w.dims.At(r) != n.at {
				region = append(region, uint32(r))
			}
		}
	}
	w.mapOrder(n, &lofamov1.MapOrder{Number: &lofamov1.OrderNumber{Term: term, Count: count}, Node: string(n.m.self), Region: region,
		ReplyTo: "127.0.0.1:9"})
}

func (w *mesh) mapOrder(n *meshNode, o *lofamov1.MapOrder) {
	msg := &lofamov1.Message{Body: &lofamov1.Message_MapOrder{MapOrder: o}}
	w.step(n, Opened{servicenet.Opened{Role: servicenet.RoleSupervisor, Name: "s1", Msg: msg}})
}

// awaitMap advances the time until a half has sent all findings of an order, and returns them by rank.
func (w *mesh) awaitMap(n *meshNode, count uint64) map[uint32]*lofamov1.MappedNode {
	w.t.Helper()
	for range 12_000 {
		w.run(time.Millisecond)
		out, parts := map[uint32]*lofamov1.MappedNode{}, map[uint32]bool{}
		for _, f := range n.mapped {
			if f.GetNumber().GetCount() != count {
				continue
			}
			parts[f.GetPart()] = true
			for _, m := range f.GetNodes() {
				out[m.GetRank()] = m
			}
			if len(parts) == int(f.GetParts()) {
				return out
			}
		}
	}
	w.t.Fatal("it has not said what it found")
	return nil
}

// A half maps all nodes connected with it, around dead links and dead nodes; other nodes stay unknown. Mapping makes no
// half report itself or a neighbour as sick.
func TestMappingFindsAllConnectedNodes(t *testing.T) {
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	for _, dims := range []string{"9", "2x2x2", "6x5", "4x4x4"} {
		for seed := range seeds {
			t.Run(fmt.Sprintf("%s/%d", dims, seed), func(t *testing.T) {
				w := newMesh(t, dims, seed, nil)
				mapper := w.nodes[w.rnd.IntN(len(w.nodes))]
				for _, n := range w.nodes {
					for _, d := range w.dims.Links() {
						if d.Positive() && w.rnd.Float64() < 0.25 {
							w.cut(n, d)
						}
					}
					n.noHost = n != mapper && w.rnd.IntN(5) == 0
					if n.dead = n != mapper && w.rnd.IntN(12) == 0; n.dead {
						for _, d := range w.dims.Links() {
							w.cut(n, d)
						}
					}
				}
				w.run(500 * time.Millisecond)
				w.mapIt(mapper, 5, 1)
				found, reached := w.awaitMap(mapper, 1), w.reach()
				if len(found) != len(w.nodes)-1 {
					t.Fatalf("%d of %d nodes", len(found), len(w.nodes)-1)
				}
				for r, f := range found {
					w.checkMapped(w.nodes[r], f, reached[w.nodes[r]] == reached[mapper])
				}
				w.noRuleBroken()
			})
		}
	}
}

// checkMapped compares the findings about a node with its real state.
func (w *mesh) checkMapped(n *meshNode, f *lofamov1.MappedNode, connected bool) {
	w.t.Helper()
	dnp, host, links := lofamov1.MapKnowledge_MAP_UNKNOWN, lofamov1.MapKnowledge_MAP_UNKNOWN, uint32(0)
	if connected {
		dnp, host = lofamov1.MapKnowledge_MAP_GOOD, lofamov1.MapKnowledge_MAP_GOOD
		if n.noHost {
			host = lofamov1.MapKnowledge_MAP_BAD
		}
		for _, d := range w.dims.Links() {
			if !n.cut[d.Index()] {
				links |= 1 << d.Index()
			}
		}
	}
	if f.GetDnp() != dnp || f.GetHost() != host || f.GetLinksGood() != links || connected != (f.GetRoundTripUs() > 0) {
		w.t.Errorf("%s, connected %t, without a host half %t, links %06b: found %v", n.at, connected, n.noHost, links, f)
	}
}

// Repeating an order repeats the findings. A half refuses an older order, an order for another half, and one of another
// topology.
func TestRepeatedMapOrderRepeatsFindings(t *testing.T) {
	w := newMesh(t, "4x1x1", 1, nil)
	n := w.nodes[0]
	w.mapIt(n, 5, 7)
	w.mapIt(n, 5, 7) // while it runs
	w.awaitMap(n, 7)
	w.run(time.Second)
	if len(n.mapped) != 1 {
		t.Errorf("said %d times", len(n.mapped))
	}
	w.mapIt(n, 5, 7)
	w.mapIt(n, 5, 6)
	w.mapIt(n, 4, 9)
	w.mapOrder(n, &lofamov1.MapOrder{Number: &lofamov1.OrderNumber{Term: 9, Count: 1}, Node: "n1-0-0", Region: []uint32{2}})
	w.run(time.Second)
	if len(n.mapped) != 2 || n.mapped[1].GetNumber().GetCount() != 7 {
		t.Errorf("the same again, two older ones and one for another: said %v", n.mapped)
	}
	w.mapIt(n, 5, 8, 0, 99) // itself, and a place outside the torus
	w.run(2 * time.Second)
	if last := n.mapped[len(n.mapped)-1]; len(n.mapped) != 3 || !strings.Contains(last.GetError(), "region") || len(last.GetNodes()) > 0 {
		t.Errorf("a region that is none: said %v", n.mapped[2:])
	}
	was := len(n.mapped)
	for count := range uint64(20) { // a supervisor that sends orders as fast as it can
		w.mapIt(n, 6, 1+count, 1)
		w.run(100 * time.Millisecond)
	}
	w.run(3 * time.Second)
	if runs := len(n.mapped) - was; runs < 1 || runs > 3 {
		t.Errorf("%d runs in five seconds: want one each %s", runs, mapEvery)
	}
	w.run(order.RunsLast + time.Second)
	w.mapIt(n, 2, 1, 1) // of a new store
	w.run(3 * time.Second)
	if last := n.mapped[len(n.mapped)-1]; last.GetNumber().GetTerm() != 2 {
		t.Errorf("an order of a lower term, long after: %v", last)
	}
	was = len(n.mapped)
	w.mapIt(n, 5, 7) // a copy
	w.run(3 * time.Second)
	if len(n.mapped) != was {
		t.Errorf("a copy of an order that was taken before: said %v", n.mapped[was:])
	}
}

// A half forwards probes only within the sender's budget, and drops a probe that is off its route.
func TestProbesStayWithinBudget(t *testing.T) {
	w := newMesh(t, "4x1x1", 1, nil)
	run := mapping.New(mapping.Config{Dims: w.dims, At: grid.Coord{}, Region: []grid.Coord{{X: 1}, {X: 2}}, Run: 3,
		Own: mapping.Word{Good: 3}}, w.now)
	first := slices.Clone(run.Step(w.now, mapping.Tick{}).Send)
	_, answer, _ := mapping.Reply(first[0].Data, mapping.Word{Good: 3, Host: mapping.HostDead})
	run.Step(w.now, mapping.Back{Data: answer})
	w.now = w.now.Add(mapping.Pace)
	second := run.Step(w.now, mapping.Tick{}).Send
	i := slices.IndexFunc(second, func(s mapping.Send) bool { return len(s.Data) == len(first[0].Data)+1 })
	if i < 0 {
		t.Fatalf("no probe of two hops among %d", len(second))
	}
	n := w.nodes[1]
	l := n.m.links[grid.XMinus.Index()]
	n.m.frames = nil
	for range 10 * mapping.Burst {
		n.m.onMapFrame(w.now, l, second[i].Data)
	}
	if got := len(n.m.frames); got != mapping.Burst {
		t.Errorf("%d of %d probes were passed on: want %d", got, 10*mapping.Burst, mapping.Burst)
	}
	n.m.frames = nil
	n.m.onMapFrame(w.now.Add(time.Second), n.m.links[grid.XPlus.Index()], second[i].Data) // it did not come from there
	n.m.onMapFrame(w.now.Add(time.Second), l, second[i].Data[:20])
	if len(n.m.frames) > 0 {
		t.Error("a probe that is not on its way was passed on")
	}
}

// A neighbour that asks without end for this node's host half does not fill the mailbox: the self-test and diagnoses need its room.
func TestProbesOfHostHalfLeaveRoomInMailbox(t *testing.T) {
	w := newMesh(t, "4x1x1", 1, nil)
	run := mapping.New(mapping.Config{Dims: w.dims, At: grid.Coord{}, Region: []grid.Coord{{X: 1}}, Run: 3, Own: mapping.Word{Good: 3}}, w.now)
	ask := slices.Clone(run.Step(w.now, mapping.Tick{}).Send)[0].Data
	n := w.nodes[1]
	n.m.frames, n.m.out.TestMail = nil, nil
	const seconds = 5
	for range seconds * mapping.Rate {
		w.now = w.now.Add(time.Second / mapping.Rate)
		n.m.onMapFrame(w.now, n.m.links[grid.XMinus.Index()], ask)
	}
	if got := len(n.m.out.TestMail); got < seconds || got > seconds*mapHostRate+mapHostBurst {
		t.Errorf("%d probes of the host half in %d s: want %d to %d", got, seconds, seconds, seconds*mapHostRate+mapHostBurst)
	}
	if got := len(n.m.frames); got < seconds*mapping.Rate {
		t.Errorf("%d of %d probes were answered", got, seconds*mapping.Rate)
	}
	n.m.out.TestMail = nil
	n.m.onMapFrame(w.now, n.m.links[grid.XPlus.Index()], ask)
	if len(n.m.out.TestMail) != 0 {
		t.Error("a probe from the wrong link reached the host half")
	}
}

package awareness

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// benchDims are a thousand nodes.
var benchDims = grid.Dims{X: 10, Y: 10, Z: 10}

// BenchmarkDigest is the cost of one digest that says nothing new, among a thousand nodes.
func BenchmarkDigest(b *testing.B) {
	w := benchWorld(b)
	digests := make([]fault.Delivery, 0, len(w.order))
	for _, a := range w.order {
		if a.origin.Half == fault.HalfHost {
			digests = append(digests, a.sent[len(a.sent)-1])
		}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		d := digests[i%len(digests)]
		d.Report.ID.Seq += fault.Seq(i/len(digests) + 1)
		w.now = w.now.Add(w.cfg.DigestPeriod / time.Duration(len(digests)))
		w.m.Step(w.now, Evidence{d})
	}
}

// BenchmarkTick is the cost of a wake-up at which one node of a thousand is looked at.
func BenchmarkTick(b *testing.B) {
	w := benchWorld(b)
	b.ReportAllocs()
	for b.Loop() {
		w.m.touch(w.m.nodes[500])
		w.m.Step(w.now, Tick{})
	}
}

// BenchmarkNodeDeath is a whole death: six neighbours' silence, the challenge, the verdict.
func BenchmarkNodeDeath(b *testing.B) {
	w := benchWorld(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c := benchDims.At(i * 37 % benchDims.Nodes())
		for _, n := range benchDims.Neighbours(c) {
			w.silenceBy(w.actor(w.cfg.IDs[n], fault.HalfHost), c, false, 80*time.Millisecond)
		}
		for len(w.queue) > 0 {
			ev := w.queue[0].ev
			w.queue = w.queue[1:]
			w.m.Step(w.now, ev)
		}
		w.now = w.now.Add(w.cfg.ChallengeNode)
		w.m.Step(w.now, Tick{})
	}
}

func benchWorld(b *testing.B) *world {
	w, err := newWorld(testConfig(benchDims))
	if err != nil {
		b.Fatal(err)
	}
	for _, a := range w.order {
		w.boot(a)
	}
	for _, e := range w.queue {
		w.m.Step(w.now, e.ev)
	}
	w.queue = nil
	w.now = w.now.Add(w.cfg.Grace)
	return w
}

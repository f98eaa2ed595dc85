package awareness

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// benchSizes are tori of one thousand, ten thousand and a hundred thousand nodes.
var benchSizes = []grid.Dims{{X: 10, Y: 10, Z: 10}, {X: 25, Y: 20, Z: 20}, {X: 50, Y: 50, Z: 40}}

// bench is a torus in which every half has reported all components NORMAL.
type bench struct {
	m    *Machine
	cfg  Config
	now  time.Time
	seqs map[fault.Origin]fault.Seq
}

func newBench(dims grid.Dims) *bench {
	b := &bench{cfg: testConfig(dims), now: epoch0, seqs: make(map[fault.Origin]fault.Seq, 2*dims.Nodes())}
	var err error
	if b.m, err = New(b.cfg, epoch0, nil); err != nil {
		panic(err)
	}
	for rank := range dims.Nodes() {
		for _, h := range halves {
			b.m.Step(b.now, Evidence{b.digest(rank, h, fault.Normal)})
		}
	}
	b.now = b.now.Add(b.cfg.Grace)
	b.m.Step(b.now, Tick{})
	return b
}

// digest is the largest digest of a half: all components of its node, and all components of its neighbours that
// descriptors contain. memory is the state of its memory.
func (b *bench) digest(rank int, h fault.Half, memory fault.State) fault.Delivery {
	at := b.cfg.Dims.At(rank)
	o := fault.Origin{Node: b.cfg.IDs[at], Half: h}
	b.seqs[o]++
	r := fault.Report{ID: fault.ReportID{Origin: o, Epoch: 1, Seq: b.seqs[o]}, Digest: true}
	for c := fault.ComponentHost; c < fault.ComponentBus; c++ {
		kind, state := fault.KindSelf, fault.Normal
		if c == h.Other().Component() {
			kind = fault.KindWatchdog
		}
		if c == fault.ComponentMemory {
			state = memory
		}
		r.Observations = append(r.Observations, fault.Observation{Node: o.Node, Component: c, State: state, Kind: kind, Age: b.now.Sub(epoch0)})
	}
	for _, n := range b.cfg.Dims.Neighbours(at) {
		for _, c := range described {
			r.Observations = append(r.Observations, fault.Observation{
				Node: b.cfg.IDs[n], Component: c, State: fault.Normal, Kind: fault.KindDescriptor, Age: b.now.Sub(epoch0)})
		}
	}
	return fault.Delivery{Path: fault.PathDirect, Report: r}
}

// pass advances time by the interval between two digests of the whole torus, and serves the wakes.
func (b *bench) pass() {
	b.now = b.now.Add(b.cfg.DigestPeriod / time.Duration(2*b.cfg.Dims.Nodes()))
}

func sizes(b *testing.B, run func(b *testing.B, w *bench)) {
	for _, dims := range benchSizes {
		b.Run(fmt.Sprint(dims.Nodes()), func(b *testing.B) {
			w := newBench(dims)
			b.ReportAllocs()
			run(b, w)
		})
	}
}

// BenchmarkDigest measures one digest of 46 statements without news.
func BenchmarkDigest(b *testing.B) {
	sizes(b, func(b *testing.B, w *bench) {
		n := w.cfg.Dims.Nodes()
		digests := make([]fault.Delivery, min(n, 5000))
		for i := range digests {
			digests[i] = w.digest(i*(n/len(digests)), fault.HalfHost, fault.Normal)
		}
		for i := 0; b.Loop(); i++ {
			d := &digests[i%len(digests)]
			w.pass()
			d.Report.ID.Seq++
			w.m.Step(w.now, Evidence{*d})
		}
	})
}

// BenchmarkRestated measures the same as a Restated.
func BenchmarkRestated(b *testing.B) {
	sizes(b, func(b *testing.B, w *bench) {
		n := w.cfg.Dims.Nodes()
		for i := 0; b.Loop(); i++ {
			w.pass()
			rank, h := i/2*7919%n, halves[i%2]
			o := fault.Origin{Node: w.m.nodes[rank].id, Half: h}
			if out := w.m.Step(w.now, Restated{Origin: o, Epoch: 1, Seq: fault.Seq(i + 2), Path: fault.PathDirect}); out.Unknown {
				b.Fatal("unknown")
			}
		}
	})
}

// BenchmarkChange measures a report that the memory has become SICK, or NORMAL again.
func BenchmarkChange(b *testing.B) {
	sizes(b, func(b *testing.B, w *bench) {
		n := w.cfg.Dims.Nodes()
		states := [...]fault.State{fault.Sick, fault.Normal}
		d := fault.Delivery{Path: fault.PathDirect}
		changes := 0
		for i := 0; b.Loop(); i++ {
			w.pass()
			id := w.m.nodes[i/2*7919%n].id
			d.Report = fault.Report{
				ID:           fault.ReportID{Origin: fault.Origin{Node: id, Half: fault.HalfHost}, Epoch: 1, Seq: fault.Seq(i + 2)},
				Observations: []fault.Observation{{Node: id, Component: fault.ComponentMemory, State: states[i%2], Kind: fault.KindSelf}},
			}
			changes += len(w.m.Step(w.now, Evidence{d}).Changes)
		}
		b.ReportMetric(float64(changes)/float64(b.N), "changes/op")
	})
}

// BenchmarkNodeDeath measures a whole death: six neighbours' silence, the challenge, the verdict. The dead node is
// revived between two deaths.
func BenchmarkNodeDeath(b *testing.B) {
	sizes(b, func(b *testing.B, w *bench) {
		n := w.cfg.Dims.Nodes()
		b.ResetTimer()
		dead := 0
		for i := range b.N {
			at := w.cfg.Dims.At(i * 7919 % n)
			dead += w.death(at)
			b.StopTimer()
			w.revive(at)
			b.StartTimer()
		}
		b.ReportMetric(float64(dead)/float64(b.N), "failed/op")
	})
}

// revive boots a dead node, lets its neighbours hear it, and waits until everything has settled.
func (b *bench) revive(at grid.Coord) {
	for _, h := range halves {
		d := b.digest(b.cfg.Dims.Rank(at), h, fault.Normal)
		d.Report.ID.Epoch = fault.Epoch(b.seqs[d.Report.ID.Origin])
		b.m.Step(b.now, Evidence{d})
	}
	for _, n := range b.cfg.Dims.Neighbours(at) {
		for _, h := range halves {
			d := b.digest(b.cfg.Dims.Rank(n), h, fault.Normal)
			d.Report.ID.Epoch = fault.Epoch(b.seqs[d.Report.ID.Origin])
			b.m.Step(b.now, Evidence{d})
		}
	}
	b.now = b.now.Add(time.Millisecond)
	b.m.Step(b.now, Tick{})
}

// death returns the number of nodes that became FAILED.
func (b *bench) death(at grid.Coord) (dead int) {
	count := func(out Output) time.Time {
		for _, c := range out.Changes {
			if c.Component == fault.ComponentNode && c.To == fault.Failed {
				dead++
			}
		}
		return out.Wake
	}
	var wake time.Time
	for _, n := range b.cfg.Dims.Neighbours(at) {
		o := fault.Origin{Node: b.cfg.IDs[n], Half: fault.HalfHost}
		b.seqs[o]++
		epoch := max(1, b.m.nodes[b.cfg.Dims.Rank(n)].voice(o.Half).epoch)
		d := fault.Delivery{Path: fault.PathDirect, Report: fault.Report{ID: fault.ReportID{Origin: o, Epoch: epoch, Seq: b.seqs[o]}}}
		for _, l := range b.cfg.Dims.LinksTo(n, at) {
			d.Report.Observations = append(d.Report.Observations, fault.Observation{
				Node: o.Node, Component: fault.Link(l), State: fault.Failed, Kind: fault.KindSilence, Age: 80 * time.Millisecond})
		}
		wake = count(b.m.Step(b.now, Evidence{d}))
	}
	for end := b.now.Add(b.cfg.ChallengeNode); !wake.IsZero() && !wake.After(end) && dead == 0; {
		b.now = wake
		wake = count(b.m.Step(b.now, Tick{}))
	}
	return dead
}

// BenchmarkMapMemory measures the heap of the machine of a torus in which every half has sent a full digest.
func BenchmarkMapMemory(b *testing.B) {
	for _, dims := range benchSizes {
		b.Run(fmt.Sprint(dims.Nodes()), func(b *testing.B) {
			for range b.N {
				before := heapBytes()
				w := newBench(dims)
				w.seqs = nil
				b.ReportMetric(float64(heapBytes()-before)/1e6, "MB")
				b.ReportMetric(float64(heapBytes()-before)/float64(dims.Nodes()), "B/node")
				runtime.KeepAlive(w)
			}
		})
	}
}

func heapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// BenchmarkNew measures how long a takeover takes to restore the committed map.
func BenchmarkNew(b *testing.B) {
	sizes(b, func(b *testing.B, w *bench) {
		saved := w.m.Nodes()
		for b.Loop() {
			if _, err := New(w.cfg, w.now, saved); err != nil {
				b.Fatal(err)
			}
		}
	})
}

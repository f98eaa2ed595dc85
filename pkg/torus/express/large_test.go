package express

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// wave is a broadcast in a large torus whose hops all take the same time: payloads sent in one wave arrive in the
// next. It makes a machine when the first payload comes, and drops it when it holds nothing any more: no payload may
// come after that. So only the front is in memory.
type wave struct {
	dims     grid.Dims
	machines map[int]*Machine
	done     []bool
	at       []int32 // wave in which it was delivered, from 1; 0: not yet
	steps    int
	bytes    int
	flying   []parcel
}

type parcel struct {
	to  int
	dir grid.Direction
	b   []byte
}

func (w *wave) step(t testing.TB, rank int, number int32, ev Event) {
	m := w.machines[rank]
	if m == nil {
		if w.done[rank] {
			t.Fatalf("%s: something comes to a node that has finished", w.dims.At(rank))
		}
		m = New(Config{Self: w.dims.At(rank), Epoch: 1, Links: 1<<grid.NumDirections - 1, Period: time.Second, NoPings: true}, start)
		w.machines[rank] = m
		m.Step(start, Ways{Open: 1<<grid.NumDirections - 1, Good: 1<<grid.NumDirections - 1})
	}
	w.steps++
	out := m.Step(start, ev)
	for range out.Deliver {
		if w.at[rank] != 0 {
			t.Fatalf("%s: delivered twice", w.dims.At(rank))
		}
		w.at[rank] = number + 1
	}
	for _, s := range out.Send {
		c, _ := w.dims.Neighbour(w.dims.At(rank), s.Dir)
		w.flying = append(w.flying, parcel{w.dims.Rank(c), s.Dir.Opposite(), s.Payload})
		w.bytes += len(s.Payload)
	}
	if !m.Busy() {
		delete(w.machines, rank)
		w.done[rank] = true
	}
}

// broadcast floods a cube and returns how many waves it took to reach all.
func broadcast(t testing.TB, side int) (*wave, int) {
	dims := grid.Dims{X: side, Y: side, Z: side}
	w := &wave{dims: dims, machines: map[int]*Machine{}, done: make([]bool, dims.Nodes()), at: make([]int32, dims.Nodes())}
	w.step(t, dims.Rank(grid.Coord{X: side / 3, Y: side / 2}), 0, Raise{Topic: TopicJob, Priority: 3, Body: []byte("fire")})
	last := 0
	for number := int32(1); len(w.flying) > 0; number++ {
		now := w.flying
		w.flying = nil
		for _, p := range now {
			w.step(t, p.to, number, &Received{Dir: p.dir, Payload: p.b})
		}
	}
	for rank, at := range w.at {
		if at == 0 {
			t.Fatalf("%s was not reached", dims.At(rank))
		}
		last = max(last, int(at)-1)
	}
	return w, last
}

// checkBroadcast: a broadcast takes the diameter times a hop, and a node's work does not grow with the cluster: it
// receives at most one payload from each neighbour and one acknowledgement of its own.
func checkBroadcast(t testing.TB, side int) *wave {
	w, hops := broadcast(t, side)
	if want := 3 * (side / 2); hops != want {
		t.Errorf("%s: %d hops, want the diameter, %d", w.dims, hops, want)
	}
	n := w.dims.Nodes()
	if most := 7 * n; w.steps > most {
		t.Errorf("%s: %d steps for %d nodes, want at most %d", w.dims, w.steps, n, most)
	}
	return w
}

func TestLargeTorus(t *testing.T) {
	sides := []int{4, 9, 16, 33}
	if testing.Short() {
		sides = sides[:3]
	}
	for _, side := range sides {
		w := checkBroadcast(t, side)
		t.Logf("%s: %.2f steps and %d bytes a node", w.dims, float64(w.steps)/float64(w.dims.Nodes()), w.bytes/w.dims.Nodes())
	}
}

// BenchmarkMillionNodes is a broadcast in a torus of 100x100x100.
func BenchmarkMillionNodes(b *testing.B) {
	var w *wave
	for b.Loop() {
		w = checkBroadcast(b, 100)
	}
	n := float64(w.dims.Nodes())
	b.ReportMetric(float64(w.steps)/n, "steps/node")
	b.ReportMetric(float64(w.bytes)/n, "B/node")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/node")
}

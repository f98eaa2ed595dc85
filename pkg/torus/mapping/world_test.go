package mapping

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var start = time.Unix(1_700_000_000, 0)

// world is a torus of halves that treat probes as Hop says.
type world struct {
	t      *testing.T
	dims   grid.Dims
	rng    *rand.Rand
	now    time.Time
	dead   map[grid.Coord]bool // DNP halves
	hosts  map[grid.Coord]HostWord
	mute   map[grid.Coord]bool                          // mailboxes that send nothing back
	old    map[grid.Coord]bool                          // halves of an earlier version
	cut    map[grid.Coord]map[grid.Direction]bool       // links, at both ends
	loss   float64                                      // of each frame on each hop
	lose   func(from grid.Coord, d grid.Direction) bool // beside it
	passed map[grid.Coord]int                           // probes that a node passed on
	asked  map[grid.Coord]int                           // questions that came there
	events queue
	seq    int
}

func newWorld(t *testing.T, dims grid.Dims, seed uint64) *world {
	return &world{
		t: t, dims: dims, rng: rand.New(rand.NewPCG(seed,
			7)), now: start, dead: map[grid.Coord]bool{}, hosts: map[grid.Coord]HostWord{}, mute: map[grid.Coord]bool{},
		old: map[grid.Coord]bool{}, cut: map[grid.Coord]map[grid.Direction]bool{}, passed: map[grid.Coord]int{}, asked: map[grid.Coord]int{},
	}
}

// arrival is a frame that comes to a node by its link from.
type arrival struct {
	at   time.Time
	seq  int
	node grid.Coord
	from grid.Direction
	data []byte
}

type queue []arrival

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].seq < q[j].seq
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(arrival)) }
func (q *queue) Pop() any {
	x := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return x
}

// cutLink removes a link, at both ends.
func (w *world) cutLink(c grid.Coord, d grid.Direction) {
	n, ok := w.dims.Neighbour(c, d)
	if !ok {
		return
	}
	for at, dir := range map[grid.Coord]grid.Direction{c: d, n: d.Opposite()} {
		if w.cut[at] == nil {
			w.cut[at] = map[grid.Direction]bool{}
		}
		w.cut[at][dir] = true
	}
}

// works reports whether frames pass by a link.
func (w *world) works(c grid.Coord, d grid.Direction) bool {
	n, ok := w.dims.Neighbour(c, d)
	return ok && !w.cut[c][d] && !w.dead[n] && !w.dead[c]
}

// word returns a node's report about itself: the node knows which of its links work.
func (w *world) word(c grid.Coord) Word {
	out := Word{Host: w.hosts[c]}
	if out.Host == HostUnknown {
		out.Host = HostAlive
	}
	for _, d := range w.dims.LinksOf(c) {
		if w.works(c, d) {
			out.Good |= 1 << d.Index()
		} else {
			out.Bad |= 1 << d.Index()
		}
	}
	return out
}

func (w *world) send(from grid.Coord, d grid.Direction, data []byte) {
	if !w.works(from, d) || w.rng.Float64() < w.loss || w.lose != nil && w.lose(from, d) {
		return
	}
	n, _ := w.dims.Neighbour(from, d)
	w.seq++
	heap.Push(&w.events, arrival{w.now.Add(time.Millisecond), w.seq, n, d.Opposite(), append([]byte(nil), data...)})
}

// arrive acts as a half.
func (w *world) arrive(a arrival, mapper grid.Coord) (back []byte) {
	if w.old[a.node] {
		return nil
	}
	switch what, to, out := Hop(a.data, a.from); what {
	case Pass:
		w.passed[a.node]++
		w.send(a.node, to, out)
	case Asked:
		w.asked[a.node]++
		to, out, host := Reply(a.data, w.word(a.node))
		w.send(a.node, to, out)
		if host && !w.mute[a.node] && w.hosts[a.node] != HostDead {
			to, out := ReplyHost(a.data, w.word(a.node))
			w.send(a.node, to, out)
		}
	case Answer:
		if a.node != mapper {
			w.t.Errorf("an answer ended at %s: %s maps", a.node, mapper)
		}
		return a.data
	case Drop:
		w.t.Errorf("%s dropped a probe", a.node)
	}
	return nil
}

// survey makes a node map a region, and returns its findings and the duration.
func (w *world) survey(mapper grid.Coord, region []grid.Coord, hops int) (map[grid.Coord]Found, time.Duration) {
	w.t.Helper()
	cfg := Config{Dims: w.dims, At: mapper, Region: region, Run: 1 + w.rng.Uint64N(1<<60), Own: w.word(mapper), Hops: hops}
	if err := cfg.Validate(); err != nil {
		w.t.Fatal(err)
	}
	m, began := New(cfg, w.now), w.now
	out := Output{Wake: w.now}
	do := func(ev Event) {
		out = m.Step(w.now, ev)
		for _, s := range out.Send {
			w.send(mapper, s.Dir, s.Data)
		}
	}
	for !out.Done {
		if len(w.events) > 0 && w.events[0].at.Before(out.Wake) {
			a := heap.Pop(&w.events).(arrival)
			w.now = a.at
			if b := w.arrive(a, mapper); b != nil {
				do(Back{b})
			}
			continue
		}
		w.now = out.Wake
		do(Tick{})
		if w.now.Sub(began) > Most+time.Second {
			w.t.Fatal("it does not end")
		}
	}
	w.events = nil
	found := make(map[grid.Coord]Found)
	last := -1
	for _, f := range m.Findings() {
		if r := w.dims.Rank(f.At); r <= last {
			w.t.Errorf("%s comes behind a higher rank", f.At)
		} else {
			last = r
		}
		found[f.At] = f
	}
	return found, w.now.Sub(began)
}

// reach is a breadth-first search from the mapper within a region: the hops to each node that is connected.
func (w *world) reach(mapper grid.Coord, region []grid.Coord) map[grid.Coord]int {
	in := map[grid.Coord]bool{}
	for _, c := range region {
		in[c] = true
	}
	hops := map[grid.Coord]int{mapper: 0}
	for q := []grid.Coord{mapper}; len(q) > 0; q = q[1:] {
		for _, d := range w.dims.Links() {
			n, _ := w.dims.Neighbour(q[0], d)
			if _, seen := hops[n]; w.works(q[0], d) && in[n] && !seen {
				hops[n] = hops[q[0]] + 1
				q = append(q, n)
			}
		}
	}
	delete(hops, mapper)
	return hops
}

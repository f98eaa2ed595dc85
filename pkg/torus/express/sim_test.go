package express

import (
	"bytes"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// world is a torus of machines with links that lose, duplicate, delay and reorder, and nodes that are killed and
// resume from their copies: one goroutine, and a heap of (time, sequence, event).
type world struct {
	dims   grid.Dims
	nodes  []*station
	rnd    *rand.Rand
	now    time.Time
	events events
	seq    int
	period time.Duration
	hop    time.Duration // of a link
	jitter time.Duration // at most, besides
	loss   float64       // share of the packets sent
	double float64       // share of what arrives twice
	dead   map[way]bool  // packets on this way never arrive
	blind  bool          // ways are always called good, also dead ones
	noPing bool

	placeless bool          // barriers have no place
	withData  bool          // data goes round
	keepFor   time.Duration // Judged.For
	steps     int
	judge     func(*station, BarrierResult)
}

// way is a link in one direction.
type way struct {
	from int
	dir  grid.Direction
}

type station struct {
	rank      int
	m         *Machine // nil: it is dead
	life      int
	held      [MaxHeld]Kept
	kept      [MaxHeld]time.Time
	seen      []byte
	number    uint64
	delivered map[ID]int
	order     []ID
	hops      map[ID]uint16
	at        map[ID]time.Time
	unnoted   []ID // delivered in the last step: may be again if it is killed now
	excused   map[ID]int
	deaf      Mask
	heard     func(Message) // nil: no listener
	bars      *Barriers
	waits     map[Barrier]Arrive
	results   map[Barrier][]BarrierResult

	data   *Data
	came   map[DataID]int     // data that came whole in this life
	frames [kindPiece + 1]int // of data, sent
	forge  func(*Send)        // nil: it is honest
	doubts func(Datum) bool   // nil: it takes all
}

type event struct {
	at  time.Time
	seq int
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

var start = time.Unix(1_700_000_000, 0)

func newWorld(dims grid.Dims, seed uint64) *world {
	w := &world{
		dims: dims, rnd: rand.New(rand.NewPCG(seed, 3)), now: start, period: 10 * time.Millisecond, hop: time.Millisecond, dead: map[way]bool{},
	}
	for i := range dims.Nodes() {
		w.nodes = append(w.nodes, &station{
			rank: i, delivered: map[ID]int{}, hops: map[ID]uint16{}, at: map[ID]time.Time{}, excused: map[ID]int{}, waits: map[Barrier]Arrive{},
			results: map[Barrier][]BarrierResult{},
		})
	}
	return w
}

// begin starts all nodes.
func (w *world) begin() *world {
	for _, n := range w.nodes {
		w.start(n)
	}
	return w
}

func (w *world) links() (m Mask) {
	for _, d := range w.dims.Links() {
		m |= MaskOf(d)
	}
	return m
}

func (w *world) neighbour(rank int, d grid.Direction) int {
	c, _ := w.dims.Neighbour(w.dims.At(rank), d)
	return w.dims.Rank(c)
}

// cut kills a link in one direction.
func (w *world) cut(rank int, d grid.Direction) { w.dead[way{rank, d}] = true }

func (w *world) ways(n *station) Ways {
	all := w.links()
	good := all
	if !w.blind {
		for _, d := range w.dims.Links() {
			if w.dead[way{n.rank, d}] || w.dead[way{w.neighbour(n.rank, d), d.Opposite()}] {
				good &^= MaskOf(d)
			}
		}
	}
	return Ways{Open: all, Good: good}
}

func (w *world) start(n *station) {
	cfg := Config{Self: w.dims.At(n.rank), Epoch: 1, Links: w.links(), Period: w.period, NoPings: w.noPing}
	cfg.Resume.Number, cfg.Resume.Seen = n.number, n.seen
	for i, k := range n.held {
		if k.Bytes != nil {
			cfg.Resume.Held[i] = Kept{Bytes: k.Bytes, Age: w.now.Sub(n.kept[i])}
		}
	}
	n.life++
	n.bars = NewBarriers(w.links(), w.period) // it keeps nothing
	if !w.placeless {
		n.bars.Place(w.dims, w.dims.At(n.rank))
	}
	n.m = New(cfg, w.now)
	w.stepBarriers(n, w.ways(n))
	if w.withData {
		n.data, n.came = NewData(w.links(), w.period, 0), map[DataID]int{} // it keeps nothing
		w.stepData(n, w.ways(n))
	}
	w.wait(n, n.life)
	w.step(n, w.ways(n))
	w.tick(n, n.life)
}

// kill ends a node's life, and begins its next one after a while.
func (w *world) kill(n *station, away time.Duration) {
	if n.m == nil {
		return
	}
	for _, id := range n.unnoted {
		n.excused[id]++
	}
	n.unnoted, n.m = nil, nil
	w.after(away, func() { w.start(n) })
}

func (w *world) tick(n *station, life int) {
	if n.m == nil || n.life != life {
		return
	}
	w.step(n, Tick{})
	if n.bars.Busy() {
		w.stepBarriers(n, Tick{})
	}
	if n.data != nil && n.data.Due(w.now) {
		w.stepData(n, Tick{})
	}
	w.after(w.period, func() { w.tick(n, life) })
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, event{w.now.Add(d), w.seq, do})
}

func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for len(w.events) > 0 && !w.events[0].at.After(end) {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
	}
	w.now = end
}

func (w *world) step(n *station, ev Event) Output {
	w.steps++
	n.m.HandedOver()
	out := n.m.Step(w.now, ev)
	n.number, n.unnoted, n.deaf = n.m.Number(), n.unnoted[:0], out.Deaf
	for _, k := range out.Keep {
		n.held[k.Place], n.kept[k.Place] = Kept{Bytes: bytes.Clone(k.Bytes)}, w.now
	}
	if out.KeepSeen != nil {
		n.seen = bytes.Clone(out.KeepSeen)
	}
	for _, msg := range out.Deliver {
		n.delivered[msg.ID]++
		n.unnoted = append(n.unnoted, msg.ID)
		n.order = append(n.order, msg.ID)
		n.hops[msg.ID], n.at[msg.ID] = msg.Hops, w.now
	}
	deliver := out.Deliver
	for _, s := range out.Send {
		w.carry(n, s, func(to *station, ev *Received) { w.step(to, ev) })
	}
	for _, msg := range deliver {
		if n.heard != nil {
			n.heard(msg)
		}
	}
	return out
}

func (w *world) stepBarriers(n *station, ev Event) BarrierOutput {
	w.steps++
	out := n.bars.Step(w.now, ev)
	for _, r := range out.Results {
		delete(n.waits, r.Barrier)
		n.results[r.Barrier] = append(n.results[r.Barrier], r)
		if w.judge != nil {
			w.judge(n, r)
		}
	}
	for _, s := range out.Send {
		w.carry(n, s, func(to *station, ev *Received) { w.stepBarriers(to, ev) })
	}
	return out
}

func (w *world) stepData(n *station, ev Event) DataOutput {
	w.steps++
	out := n.data.Step(w.now, ev)
	for i := range out.Send {
		s := out.Send[i]
		n.frames[s.Payload[0]]++
		if n.forge != nil {
			n.forge(&s)
		}
		w.carry(n, s, func(to *station, ev *Received) { w.stepData(to, ev) })
	}
	for _, d := range out.Deliver {
		n.came[d.DataID]++
		w.stepData(n, Judged{ID: d.DataID, Good: n.doubts == nil || !n.doubts(d), For: w.keepFor})
	}
	return out
}

// wait makes the waiters at a node say so once a second, as the owner of a wait does.
func (w *world) wait(n *station, life int) {
	if n.m == nil || n.life != life {
		return
	}
	for _, a := range n.waits {
		w.stepBarriers(n, a)
	}
	w.after(time.Second, func() { w.wait(n, life) })
}

func (w *world) arrive(n *station, a Arrive) error {
	n.waits[a.Barrier] = a
	if n.m == nil {
		return nil
	}
	return w.stepBarriers(n, a).Err
}

// carry puts a payload on a link.
func (w *world) carry(n *station, s Send, take func(*station, *Received)) {
	if w.dead[way{n.rank, s.Dir}] || w.rnd.Float64() < w.loss {
		return
	}
	to, b := w.nodes[w.neighbour(n.rank, s.Dir)], bytes.Clone(s.Payload)
	for copies := 0; copies == 0 || copies == 1 && w.rnd.Float64() < w.double; copies++ {
		delay := w.hop
		if w.jitter > 0 {
			delay += time.Duration(w.rnd.Int64N(int64(w.jitter)))
		}
		w.after(delay, func() {
			if to.m != nil {
				take(to, &Received{Dir: s.Dir.Opposite(), Payload: b})
			}
		})
	}
}

func (w *world) raise(n *station, p Priority, body string) (ID, error) {
	out := w.step(n, Raise{Topic: TopicManage, Priority: p, Body: []byte(body)})
	return out.Raised, out.Err
}

// distances is the naive answer: the hops that a node is away by ways that are not dead, -1 for none.
func (w *world) distances(from int) []int {
	out := make([]int, w.dims.Nodes())
	for i := range out {
		out[i] = -1
	}
	out[from] = 0
	for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, d := range w.dims.Links() {
			if to := w.neighbour(at, d); !w.dead[way{at, d}] && out[to] < 0 {
				out[to] = out[at] + 1
				queue = append(queue, to)
			}
		}
	}
	return out
}

// cutAtRandom kills a share of the links, and of the rest one direction of some.
func (w *world) cutAtRandom(dead, oneWay float64) {
	for i := range w.nodes {
		for _, d := range w.dims.Links() {
			if !d.Positive() {
				continue
			}
			to := w.neighbour(i, d)
			switch r := w.rnd.Float64(); {
			case r < dead:
				w.cut(i, d)
				w.cut(to, d.Opposite())
			case r < dead+oneWay/2:
				w.cut(i, d)
			case r < dead+oneWay:
				w.cut(to, d.Opposite())
			}
		}
	}
}

// wrong returns an error unless a broadcast arrived at exactly the nodes that it can reach, once each.
func (w *world) wrong(id ID, from int) error {
	for i, d := range w.distances(from) {
		n := w.nodes[i]
		want := 1
		if d < 0 {
			want = 0
		}
		if got := n.delivered[id]; got < want || got > want+n.excused[id] {
			return fmt.Errorf("broadcast %s at %s, %d hops away: delivered %d times", id, w.dims.At(i), d, got)
		}
	}
	return nil
}

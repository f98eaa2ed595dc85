package express

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func newDataWorld(dims grid.Dims, seed uint64) *world {
	w := newWorld(dims, seed)
	w.withData, w.noPing = true, true
	return w
}

// body is data of a length, of which no piece is like another.
func (w *world) body(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(w.rnd.Uint32())
	}
	return b
}

func (w *world) publish(t testing.TB, n *station, topic Topic, prio Priority, number uint64, body []byte) DataID {
	t.Helper()
	if out := w.stepData(n, Publish{Topic: topic, Priority: prio, Number: number, Body: body}); out.Err != nil {
		t.Fatal(out.Err)
	}
	return DataID{topic, number, sumOf(body)}
}

// look has all nodes see which ways are good now.
func (w *world) look() {
	for _, n := range w.nodes {
		if n.m != nil {
			w.stepData(n, w.ways(n))
		}
	}
}

// parts is the naive answer: the number of the part of the torus that each node is in, by links that carry both ways;
// of dead nodes -1.
func (w *world) parts() []int {
	out := make([]int, len(w.nodes))
	for i := range out {
		out[i] = -1
	}
	for from, n := range w.nodes {
		if out[from] >= 0 || n.m == nil {
			continue
		}
		out[from] = from
		for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
			at := queue[0]
			for _, d := range w.dims.Links() {
				to := w.neighbour(at, d)
				if out[to] < 0 && w.nodes[to].m != nil && !w.dead[way{at, d}] && !w.dead[way{to, d.Opposite()}] {
					out[to] = from
					queue = append(queue, to)
				}
			}
		}
	}
	return out
}

// has reports whether a node's newest datum is exactly this one.
func (n *station) has(id DataID, body []byte) bool {
	if n.m == nil {
		return false
	}
	d, ok := n.data.Newest(id.Topic)
	return ok && d.DataID == id && bytes.Equal(d.Body, body)
}

// Data reaches exactly the nodes that are connected by links that carry both ways, through links that lose, whole and
// once; whether or not it is known which links are dead.
func TestDataReachesWhatIsConnected(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newDataWorld([]grid.Dims{{X: 4, Y: 4, Z: 4}, {X: 6, Y: 5, Z: 1}, {X: 3, Y: 2, Z: 4}, {X: 9, Y: 1, Z: 1}}[seed%4], seed)
			w.loss, w.double, w.jitter, w.blind = float64(seed%4)*0.1, 0.05, 3*time.Millisecond, seed%3 == 0
			w.cutAtRandom(float64(seed%6)*0.08, float64(seed%5)*0.05)
			w.begin().run(time.Second)
			from := w.rnd.IntN(len(w.nodes))
			body := w.body(1 + w.rnd.IntN(MaxData))
			id := w.publish(t, w.nodes[from], TopicMask, 3, 7, body)
			w.run(30 * time.Second)
			part := w.parts()
			for i, n := range w.nodes {
				if want := part[i] == part[from]; n.has(id, body) != want || n.came[id] > 1 || i != from && (n.came[id] == 1) != want {
					t.Errorf("%s: connected %t, came %d times", w.dims.At(i), want, n.came[id])
				}
			}
		})
	}
}

// Nodes that die and come back without state, and links that die, during a transfer: in the end all nodes that are
// connected with a holder have the datum.
func TestDataThroughDeaths(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newDataWorld(grid.Dims{X: 4, Y: 3, Z: 3}, seed)
			w.loss, w.jitter, w.blind = 0.1, 2*time.Millisecond, seed%2 == 0
			w.begin().run(time.Second)
			body := w.body(MaxData)
			id := w.publish(t, w.nodes[0], TopicMask, 3, 1, body)
			for k := range 25 { // it takes some 300 ms
				w.after(time.Duration(k)*12*time.Millisecond, func() {
					at, d := w.rnd.IntN(len(w.nodes)), w.dims.Links()[w.rnd.IntN(len(w.dims.Links()))]
					switch k % 5 {
					case 0:
						if at > 0 {
							w.kill(w.nodes[at], 50*time.Millisecond)
						}
					case 1:
						w.cut(at, d)
						w.look()
					default:
						w.cut(at, d)
						w.cut(w.neighbour(at, d), d.Opposite())
						w.look()
					}
				})
			}
			w.run(30 * time.Second)
			part := w.parts()
			for i, n := range w.nodes {
				for j, o := range w.nodes {
					if part[i] == part[j] && n.has(id, body) != o.has(id, body) {
						t.Errorf("%s and %s are connected: one has it (%t), and one has not", w.dims.At(i), w.dims.At(j), n.has(id, body))
					}
				}
			}
			if !w.nodes[0].has(id, body) {
				t.Error("the origin has it no more")
			}
		})
	}
}

// A node that starts late, or was cut off, gets the newest datum from a neighbour, and accepts no older one.
func TestDataForWhoComesLate(t *testing.T) {
	w := newDataWorld(grid.Dims{X: 5, Y: 1, Z: 1}, 1)
	x := grid.XPlus
	for _, at := range []int{1, 3} { // node 2 is isolated; 3 and 4, 0 and 1 are connected through 4-0
		d := x
		if at == 3 {
			d = x.Opposite()
		}
		w.cut(at, d)
		w.cut(2, d.Opposite())
	}
	w.begin().run(time.Second)
	old, body := w.body(3000), w.body(5000)
	w.publish(t, w.nodes[2], TopicMask, 3, 8, old)
	id := w.publish(t, w.nodes[0], TopicMask, 3, 9, body)
	w.run(time.Second)
	w.kill(w.nodes[4], 10*time.Millisecond)
	w.run(time.Second)
	for i, n := range w.nodes {
		if n.has(id, body) != (i != 2) {
			t.Fatalf("node %d: %t", i, n.has(id, body))
		}
	}
	if w.nodes[4].came[id] != 1 {
		t.Error("node 4 has it from before it was killed")
	}
	w.dead = map[way]bool{}
	w.look()
	w.run(time.Second)
	if !w.nodes[2].has(id, body) {
		t.Error("who was cut off does not get it")
	}
	for i, n := range w.nodes {
		if n.data.Busy() {
			t.Errorf("node %d is busy when all have it", i)
		}
		if d, _ := n.data.Newest(TopicMask); d.Number != 9 {
			t.Errorf("node %d has number %d", i, d.Number)
		}
	}
	if err := w.stepData(w.nodes[1], Publish{Topic: TopicMask, Priority: 3, Number: 8, Body: old}).Err; !errors.Is(err, ErrOld) {
		t.Errorf("older data: %v", err)
	}
	if err := w.stepData(w.nodes[1], Publish{Topic: TopicMask, Priority: 3, Number: 9, Body: body}).Err; err != nil {
		t.Errorf("the same data once more: %v", err)
	}
}

// A newer datum ends the transfer of an older one, from any source. Two nodes that publish the same datum publish
// one.
func TestDataNewestWins(t *testing.T) {
	w := newDataWorld(grid.Dims{X: 4, Y: 4, Z: 4}, 5)
	w.begin().run(time.Second)
	first, body := w.body(MaxData), w.body(40_000)
	w.publish(t, w.nodes[3], TopicMask, 3, 1, first)
	w.run(30 * time.Millisecond)
	w.publish(t, w.nodes[60], TopicMask, 3, 2, body)
	id := w.publish(t, w.nodes[17], TopicMask, 3, 2, bytes.Clone(body))
	w.run(5 * time.Second)
	for i, n := range w.nodes {
		if !n.has(id, body) || n.came[id] > 1 {
			t.Errorf("%s has not the newest", w.dims.At(i))
		}
	}
	// Of equal numbers and different bodies one wins, the same at all nodes.
	a := w.publish(t, w.nodes[0], TopicMask, 3, 3, w.body(2000))
	b := w.publish(t, w.nodes[63], TopicMask, 3, 3, w.body(2000))
	w.run(5 * time.Second)
	if b.newer(a) {
		a = b
	}
	for i, n := range w.nodes {
		if d, _ := n.data.Newest(TopicMask); d.DataID != a {
			t.Errorf("%s has %s, want %s", w.dims.At(i), d.DataID, a)
		}
	}
}

// A datum that is judged bad is dropped. Its predecessor stays, is announced, and gives way to the next good one.
func TestBadDatumLeavesItsPredecessor(t *testing.T) {
	w := newDataWorld(grid.Dims{X: 3, Y: 3, Z: 1}, 2)
	w.begin().run(time.Second)
	good, next := w.body(2500), w.body(2600)
	id := w.publish(t, w.nodes[0], TopicMask, 3, 5, good)
	w.run(time.Second)
	for _, n := range w.nodes {
		n.doubts = func(d Datum) bool { return d.Number == 1<<60 }
	}
	forged := w.publish(t, w.nodes[4], TopicMask, 7, 1<<60, w.body(3000))
	w.run(time.Second)
	for i, n := range w.nodes {
		if i != 4 && (!n.has(id, good) || n.came[forged] > 1) {
			t.Errorf("node %d: has it %t, the forged one came %d times", i, n.has(id, good), n.came[forged])
		}
	}
	w.kill(w.nodes[8], 10*time.Millisecond)
	id = w.publish(t, w.nodes[0], TopicMask, 3, 6, next)
	w.run(3 * time.Second)
	for i, n := range w.nodes {
		if i != 4 && !n.has(id, next) {
			t.Errorf("node %d has not what came after the forged one", i)
		}
	}
}

// A datum that no node can judge is passed on, and given to latecomers while it is kept. Then it is gone everywhere,
// also from latecomers, and its successor may have a lower number.
func TestDataKeptForWhile(t *testing.T) {
	w := newDataWorld(grid.Dims{X: 3, Y: 3, Z: 1}, 2)
	w.keepFor = 30 * time.Second
	w.begin().run(time.Second)
	body := w.body(2500)
	id := w.publish(t, w.nodes[4], DataTopics, 3, 1<<60, body)
	w.run(w.keepFor / 2)
	w.kill(w.nodes[8], 10*time.Millisecond)
	w.run(time.Second)
	for i, n := range w.nodes {
		if !n.has(id, body) {
			t.Errorf("node %d has not got it", i)
		}
	}
	w.kill(w.nodes[4], 10*time.Millisecond) // the forger
	w.run(w.keepFor + time.Second)
	for i, n := range w.nodes {
		if _, has := n.data.Newest(DataTopics); has || n.data.Busy() || n.came[id] > 1 {
			t.Errorf("node %d: has it %t, busy %t, it came %d times", i, has, n.data.Busy(), n.came[id])
		}
	}
	w.keepFor = 0
	next := w.body(2600)
	id = w.publish(t, w.nodes[0], DataTopics, 3, 6, next)
	w.run(time.Second)
	for i, n := range w.nodes {
		if !n.has(id, next) {
			t.Errorf("node %d has not what came after it", i)
		}
	}
}

// A datum of a higher priority goes before one in transfer, which resumes afterwards.
func TestHigherPriorityDatumGoesFirst(t *testing.T) {
	w := newDataWorld(grid.Dims{X: 8, Y: 1, Z: 1}, 3)
	w.begin().run(time.Second)
	low, high := w.body(MaxData), w.body(20_000)
	lowID := w.publish(t, w.nodes[0], TopicManage, 1, 1, low)
	w.run(40 * time.Millisecond)
	highID := w.publish(t, w.nodes[0], TopicMask, 5, 1, high)
	for range 1000 {
		w.run(5 * time.Millisecond)
		n := w.nodes[4]
		if n.has(lowID, low) && !n.has(highID, high) {
			t.Fatal("the lower priority came first")
		}
		if n.has(lowID, low) {
			return
		}
	}
	t.Error("the lower priority never came")
}

// A node that passes on other content than it received delays its neighbours. It neither keeps them from the datum,
// nor gives them another one.
func TestAlteredDatumOnlyDelaysNeighbours(t *testing.T) {
	w := newDataWorld(grid.Dims{X: 3, Y: 3, Z: 1}, 4)
	liar := w.nodes[1]
	liar.forge = func(s *Send) {
		if kind(s.Payload[0]) == kindPiece {
			s.Payload = bytes.Clone(s.Payload)
			s.Payload[len(s.Payload)-1] ^= 1
		}
	}
	w.begin().run(time.Second)
	body := w.body(30_000)
	id := w.publish(t, w.nodes[0], TopicMask, 3, 1, body)
	w.run(time.Minute)
	spoiled := uint64(0)
	for i, n := range w.nodes {
		spoiled += n.data.Stats().Spoiled
		if !n.has(id, body) {
			t.Errorf("node %d has not got it", i)
		}
	}
	if spoiled == 0 {
		t.Error("nobody noticed that pieces were altered")
	}
}

// A node that announces a datum with a false length delays its neighbours, which get the datum from the others.
func TestFalseLengthOnlyDelaysNeighbours(t *testing.T) {
	for _, off := range []int{-10_000, 1, 20_000} {
		w := newDataWorld(grid.Dims{X: 3, Y: 3, Z: 1}, 4)
		w.nodes[1].forge = func(s *Send) {
			if f, err := decodeData(s.Payload); err == nil && f.kind == kindState && f.length > 0 {
				f.length += off
				s.Payload = f.append(nil)
			}
		}
		w.begin().run(time.Second)
		body := w.body(30_000)
		id := w.publish(t, w.nodes[0], TopicMask, 3, 1, body)
		w.run(time.Minute)
		for i, n := range w.nodes {
			if !n.has(id, body) {
				t.Errorf("length off by %d: node %d has not got it", off, i)
			}
		}
	}
}

// A node that alters pieces and then announces another length delays its neighbours, too.
func TestAlteredDatumOfOtherLengthOnlyDelaysNeighbours(t *testing.T) {
	w := newDataWorld(grid.Dims{X: 3, Y: 3, Z: 1}, 4)
	said := 0
	w.nodes[1].forge = func(s *Send) {
		f, err := decodeData(s.Payload)
		switch {
		case err != nil:
		case f.kind == kindPiece:
			s.Payload = bytes.Clone(s.Payload)
			s.Payload[len(s.Payload)-1] ^= 1
		case f.kind == kindState && f.length > 0:
			if said++; said%2 == 0 {
				f.length++
				s.Payload = f.append(nil)
			}
		}
	}
	w.begin().run(time.Second)
	body := w.body(30_000)
	id := w.publish(t, w.nodes[0], TopicMask, 3, 1, body)
	w.run(2 * time.Minute)
	for i, n := range w.nodes {
		if !n.has(id, body) {
			t.Errorf("node %d has not got it", i)
		}
	}
}

// Neither a node's work nor the traffic over its links grows with the torus.
func TestDataCostIsLinear(t *testing.T) {
	for _, side := range []int{3, 6, 10} {
		w := newDataWorld(grid.Dims{X: side, Y: side, Z: side}, 6)
		w.begin().run(500 * time.Millisecond)
		before := w.steps
		for _, n := range w.nodes {
			n.frames = [kindPiece + 1]int{}
		}
		body := w.body(MaxData)
		id := w.publish(t, w.nodes[0], TopicMask, 3, 1, body)
		w.run(3 * time.Second)
		var total [kindPiece + 1]int
		for i, n := range w.nodes {
			if !n.has(id, body) {
				t.Fatalf("%s has not got it", w.dims.At(i))
			}
			for k, c := range n.frames {
				total[k] += c
			}
		}
		nodes := float64(len(w.nodes))
		pieces, wants, states := float64(total[kindPiece])/nodes, float64(total[kindWant])/nodes, float64(total[kindState])/nodes
		ticks := (w.steps - before) / len(w.nodes) // of all machines
		t.Logf("%s: %.1f pieces, %.1f wants, %.1f states a node", w.dims, pieces, wants, states)
		if pieces > 66 || wants > 24 || states > 20 || ticks > 800 {
			t.Errorf("%s: %.1f pieces, %.1f wants, %.1f states, %d steps a node: want 64, 16, 6 to 12 or a little more", w.dims, pieces,
				wants, states, ticks)
		}
	}
}

// A neighbour of an earlier version never answers, so announcements to it back off.
func TestDataBesideEarlierVersion(t *testing.T) {
	m := NewData(MaskOf(grid.XPlus), 10*time.Millisecond, 0)
	now := start
	sent := len(m.Step(now, Ways{Open: MaskOf(grid.XPlus), Good: MaskOf(grid.XPlus)}).Send)
	if out := m.Step(now, Publish{Topic: TopicMask, Number: 1, Body: []byte("x")}); out.Err != nil || len(out.Send) != 0 {
		t.Errorf("%v, %d frames", out.Err, len(out.Send))
	}
	for range 6000 { // a minute
		now = now.Add(10 * time.Millisecond)
		sent += len(m.Step(now, Tick{}).Send)
	}
	if sent < hellos || sent > hellos+2 {
		t.Errorf("%d frames in a minute, want %d", sent, hellos+1)
	}
}

func TestPublishRefuses(t *testing.T) {
	m := NewData(MaskOf(grid.XPlus), time.Second, 0)
	for _, tc := range []struct {
		p    Publish
		want string
	}{
		{Publish{Number: 1, Body: []byte("x")}, "topic 0, want 1 to 8"},
		{Publish{Topic: DataTopics + 1, Number: 1, Body: []byte("x")}, "want 1 to 8"},
		{Publish{Topic: TopicMask, Priority: 8, Number: 1, Body: []byte("x")}, "priority 8, want 0 to 7"},
		{Publish{Topic: TopicMask, Body: []byte("x")}, "number 0, want 1 or more"},
		{Publish{Topic: TopicMask, Number: 1}, "0 bytes, want 1 to 65536"},
		{Publish{Topic: TopicMask, Number: 1, Body: make([]byte, MaxData+1)}, "65537 bytes"},
	} {
		if err := m.Step(start, tc.p).Err; !errors.Is(err, ErrInvalid) || !bytes.Contains([]byte(err.Error()), []byte(tc.want)) {
			t.Errorf("%v, want %q", err, tc.want)
		}
	}
	small := NewData(MaskOf(grid.XPlus), time.Second, MaxDataPayload-1)
	if err := small.Step(start, Publish{Topic: TopicMask, Number: 1, Body: []byte("x")}).Err; !errors.Is(err, ErrInvalid) {
		t.Errorf("frames too short: %v", err)
	}
	if _, ok := m.Newest(TopicMask); ok {
		t.Error("something is published")
	}
}

// An announced datum that no node has is given up, so that it keeps nothing out: a datum with a lower number is
// accepted then.
func TestDataGivenUp(t *testing.T) {
	w := newDataWorld(grid.Dims{X: 4, Y: 1, Z: 1}, 7)
	w.begin().run(time.Second)
	made := dataFrame{kind: kindState, id: DataID{Topic: TopicMask, Number: 1 << 60}, flag: true, length: 5000}
	w.stepData(w.nodes[0], &Received{Dir: grid.XPlus, Payload: made.append(nil)})
	body := w.body(3000)
	id := w.publish(t, w.nodes[2], TopicMask, 3, 1, body)
	w.run(2 * givenUp)
	for i, n := range w.nodes {
		if !n.has(id, body) {
			t.Errorf("node %d has not got it", i)
		}
	}
}

// Data is bounded: set-ups without end begin few, and hold no more than two for each topic.
func TestSetUpsWithoutEndStayBounded(t *testing.T) {
	x := MaskOf(grid.XPlus)
	m := NewData(x, 10*time.Millisecond, 0)
	m.Step(start, Ways{Open: x, Good: x})
	began := 0
	for n := range uint64(1000) {
		f := dataFrame{kind: kindState, id: DataID{Topic: TopicMask, Number: n + 1}, flag: true, length: MaxData}
		was := m.slots[TopicMask].next
		m.Step(start.Add(time.Duration(n)*time.Millisecond), &Received{Dir: grid.XPlus, Payload: f.append(nil)})
		if m.slots[TopicMask].next != was {
			began++
		}
	}
	if began > beginBurst+1 {
		t.Errorf("%d data begun in a second by one link", began)
	}
}

func FuzzData(f *testing.F) {
	id := DataID{Topic: TopicMask, Number: 3, Sum: sumOf([]byte("x"))}
	for _, d := range []dataFrame{
		{kind: kindState, flag: true}, {kind: kindState, id: id, prio: 2, length: 1, pieces: 1},
		{kind: kindWant, id: id, flag: true, pieces: 1}, {kind: kindPiece, id: id, data: []byte("x")},
	} {
		f.Add(d.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if !IsData(b) {
			return
		}
		d, err := decodeData(b)
		if err == nil && d.id.Topic >= 1 && d.id.Topic <= DataTopics {
			again, err := decodeData(d.append(nil))
			if err != nil || again.kind != d.kind || again.id != d.id || again.pieces != d.pieces || again.length != d.length ||
				!slices.Equal(again.data, d.data) {
				t.Errorf("%+v comes back as %+v, %v", d, again, err)
			}
		}
		x := MaskOf(grid.XPlus)
		m := NewData(x, time.Second, 0)
		m.Step(start, Ways{Open: x, Good: x})
		m.Step(start, Publish{Topic: TopicMask, Number: 3, Body: []byte("x")})
		for k := range 5 {
			out := m.Step(start.Add(time.Duration(k)*time.Second), &Received{Dir: grid.XPlus, Payload: b})
			if out.Bad != (err != nil) && (err != nil || d.kind != kindPiece) {
				t.Errorf("%+v: bad %t, decoded with %v", d, out.Bad, err)
			}
			for _, s := range out.Send {
				if len(s.Payload) > MaxDataPayload || !IsData(s.Payload) {
					t.Errorf("sends %x", s.Payload)
				}
			}
		}
	})
}

package express

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func drawDims(t *rapid.T) grid.Dims {
	d := grid.Dims{X: rapid.IntRange(2, 6).Draw(t, "x"), Y: 1, Z: 1}
	switch rapid.IntRange(1, 3).Draw(t, "dimensions") {
	case 1:
		d.X = rapid.IntRange(1, 20).Draw(t, "length")
	case 2:
		d.Y = rapid.IntRange(2, 6).Draw(t, "y")
	default:
		d.X, d.Y, d.Z = rapid.IntRange(2, 4).Draw(t, "x3"), rapid.IntRange(2, 4).Draw(t, "y3"), rapid.IntRange(2, 3).Draw(t, "z3")
	}
	return d
}

// TestBroadcastReachesExactlyConnectedNodes checks the promise of seed 003 §4.2: a broadcast is delivered at all nodes that are
// connected with its origin, once, and nowhere else. Links lose, duplicate and reorder, some carry one way only, and
// nodes are killed and resume. A breadth-first search decides which nodes are connected.
func TestBroadcastReachesExactlyConnectedNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(drawDims(t), rapid.Uint64().Draw(t, "seed"))
		w.cutAtRandom(rapid.Float64Range(0, 0.6).Draw(t, "dead"), rapid.Float64Range(0, 0.2).Draw(t, "one way"))
		w.loss, w.double = rapid.Float64Range(0, 0.3).Draw(t, "loss"), rapid.Float64Range(0, 0.2).Draw(t, "double")
		w.jitter = time.Duration(rapid.IntRange(0, 20).Draw(t, "jitter")) * time.Millisecond
		w.blind = rapid.Bool().Draw(t, "blind")
		w.begin()
		for range rapid.IntRange(0, 10).Draw(t, "kills") {
			n, away := w.nodes[w.rnd.IntN(len(w.nodes))], time.Duration(w.rnd.IntN(50))*time.Millisecond
			w.after(time.Duration(w.rnd.IntN(300))*time.Millisecond, func() { w.kill(n, away) })
		}
		from := map[ID]int{}
		for i := range rapid.IntRange(1, 6).Draw(t, "broadcasts") {
			n, p := w.nodes[w.rnd.IntN(len(w.nodes))], Priority(w.rnd.IntN(8))
			w.after(time.Duration(w.rnd.IntN(200))*time.Millisecond, func() {
				if n.m == nil {
					return
				}
				id, err := w.raise(n, p, fmt.Sprint(i))
				if err != nil {
					t.Fatal(err)
				}
				if _, twice := from[id]; twice {
					t.Fatalf("number used twice: %s", id)
				}
				from[id] = n.rank
			})
		}
		w.run(2*Life + time.Second)
		for id, n := range from {
			if err := w.wrong(id, n); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range w.nodes {
			if s := n.m.Stats(); s.Held != 0 || s.Bad != 0 {
				t.Fatalf("%s: %+v", w.dims.At(n.rank), s)
			}
		}
	})
}

// On links without loss a broadcast takes a shortest way, in the time of that way, and no node repeats anything.
func TestBroadcastTakesShortestWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(drawDims(t), rapid.Uint64().Draw(t, "seed"))
		w.cutAtRandom(rapid.Float64Range(0, 0.6).Draw(t, "dead"), 0)
		w.noPing = true
		w.begin()
		w.run(35 * time.Millisecond)
		began := w.now
		n := w.nodes[w.rnd.IntN(len(w.nodes))]
		id, err := w.raise(n, 3, "x")
		if err != nil {
			t.Fatal(err)
		}
		w.run(Life)
		for i, d := range w.distances(n.rank) {
			o := w.nodes[i]
			if d >= 0 && (int(o.hops[id]) != d || o.at[id].Sub(began) != time.Duration(d)*w.hop) {
				t.Fatalf("%s: %d hops in %s, want %d", w.dims.At(i), o.hops[id], o.at[id].Sub(began), d)
			}
			for _, l := range w.dims.Links() { // packets to a dead node are repeated, for it might receive them
				if w.dead[way{i, l}] {
					return
				}
			}
			if s := o.m.Stats(); s.Repeated[TopicManage.index()] != 0 || s.Duplicates > 6 {
				t.Fatalf("%s: %+v", w.dims.At(i), s)
			}
		}
	})
}

// pair is two nodes with one link, the second of which says nothing.
func pair() *world {
	w := newWorld(grid.Dims{X: 3, Y: 1, Z: 1}, 1)
	w.cut(0, grid.XMinus)
	w.cut(2, grid.XPlus)
	w.noPing = true
	return w.begin()
}

func TestRaiseRefused(t *testing.T) {
	for _, tc := range []struct {
		name string
		ev   Raise
		want error
	}{
		{"no topic", Raise{Priority: 1}, ErrInvalid},
		{"priority", Raise{Topic: TopicJob, Priority: 8}, ErrInvalid},
		{"too long", Raise{Topic: TopicJob, Body: make([]byte, MaxBody+1)}, ErrInvalid},
		{"longest", Raise{Topic: TopicJob, Body: make([]byte, MaxBody)}, nil},
		{"topic of a later version", Raise{Topic: 200, Priority: MaxPriority}, nil},
	} {
		w := pair()
		if out := w.step(w.nodes[0], tc.ev); !errors.Is(out.Err, tc.want) {
			t.Errorf("%s: %v", tc.name, out.Err)
		}
		w.run(Life)
		want := 0
		if tc.want == nil {
			want = 1
		}
		if got := len(w.nodes[1].order); got != want {
			t.Errorf("%s: %d arrived", tc.name, got)
		}
	}
}

// An origin that exceeds its budget gets an error, and its broadcasts within the budget arrive.
func TestOriginOverItsBudgetGetsError(t *testing.T) {
	w := pair()
	ok := 0
	for range 200 {
		_, err := w.raise(w.nodes[0], 7, "x")
		switch {
		case err == nil:
			ok++
		case !errors.Is(err, ErrRate):
			t.Fatal(err)
		}
	}
	w.run(time.Second)
	if ok != ownBurst || len(w.nodes[2].order) != ownBurst {
		t.Errorf("%d raised, %d arrived, want %d", ok, len(w.nodes[2].order), ownBurst)
	}
	if _, err := w.raise(w.nodes[0], 7, "x"); err != nil {
		t.Errorf("a second later: %v", err)
	}
}

// A broadcast of a higher priority does not wait for those that are on their way: at each hop it goes before all that
// has not been sent (§4.3.4). And none is lost by that.
func TestHigherPriorityBroadcastGoesFirst(t *testing.T) {
	w := pair()
	w.jitter = 0
	for i := range 30 {
		if _, err := w.raise(w.nodes[0], 1, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	high, err := w.raise(w.nodes[0], 6, "fire")
	if err != nil {
		t.Fatal(err)
	}
	w.run(time.Second)
	for _, n := range w.nodes[1:] {
		if at := slices.Index(n.order, high); len(n.order) != 31 || at > Window {
			t.Errorf("node %d: %d arrived, the urgent one at place %d", n.rank, len(n.order), at)
		}
	}
	if got := w.nodes[0].m.Stats().Preempted[TopicManage.index()]; got == 0 {
		t.Error("nothing was pre-empted")
	}
}

// Without room for a priority the broadcast is refused, and its origin tries again until there is room. Higher
// priorities always find room meanwhile.
func TestBroadcastWithoutRoomIsTriedAgain(t *testing.T) {
	w := pair()
	w.cut(1, grid.XPlus) // node 1 gets rid of nothing
	w.blind = true
	w.step(w.nodes[1], w.ways(w.nodes[1]))
	full := func(p Priority) {
		for range Room(p) {
			w.nodes[0].m.budget, w.nodes[1].m.budget = budgets{}, budgets{} // rates are another matter
			_, _ = w.raise(w.nodes[0], p, "x")
			w.run(2 * time.Millisecond)
		}
	}
	full(0)
	low, err := w.raise(w.nodes[0], 0, "late")
	if err != nil {
		t.Fatal(err)
	}
	w.run(100 * time.Millisecond)
	if got := len(w.nodes[1].order); got != Room(0) || w.nodes[1].delivered[low] != 0 {
		t.Fatalf("%d of priority 0 were taken, want %d", got, Room(0))
	}
	high, err := w.raise(w.nodes[0], MaxPriority, "fire")
	if err != nil {
		t.Fatal(err)
	}
	w.run(10 * time.Millisecond)
	if w.nodes[1].delivered[high] != 1 {
		t.Error("no room for the highest priority")
	}
	delete(w.dead, way{1, grid.XPlus})
	w.run(Life)
	if w.nodes[2].delivered[low] != 1 || w.nodes[2].delivered[high] != 1 {
		t.Errorf("late %d, fire %d", w.nodes[2].delivered[low], w.nodes[2].delivered[high])
	}
}

// A broadcast that waits only for broken links gives up its place: a dead neighbour does not make a node deaf.
func TestBrokenLinksTakeNoRoom(t *testing.T) {
	w := pair()
	w.cut(1, grid.XPlus)
	w.cut(2, grid.XMinus)
	w.step(w.nodes[1], w.ways(w.nodes[1]))
	for range 100 {
		w.nodes[0].m.budget, w.nodes[1].m.budget = budgets{}, budgets{}
		if _, err := w.raise(w.nodes[0], 0, "x"); err != nil {
			t.Fatal(err)
		}
		w.run(2 * time.Millisecond)
	}
	s := w.nodes[1].m.Stats()
	if len(w.nodes[1].order) != 100 || s.Evicted[TopicManage.index()] != 100-uint64(Room(0)) || s.Refused[TopicManage.index()] != 0 {
		t.Errorf("%d arrived: %+v", len(w.nodes[1].order), s)
	}
}

// From a neighbour that floods, a node accepts no more than the link's budget, and does not acknowledge the rest.
// Other links and other origins still get through.
func TestFloodFromOneLinkSparesOthers(t *testing.T) {
	w := newWorld(grid.Dims{X: 3, Y: 3, Z: 1}, 1)
	w.noPing = true
	w.begin()
	n := w.nodes[4]
	acked := 0
	flood := func(by grid.Direction, origin grid.Coord, count int) {
		for i := range count {
			msg := Message{ID: ID{Origin: origin, Epoch: 9, Number: uint64(i) + 1}, Topic: TopicJob}
			out := w.step(n, &Received{Dir: by, Payload: appendMessage(nil, &msg, 1, 0)})
			for _, s := range out.Send {
				if s.Dir == by && kind(s.Payload[0]) == kindAck {
					acked++
				}
			}
			for _, h := range n.m.held {
				n.m.reached(h, h.wait) // its neighbours are quick
				break
			}
		}
	}
	flood(grid.XPlus, grid.Coord{X: 7}, 1000)
	if got := len(n.order); got != OriginBurst || acked != OriginBurst {
		t.Errorf("%d delivered, %d acknowledged of one origin, want %d", got, acked, OriginBurst)
	}
	for y := range 100 {
		flood(grid.XPlus, grid.Coord{X: 8, Y: y}, 10)
	}
	if got := len(n.order); got != LinkBurst || acked != LinkBurst {
		t.Errorf("%d delivered, %d acknowledged by one link, want %d", got, acked, LinkBurst)
	}
	flood(grid.YPlus, grid.Coord{X: 9}, 1)
	if got := len(n.order); got != LinkBurst+1 {
		t.Error("a good neighbour is not heard")
	}
}

// A killed half uses no number twice, and resumes with the broadcasts that it had acknowledged and not passed on.
func TestKilledHalfReusesNoNumber(t *testing.T) {
	w := pair()
	w.cut(1, grid.XPlus)
	w.blind = true
	first, err := w.raise(w.nodes[0], 2, "x")
	if err != nil {
		t.Fatal(err)
	}
	w.run(5 * time.Millisecond)
	w.kill(w.nodes[0], 5*time.Millisecond)
	w.kill(w.nodes[1], 5*time.Millisecond)
	if h := w.nodes[0].held; w.nodes[1].delivered[first] != 1 {
		t.Fatalf("not taken; held %v", h)
	}
	delete(w.dead, way{1, grid.XPlus})
	w.run(time.Second)
	second, err := w.raise(w.nodes[0], 2, "y")
	if err != nil || second.Number != first.Number+1 {
		t.Errorf("%s after %s, %v", second, first, err)
	}
	w.run(time.Second)
	for _, n := range w.nodes[1:] {
		if n.delivered[first] < 1 || n.delivered[first] > 1+n.excused[first] || n.delivered[second] != 1 {
			t.Errorf("node %d: %v", n.rank, n.delivered)
		}
	}
}

// A link that comes up late gets the broadcasts that are still alive, and none that are too old.
func TestLateLinkGetsLiveBroadcastsOnly(t *testing.T) {
	for _, tc := range []struct {
		late time.Duration
		want int
	}{{Life - 200*time.Millisecond, 1}, {Life + 200*time.Millisecond, 0}} {
		w := pair()
		w.cut(1, grid.XPlus)
		w.cut(2, grid.XMinus)
		closed := Ways{Open: MaskOf(grid.XMinus), Good: MaskOf(grid.XMinus)}
		w.step(w.nodes[1], closed)
		id, err := w.raise(w.nodes[0], 2, "x")
		if err != nil {
			t.Fatal(err)
		}
		w.run(tc.late)
		clear(w.dead)
		w.step(w.nodes[1], w.ways(w.nodes[1]))
		w.run(time.Second)
		if got := w.nodes[2].delivered[id]; got != tc.want {
			t.Errorf("link up after %s: delivered %d times", tc.late, got)
		}
	}
}

// A payload that no correct node sends is counted, and neither delivered nor passed on: also a broadcast in this
// node's name that it has not raised.
func TestImpossiblePayloadIsCountedAndDropped(t *testing.T) {
	w := pair()
	own := Message{ID: ID{Origin: grid.Coord{X: 1}, Epoch: 1, Number: 5}, Topic: TopicJob}
	ok := Message{ID: ID{Origin: grid.Coord{X: 2}, Epoch: 1, Number: 5}, Topic: TopicJob, Priority: 7}
	b := appendMessage(nil, &ok, 1, 0)
	change := func(at int, v byte) []byte {
		c := slices.Clone(b)
		c[at] = v
		return c
	}
	noNumber := ok
	noNumber.Number = 0
	for i, p := range [][]byte{
		nil, appendMessage(nil, &own, 1, 0), b[:headerSize-1], change(1, 0), change(2, 8), append(slices.Clone(b), make([]byte, MaxBody+1)...),
		appendMessage(nil, &noNumber, 1, 0), {byte(kindAck)}, {byte(kindAck), 0}, {byte(kindAck), 1, 2}, {byte(kindPing)}, {byte(kindEcho), 1},
	} {
		out := w.step(w.nodes[1], &Received{Dir: grid.XMinus, Payload: p})
		if !out.Bad || len(out.Deliver)+len(out.Send)+len(out.Keep) > 0 {
			t.Errorf("%d: %x: %+v", i, p, out)
		}
	}
	if out := w.step(w.nodes[1], &Received{Dir: grid.YPlus, Payload: b}); !out.Bad {
		t.Error("a link that there is not")
	}
	if out := w.step(w.nodes[1], &Received{Dir: grid.XMinus, Payload: []byte{99, 1}}); out.Bad || len(out.Send) > 0 {
		t.Error("a kind of a later version")
	}
	if got := w.nodes[1].m.Stats().Bad; got != 13 {
		t.Errorf("%d counted", got)
	}
}

// Pings detect a link that carries heartbeats and no broadcasts, and its recovery. A link that loses much is not
// easily called deaf, and one whose heartbeats end is no business of the pings (§7.2).
func TestPingFindsDeafLink(t *testing.T) {
	w := newWorld(grid.Dims{X: 3, Y: 3, Z: 1}, 1)
	w.blind, w.loss = true, 0.1
	w.begin()
	w.run(time.Minute)
	for _, n := range w.nodes {
		if n.deaf != 0 {
			t.Fatalf("node %d: %06b", n.rank, n.deaf)
		}
	}
	n := w.nodes[0]
	w.cut(w.neighbour(0, grid.YPlus), grid.YMinus)
	w.run(PingEvery + (2*DeafAfter+1)*w.period)
	if n.deaf != MaskOf(grid.YPlus) {
		t.Errorf("deaf: %06b", n.deaf)
	}
	// The other end's pings are lost on the same way.
	if o := w.nodes[w.neighbour(0, grid.YPlus)]; o.deaf != MaskOf(grid.YMinus) {
		t.Errorf("far end: %06b", o.deaf)
	}
	w.step(n, Ways{Open: w.links(), Good: w.links() &^ MaskOf(grid.YPlus)})
	if n.deaf != 0 {
		t.Errorf("of a silent link: %06b", n.deaf)
	}
	w.step(n, w.ways(n))
	w.run(PingEvery + (2*DeafAfter+1)*w.period)
	if n.deaf != MaskOf(grid.YPlus) {
		t.Errorf("deaf again: %06b", n.deaf)
	}
	clear(w.dead)
	w.loss = 0
	w.run(2 * PingEvery)
	if n.deaf != 0 {
		t.Errorf("mended: %06b", n.deaf)
	}
}

// TestRarerPingsStillFindDeafLink: healthy links carry a quarter of the pings, and a deaf link is found within the longer
// interval. Its recovery is found as soon as with frequent pings.
func TestRarerPingsStillFindDeafLink(t *testing.T) {
	pings := func(rarer int) (sum uint64) {
		w := newWorld(grid.Dims{X: 3, Y: 3, Z: 1}, 1)
		w.begin()
		for _, n := range w.nodes {
			n.m.RarerPings(rarer)
		}
		w.run(time.Minute)
		for _, n := range w.nodes {
			sum += n.m.Stats().Pings
		}
		w.cut(w.neighbour(0, grid.YPlus), grid.YMinus)
		w.run(time.Duration(rarer)*PingEvery + (2*DeafAfter+1)*w.period)
		if deaf := w.nodes[0].deaf; deaf != MaskOf(grid.YPlus) {
			t.Errorf("pings %d times rarer: deaf %06b", rarer, deaf)
		}
		w.run(time.Duration(rarer) * PingEvery) // the other end is deaf too
		clear(w.dead)
		w.run(PingEvery + 2*w.period)
		if deaf := w.nodes[0].deaf; deaf != 0 {
			t.Errorf("pings %d times rarer, mended: deaf %06b", rarer, deaf)
		}
		return sum
	}
	if often, rarely := pings(1), pings(4); rarely < often/5 || rarely > often/3 {
		t.Errorf("%d pings, and %d when they are four times rarer: want a quarter", often, rarely)
	}
}

// TestLinkThatHasNotAnsweredYetIsNotDeafAtOnce opens a link whose other end still starts and answers no ping.
func TestLinkThatHasNotAnsweredYetIsNotDeafAtOnce(t *testing.T) {
	const period = 10 * time.Millisecond
	begun := time.Unix(1, 0)
	m := New(Config{Self: grid.Coord{X: 1}, Epoch: 1, Links: MaskOf(grid.XMinus), Period: period}, begun)
	m.Step(begun, Ways{Open: MaskOf(grid.XMinus), Good: MaskOf(grid.XMinus)})
	for now := begun; now.Before(begun.Add(2 * DeafGrace)); now = now.Add(period) {
		out := m.Step(now, Tick{})
		if now.Before(begun.Add(DeafGrace)) && out.Deaf != 0 {
			t.Fatalf("deaf %s after it opened: want not before %s", now.Sub(begun), DeafGrace)
		}
		if now.After(begun.Add(DeafGrace+2*PingEvery)) && out.Deaf != MaskOf(grid.XMinus) {
			t.Fatalf("not deaf %s after it opened", now.Sub(begun))
		}
	}
}

// Echoes that are longer under way than pings are apart are echoes: a long link, or an end that is short of processor
// time, is not called deaf.
func TestLateEchoCounts(t *testing.T) {
	const period, way = 10 * time.Millisecond, 55 * time.Millisecond
	now := time.Unix(1, 0)
	m := New(Config{Self: grid.Coord{X: 1}, Epoch: 1, Links: MaskOf(grid.XMinus), Period: period}, now)
	m.Step(now, Ways{Open: MaskOf(grid.XMinus), Good: MaskOf(grid.XMinus)})
	type echo struct {
		at      time.Time
		payload []byte
	}
	var under []echo
	for range 1000 {
		now = now.Add(period)
		for len(under) > 0 && !now.Before(under[0].at) {
			m.Step(now, &Received{Dir: grid.XMinus, Payload: under[0].payload})
			under = under[1:]
		}
		out := m.Step(now, Tick{})
		if out.Deaf != 0 {
			t.Fatalf("deaf after %d pings", m.Stats().Pings)
		}
		for _, s := range out.Send {
			p, err := decode(s.Payload)
			if err != nil || p.kind != kindPing {
				t.Fatalf("%x: %v", s.Payload, err)
			}
			under = append(under, echo{now.Add(way), appendPing(nil, kindEcho, p.ping)})
		}
	}
	if n := m.Stats().Pings; n < 20 || n > 40 { // ten rounds of three: each is repeated until the echo comes
		t.Errorf("%d pings in 10 s", n)
	}
}

// Rare heartbeats mean rare pings: they add a twentieth to the frames of an idle link.
func TestPingsAreAsRareAsHeartbeats(t *testing.T) {
	for period, want := range map[time.Duration]uint64{10 * time.Millisecond: 60, 250 * time.Millisecond: 6} {
		w := newWorld(grid.Dims{X: 3, Y: 1, Z: 1}, 1)
		w.period = period
		w.begin()
		w.run(time.Minute)
		if got := w.nodes[0].m.Stats().Pings / 2; got < want-1 || got > want+1 {
			t.Errorf("%d pings a link in a minute at a period of %s, want about %d", got, period, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	msg := Message{ID: ID{Origin: grid.Coord{X: 1, Y: 2, Z: 3}, Epoch: 4, Number: 5}, Topic: TopicJob, Priority: 7, Body: []byte("body")}
	f.Add(appendMessage(nil, &msg, 3, time.Second))
	f.Add(appendAcks(nil, msg.ID, msg.ID))
	f.Add(appendPing(nil, kindPing, 7))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decode(b)
		if err != nil {
			if !errors.Is(err, ErrPayload) {
				t.Fatal(err)
			}
			return
		}
		var again []byte
		switch p.kind {
		case kindMessage:
			again = appendMessage(nil, &p.msg, p.msg.Hops, p.age)
			b[3] = 0 // the byte without a meaning
		case kindAck:
			var ids []ID
			for a := p.acks; len(a) > 0; a = a[idSize:] {
				ids = append(ids, idAt(a))
			}
			again = appendAcks(nil, ids...)
		case kindPing, kindEcho:
			again = appendPing(nil, p.kind, p.ping)
		default:
			return
		}
		if !slices.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}

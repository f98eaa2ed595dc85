package chaos

import (
	"fmt"
	"slices"
	"testing"
)

// reference is a second Chaos router, written as plainly as possible: buffers are lists of flits, a transfer moves
// one flit in a cycle, and every decision looks at the content of the buffers. It knows no booked times and visits
// every router in every cycle. It draws the same numbers in the same order, so each header must move as in the
// engine.
type reference struct {
	t     *testing.T
	n     *Network // for its shape and masks alone
	dice  *dice
	now   int
	nodes []*refRouter
	wires map[[2]int]*refWire // by node and positive channel (half-duplex), or by sender and channel
	flow  []*refTransfer
	out   []string
}

type refPacket struct {
	id, dst, from int
	list          []int
}

type refFlit struct {
	pkt   *refPacket
	index int
	since int // first cycle in which it can leave
}

type refBuffer struct {
	name  string
	flits []refFlit
	holds *refPacket   // whose header is here, or promised, and not promised elsewhere
	next  *refTransfer // that brings or will bring flits
}

type refTransfer struct {
	from, to *refBuffer // nil: a processor
	pkt      *refPacket
	start    int
	moved    int
}

type refWire struct {
	carries *refTransfer
	last    int // side that sent last
}

type refRouter struct {
	in, out, slots []*refBuffer
	order          []*refBuffer
	first          int
	source         []*refPacket
}

func newReference(t *testing.T, n *Network) *reference {
	ref := &reference{t: t, n: n, dice: &dice{n.cfg.Seed}, wires: map[[2]int]*refWire{}}
	for r := range n.nodes {
		router := &refRouter{}
		for f := range n.frames {
			router.in = append(router.in, &refBuffer{name: fmt.Sprintf("%d.i%d", r, f)})
			router.out = append(router.out, &refBuffer{name: fmt.Sprintf("%d.o%d", r, f)})
		}
		for q := range n.slots {
			router.slots = append(router.slots, &refBuffer{name: fmt.Sprintf("%d.q%d", r, q)})
		}
		ref.nodes = append(ref.nodes, router)
	}
	return ref
}

// takes reports whether a header can enter b in this cycle: b is promised to no other, and empty when the cycle is
// over.
func (ref *reference) takes(b *refBuffer) bool {
	if b.holds != nil || b.next != nil {
		return false
	}
	if len(b.flits) == 0 {
		return true
	}
	leaving := slices.ContainsFunc(ref.flow, func(f *refTransfer) bool { return f.from == b && f.start <= ref.now })
	return len(b.flits) == 1 && leaving
}

// ready reports whether the header that b holds can leave it in this cycle.
func (ref *reference) ready(b *refBuffer, decode int) bool {
	return b.holds != nil && len(b.flits) > 0 && b.flits[0].pkt == b.holds && b.flits[0].index == 0 && b.flits[0].since+decode <= ref.now
}

func (ref *reference) transfer(from, to *refBuffer, p *refPacket, start int) *refTransfer {
	f := &refTransfer{from: from, to: to, pkt: p, start: start}
	ref.flow = append(ref.flow, f)
	if from != nil {
		from.holds = nil
	}
	if to != nil {
		to.holds, to.next = p, f
	}
	name := func(b *refBuffer) string {
		if b == nil {
			return "-"
		}
		return b.name
	}
	ref.out = append(ref.out, fmt.Sprintf("%d: packet %d %s to %s", start, p.id, name(from), name(to)))
	return f
}

// lee is the distance of two nodes without faults.
func (ref *reference) lee(a, b int) int {
	sum := 0
	for d, k := range ref.n.cfg.Dims {
		diff := ref.n.Coord(a)[d] - ref.n.Coord(b)[d]
		diff = max(diff, -diff)
		if !ref.n.cfg.Mesh {
			diff = min(diff, k-diff)
		}
		sum += diff
	}
	return sum
}

// makeList is §5.2.3.1 word by word.
func (ref *reference) makeList(r int, p *refPacket) {
	n := ref.n
	p.list = nil
	if r == p.dst {
		p.list = []int{n.local}
		return
	}
	var functional, profitable []int
	for c := range n.chans {
		b, ok := n.Neighbour(r, c)
		if !ok || n.cfg.Mask && n.live[r]>>c&1 == 0 {
			continue
		}
		functional = append(functional, c)
		// On a ring of two both channels lead to the same node.
		if ref.lee(b, p.dst) < ref.lee(r, p.dst) {
			profitable = append(profitable, c)
		}
	}
	noRouteback := func(list []int) []int {
		if !n.cfg.NoRouteback || len(functional) == 1 && functional[0] == p.from {
			return list
		}
		return slices.DeleteFunc(slices.Clone(list), func(c int) bool { return c == p.from })
	}
	p.list = noRouteback(profitable)
	if len(p.list) == 0 && n.cfg.FastDeroute {
		p.list = noRouteback(functional)
	}
}

func (ref *reference) pick(of []int) int {
	if len(of) == 1 {
		return of[0]
	}
	return of[ref.dice.below(len(of))]
}

func (ref *reference) route(r int) {
	n, w := ref.n, ref.nodes[r]
	if b := w.out[n.local]; ref.ready(b, 0) {
		ref.transfer(b, nil, b.holds, ref.now)
	}
	if b := w.in[n.local]; len(w.source) > 0 && ref.takes(b) {
		p := w.source[0]
		w.source = w.source[1:]
		p.from = -1
		ref.makeList(r, p)
		ref.transfer(nil, b, p, ref.now)
	}
	// A packet that another rule serves in this cycle is served once.
	could := func(p *refPacket, own int, shutToo bool) []int {
		var out []int
		for _, f := range p.list {
			shut := f != n.local && f != own && w.in[f].holds != nil
			if !ref.takes(w.out[f]) || shut != shutToo || shut && !ref.ready(w.in[f], n.cfg.Decode) {
				continue
			}
			out = append(out, f)
		}
		slices.Sort(out)
		return out
	}
	left := false
	takeFromQueue := func(b *refBuffer, f int) {
		p := b.holds
		w.order = slices.DeleteFunc(w.order, func(o *refBuffer) bool { return o == b })
		ref.transfer(b, w.out[f], p, ref.now)
		left = true
	}
	freeSlot := func() *refBuffer {
		for _, b := range w.slots {
			if ref.takes(b) {
				return b
			}
		}
		return nil
	}
	toSlot := func(from, slot *refBuffer, start int) {
		w.order = append(w.order, slot)
		ref.transfer(from, slot, from.holds, start)
	}
	for _, b := range slices.Clone(w.order) {
		if ref.ready(b, 0) {
			if of := could(b.holds, -1, false); len(of) > 0 {
				takeFromQueue(b, ref.pick(of))
			}
		}
	}
	served := -1
	for k := range n.frames {
		f := (w.first + k) % n.frames
		if b := w.in[f]; ref.ready(b, n.cfg.Decode) {
			if of := could(b.holds, f, false); len(of) > 0 {
				ref.transfer(b, w.out[ref.pick(of)], b.holds, ref.now)
				if served < 0 {
					served = f
				}
			}
		}
	}
	if served >= 0 {
		w.first = (served + 1) % n.frames
	}
	for _, b := range slices.Clone(w.order) {
		if !ref.ready(b, 0) {
			continue
		}
		if of := could(b.holds, -1, true); len(of) > 0 {
			slot := freeSlot()
			if slot == nil {
				break
			}
			f := ref.pick(of)
			toSlot(w.in[f], slot, ref.now)
			takeFromQueue(b, f)
		}
	}
	for f, b := range w.in {
		if !ref.ready(b, n.cfg.Decode) {
			continue
		}
		if of := could(b.holds, f, true); len(of) > 0 {
			slot := freeSlot()
			if slot == nil {
				break
			}
			to := ref.pick(of)
			toSlot(w.in[to], slot, ref.now)
			ref.transfer(b, w.out[to], b.holds, ref.now)
		}
	}
	for f, b := range w.in {
		if !ref.ready(b, n.cfg.Decode) || ref.now < b.flits[0].since+n.cfg.Decode+n.cfg.InputWait {
			continue
		}
		if f == n.local && !n.cfg.InjectToQueue && len(b.holds.list) > 0 {
			continue
		}
		slot := freeSlot()
		if slot == nil {
			break
		}
		toSlot(b, slot, ref.now)
	}
	if len(w.order) == n.slots && !left {
		ref.deroute(r, takeFromQueue, toSlot)
	}
}

func (ref *reference) deroute(r int, takeFromQueue func(*refBuffer, int), toSlot func(_, _ *refBuffer, start int)) {
	n, w := ref.n, ref.nodes[r]
	if n.cfg.DerouteOnDemand && !slices.ContainsFunc(w.in[:n.local], func(b *refBuffer) bool { return ref.ready(b, n.cfg.Decode) }) {
		return
	}
	var could []int
	functional := 0
	for c := range n.chans {
		if _, ok := n.Neighbour(r, c); !ok || n.cfg.Mask && n.live[r]>>c&1 == 0 {
			continue
		}
		functional++
		if ref.takes(w.out[c]) && (w.in[c].holds == nil || ref.ready(w.in[c], n.cfg.Decode)) {
			could = append(could, c)
		}
	}
	may := func(b *refBuffer, c int) bool {
		return ref.ready(b, 0) && (!n.cfg.NoRouteback || b.holds.from != c || functional == 1 || slices.Contains(b.holds.list, c))
	}
	could = slices.DeleteFunc(could, func(c int) bool {
		return !slices.ContainsFunc(w.order, func(b *refBuffer) bool { return may(b, c) })
	})
	if len(could) == 0 {
		return
	}
	c := ref.pick(could)
	var wants, others []*refBuffer
	for _, b := range w.order {
		switch {
		case may(b, c) && slices.Contains(b.holds.list, c):
			wants = append(wants, b)
		case may(b, c):
			others = append(others, b)
		}
	}
	var b *refBuffer
	if len(wants) > 0 {
		b = wants[0]
	} else {
		b = others[ref.dice.below(len(others))]
	}
	waits := w.in[c]
	takeFromQueue(b, c)
	if waits.holds != nil {
		toSlot(waits, b, ref.now+n.cfg.Flits-1)
	}
}

func (ref *reference) transmit() {
	n := ref.n
	for a := range n.nodes {
		for c := 0; c < n.chans; c += 2 {
			b, ok := n.Neighbour(a, c)
			if !ok || n.live[a]>>c&1 == 0 {
				continue
			}
			ends := [2][2]int{{a, c}, {b, c + 1}}
			if n.cfg.FullDuplex {
				for i, e := range ends {
					if ref.canSend(e, ends[1-i]) && ref.wire(e).carries == nil {
						ref.send(ref.wire(e), e, ends[1-i], ref.wire(e).last)
					}
				}
				continue
			}
			wire := ref.wire(ends[0])
			if wire.carries != nil {
				continue
			}
			can := [2]bool{ref.canSend(ends[0], ends[1]), ref.canSend(ends[1], ends[0])}
			switch other := 1 - wire.last; {
			case can[other]:
				ref.send(wire, ends[other], ends[wire.last], other)
			case can[wire.last]:
				ref.send(wire, ends[wire.last], ends[other], wire.last)
			}
		}
	}
}

func (ref *reference) wire(end [2]int) *refWire {
	if ref.wires[end] == nil {
		ref.wires[end] = &refWire{}
	}
	return ref.wires[end]
}

func (ref *reference) canSend(from, to [2]int) bool {
	return ref.ready(ref.nodes[from[0]].out[from[1]], 0) && ref.takes(ref.nodes[to[0]].in[to[1]])
}

func (ref *reference) send(w *refWire, from, to [2]int, side int) {
	start := ref.now
	if side != w.last {
		start += ref.n.cfg.TurnAround
	}
	w.last = side
	b := ref.nodes[from[0]].out[from[1]]
	p := b.holds
	w.carries = ref.transfer(b, ref.nodes[to[0]].in[to[1]], p, start)
	p.from = to[1]
	ref.makeList(to[0], p)
}

// step makes one cycle and looks at every buffer.
func (ref *reference) step() {
	for r := range ref.nodes {
		ref.route(r)
	}
	ref.transmit()
	n := ref.n
	var still []*refTransfer
	for _, f := range ref.flow {
		if f.start > ref.now {
			still = append(still, f)
			continue
		}
		flit := refFlit{f.pkt, f.moved, 0}
		if f.from != nil {
			if len(f.from.flits) == 0 {
				ref.t.Fatalf("cycle %d: %s has no flit for a transfer that has begun", ref.now, f.from.name)
			}
			flit = f.from.flits[0]
			f.from.flits = f.from.flits[1:]
		}
		if flit.pkt != f.pkt || flit.index != f.moved {
			ref.t.Fatalf("cycle %d: flit %d of packet %d where flit %d of packet %d had to follow", ref.now, flit.index, flit.pkt.id,
				f.moved, f.pkt.id)
		}
		f.moved++
		if f.to != nil {
			flit.since = ref.now + 1
			f.to.flits = append(f.to.flits, flit)
		}
		switch {
		case f.moved < n.cfg.Flits:
			still = append(still, f)
		case f.to != nil && f.to.next == f:
			f.to.next = nil
		}
	}
	ref.flow = still
	for _, w := range ref.wires {
		if w.carries != nil && w.carries.moved == n.cfg.Flits {
			w.carries = nil
		}
	}
	for _, w := range ref.nodes {
		for _, b := range slices.Concat(w.in, w.out, w.slots) {
			if len(b.flits) > n.cfg.Flits || slices.ContainsFunc(b.flits, func(f refFlit) bool { return f.pkt != b.flits[0].pkt }) {
				ref.t.Fatalf("cycle %d: %s holds flits of two packets", ref.now, b.name)
			}
		}
	}
	ref.now++
}

// TestReference has both make the same moves, in the same cycles.
func TestReference(t *testing.T) {
	shapes := []struct {
		dims []int
		mesh bool
	}{{[]int{5}, false}, {[]int{4}, true}, {[]int{2, 2}, false}, {[]int{3, 3}, false}, {[]int{4, 3}, true}, {[]int{3, 2, 2}, false}}
	seed := uint64(0)
	for _, shape := range shapes {
		for variant := range 12 {
			if seed++; testing.Short() && seed%5 != 0 {
				continue
			}
			cfg := Default(shape.dims...)
			cfg.Mesh, cfg.Seed = shape.mesh, seed
			cfg.Flits = []int{20, 2, 5, 20}[variant%4]
			cfg.Multiqueue = []int{5, 1, 2}[variant%3]
			cfg.Decode, cfg.InputWait = variant%2, []int{20, 0, 3}[variant/4]
			cfg.FullDuplex = variant%5 == 1
			cfg.TurnAround = variant % 3 % 2
			cfg.NoRouteback, cfg.FastDeroute, cfg.Mask = variant%4 != 1, variant%6 != 2, variant != 7
			cfg.DerouteOnDemand, cfg.InjectToQueue = variant%4 == 3, variant%5 == 4
			t.Run(fmt.Sprintf("%v mesh %v variant %d", shape.dims, shape.mesh, variant),
				func(t *testing.T) { sameMoves(t, cfg, (variant%3 == 0 || variant == 7) && len(shape.dims) > 1) })
		}
	}
}

func sameMoves(t *testing.T, cfg Config, faults bool) {
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if faults {
		n.KillLink(0, 0)
		if err := n.Reconfigure(); err != nil {
			t.Fatal(err)
		}
	}
	ref := newReference(t, n)
	// Both draw from the same stream, so the offered packets come from another.
	work := &dice{cfg.Seed + 1000}
	var got []string
	ids, made := map[int32]int{}, 0
	queues := make([][]int, n.nodes)
	n.onMove = func(m move) {
		if m.fromNowhere {
			ids[m.pkt] = queues[m.to.node][0]
			queues[m.to.node] = queues[m.to.node][1:]
		}
		from, to := fmt.Sprintf("%d.%c%d", m.from.node, m.from.kind, m.from.at), fmt.Sprintf("%d.%c%d", m.to.node, m.to.kind, m.to.at)
		if m.fromNowhere {
			from = "-"
		}
		if m.toProcessor {
			to = "-"
		}
		got = append(got, fmt.Sprintf("%d: packet %d %s to %s", m.start, ids[m.pkt], from, to))
	}
	for cycle := range 3000 {
		for r := range n.nodes {
			if cycle < 2000 && work.chance(1/float64(cfg.Flits)) {
				if dst := work.below(n.nodes); dst != r && n.Send(r, dst) {
					ref.nodes[r].source = append(ref.nodes[r].source, &refPacket{id: made, dst: dst})
					queues[r] = append(queues[r], made)
					made++
				}
			}
		}
		n.Step()
		ref.step()
		check(t, n)
	}
	// Within a cycle the engine first decides which packets make way and then which ones go; so does the reference.
	// The order must be the same, too.
	if !slices.Equal(got, ref.out) {
		for i := range min(len(got), len(ref.out)) {
			if got[i] != ref.out[i] {
				t.Fatalf("move %d of %d: the engine has %q, the reference %q", i, len(got), got[i], ref.out[i])
			}
		}
		t.Fatalf("%d moves, the reference has %d", len(got), len(ref.out))
	}
	if n.count.Injected < 50 {
		t.Fatalf("only %d packets: nothing is shown", n.count.Injected)
	}
}

package chaos

import "math/bits"

// move is a header that leaves a buffer for another in cycle start. Buffers are numbered within their router: input
// frames, output frames, slots.
type move struct {
	pkt, start   int32
	from, to     place
	toProcessor  bool
	fromNowhere  bool // injection
	disappearing bool // dropped, lost
}

type place struct {
	node int
	kind uint8 // 'i', 'o', 'q'
	at   int
}

// turnOf is one router's work in one cycle.
type turnOf struct {
	r       int
	in, out []buffer
	free    uint32 // output frames that can take a header
	shut    uint32 // of those, reserved for the frame that shuts them: packet exchange, or the bubble of a ring
	ready   uint32 // input frames with a header that can go on
	moved   bool
	dequeue bool // something has left the multiqueue
}

// route does one router's cycle: ejection, injection, crossbar. It books when the router can have something to do
// again.
func (n *Network) route(r int) {
	t := n.now
	w := turnOf{r: r, in: n.in[r*n.frames : (r+1)*n.frames], out: n.out[r*n.frames : (r+1)*n.frames]}
	n.eject(&w)
	n.inject(&w)
	for m := ^n.outHeld[r] & (1<<n.frames - 1); m != 0; m &= m - 1 {
		if f := bits.TrailingZeros32(m); w.out[f].free <= t {
			w.free |= m & -m
		}
	}
	for m := n.inHeld[r]; m != 0; m &= m - 1 {
		if f := bits.TrailingZeros32(m); w.in[f].ready <= t {
			w.ready |= m & -m
		}
	}
	n.shut(&w)
	if n.slots > 0 {
		n.fromQueue(&w)
	}
	if w.ready != 0 {
		n.fromInputs(&w)
	}
	if n.slots > 0 {
		if w.free&w.shut != 0 && int(n.queued[r]) < n.slots {
			n.exchange(&w)
		}
		n.toQueue(&w)
		if int(n.queued[r]) == n.slots && !w.dequeue && w.free != 0 {
			n.deroute(&w)
		}
	}
	if w.moved {
		n.wake[r] = t + 1
		return
	}
	n.wake[r] = n.nextEvent(&w)
}

// nextEvent returns the next cycle in which this router can act if no neighbour sends to it or receives from it.
// Nothing moved in this cycle, so only time changes its state.
func (n *Network) nextEvent(w *turnOf) int32 {
	t, next := n.now, int32(never)
	later := func(c int32) {
		if c > t && c < next {
			next = c
		}
	}
	for f := range w.in {
		if b := &w.in[f]; b.pkt >= 0 {
			later(b.ready)
			later(b.ready + int32(n.cfg.InputWait))
		} else if f == n.local {
			later(b.free)
		}
		if b := &w.out[f]; b.pkt < 0 {
			later(b.free)
		} else if f == n.local {
			later(b.ready)
		}
	}
	for q := range n.slots {
		if b := &n.slot[w.r*n.slots+q]; b.pkt >= 0 {
			later(b.ready)
		} else {
			later(b.free)
		}
	}
	return next
}

func (n *Network) eject(w *turnOf) {
	t, b := n.now, &w.out[n.local]
	if b.pkt < 0 || b.ready > t {
		return
	}
	p := b.pkt
	b.pkt, b.free = -1, t+n.flits-1+int32(n.cfg.EjectGap)
	n.outHeld[w.r] &^= 1 << n.local
	tail := t + n.flits
	n.lastTail = max(n.lastTail, tail)
	w.moved = true
	if n.onMove != nil {
		n.onMove(move{pkt: p, start: t, from: place{w.r, 'o', n.local}, toProcessor: true})
	}
	c := &n.count
	if int(n.dst[p]) != w.r {
		c.Misdelivered++
	} else {
		c.Delivered++
		c.Hops += int(n.hops[p])
		c.Deroutes += int(n.deroutes[p])
		c.Latency += int(tail - n.born[p])
		c.NetworkCycles += int(tail - n.entered[p])
	}
	if n.onDelivery != nil {
		n.onDelivery(Delivery{Node: w.r, Dest: int(n.dst[p]), Born: int(n.born[p]), Tail: int(tail), Hops: int(n.hops[p]),
			Deroutes: int(n.deroutes[p])})
	}
	n.unused = append(n.unused, p)
}

func (n *Network) inject(w *turnOf) {
	t, b := n.now, &w.in[n.local]
	if n.source.length[w.r] == 0 || b.pkt >= 0 || b.free > t || len(n.unused) == 0 {
		return
	}
	p := n.unused[len(n.unused)-1]
	n.unused = n.unused[:len(n.unused)-1]
	dst, born := n.source.pop(w.r)
	n.dst[p], n.born[p], n.entered[p] = dst, born, t
	n.from[p], n.hops[p], n.deroutes[p] = -1, 0, 0
	n.list[p] = n.frameList(w.r, int(dst), -1)
	b.pkt, b.ready = p, t+1+int32(n.cfg.Decode)
	n.inHeld[w.r] |= 1 << n.local
	n.count.Injected++
	w.moved = true
	if n.onMove != nil {
		n.onMove(move{pkt: p, start: t, to: place{w.r, 'i', n.local}, fromNowhere: true})
	}
}

// shut finds the free output frames that not every frame may fill now. For Chaotic these are the ones of channels
// whose input frame holds a header (packet exchange). Otherwise they are those of a ring's lane whose frame straight
// behind holds a header, because then a newcomer could take the ring's last free frame.
func (n *Network) shut(w *turnOf) {
	held := n.inHeld[w.r] &^ (1 << n.local)
	switch {
	case n.cfg.Algorithm == Chaotic:
		w.shut = held
	case n.cfg.Mesh:
	default:
		for c := range n.chans {
			if held>>((c^1)*n.lanes)&1 != 0 {
				w.shut |= 1 << (c * n.lanes)
			}
		}
	}
}

// keeps is the output frame that the header in input frame f keeps shut for others.
func (n *Network) keeps(f int) uint32 {
	switch {
	case f == n.local || n.cfg.Algorithm != Chaotic && n.cfg.Mesh:
		return 0
	case n.cfg.Algorithm == Chaotic:
		return 1 << f
	case f%n.lanes != 0:
		return 0
	}
	return 1 << ((f/n.lanes ^ 1) * n.lanes)
}

// fill sends p's header to output frame f.
func (n *Network) fill(w *turnOf, f int, p int32) {
	w.out[f].pkt, w.out[f].ready = p, n.now+1
	n.outHeld[w.r] |= 1 << f
	w.free &^= 1 << f
	w.moved = true
}

// leave empties input frame f from cycle start.
func (n *Network) leave(w *turnOf, f int, start int32) {
	w.in[f].pkt, w.in[f].free = -1, start+n.flits-1
	n.inHeld[w.r] &^= 1 << f
	w.ready &^= 1 << f
	w.shut &^= n.keeps(f)
	w.moved = true
}

// dequeue empties the i-th oldest slot and says which it was.
func (n *Network) dequeue(w *turnOf, i int) int {
	o := n.order[w.r*n.slots : (w.r+1)*n.slots]
	q := int(o[i])
	copy(o[i:], o[i+1:])
	n.queued[w.r]--
	b := &n.slot[w.r*n.slots+q]
	b.pkt, b.free = -1, n.now+n.flits-1
	w.dequeue = true
	return q
}

// enqueue sends p's header to slot q in cycle start.
func (n *Network) enqueue(w *turnOf, q int, p, start int32) {
	b := &n.slot[w.r*n.slots+q]
	b.pkt, b.ready = p, start+1
	n.order[w.r*n.slots+int(n.queued[w.r])] = uint8(q)
	n.queued[w.r]++
}

// freeSlot returns a slot with room for a header now, -1 if there is none.
func (n *Network) freeSlot(r int) int {
	if int(n.queued[r]) == n.slots {
		return -1
	}
	for q, b := range n.slot[r*n.slots : (r+1)*n.slots] {
		if b.pkt < 0 && b.free <= n.now {
			return q
		}
	}
	return -1
}

// fromQueue: the multiqueue first, oldest first (§2).
func (n *Network) fromQueue(w *turnOf) {
	for i := 0; i < int(n.queued[w.r]) && w.free != 0; {
		q := int(n.order[w.r*n.slots+i])
		b := &n.slot[w.r*n.slots+q]
		if b.ready <= n.now {
			if m := n.list[b.pkt] & w.free &^ w.shut; m != 0 {
				f, p := n.dice.bit(m), b.pkt
				n.dequeue(w, i)
				n.fill(w, f, p)
				n.moves(p, n.now, place{w.r, 'q', q}, place{w.r, 'o', f})
				continue
			}
		}
		i++
	}
}

// fromInputs: input frames in turn, from the one after which was served first the last time.
func (n *Network) fromInputs(w *turnOf) {
	served := -1
	for k, f := 0, int(n.first[w.r]); k < n.frames; k, f = k+1, f+1 {
		if f == n.frames {
			f = 0
		}
		if w.ready>>f&1 == 0 {
			continue
		}
		p := w.in[f].pkt
		if n.list[p] == 0 && n.slots == 0 {
			n.lose(w, f, p)
			continue
		}
		m := n.list[p] & w.free &^ (w.shut &^ n.keeps(f))
		if m == 0 {
			continue
		}
		to := n.dice.bit(m)
		n.leave(w, f, n.now)
		n.fill(w, to, p)
		n.moves(p, n.now, place{w.r, 'i', f}, place{w.r, 'o', to})
		if served < 0 {
			served = f
		}
	}
	if served >= 0 {
		n.first[w.r] = uint8((served + 1) % n.frames)
	}
}

// lose drops a packet that no channel leads on from an algorithm that cannot go round.
func (n *Network) lose(w *turnOf, f int, p int32) {
	n.leave(w, f, n.now)
	n.count.Lost++
	n.unused = append(n.unused, p)
	if n.onMove != nil {
		n.onMove(move{pkt: p, start: n.now, from: place{w.r, 'i', f}, disappearing: true})
	}
}

// exchange lets packets fill output frames that are shut: the header in the input frame beside goes to the multiqueue
// by the same decision (§2: the protocol may cause the entry of packets into the multiqueue).
func (n *Network) exchange(w *turnOf) {
	for i := 0; i < int(n.queued[w.r]); {
		q := int(n.order[w.r*n.slots+i])
		b := &n.slot[w.r*n.slots+q]
		if b.ready <= n.now && n.list[b.pkt]&w.free&w.shut&w.ready != 0 {
			p := b.pkt
			f, ok := n.makeWay(w, p)
			if !ok {
				return
			}
			n.dequeue(w, i)
			n.fill(w, f, p)
			n.moves(p, n.now, place{w.r, 'q', q}, place{w.r, 'o', f})
			continue
		}
		i++
	}
	for m := w.ready; m != 0; m &= m - 1 {
		f := bits.TrailingZeros32(m)
		if w.ready>>f&1 == 0 {
			continue // it has made way
		}
		p := w.in[f].pkt
		if n.list[p]&w.free&w.shut&w.ready == 0 {
			continue
		}
		to, ok := n.makeWay(w, p)
		if !ok {
			return
		}
		n.leave(w, f, n.now)
		n.fill(w, to, p)
		n.moves(p, n.now, place{w.r, 'i', f}, place{w.r, 'o', to})
	}
}

// makeWay draws one of the shut frames that p could take and sends the header in the input frame beside it to the
// multiqueue. It returns false if that has no room.
func (n *Network) makeWay(w *turnOf, p int32) (int, bool) {
	q := n.freeSlot(w.r)
	if q < 0 {
		return 0, false
	}
	f := n.dice.bit(n.list[p] & w.free & w.shut & w.ready)
	n.queueInput(w, f, q, n.now)
	return f, true
}

func (n *Network) queueInput(w *turnOf, f, q int, start int32) {
	p := w.in[f].pkt
	n.leave(w, f, start)
	n.enqueue(w, q, p, start)
	n.moves(p, start, place{w.r, 'i', f}, place{w.r, 'q', q})
}

// toQueue moves packets that have waited long enough. A packet at its source moves only if it could not go on
// otherwise: a packet in the multiqueue can be derouted.
func (n *Network) toQueue(w *turnOf) {
	for m := w.ready; m != 0; m &= m - 1 {
		f := bits.TrailingZeros32(m)
		b := &w.in[f]
		if n.now-b.ready < int32(n.cfg.InputWait) || f == n.local && !n.cfg.InjectToQueue && n.list[b.pkt] != 0 {
			continue
		}
		q := n.freeSlot(w.r)
		if q < 0 {
			return
		}
		n.queueInput(w, f, q, n.now)
	}
}

// deroute sends one packet of a full multiqueue out on any free channel. Beside a waiting input frame the packet
// there takes over the slot when it is empty.
func (n *Network) deroute(w *turnOf) {
	// A network that drops packets delivers the deliverable ones, and drops the rest: going round takes no bounded
	// time.
	if n.dropping || n.cfg.DerouteOnDemand && w.ready&^(1<<n.local) == 0 {
		return
	}
	// The channels to which each packet may be derouted. A router that cannot move sleeps, so that it draws no unused
	// numbers.
	order := n.order[w.r*n.slots : (w.r+1)*n.slots]
	var may [maxSlots]uint32
	any := uint32(0)
	for i, q := range order {
		if b := &n.slot[w.r*n.slots+int(q)]; b.ready <= n.now {
			may[i] = n.functional[w.r]
			if from := n.from[b.pkt]; n.cfg.NoRouteback && from >= 0 && may[i] != 1<<from {
				may[i] &^= 1 << from
			}
			may[i] |= n.list[b.pkt]
			any |= may[i]
		}
	}
	m := w.free & any & n.functional[w.r] &^ (w.shut &^ w.ready)
	if m == 0 {
		return
	}
	f := n.dice.bit(m)
	i := n.chooseDerouted(w, order, &may, f)
	p := n.slot[w.r*n.slots+int(order[i])].pkt
	if n.list[p]>>f&1 == 0 {
		n.deroutes[p]++
	}
	waits := w.shut>>f&1 != 0
	q := n.dequeue(w, i)
	n.fill(w, f, p)
	n.moves(p, n.now, place{w.r, 'q', q}, place{w.r, 'o', f})
	if waits {
		n.queueInput(w, f, q, n.now+n.flits-1)
	}
}

// chooseDerouted returns the oldest packet of the multiqueue for which f, which the packet exchange keeps shut, is
// profitable; else a random one of those that may use f.
func (n *Network) chooseDerouted(w *turnOf, order []uint8, may *[maxSlots]uint32, f int) int {
	var could [maxSlots]int
	k := 0
	for i, q := range order {
		if may[i]>>f&1 == 0 {
			continue
		}
		if n.list[n.slot[w.r*n.slots+int(q)].pkt]>>f&1 != 0 {
			return i
		}
		could[k] = i
		k++
	}
	return could[n.dice.below(k)]
}

func (n *Network) moves(p, start int32, from, to place) {
	if n.onMove != nil {
		n.onMove(move{pkt: p, start: start, from: from, to: to})
	}
}

package chaos

// transmit starts all transfers that can cross a channel in this cycle. Three rules of seed 003 §5.2.1.2 assign
// half-duplex channels: only into a free input frame; to the side that can send; twice in a row to the same side only
// if the other cannot.
func (n *Network) transmit() {
	for a := range n.nodes {
		for c := 0; c < n.chans; c += 2 {
			b := int(n.neighbour[a*n.chans+c])
			if b < 0 || n.live[a]>>c&1 == 0 {
				continue
			}
			lanes := uint32(1)<<n.lanes - 1
			fromA, fromB := n.outHeld[a]>>(c*n.lanes)&lanes, n.outHeld[b]>>((c+1)*n.lanes)&lanes
			if fromA|fromB == 0 {
				continue
			}
			w := a*n.chans + c
			if n.cfg.FullDuplex {
				n.sendOwn(w, a, c, b)
				n.sendOwn(b*n.chans+c+1, b, c+1, a)
				continue
			}
			if n.busy[w] > n.now {
				continue
			}
			la, lb := n.sendable(w, a, c, b), n.sendable(w, b, c+1, a)
			owner := n.turn[w] & 1
			if la >= 0 && (lb < 0 || owner == 1) {
				n.send(w, a, c, b, la, 0)
			} else if lb >= 0 {
				n.send(w, b, c+1, a, lb, 1)
			}
		}
	}
}

func (n *Network) sendOwn(w, a, c, b int) {
	if n.busy[w] > n.now {
		return
	}
	if lane := n.sendable(w, a, c, b); lane >= 0 {
		n.send(w, a, c, b, lane, n.turn[w]&1)
	}
}

// sendable returns the lane of channel c of a that has a packet for b, if b has room; -1: none. Of two lanes it
// returns the one that did not send last.
func (n *Network) sendable(w, a, c, b int) int {
	for k := range n.lanes {
		lane := k
		if n.lanes == 2 {
			lane ^= int(n.turn[w]>>1&1) ^ 1
		}
		o, i := &n.out[a*n.frames+c*n.lanes+lane], &n.in[b*n.frames+(c^1)*n.lanes+lane]
		if o.pkt >= 0 && o.ready <= n.now && i.pkt < 0 && i.free <= n.now {
			return lane
		}
	}
	return -1
}

// send begins a transmission by side of channel w; a change of sides costs the turn-around.
func (n *Network) send(w, a, c, b, lane int, side uint8) {
	start := n.now
	if side != n.turn[w]&1 {
		start += int32(n.cfg.TurnAround)
	}
	n.turn[w] = side | uint8(lane)<<1
	n.busy[w] = start + n.flits
	from, to := c*n.lanes+lane, (c^1)*n.lanes+lane
	o, i := &n.out[a*n.frames+from], &n.in[b*n.frames+to]
	p := o.pkt
	o.pkt, o.free = -1, start+n.flits-1
	n.outHeld[a] &^= 1 << from
	i.pkt, i.ready = p, start+1+int32(n.cfg.Decode)
	n.inHeld[b] |= 1 << to
	n.hops[p]++
	n.from[p] = int8(c ^ 1)
	n.list[p] = n.frameList(b, int(n.dst[p]), c^1)
	n.wake[a] = min(n.wake[a], o.free)
	n.wake[b] = min(n.wake[b], i.ready)
	if n.onMove != nil {
		n.onMove(move{pkt: p, start: start, from: place{a, 'o', from}, to: place{b, 'i', to}})
	}
}

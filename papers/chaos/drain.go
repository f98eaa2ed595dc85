package chaos

import "fmt"

// Step makes one cycle.
func (n *Network) Step() {
	n.generate()
	for r, wake := range n.wake {
		if wake <= n.now {
			n.route(r)
		}
	}
	n.transmit()
	n.now++
}

// Run makes so many cycles.
func (n *Network) Run(cycles int) {
	for range cycles {
		n.Step()
	}
}

// Fill makes cycles until so many packets are in the network. An error if they are not after limit cycles: the
// traffic is then one that the network carries with fewer.
func (n *Network) Fill(packets, limit int) error {
	for range limit {
		if n.Population() >= packets {
			return nil
		}
		n.Step()
	}
	if n.Population() >= packets {
		return nil
	}
	return fmt.Errorf("chaos: %d packets are in the network after %d cycles, must be %d", n.Population(), limit, packets)
}

// Drain stops injection and makes cycles until the network is empty, or until the time-out (§5.2.1.3). It returns the
// cycles after which the last tail had left; false on time-out.
func (n *Network) Drain(timeout int) (int, bool) {
	n.StopInjection()
	began := n.now
	for n.Population() > 0 {
		if int(n.now-began) >= timeout {
			return timeout, false
		}
		n.Step()
	}
	return int(max(n.lastTail, began) - began), true
}

// Dropped is a router's report after it cleared packets: evidence of a detected error (§5.2.1.3).
type Dropped struct {
	Node               int
	Output, Multiqueue int // packets that were in output frames and in the multiqueue
}

// deliverTime bounds the first phase of DropPackets. One processor channel may have to deliver a router's own input
// frames and ejection frame, and everything that its neighbours' output frames, injection frames and multiqueues can
// send there.
func (n *Network) deliverTime() int {
	packets := n.frames + 1 + n.chans*(n.lanes+1+n.slots)
	return packets * (n.cfg.Flits + n.cfg.EjectGap + n.cfg.Decode + n.cfg.TurnAround + 3)
}

// DropPackets empties a network that the drain has not emptied (§5.2.1.3). First a router treats every packet that it
// receives as one of its own and gives it to its processor, however far it is from its destination. Then output
// frames and multiqueues are cleared of the packets that no channel can carry, and the routers that held these report
// them.
func (n *Network) DropPackets() []Dropped {
	n.dropping = true
	for r := range n.nodes {
		for f := range n.frames {
			if p := n.in[r*n.frames+f].pkt; p >= 0 {
				n.list[p] = 1 << n.local
			}
		}
		n.wake[r] = n.now
	}
	n.Run(n.deliverTime())
	var out []Dropped
	for r := range n.nodes {
		if d := n.clear(r); d.Output+d.Multiqueue > 0 {
			out = append(out, d)
		}
	}
	n.dropping = false
	return out
}

func (n *Network) clear(r int) Dropped {
	d := Dropped{Node: r}
	drop := func(b *buffer, from place) int {
		if b.pkt < 0 {
			return 0
		}
		if n.onMove != nil {
			n.onMove(move{pkt: b.pkt, start: n.now, from: from, disappearing: true})
		}
		n.unused = append(n.unused, b.pkt)
		n.count.Cleared++
		b.pkt, b.free = -1, n.now
		return 1
	}
	for f := range n.frames {
		if p := n.in[r*n.frames+f].pkt; p >= 0 {
			panic(fmt.Sprintf("chaos: packet %d is in input frame %d of router %d after the time in which it had to be delivered", p, f, r))
		}
		d.Output += drop(&n.out[r*n.frames+f], place{r, 'o', f})
	}
	for q := range n.slots {
		d.Multiqueue += drop(&n.slot[r*n.slots+q], place{r, 'q', q})
	}
	n.outHeld[r], n.queued[r] = 0, 0
	n.wake[r] = n.now
	return d
}

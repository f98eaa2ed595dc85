package sim

import (
	"time"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// neighbour returns the node to which an end leads; nil: it leads nowhere.
func (n *node) neighbour(d grid.Direction) *node {
	if n.place != nil {
		return n.ends[d.Index()]
	}
	c, _ := n.w.cfg.Dims.Neighbour(n.topo.Coord, d)
	return n.w.nodes[n.w.cfg.Dims.Index(c)]
}

// meets reports whether the other end of a link leads back to this one. An agent drops frames of others than its peer.
func (n *node) meets(d grid.Direction) bool {
	return n.place == nil || n.ends[d.Index()] != nil && n.ends[d.Index()].ends[d.Opposite().Index()] == n
}

// sendFrame carries a frame over a cable. A damaged one arrives as such; one of a session that the
// receiver has no keys for is counted there and not accepted.
func (n *node) sendFrame(f dnpcore.Outgoing) {
	c := &n.links[f.Dir.Index()]
	if c.cut || n.w.chance(c.lose) {
		return
	}
	frame := f.Frame
	frame.Payload = append([]byte(nil), frame.Payload...)
	peer, dir := n.neighbour(f.Dir), f.Dir.Opposite()
	damaged := n.w.chance(c.corrupt)
	if !n.meets(f.Dir) {
		return
	}
	peer.dnp.deliver(c.delay(n.w), func() {
		switch {
		case peer.place != nil && peer.ends[dir.Index()] != n:
		case damaged:
			peer.stepDNP(dnpcore.Bad{Dir: dir, Kind: torus.BadCRC, Count: 1})
		case !peer.links[dir.Index()].knows(frame.Session):
			peer.stepDNP(dnpcore.Bad{Dir: dir, Kind: torus.BadSession, Count: 1})
		default:
			peer.stepDNP(&dnpcore.Frame{Dir: dir, Frame: frame})
		}
	})
}

// knows reports whether the half at this end of a cable has the keys of a session.
func (c *cable) knows(session uint32) bool { return session == c.session || session == c.before }

// delay returns the travel time of a frame sent now. It limits overtaking to maxOvertaking frames.
func (c *cable) delay(w *World) time.Duration {
	at := fault.Later(w.now.Add(w.between(linkDelayMin, linkDelayMax)), c.arrivals[0])
	c.arrivals[1] = fault.Later(c.arrivals[0], c.arrivals[1])
	copy(c.arrivals[:], c.arrivals[1:])
	c.arrivals[maxOvertaking] = at
	return at.Sub(w.now)
}

// redial is the handshake: it needs both ends alive and both directions of the cable, and gives
// both ends a session. The + end dials, as in the daemons.
func (n *node) redial(d grid.Direction) {
	const handshake, every = 2 * time.Millisecond, 50 * time.Millisecond
	i := d.Index()
	if !d.Positive() || n.w.now.Sub(n.redialAt[i]) < every {
		return
	}
	n.redialAt[i] = n.w.now
	n.dnp.deliver(handshake, func() {
		peer, back := n.neighbour(d), d.Opposite()
		if !n.meets(d) {
			return
		}
		out, in := &n.links[i], &peer.links[back.Index()]
		if out.cut || in.cut || !peer.dnp.running || peer.dnp.stopped {
			return
		}
		id := n.w.rnd.Uint32() | 1
		for _, c := range []*cable{out, in} {
			c.before, c.session = c.session, id
		}
		n.stepDNP(dnpcore.Session{Dir: d, ID: id})
		peer.dnp.deliver(0, func() {
			if peer.links[back.Index()].session == id { // else its end leads elsewhere by now
				peer.stepDNP(dnpcore.Session{Dir: back, ID: id})
			}
		})
	})
}

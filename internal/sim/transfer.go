package sim

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A node moves to another place in one change of the topology (ADR 66). Its halves continue at the former place until the order
// arrives. Then the daemon stops both halves, and starts them cold at the new place.

const (
	// maxFollow bounds the time from the arrival of the order until both halves have stopped: the daemon's interval between
	// two checks of the place, and their stop.
	maxFollow = 2 * time.Second
	// moveTime is how long a leader waits for the first report of a moved node, and some more.
	moveTime = 2*awareness.DefaultRelinkBound + time.Second
)

// transfer is the state of a node that has moved; its zero value means that the node has not.
type transfer struct {
	since  time.Time // when the topology changed, or when a later leader began
	away   bool      // the halves do not serve the new place yet
	sent   bool      // the order has arrived
	former [2]fault.Epoch
	asked  [2]bool // a half that was to start meanwhile starts at the new place
}

// moves reports whether the leader still waits for the first report from the new place.
func (x transfer) moves(now time.Time) bool { return !x.since.IsZero() && now.Sub(x.since) <= moveTime }

// ofFormer reports whether a message is from a life at the former place.
func (x transfer) ofFormer(h fault.Half, e fault.Epoch) bool {
	return !x.since.IsZero() && e <= x.former[h-1]
}

// movable reports whether the leader may move the node at a place.
func (w *World) movable(at grid.Coord) bool {
	return w.cfg.Dims.Contains(at) &&
		w.store.picture(w.nodes[w.cfg.Dims.Index(at)].id()).state[fault.ComponentNode] == fault.Normal
}

// transfers gives a node another place in the committed topology.
func (w *World) transfers(n *node, to grid.Coord) {
	w.truth.debts = slices.DeleteFunc(w.truth.debts, func(d *debt) bool { return d.node == n || d.of == n })
	p := &place{placed: true, joins: true, turns: n.place.turns + 1, config: halfcore.PeersConfig{Spare: true}, held: n.place.held,
		transfer: transfer{since: w.now, away: true, former: [2]fault.Epoch{n.host.epoch, n.dnp.epoch}}}
	for i, d := range grid.Directions() {
		p.config.Ends[i].Address = endOf(n.id(), d)
	}
	n.place = p
	n.topo = halfcore.NewTopology(n.id(), to, w.cfg.Dims, nil)
}

// orderAway sends a node the order for its new place.
func (w *World) orderAway(n *node) {
	if !n.dnp.up() || !w.truth.dnpWay[n.rank] || w.now.Sub(n.place.sent) < orderAgain {
		return
	}
	n.place.sent = w.now
	turn := n.place.turns
	n.dnp.deliver(w.between(time.Millisecond, maxOrderDelay), func() {
		if n.place.turns == turn {
			n.follow()
		}
	})
}

// follow has the daemon stop both halves, and start at the new place those that ran.
func (n *node) follow() {
	if n.place.transfer.sent {
		return
	}
	n.place.transfer.sent = true
	turn := n.place.turns
	n.w.after(n.w.between(10*time.Millisecond, maxFollow), func() {
		if n.place.turns != turn || !n.place.transfer.away {
			return
		}
		asked := n.place.transfer.asked
		host, dnp := n.host.running || asked[fault.HalfHost-1], n.dnp.running || asked[fault.HalfDNP-1]
		n.comes()
		if dnp {
			n.start(fault.HalfDNP)
		}
		if host {
			n.start(fault.HalfHost)
		}
	})
}

// comes ends the halves at the former place. From now on they start at the new one.
func (n *node) comes() {
	n.end()
	n.links = [grid.NumDirections]cable{}
	n.place.transfer.away = false
}

// mayStart reports whether a dead half starts now. At a former place it waits for its other half, which follows the order.
func (n *node) mayStart(h fault.Half) bool {
	if n.place == nil {
		return true
	}
	// Without a place the daemon cannot start the half, and tries again. At its earlier place it also ends the other half.
	if n.withdrawn() && n.dnp.running && !n.place.transfer.away {
		turn := n.place.turns
		n.w.after(orderEvery, func() {
			if n.place.turns == turn && n.place.placed {
				n.start(h)
			}
		})
		return false
	}
	if !n.place.transfer.away {
		return true
	}
	if n.process(h.Other()).running {
		n.place.transfer.asked[h-1] = true
		n.follow()
		return false
	}
	n.comes()
	return true
}

package sim

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// moves is the state of a world in which nodes join and leave (ADR 64). The leader commits each change, and its machine
// follows at once. The nodes follow when their orders arrive. The world simulates the way of an order as a delay, and
// repeats an order until the node holds it; the half decides about its content.
type moves struct {
	revision uint64    // of the topology
	made     int       // joiners that never had a place before
	spares   []*node   // that have left, the first one first
	ruled    time.Time // when there last was a leader
}

// place is the place of a node in a world with moves.
type place struct {
	placed bool // by the committed topology
	config halfcore.PeersConfig
	held   peers.State // its orders on disk
	sent   time.Time   // when the newest order was sent

	moved [grid.NumDirections]time.Time // when the committed topology changed the peer of an end, or a later leader began
	led   [grid.NumDirections]time.Time // moved, without regard to leaders
	turns uint64                        // counts joins and leaves
	joins bool                          // it has joined, and no leader has heard it since
	first time.Time                     // its first life at this place, or when a later leader began; zero: none yet

	transfer transfer
}

const (
	// orderEvery is the interval at which the leader looks for nodes that need an order.
	orderEvery = 100 * time.Millisecond
	// orderAgain is the time between two orders to one node, waveAgain the same for a node whose links do not change.
	orderAgain, waveAgain = time.Second, 2 * time.Second
	// maxOrderDelay bounds the way of an order: queues, the leader's budget, and the disk at its end.
	maxOrderDelay = 1500 * time.Millisecond
	// relinkTime is the time after which the death of a node or a cut of a link at a changed place is found as usual.
	// Both the half and the leader wait for so long.
	relinkTime = awareness.DefaultRelinkBound + time.Second
)

// errAbsent says that a command is about a node or link that is not there, or cannot be carried out now.
var errAbsent = errors.New("not there")

// endOf is the address of a node's own end of a link.
func endOf(id fault.NodeID, d grid.Direction) netip.AddrPort {
	sum := uint32(2166136261)
	for _, b := range []byte(id) {
		sum = (sum ^ uint32(b)) * 16777619
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(sum >> 16), byte(sum >> 8), byte(sum)}), 7000+uint16(d))
}

// settleIn gives a node of the first topology its configuration.
func (n *node) settleIn() {
	n.place = &place{placed: true, config: halfcore.PeersConfig{Dims: n.topo.Dims}, first: n.w.now}
	for i, d := range grid.Directions() {
		n.place.config.Ends[i].Address = endOf(n.id(), d)
		if to, ok := n.topo.Dims.Neighbour(n.topo.Coord, d); ok {
			n.place.config.Configured[i] = peers.Peer{Node: n.topo.ID(to), Address: endOf(n.topo.ID(to), d.Opposite())}
		}
	}
	if n.w.cfg.Ordered {
		n.place.config = halfcore.PeersConfig{Spare: true, Ends: n.place.config.Ends}
		_, n.place.held = n.w.orderFor(n)
	}
}

// isPlaced reports whether the committed topology has a place for the node.
func (n *node) isPlaced() bool { return n.place == nil || n.place.placed }

// peersConfig returns the initial peers of a starting half.
func (n *node) peersConfig() *halfcore.PeersConfig {
	if n.place == nil {
		return nil
	}
	k := n.place.config
	k.State = n.place.held
	return &k
}

// around is the torus around the node as its halves know it, as half.TopologyOf has it.
func (n *node) around() *halfcore.Topology {
	if n.place == nil {
		return n.topo
	}
	dims, all := n.place.held.In(n.place.config.Dims), n.place.held.Over(n.place.config.Configured)
	ids := map[grid.Direction]fault.NodeID{}
	var without []grid.Direction
	for _, d := range dims.LinksOf(n.topo.Coord) {
		if ids[d] = all[d.Index()].Node; ids[d] == "" {
			without = append(without, d)
		}
	}
	return halfcore.NewTopology(n.id(), n.topo.Coord, dims, ids).Without(without...)
}

// leadEnds sets where the ends of a starting half lead.
func (n *node) leadEnds() {
	if n.place == nil {
		return
	}
	around := n.around()
	for _, d := range grid.Directions() {
		var to *node
		if c, ok := around.Dims.Neighbour(around.Coord, d); ok && slices.Contains(around.Links, d) {
			to = n.w.ids[around.ID(c)]
		}
		n.leadTo(d, to)
	}
}

// leadTo sets where one end leads.
func (n *node) leadTo(d grid.Direction, to *node) {
	i := d.Index()
	if n.ends[i] == to {
		return
	}
	n.ends[i], n.led[i] = to, n.w.now
	n.links[i].session, n.links[i].before = 0, 0
}

// repeer follows an order of which the DNP half has just changed a link.
func (n *node) repeer(d grid.Direction) {
	n.leadTo(d, nil) // also if the link leads to the same node again
	if _, ok := n.dnpCore.LinkTo(d); ok {
		n.leadTo(d, n.w.ids[n.dnpCore.PeerAt(d).Node])
	}
}

// keepPeers stores the orders of the DNP half, and lets both halves know.
func (n *node) keepPeers() {
	if n.place.transfer.away {
		return // the order for the new place replaces this one
	}
	state := n.dnpCore.Peers()
	n.place.held = state
	n.dnp.deliver(n.w.between(time.Millisecond, 20*time.Millisecond), func() { n.stepDNP(dnpcore.PeersKept{State: state}) })
	if n.withdrawn() {
		return // the host half keeps its neighbours
	}
	n.host.deliver(n.w.between(time.Millisecond, 300*time.Millisecond), func() { n.stepHost(hostcore.Neighbours{Topo: n.around()}) })
}

// orderFor returns the order for a node by the committed topology.
func (w *World) orderFor(n *node) (*lofamov1.PeerOrder, peers.State) {
	o := &lofamov1.PeerOrder{Node: string(n.id()), Number: w.moves.revision, Life: uint64(n.dnp.epoch)}
	if n.place.config.Dims != w.cfg.Dims {
		o.Torus, _ = w.cfg.Dims.AppendBinary(nil)
	}
	if n.place.config.Spare {
		o.Coord = n.topo.Coord.String()
	}
	for _, d := range n.topo.Links {
		to := w.nodes[w.peerRank(n, d)]
		if n.place.config.Configured[d.Index()].Node != to.id() {
			o.Peers = append(o.Peers, &lofamov1.Peer{Direction: uint32(d), Node: string(to.id()), Address: endOf(to.id(), d.Opposite()).String()})
		}
	}
	s, err := peers.FromOrder(o)
	if err != nil {
		w.violate("the order for %s cannot be read: %v", n.id(), err)
	}
	return o, s
}

// peerRank returns the index of the node at the other end of a link by the committed topology.
func (w *World) peerRank(n *node, d grid.Direction) int {
	to, _ := w.cfg.Dims.Neighbour(n.topo.Coord, d)
	return w.cfg.Dims.Index(to)
}

// sendOrders sends the nodes the orders that they do not hold yet.
func (w *World) sendOrders() {
	w.after(orderEvery, w.sendOrders)
	if w.leading() == nil {
		return
	}
	for _, n := range w.nodes {
		if n.place.transfer.away {
			w.orderAway(n)
			continue
		}
		o, want := w.orderFor(n)
		if !n.dnp.up() || !w.truth.dnpWay[n.rank] || n.place.held.Says(want) {
			continue
		}
		again := waveAgain
		if n.withdrawn() || n.place.held.Over(n.place.config.Configured) != want.Over(n.place.config.Configured) ||
			!slices.Equal(n.around().Links, n.topo.Links) {
			again = orderAgain
		}
		if w.now.Sub(n.place.sent) < again {
			continue
		}
		n.place.sent = w.now
		n.sendOrder(o)
	}
}

// sendOrder delivers an order to the DNP half after a random delay.
func (n *node) sendOrder(o *lofamov1.PeerOrder) {
	n.dnp.deliver(n.w.between(time.Millisecond, maxOrderDelay), func() {
		n.stepDNP(dnpcore.Opened{Opened: servicenet.Opened{Msg: &lofamov1.Message{Body: &lofamov1.Message_PeerOrder{PeerOrder: o}}}})
	})
}

// move is a join, a leave or a move that waits for the leader.
type move struct {
	at    grid.Coord
	leave bool
	from  *grid.Coord   // the place that the node has before; nil: it joins or leaves
	back  bool          // the joiner is a node that has left, if there is one
	again *node         // the joiner, which has left the same place; nil: another node
	turn  uint64        // of that joiner when it left
	wait  time.Duration // until the joiner starts; negative: it does not
	// returns is the time after which a node that leaves asks for its place again; 0: it does not.
	returns time.Duration
}

// requestMove gives a change to the leader. Without one, or while it cannot write, the change is refused.
func (w *World) requestMove(m move) error {
	l := w.leading()
	if w.moves == nil || l == nil || !w.store.serves(l) || w.store.holdsBack() {
		return errAbsent
	}
	if _, err := w.moveTo(m); err != nil {
		return err
	}
	l.term.asked = append(l.term.asked, m)
	l.term.launch()
	return nil
}

// moveTo returns the torus after a change.
func (w *World) moveTo(m move) (dims grid.Dims, err error) {
	switch {
	case m.from != nil:
		if !w.movable(*m.from) || !slices.Contains(w.cfg.Dims.Empty(), m.at) {
			return dims, errAbsent
		}
		if dims, err = w.cfg.Dims.Filled(m.at); err == nil {
			dims, err = dims.Without(*m.from)
		}
	case m.leave:
		if !w.cfg.Dims.Contains(m.at) || w.cfg.Dims.Nodes() <= 2 {
			return dims, errAbsent
		}
		dims, err = w.cfg.Dims.Without(m.at)
	case m.again != nil && m.again.place.turns != m.turn:
		return dims, errAbsent
	default:
		dims, err = w.cfg.Dims.Filled(m.at)
	}
	if err != nil || dims.CheckConnected() != nil {
		return dims, errAbsent
	}
	return dims, nil
}

// moveNext commits the next change that waits, if any, and has the machine follow.
func (t *term) moveNext() {
	w := t.r.w
	for len(t.asked) > 0 {
		m := t.asked[0]
		t.asked = t.asked[1:]
		dims, err := w.moveTo(m)
		if err != nil || !w.store.serves(t.r) || !w.store.stands(t.rev) {
			continue
		}
		var gone *node
		switch {
		case m.from != nil:
			n := w.nodes[w.cfg.Dims.Index(*m.from)]
			t.forget(n)
			doc := w.store.docs[n.id()] // until the next batch: the next leader reads the former epochs from it
			w.store.forget(n, t.rev)
			w.store.docs[n.id()] = doc
		case m.leave:
			gone = w.nodes[w.cfg.Dims.Index(m.at)]
			t.forget(gone)
			w.store.forget(gone, t.rev)
			w.leaves(gone)
		}
		changed := w.replace(dims, m)
		if m.returns > 0 {
			w.sendBack(gone, m)
		}
		to := awarenessConfig(w, t.r.id)
		moved := awareness.Moved{Dims: to.Dims, IDs: to.IDs, Labels: to.Labels, DomainLabels: to.DomainLabels, Revision: to.Revision}
		t.incidents.Move(moved)
		for _, n := range changed {
			t.witness.moves(n)
			t.open.touched[n.id()] = true
		}
		t.step(t.asOf(t.r.clock()), moved)
	}
}

// forget drops the term's own records of a node.
func (t *term) forget(n *node) {
	t.open.changes = slices.DeleteFunc(t.open.changes, func(c timedChange) bool { return c.Node == n.id() })
	delete(t.open.touched, n.id())
	delete(t.mine, n.id())
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		delete(t.words, fault.Origin{Node: n.id(), Half: h})
	}
	delete(t.witness.heard, n.id())
}

// forget deletes a node that leaves its place.
func (s *store) forget(n *node, term uint64) {
	s.normal -= count(s.picture(n.id()).state[fault.ComponentNode] == fault.Normal)
	delete(s.docs, n.id())
	delete(s.pictures, n.id())
	for c := fault.ComponentNode; c.Valid(); c++ {
		delete(s.failed, part{n.id(), c})
	}
	s.append(entry{term: term, gone: n.id()})
}

// leaves begins the end of a node's halves.
func (w *World) leaves(n *node) {
	n.place.placed = false
	n.place.turns++
	turn := n.place.turns
	w.truth.debts = slices.DeleteFunc(w.truth.debts, func(d *debt) bool { return d.node == n || d.of == n })
	w.moves.spares = append(w.moves.spares, n)
	w.after(w.between(time.Millisecond, 3*time.Second), func() {
		if n.place.turns == turn {
			n.end()
		}
	})
}

// end ends both halves of a node that has no place.
func (n *node) end() {
	n.host.kill()
	n.dnp.kill()
	n.host.cold, n.dnp.cold = true, true
	for _, d := range grid.Directions() {
		n.leadTo(d, nil)
	}
}

// replace puts the nodes in their places in a torus, and returns those whose links lead elsewhere, and the joiner.
func (w *World) replace(dims grid.Dims, m move) (changed []*node) {
	was := w.nodes
	mute := make(map[*node]time.Time, len(was))
	for i, n := range was {
		mute[n] = w.truth.mute[i]
	}
	w.moves.revision++
	w.cfg.Dims, w.nodes = dims, nil
	at := make(map[grid.Coord]*node, len(was)+1)
	for _, n := range was {
		at[n.topo.Coord] = n
	}
	var joiner *node
	switch {
	case m.from != nil:
		joiner = at[*m.from]
		w.transfers(joiner, m.at)
		delete(at, *m.from)
		at[m.at] = joiner
	case !m.leave:
		joiner = w.joiner(m)
		at[m.at] = joiner
	}
	w.truth.resize(dims.Nodes())
	for c := range dims.All() {
		n := at[c]
		n.rank = len(w.nodes)
		w.truth.mute[n.rank] = mute[n]
		w.nodes = append(w.nodes, n)
	}
	for _, n := range w.nodes {
		ids := map[grid.Direction]fault.NodeID{}
		for _, d := range dims.LinksOf(n.topo.Coord) {
			c, _ := dims.Neighbour(n.topo.Coord, d)
			ids[d] = at[c].id()
		}
		before := n.topo
		n.topo = halfcore.NewTopology(n.id(), before.Coord, dims, ids)
		ends := n == joiner
		for _, d := range grid.Directions() {
			if n == joiner || peerOf(before, d) != peerOf(n.topo, d) {
				n.place.moved[d.Index()], n.place.led[d.Index()], ends = w.now, w.now, true
			}
		}
		if ends {
			changed = append(changed, n)
		}
	}
	if joiner != nil && m.from == nil {
		w.startJoiner(joiner, m.wait)
	}
	return changed
}

// peerOf names the node at the other end of a link; empty: there is no link.
func peerOf(t *halfcore.Topology, d grid.Direction) fault.NodeID {
	c, ok := t.Dims.Neighbour(t.Coord, d)
	if !ok {
		return ""
	}
	return t.ID(c)
}

// joiner returns the node that joins, not started yet.
func (w *World) joiner(m move) *node {
	if m.again != nil {
		return w.returner(m.again)
	}
	var n *node
	if m.back && len(w.moves.spares) > 0 {
		n, w.moves.spares = w.moves.spares[0], w.moves.spares[1:]
		n.end()
		n.topo = halfcore.NewTopology(n.id(), m.at, w.cfg.Dims, nil)
	} else {
		w.moves.made++
		n = newNode(w, fault.NodeID("j"+string(rune('a'+w.moves.made/10))+string(rune('0'+w.moves.made%10))), m.at)
		wall := w.between(-maxWall, maxWall)
		n.host.wall, n.dnp.wall = wall, wall
		w.ids[n.id()] = n
		n.place = &place{}
		// As storage.NextEpoch has it: else its broadcasts may have the names of those of a node that was at this place.
		n.host.epoch, n.dnp.epoch = fault.Epoch(w.rnd.Uint64N(1<<16)), fault.Epoch(w.rnd.Uint64N(1<<16))
	}
	n.links = [grid.NumDirections]cable{}
	n.service.lose, n.service.corrupt = 0, 0
	clear(n.service.cut)
	p := &place{placed: true, joins: true, turns: n.place.turns + 1, config: halfcore.PeersConfig{Spare: true}}
	for i, d := range grid.Directions() {
		p.config.Ends[i].Address = endOf(n.id(), d)
	}
	n.place = p
	return n
}

// startJoiner starts a joiner's halves after a time.
func (w *World) startJoiner(n *node, wait time.Duration) {
	if wait < 0 {
		return
	}
	turn := n.place.turns
	w.after(wait, func() {
		if n.place.turns != turn || !n.place.placed {
			return
		}
		for _, h := range []fault.Half{fault.HalfDNP, fault.HalfHost} {
			n.start(h)
		}
	})
}

// beginLife has a starting half of a joiner hold its present order: its daemon waited for that.
func (n *node) beginLife() {
	if n.place == nil {
		return
	}
	if n.place.first.IsZero() || n.withdrawn() && !n.dnp.running {
		n.place.first = n.w.now
		_, n.place.held = n.w.orderFor(n)
	}
}

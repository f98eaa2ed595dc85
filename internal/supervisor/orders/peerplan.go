package orders

import (
	"cmp"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// peerEnd is the node at the other end of a link, and the ip:port of that end.
type peerEnd struct {
	Node    fault.NodeID
	Address string
}

// peerWord is the order for a node. The zero value confirms the node's configuration, and says that a spare has no
// place.
type peerWord struct {
	Coord string // of a spare
	Peers [grid.NumDirections]peerEnd
	Torus grid.Dims // zero: as configured
	// AnyTorus says that the node keeps the torus that it holds: its torus needs no change.
	AnyTorus bool
}

// Order renders the word for one incarnation of a node. Incarnation 0 stands for a node without a
// report yet.
func (w peerWord) Order(node fault.NodeID, number, life uint64) *lofamov1.PeerOrder {
	o := &lofamov1.PeerOrder{Node: string(node), Number: number, Coord: w.Coord, Life: life, LifeUnknown: life == 0}
	for i, d := range grid.Directions() {
		if p := w.Peers[i]; p.Node != "" {
			o.Peers = append(o.Peers, &lofamov1.Peer{Direction: uint32(d), Address: p.Address, Node: string(p.Node)})
		}
	}
	if w.Torus != (grid.Dims{}) {
		o.Torus, _ = w.Torus.AppendBinary(nil) // never fails
	}
	return o
}

// heldBy reports whether a node says that it holds the word.
func (w peerWord) heldBy(st *lofamov1.PeerStatus) bool {
	torus := ""
	if w.Torus != (grid.Dims{}) {
		torus = w.Torus.Short()
	}
	same := w.AnyTorus || st.GetTorus() == torus
	w.Torus, w.AnyTorus = grid.Dims{}, false
	return same && heldPeers(st) == w
}

// peerLife returns the incarnation that orders use for a node, as reported by itself: a spare that does not run yet
// has no boot epoch. 0: it is of an earlier version.
func peerLife(st *lofamov1.PeerStatus) uint64 { return cmp.Or(st.GetLife(), st.GetEpoch()) }

// heldPeers returns the word that a node reports to hold, without its torus.
func heldPeers(st *lofamov1.PeerStatus) peerWord {
	w := peerWord{Peers: byDirection(st.GetPeers())}
	if st.GetSpare() {
		w.Coord = st.GetCoord()
	}
	return w
}

func byDirection(list []*lofamov1.Peer) (out [grid.NumDirections]peerEnd) {
	for _, p := range list {
		if d := grid.Direction(p.GetDirection()); d.Valid() {
			out[d.Index()] = peerEnd{fault.NodeID(p.GetNode()), canonicalAddress(p.GetAddress())}
		}
	}
	return out
}

// canonicalAddress writes an address as agents do: two ways to write one must not look like two.
func canonicalAddress(address string) string {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return ""
	}
	return a.String()
}

// keepPeers returns the record of a node after a status; was is the earlier record or nil. The record omits transient
// fields, so that it stays the same until something changes. Fields that the status lacks keep their old values. The
// torus of a record is the configured one, and its epoch the newest one of the node. A status of a waiting spare, or of a node that has
// lost its order, does not lower the epoch.
func keepPeers(was, st *lofamov1.PeerStatus) *lofamov1.PeerStatus {
	out := proto.CloneOf(st)
	out.Life, out.Number, out.Lost, out.Configuration = 0, 0, false, false
	if st.GetEpoch() == 0 || st.GetLost() {
		out.Epoch = max(st.GetEpoch(), was.GetEpoch())
	}
	if st.GetConfiguration() {
		out.Peers = was.GetPeers()
	} else {
		out.Torus = was.GetTorus()
		if len(st.GetEnds())+len(st.GetConfigured()) == 0 {
			out.Ends, out.Configured = was.GetEnds(), was.GetConfigured()
		}
	}
	return out
}

// samePeers reports whether a record and its successor differ at most in the boot epoch. A record of an earlier version has no epoch, so it
// differs from one with an epoch.
func samePeers(a, b *lofamov1.PeerStatus) bool {
	if a.GetEpoch() == 0 || a.GetEpoch() == b.GetEpoch() {
		return proto.Equal(a, b)
	}
	b = proto.CloneOf(b)
	b.Epoch = a.GetEpoch()
	return proto.Equal(a, b)
}

// peerRecords are the nodes' reports, as keepPeers makes them.
type peerRecords map[fault.NodeID]*lofamov1.PeerStatus

// peerPlan holds the peers that each node needs after a node was replaced: the other ends of its links, and for
// a spare also its place (seed 003 §5.2.3.2: all neighbours of the replaced node are informed).
//
// The addresses come from the nodes themselves: each reports its own ends, and its peers' as in its configuration. An
// order contains only differences from the node's configuration. It omits unknown addresses, and leaves correct ones that
// the node already holds. A node whose configuration does not match its place in the topology still needs an operator: it
// gets no order, and no other node is sent its address.
type peerPlan struct {
	// Words for the nodes that need another word than the zero value.
	Words map[fault.NodeID]peerWord
	// Lacking are the nodes that cannot get a link's other end yet, by id, because no node has reported the end's
	// address.
	Lacking []fault.NodeID
}

// noTorus is what a spare's record has for its configured torus when its configuration names none. An agent of an earlier
// version says nothing about it, and follows no order of a torus.
const noTorus = "-"

// peerPlanner works a plan out.
type peerPlanner struct {
	topo     *topology.Topology
	settled  grid.Dims // see planPeers
	names    [2]string // short names of the torus and the settled one; empty: too long for an order
	records  peerRecords
	occupant map[string]*lofamov1.PeerStatus // whose configuration has a place
}

// planPeers works out the plan of a topology. Nodes whose links lead to the same places in the settled torus, an earlier
// one, get that torus: when many nodes join one after the other, only the nodes on the lines through their places get
// an order for each.
func planPeers(t *topology.Topology, settled grid.Dims, records peerRecords) peerPlan {
	p := peerPlanner{topo: t, settled: settled, records: records, occupant: make(map[string]*lofamov1.PeerStatus)}
	for i, d := range [...]grid.Dims{t.Dims, settled} {
		if b, _ := d.AppendBinary(nil); len(b) <= grid.MaxEncoding && d.Places() <= grid.MaxBinary {
			p.names[i] = d.Short()
		}
	}
	for _, id := range sortedRecords(records) {
		if r := records[id]; !r.GetSpare() && r.GetCoord() != "" && p.occupant[r.GetCoord()] == nil {
			p.occupant[r.GetCoord()] = r
		}
	}
	plan := peerPlan{Words: make(map[fault.NodeID]peerWord)}
	for _, n := range t.Nodes {
		r := records[n.ID]
		if r == nil {
			continue
		}
		w, whole := p.word(n, r)
		if w != (peerWord{}) {
			plan.Words[n.ID] = w
		}
		if !whole {
			plan.Lacking = append(plan.Lacking, n.ID)
		}
	}
	slices.Sort(plan.Lacking)
	return plan
}

func sortedRecords(records peerRecords) []fault.NodeID {
	out := make([]fault.NodeID, 0, len(records))
	for id := range records {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// stands reports whether a node is at its place in the topology: by its configuration, or because it follows an order of
// a place, as a spare does.
func (p *peerPlanner) stands(n topology.Node) bool {
	r := p.records[n.ID]
	return !n.Spare && r != nil && (r.GetSpare() || r.GetMoves() || r.GetCoord() == n.Coord.String())
}

// word returns the word for a node, and whether it is complete.
func (p *peerPlanner) word(n topology.Node, r *lofamov1.PeerStatus) (w peerWord, whole bool) {
	switch {
	case n.Spare:
		return peerWord{}, true
	case !p.stands(n):
		return keeps(heldPeers(r)), true
	case r.GetSpare() || r.GetCoord() != n.Coord.String():
		return p.place(n, r)
	}
	w.Torus = p.torus(n, r)
	held, configured, own := heldPeers(r), byDirection(r.GetConfigured()), byDirection(r.GetEnds())
	whole = true
	for i, d := range grid.Directions() {
		there, ok := p.neighbour(n.Coord, d)
		if !ok || configured[i].Node == there.ID || configured[i].Node == "" && len(r.GetEnds()) > 0 && own[i].Address == "" {
			continue // the last: the node has no end there, so this link is left out
		}
		switch address := p.end(there, d.Opposite()); {
		case address != "":
			w.Peers[i] = peerEnd{there.ID, address}
		case held.Peers[i].Node == there.ID:
			w.Peers[i] = held.Peers[i]
		default:
			whole = whole && !p.stands(there)
		}
	}
	return w, whole
}

// torus returns the torus that the node must hold by order; zero: that of its configuration.
func (p *peerPlanner) torus(n topology.Node, r *lofamov1.PeerStatus) grid.Dims {
	is, name := p.topo.Dims, p.names[0]
	if p.settled != is && p.settled.Contains(n.Coord) && p.sameLinks(n.Coord) {
		is, name = p.settled, p.names[1]
	}
	if name == "" || r.GetTorus() == "" || r.GetTorus() == name {
		return grid.Dims{}
	}
	return is
}

// sameLinks reports whether the links of a place lead to the same places in the settled torus.
func (p *peerPlanner) sameLinks(at grid.Coord) bool {
	for _, d := range grid.Directions() {
		was, had := p.settled.Neighbour(at, d)
		is, has := p.topo.Dims.Neighbour(at, d)
		if had != has || was != is {
			return false
		}
	}
	return true
}

// keeps returns the word for a node that keeps what it holds.
func keeps(held peerWord) peerWord {
	held.AnyTorus = held != (peerWord{})
	return held
}

// place returns the word for a spare, or for a node that moves from its configured place: all of its peers, or the ones that
// it already holds while any peer is unknown.
func (p *peerPlanner) place(n topology.Node, r *lofamov1.PeerStatus) (w peerWord, whole bool) {
	held, former := heldPeers(r), p.occupant[n.Coord.String()]
	w.Coord, w.Torus = n.Coord.String(), p.torus(n, r)
	before := byDirection(former.GetConfigured())
	for i, d := range grid.Directions() {
		if _, linked := p.topo.Dims.Neighbour(n.Coord, d); !linked {
			continue
		}
		there, ok := p.neighbour(n.Coord, d)
		address := ""
		if ok {
			address = p.end(there, d.Opposite())
		}
		switch {
		case address != "":
			w.Peers[i] = peerEnd{there.ID, address}
		case before[i].Address != "" && (!ok || before[i].Node == there.ID): // of another region, of an earlier version, or dead before it spoke
			w.Peers[i] = before[i]
		case held.Coord == w.Coord && held.Peers[i].Node != "" && (!ok || held.Peers[i].Node == there.ID):
			w.Peers[i] = held.Peers[i]
		default:
			return keeps(held), false
		}
	}
	return w, true
}

// neighbour returns the node at the other end of a link by the topology. ok is false if these supervisors know no
// such node.
func (p *peerPlanner) neighbour(at grid.Coord, d grid.Direction) (topology.Node, bool) {
	c, ok := p.topo.Dims.Neighbour(at, d)
	if !ok {
		return topology.Node{}, false
	}
	return p.topo.Place(c)
}

// end returns a node's address at its end of a link. It is empty if the node has not reported it, or is at another
// place.
func (p *peerPlanner) end(n topology.Node, d grid.Direction) string {
	if !p.stands(n) {
		return ""
	}
	return byDirection(p.records[n.ID].GetEnds())[d.Index()].Address
}

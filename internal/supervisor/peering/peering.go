// Package peering computes the peers that each node needs after a node was replaced: the other ends of its links, and for
// a spare also its place (seed 003 §5.2.3.2: all neighbours of the replaced node are informed).
//
// The addresses come from the nodes themselves: each reports its own ends, and its peers' as in its configuration. An
// order contains only differences from the node's configuration. It omits unknown addresses, and leaves correct ones that
// the node already holds. A node whose configuration does not match its place in the topology still needs an operator: it
// gets no order, and no other node is sent its address.
//
// The package is pure. Keep makes its records from PeerStatus messages. Package supervisor sends and repeats
// the orders (ordering.go).
package peering

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

// Peer is the node at the other end of a link, and the ip:port of that end.
type Peer struct {
	Node    fault.NodeID
	Address string
}

// Word is the order for a node. The zero Word confirms the node's configuration, and says that a spare has no
// place.
type Word struct {
	Coord string // of a spare
	Peers [grid.NumDirections]Peer
}

// Order renders the word for one incarnation of a node. Incarnation 0 stands for a node that has not been heard
// yet.
func (w Word) Order(node fault.NodeID, number, life uint64) *lofamov1.PeerOrder {
	o := &lofamov1.PeerOrder{Node: string(node), Number: number, Coord: w.Coord, Life: life, LifeUnknown: life == 0}
	for i, d := range grid.Directions() {
		if p := w.Peers[i]; p.Node != "" {
			o.Peers = append(o.Peers, &lofamov1.Peer{Direction: uint32(d), Address: p.Address, Node: string(p.Node)})
		}
	}
	return o
}

// Life returns the incarnation that orders use for a node, as reported by itself: a spare that does not run yet
// has no boot epoch. 0: it is of an earlier version.
func Life(st *lofamov1.PeerStatus) uint64 { return cmp.Or(st.GetLife(), st.GetEpoch()) }

// Held returns the word that a node reports to hold.
func Held(st *lofamov1.PeerStatus) Word {
	w := Word{Peers: byDirection(st.GetPeers())}
	if st.GetSpare() {
		w.Coord = st.GetCoord()
	}
	return w
}

func byDirection(list []*lofamov1.Peer) (out [grid.NumDirections]Peer) {
	for _, p := range list {
		if d := grid.Direction(p.GetDirection()); d.Valid() {
			out[d.Index()] = Peer{fault.NodeID(p.GetNode()), canonical(p.GetAddress())}
		}
	}
	return out
}

// canonical writes an address as agents do: two ways to write one must not look like two.
func canonical(address string) string {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return ""
	}
	return a.String()
}

// Keep returns the record of a node after a status; was is the earlier record or nil. The record omits transient
// fields, so that it stays the same until something changes. Fields that the status lacks keep their old values.
func Keep(was, st *lofamov1.PeerStatus) *lofamov1.PeerStatus {
	out := proto.CloneOf(st)
	out.Epoch, out.Life, out.Number, out.Lost, out.Configuration = 0, 0, 0, false, false
	if st.GetConfiguration() {
		out.Peers = was.GetPeers()
	} else if len(st.GetEnds())+len(st.GetConfigured()) == 0 {
		out.Ends, out.Configured = was.GetEnds(), was.GetConfigured()
	}
	return out
}

// Records are the nodes' reports, as Keep makes them.
type Records map[fault.NodeID]*lofamov1.PeerStatus

// Plan is the target state of the nodes.
type Plan struct {
	// Words for the nodes that need another word than the zero value.
	Words map[fault.NodeID]Word
	// Lacking are the nodes that cannot get a link's other end yet, by id, because no node has reported the end's
	// address.
	Lacking []fault.NodeID
}

// planner works a plan out.
type planner struct {
	topo     *topology.Topology
	records  Records
	occupant map[string]*lofamov1.PeerStatus // whose configuration has a place
}

// Of works out the plan of a topology.
func Of(t *topology.Topology, records Records) Plan {
	p := planner{topo: t, records: records, occupant: make(map[string]*lofamov1.PeerStatus)}
	for _, id := range sorted(records) {
		if r := records[id]; !r.GetSpare() && r.GetCoord() != "" && p.occupant[r.GetCoord()] == nil {
			p.occupant[r.GetCoord()] = r
		}
	}
	plan := Plan{Words: make(map[fault.NodeID]Word)}
	for _, n := range t.Nodes {
		r := records[n.ID]
		if r == nil {
			continue
		}
		w, whole := p.word(n, r)
		if w != (Word{}) {
			plan.Words[n.ID] = w
		}
		if !whole {
			plan.Lacking = append(plan.Lacking, n.ID)
		}
	}
	slices.Sort(plan.Lacking)
	return plan
}

func sorted(records Records) []fault.NodeID {
	out := make([]fault.NodeID, 0, len(records))
	for id := range records {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// stands reports whether a node is at its place in the topology: by its configuration, or as a spare with that
// place.
func (p *planner) stands(n topology.Node) bool {
	r := p.records[n.ID]
	return !n.Spare && r != nil && (r.GetSpare() || r.GetCoord() == n.Coord.String())
}

// word returns the word for a node, and whether it is complete.
func (p *planner) word(n topology.Node, r *lofamov1.PeerStatus) (w Word, whole bool) {
	switch {
	case n.Spare:
		return Word{}, true
	case !p.stands(n):
		return Held(r), true
	case r.GetSpare():
		return p.place(n, r)
	}
	held, configured := Held(r), byDirection(r.GetConfigured())
	whole = true
	for i, d := range grid.Directions() {
		there, ok := p.neighbour(n.Coord, d)
		if !ok || configured[i].Node == there.ID {
			continue
		}
		switch address := p.end(there, d.Opposite()); {
		case address != "":
			w.Peers[i] = Peer{there.ID, address}
		case held.Peers[i].Node == there.ID:
			w.Peers[i] = held.Peers[i]
		default:
			whole = whole && !p.stands(there)
		}
	}
	return w, whole
}

// place returns the word for a spare: all of its peers, or the ones that it already holds while any peer is
// unknown.
func (p *planner) place(n topology.Node, r *lofamov1.PeerStatus) (w Word, whole bool) {
	held, former := Held(r), p.occupant[n.Coord.String()]
	w.Coord = n.Coord.String()
	before := byDirection(former.GetConfigured())
	for i, d := range grid.Directions() {
		if !p.topo.Dims.HasLink(d) {
			continue
		}
		there, ok := p.neighbour(n.Coord, d)
		address := ""
		if ok {
			address = p.end(there, d.Opposite())
		}
		switch {
		case address != "":
			w.Peers[i] = Peer{there.ID, address}
		case before[i].Address != "" && (!ok || before[i].Node == there.ID): // of another region, of an earlier version, or dead before it spoke
			w.Peers[i] = before[i]
		case held.Coord == w.Coord && held.Peers[i].Node != "" && (!ok || held.Peers[i].Node == there.ID):
			w.Peers[i] = held.Peers[i]
		default:
			return held, false
		}
	}
	return w, true
}

// neighbour returns the node at the other end of a link by the topology. ok is false if these supervisors know no
// such node.
func (p *planner) neighbour(at grid.Coord, d grid.Direction) (topology.Node, bool) {
	c, ok := p.topo.Dims.Neighbour(at, d)
	if !ok {
		return topology.Node{}, false
	}
	return p.topo.Place(c)
}

// end returns a node's address at its end of a link. It is empty if the node has not reported it, or is at another
// place.
func (p *planner) end(n topology.Node, d grid.Direction) string {
	if !p.stands(n) {
		return ""
	}
	return byDirection(p.records[n.ID].GetEnds())[d.Index()].Address
}

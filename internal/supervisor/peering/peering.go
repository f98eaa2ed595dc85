// Package peering works out what each node is to be told of the other ends of its links, and a spare of its place, after a node
// was replaced (seed 003 §5.2.3.2: all its neighbours are told).
//
// Where the ends are the nodes say themselves: their own, and their peers' as their configurations have them. A node is told what
// differs from its configuration and nothing else; what is not known it is not told, and what it holds that is right it keeps. A
// node that stands elsewhere than the topology says (somebody has still to configure it) neither is told anything nor are others
// told of it.
//
// It is pure. Records come from PeerStatus messages by Keep; who orders what, and until when, is package orderer's.
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

// Peer is who is at the other end of a link, and the ip:port of his end.
type Peer struct {
	Node    fault.NodeID
	Address string
}

// Word is what a node is told; its zero value: that its configuration stands, and of a spare that it has no place.
type Word struct {
	Coord string // of a spare
	Peers [grid.NumDirections]Peer
}

// Order renders the word for a node, and for one life of it, 0: for one of which nothing was heard yet.
func (w Word) Order(node fault.NodeID, number, life uint64) *lofamov1.PeerOrder {
	o := &lofamov1.PeerOrder{Node: string(node), Number: number, Coord: w.Coord, Life: life, LifeUnknown: life == 0}
	for i, d := range grid.Directions() {
		if p := w.Peers[i]; p.Node != "" {
			o.Peers = append(o.Peers, &lofamov1.Peer{Direction: uint32(d), Address: p.Address, Node: string(p.Node)})
		}
	}
	return o
}

// Life is what orders name the life of a node by, as it says itself: a spare that does not run yet has no boot epoch. 0: it is of
// an earlier version.
func Life(st *lofamov1.PeerStatus) uint64 { return cmp.Or(st.GetLife(), st.GetEpoch()) }

// Held is the word that a node says it holds.
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

// Keep is what is recorded of a node after a status, was having been (nil: nothing): nothing of the moment, so that it is the
// same until something has changed. Of what the status does not say, was stays.
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

// Records are what nodes have said, by Keep.
type Records map[fault.NodeID]*lofamov1.PeerStatus

// Plan is what nodes are to hold.
type Plan struct {
	// Words of nodes to which something else than the zero value is to be said.
	Words map[fault.NodeID]Word
	// Lacking are the nodes that cannot be told of a link yet, by id, for nobody has said where its other end is.
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

// stands says whether a node is where the topology has it: by its configuration, or as a spare that is told so.
func (p *planner) stands(n topology.Node) bool {
	r := p.records[n.ID]
	return !n.Spare && r != nil && (r.GetSpare() || r.GetCoord() == n.Coord.String())
}

// word is what a node is to hold, and whether that is all that is to be said to it.
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

// place is what a spare is told: all of its peers, or, as long as one cannot be told, what it holds.
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

// neighbour is who is at the other end of a link by the topology; false: nobody that these supervisors know.
func (p *planner) neighbour(at grid.Coord, d grid.Direction) (topology.Node, bool) {
	c, ok := p.topo.Dims.Neighbour(at, d)
	if !ok {
		return topology.Node{}, false
	}
	return p.topo.Place(c)
}

// end is where a node says that its end of a link is; empty: it has not said so, or stands elsewhere.
func (p *planner) end(n topology.Node, d grid.Direction) string {
	if !p.stands(n) {
		return ""
	}
	return byDirection(p.records[n.ID].GetEnds())[d.Index()].Address
}

package topology

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Ends tells in which directions a node can have links.
type Ends interface {
	// Ends returns the directions, a bit for each index, in which the node has stated an own end of a link; false if
	// it has stated none at all.
	Ends(fault.NodeID) (directions uint8, known bool)
	// Follows returns whether the node follows a torus that changes, or has said nothing yet; false: its agent is of an
	// earlier version.
	Follows(fault.NodeID) bool
	// Moves reports whether the node's agent can move it to another place.
	Moves(fault.NodeID) bool
}

// CannotJoinError says why a node cannot join, leave or move.
type CannotJoinError struct {
	Node fault.NodeID
	Why  string
	// Later says that it may be possible soon: another node has not reported its ends of links yet.
	Later bool
}

func cannot(id fault.NodeID, format string, args ...any) *CannotJoinError {
	return &CannotJoinError{Node: id, Why: fmt.Sprintf(format, args...)}
}

func (e *CannotJoinError) Error() string { return fmt.Sprintf("node %s: %s", e.Node, e.Why) }

// Join returns the topology with the nodes placed, one after the other. A node without a place of its own choice gets, of the
// places that the ends of links allow, the one that grid.Placement.Choose rates best by failure domains and neighbours. If no
// place is empty, the torus grows by a plane. Nodes that the topology does not have are added. The error is a
// *CannotJoinError or an *InvalidError.
func (t *Topology) Join(nodes []Node, ends Ends) (*Topology, error) {
	if t.Region != "" {
		return nil, cannot(nodes[0].ID, "region %s: its places are fixed by the configurations of all regions", t.Region)
	}
	for _, n := range nodes {
		var err error
		if t, err = t.join(n, ends); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Expect returns a topology in which each of the nodes that t lacks is a spare. The error is a *CannotJoinError.
func (t *Topology) Expect(nodes []Node) (*Topology, error) {
	for i, n := range nodes {
		if slices.ContainsFunc(nodes[:i], func(o Node) bool { return o.ID == n.ID }) {
			return nil, cannot(n.ID, "named twice")
		}
		if err := t.checkService(n); err != nil {
			return nil, err
		}
		if _, known := t.Node(n.ID); !known {
			n.Spare, n.Coord = true, grid.Coord{}
			t = New(t.Dims, append(slices.Clone(t.Nodes), n), t.DomainLabels, t.Revision)
		}
	}
	return t, nil
}

// join places one node; n.Spare says that the place is not chosen yet.
func (t *Topology) join(n Node, ends Ends) (*Topology, error) {
	old, known := t.Node(n.ID)
	if known && !old.Spare {
		return nil, cannot(n.ID, "has the place %s already", old.Coord)
	}
	if known && len(n.Service) == 0 {
		n.Service, n.Proved = old.Service, old.Proved
	}
	if known && n.Labels == nil {
		n.Labels = old.Labels
	}
	if err := t.checkService(n); err != nil {
		return nil, err
	}
	var dims grid.Dims
	var err error
	if n.Spare {
		n.Coord, dims, err = t.choose(n, ends)
	} else if dims, err = t.filled(n.ID, n.Coord); err == nil {
		err = t.checkEnds(n.ID, n.Coord, dims, ends)
	}
	if err != nil {
		return nil, err
	}
	n.Spare, n.Joining = false, false
	out := slices.DeleteFunc(slices.Clone(t.Nodes), func(o Node) bool { return o.ID == n.ID })
	return New(dims, append(out, n), t.DomainLabels, t.Revision), nil
}

// choose returns the best place for a node, and the torus with a node there.
func (t *Topology) choose(n Node, ends Ends) (at grid.Coord, dims grid.Dims, err error) {
	if t.Dims == (grid.Dims{}) {
		dims, err = t.filled(n.ID, at) // the first node of all
		return at, dims, err
	}
	places := make([]grid.Coord, 0, len(t.Placed()))
	labels := make([]map[string]string, 0, len(t.Placed())+1)
	for _, n := range t.Placed() {
		places, labels = append(places, n.Coord), append(labels, n.Labels)
	}
	p, err := grid.Place(t.Dims, grid.NewDomains(t.DomainLabels, append(labels, n.Labels)), places)
	if err != nil {
		return at, dims, cannot(n.ID, "%v", err)
	}
	var refused error
	at, _, err = p.Choose(func(in grid.Dims, at grid.Coord) bool {
		err := t.checkEnds(n.ID, at, in, ends)
		if err == nil {
			dims, err = t.filled(n.ID, at)
		}
		if why := (*CannotJoinError)(nil); refused == nil || errors.As(err, &why) && why.Later {
			refused = err
		}
		return err == nil
	})
	switch {
	case err == nil:
		return at, dims, nil
	case refused != nil:
		return at, dims, refused
	}
	return at, dims, cannot(n.ID, "%v", err)
}

// filled returns the torus with a node at the place.
func (t *Topology) filled(id fault.NodeID, at grid.Coord) (grid.Dims, error) {
	if d := t.Dims; at.X > d.X || at.Y > d.Y || at.Z > d.Z {
		return d, cannot(id, "place %s: want an empty place of the %s torus, or one beside it", at, d.Box())
	}
	dims, err := t.Dims.Filled(at)
	if err != nil {
		return dims, cannot(id, "%s", err.Error())
	}
	if err = checkEncoding(dims); len(dims.LinksOf(at)) == 0 { // one neighbour is enough: the other nodes are in one part
		err = cmp.Or(dims.CheckConnected(), err)
	}
	if err != nil {
		return dims, cannot(id, "place %s: %v", at, err)
	}
	return dims, nil
}

// checkEnds refuses a place of the torus that would give a node a link without an end there.
func (t *Topology) checkEnds(id fault.NodeID, at grid.Coord, in grid.Dims, ends Ends) error {
	own, known := ends.Ends(id)
	if !ends.Follows(id) {
		return cannot(id, "its agent is of an earlier version, which follows no changed torus: upgrade it, or restart it if "+
			"it was upgraded before the supervisors")
	}
	for _, d := range grid.Directions() {
		c, linked := in.Neighbour(at, d)
		if !linked {
			continue
		}
		if known && own>>d.Index()&1 == 0 {
			return cannot(id, "place %s: the node has stated no end of link %s: want links.%s.local in its "+
				"configuration", at, d, d)
		}
		back := d.Opposite()
		n, ok := t.Place(c)
		if ok && !ends.Follows(n.ID) {
			return cannot(id, "place %s: the agent of node %s, its neighbour there, is of an earlier version, "+
				"which follows no changed torus: upgrade it, or restart it if it was upgraded before the supervisors", at, n.ID)
		}
		if _, linked := t.Dims.Neighbour(c, back); !ok || linked {
			continue
		}
		theirs, stated := ends.Ends(n.ID)
		if !stated {
			err := cannot(id, "place %s: node %s, its neighbour there, has not reported its ends of links yet", at, n.ID)
			err.Later = true
			return err
		}
		if theirs>>back.Index()&1 == 0 {
			return cannot(id, "place %s: node %s, its neighbour there, has stated no end of link %s: want links.%s.local in its "+
				"configuration", at, n.ID, back, back)
		}
	}
	return nil
}

// EnrolledBy is the label of nodes that enrolled without a token, and EnrolledByKubernetes its value for pods' tokens.
const (
	EnrolledBy           = "lofamo.io/enrolled-by"
	EnrolledByKubernetes = "kubernetes"
)

// checkService returns an error if a service address of a node is that of another one.
func (t *Topology) checkService(n Node) error {
	for _, a := range n.Service {
		if owner, taken := t.Owner(a); taken && owner != n.ID {
			return cannot(n.ID, "service address %s: is that of node %s", a, owner)
		}
	}
	return nil
}

// Admit returns the topology with a node that has enrolled, and proved its addresses: a spare that the leader gives a place when it
// reports. A known node keeps its place, and gets the new addresses and labels. Silent nodes lose the addresses that this one has proved.
// The error is a *CannotJoinError or an *InvalidError.
func (t *Topology) Admit(n Node, silent []fault.NodeID) (*Topology, error) {
	if t.Region != "" {
		return nil, cannot(n.ID, "region %s: its places are fixed by the configurations of all regions", t.Region)
	}
	t = t.without(n.Service, silent)
	if err := t.checkService(n); err != nil {
		return nil, err
	}
	old, known := t.Node(n.ID)
	n.Spare, n.Joining, n.Coord, n.Proved = true, true, grid.Coord{}, true
	if known {
		n.Spare, n.Joining, n.Coord = old.Spare, old.Joining, old.Coord
	}
	if len(n.Labels) == 0 {
		n.Labels = nil
	}
	if errs := fault.CheckLabels(n.Labels); len(errs) > 0 {
		return nil, &InvalidError{[]FieldError{{"labels", errs[0].Error()}}}
	}
	out := slices.DeleteFunc(slices.Clone(t.Nodes), func(o Node) bool { return o.ID == n.ID })
	return New(t.Dims, append(out, n), t.DomainLabels, t.Revision), nil
}

// without returns the topology without these service addresses of these nodes.
func (t *Topology) without(addresses []netip.AddrPort, ids []fault.NodeID) *Topology {
	nodes := slices.Clone(t.Nodes)
	for i, n := range nodes {
		if slices.Contains(ids, n.ID) {
			nodes[i].Service = slices.DeleteFunc(slices.Clone(n.Service), func(a netip.AddrPort) bool {
				return slices.ContainsFunc(addresses, func(b netip.AddrPort) bool { return plain(a) == plain(b) })
			})
		}
	}
	return New(t.Dims, nodes, t.DomainLabels, t.Revision)
}

// Holders returns the node of a name, and the nodes that have one of these service addresses.
func (t *Topology) Holders(id fault.NodeID, addresses []netip.AddrPort) []fault.NodeID {
	var out []fault.NodeID
	if _, known := t.Node(id); known {
		out = append(out, id)
	}
	for _, a := range addresses {
		if owner, taken := t.Owner(a); taken && !slices.Contains(out, owner) {
			out = append(out, owner)
		}
	}
	return out
}

// Leave returns the topology with the nodes' places empty. The nodes are spares then, or with gone not in the topology
// any more. The error is a *CannotJoinError.
func (t *Topology) Leave(ids []fault.NodeID, gone bool) (*Topology, error) {
	if t.Region != "" {
		return nil, cannot(ids[0], "region %s: its places are fixed by the configurations of all regions", t.Region)
	}
	nodes := slices.Clone(t.Nodes)
	var empty []grid.Coord
	for _, id := range ids {
		i := slices.IndexFunc(nodes, func(n Node) bool { return n.ID == id })
		switch {
		case i < 0:
			return nil, cannot(id, "not in the topology, or named twice")
		case nodes[i].Spare && !gone:
			return nil, cannot(id, "has no place: want a node that has one")
		case !nodes[i].Spare:
			empty = append(empty, nodes[i].Coord)
		}
		if gone {
			nodes = slices.Delete(nodes, i, i+1)
		} else {
			nodes[i].Spare, nodes[i].Joining = true, false
		}
	}
	dims := t.Dims
	if len(empty) > 0 {
		if dims.Nodes()-len(empty) < MinNodes {
			return nil, cannot(ids[0], "%s would be left: want at least %d", fault.Plural(dims.Nodes()-len(empty), "node"),
				MinNodes)
		}
		var err error
		if dims, err = dims.Without(empty...); err == nil {
			err = cmp.Or(dims.CheckConnected(), checkEncoding(dims))
		}
		if err != nil {
			return nil, cannot(ids[0], "if it leaves: %v", err)
		}
	}
	return New(dims, nodes, t.DomainLabels, t.Revision), nil
}

// checkEncoding returns an error for a torus that no order can name.
func checkEncoding(d grid.Dims) error {
	if n := d.Places(); n > grid.MaxBinary {
		return fmt.Errorf("dims %s: %d places: want at most %d", d.Box(), n, grid.MaxBinary)
	}
	if b, _ := d.AppendBinary(nil); len(b) > grid.MaxEncoding {
		return fmt.Errorf("dims %s: its empty places are too scattered: their encoding has %d bytes: want at most %d", d.Short(), len(b),
			grid.MaxEncoding)
	}
	return nil
}

// MinNodes is the smallest number of nodes that Leave leaves.
const MinNodes = 2

// NodeFromProto checks one node that joins, with a place of its choice or without. The error is an *InvalidError.
func NodeFromProto(i int, p *lofamov1.TopologyNode) (Node, error) {
	c := &checker{ids: map[fault.NodeID]int{}, coords: map[grid.Coord]int{}, addresses: map[netip.AddrPort]string{}, unknown: true}
	n := c.node(i, p)
	if len(c.fields) > 0 {
		return Node{}, &InvalidError{c.fields}
	}
	return n, nil
}

package notify

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Map is this replica's fault map, at one revision.
type Map interface {
	Revision() uint64
	// Quorum reports whether this replica's store has a quorum. Without one the map may be old.
	Quorum() bool
	// Node returns the message's part about a node. A node is UNKNOWN if it has left the torus, if another node has its place, or if it is
	// in another region. If the message omitted such a node of a job, the half would treat the node as NORMAL.
	Node(id fault.NodeID) *lofamov1.NodeView
	Neighbours(id fault.NodeID) []fault.NodeID
}

// MachineConfig configures a Machine.
type MachineConfig struct {
	Window  time.Duration // a half whose digests stop for so long belongs to another replica
	Again   time.Duration // between two tellings of the whole to one half
	Backlog time.Duration // time a half may be ahead of a replica with a quorum before the machine assumes a restored store
}

// Notice is a message to the host half of a node.
type Notice struct {
	Node   fault.NodeID
	Update *lofamov1.FaultUpdate
}

// half is a half that this replica notifies.
type half struct {
	heard    time.Time
	sent     uint64    // last revision sent; 0: none
	whole    time.Time // time of the last whole state
	repeats  int       // number of further digests to answer with a whole state, because an earlier one may be lost
	ahead    time.Time // start of its lead over this replica with a quorum; zero: none
	marked   time.Time // time of the last bookmark or whole state
	epoch    fault.Epoch
	interest interest
	coming   interest // being received
	parts    []bool
}

// interest is the list of the nodes of a node's jobs.
type interest struct {
	serial uint32
	nodes  []fault.NodeID // sorted
}

// Machine is not safe for concurrent use.
type Machine struct {
	cfg     MachineConfig
	halves  map[fault.NodeID]*half
	watched map[fault.NodeID]map[fault.NodeID]bool // node → whose jobs are on it
}

// NewMachine returns a machine without halves.
func NewMachine(cfg MachineConfig) *Machine {
	return &Machine{cfg: cfg, halves: make(map[fault.NodeID]*half), watched: make(map[fault.NodeID]map[fault.NodeID]bool)}
}

// Len returns the number of notified halves.
func (m *Machine) Len() int { return len(m.halves) }

// Digest is the position that a host half's digest acknowledges.
type Digest struct {
	Node     fault.NodeID
	Epoch    fault.Epoch
	Revision uint64 // DeliveryStatus.view_revision
	List     uint32 // DeliveryStatus.interest
	Denied   uint64 // DeliveryStatus.denied
}

// Heard processes a digest that came directly to this replica.
func (m *Machine) Heard(now time.Time, d Digest, in Map) []Notice {
	node, known, list := d.Node, d.Revision, d.List
	h := m.halves[node]
	if h == nil {
		h = &half{epoch: d.Epoch}
		m.halves[node] = h
	}
	if servicenet.EpochSupersedes(d.Epoch, h.epoch) {
		m.begin(node, h, d.Epoch)
	}
	h.heard = now
	reset := m.ahead(now, h, known, in)
	switch {
	case !reset && known >= h.sent && h.sent > 0 && list == h.interest.serial && h.repeats == 0:
		return m.bookmark(now, node, h, in)
	case now.Sub(h.whole) < m.cfg.Again:
		return nil // it may be on its way
	}
	h.repeats = max(0, h.repeats-1)
	return m.whole(now, node, h, list, reset, in)
}

// bookmarkEvery is the shortest time between two bookmarks of a half.
const bookmarkEvery = time.Minute

// bookmark sends a half that knows everything the newest revision, so that nodes remember how far the store was.
func (m *Machine) bookmark(now time.Time, node fault.NodeID, h *half, in Map) []Notice {
	if h.sent >= in.Revision() || now.Sub(h.marked) < bookmarkEvery {
		return nil
	}
	out := m.notices(node, h, nil, &lofamov1.FaultUpdate{Since: h.sent}, in)
	h.marked, h.sent = now, in.Revision()
	return out
}

// begin resets the state of a restarted half, and its list of interests.
func (m *Machine) begin(node fault.NodeID, h *half, epoch fault.Epoch) {
	m.watch(node, h, interest{})
	*h = half{heard: h.heard, epoch: epoch}
}

// ahead reports whether a half has long known a revision beyond this replica's copy. With a quorum no copy lags that far, so
// the store was restored from an earlier state.
func (m *Machine) ahead(now time.Time, h *half, known uint64, in Map) bool {
	if known <= in.Revision() || !in.Quorum() {
		h.ahead = time.Time{}
		return false
	}
	if h.ahead.IsZero() {
		h.ahead = now
	}
	return now.Sub(h.ahead) >= m.cfg.Backlog
}

// whole sends the whole state.
func (m *Machine) whole(now time.Time, node fault.NodeID, h *half, list uint32, reset bool, in Map) []Notice {
	h.whole, h.marked, h.sent = now, now, in.Revision()
	var nodes, unknown []*lofamov1.NodeView
	about := append([]fault.NodeID{node}, in.Neighbours(node)...)
	for _, id := range about {
		nodes = append(nodes, in.Node(id))
	}
	for _, id := range h.interest.nodes {
		switch t := in.Node(id); {
		case plain(t) || slices.Contains(about, id):
		case t.GetState() == lofamov1.State_UNKNOWN:
			unknown = append(unknown, t)
		default:
			nodes = append(nodes, t)
		}
	}
	nodes = append(nodes, unknown...) // last: to a half, nodes without room are UNKNOWN too
	return m.notices(node, h, nodes, &lofamov1.FaultUpdate{PutBack: reset, WantInterest: list != h.interest.serial}, in)
}

// plain reports whether a whole state may omit the node: it is NORMAL, without a maintenance mark, faults or group faults.
func plain(n *lofamov1.NodeView) bool {
	return n.GetState() == lofamov1.State_NORMAL && !n.GetMaintenance() && len(n.GetFaults()) == 0 && len(n.GetGroups()) == 0
}

// notices splits nodes into messages. If some do not fit, the messages say that they are incomplete: otherwise an
// absent node would count as healthy.
func (m *Machine) notices(node fault.NodeID, h *half, nodes []*lofamov1.NodeView, head *lofamov1.FaultUpdate, in Map) []Notice {
	parts := cut(nodes)
	incomplete := len(parts) > servicenet.MaxUpdateParts
	parts = parts[:min(len(parts), servicenet.MaxUpdateParts)]
	var out []Notice
	for i, part := range parts {
		out = append(out, Notice{node, &lofamov1.FaultUpdate{
			Node: string(node), Revision: in.Revision(), Since: head.GetSince(), PutBack: head.GetPutBack(),
			Part: uint32(i), Parts: uint32(len(parts)), Nodes: part,
			Interest: h.interest.serial, WantInterest: head.GetWantInterest(), Incomplete: incomplete,
		}})
	}
	return out
}

// maxBytes bounds the nodes of one message, so that it fits a datagram with its envelope. One node with every
// possible fault fits.
const maxBytes = 800

// cut returns the nodes of each message, at least one.
func cut(nodes []*lofamov1.NodeView) [][]*lofamov1.NodeView {
	var parts [][]*lofamov1.NodeView
	from, size := 0, 0
	for i, n := range nodes {
		one := proto.Size(n) + 3 // with its tag and length
		if size += one; size > maxBytes && i > from || i-from == servicenet.MaxUpdateNodes {
			parts = append(parts, nodes[from:i])
			from, size = i, one
		}
	}
	return append(parts, nodes[from:])
}

// Changed processes a commit: the changed nodes, up to the map's revision.
func (m *Machine) Changed(nodes []fault.NodeID, in Map) []Notice {
	order, concerned := m.concerned(nodes, in)
	var out []Notice
	for _, whom := range order {
		h := m.halves[whom]
		if h.sent >= in.Revision() {
			continue // already sent
		}
		var views []*lofamov1.NodeView
		for _, id := range concerned[whom] {
			views = append(views, in.Node(id))
		}
		notices := m.notices(whom, h, views, &lofamov1.FaultUpdate{Since: h.sent}, in)
		if notices[0].Update.GetIncomplete() {
			h.sent = 0 // its next digest brings it the whole
			continue
		}
		out = append(out, notices...)
		h.sent = in.Revision()
	}
	return out
}

// renewals is the number of repetitions of a renewed state. A digest does not show whether it was lost.
const renewals = 2

// Renew sends the whole state to all halves that the nodes concern, and repeats it with their next digests. It is for
// changes outside the map, which have no revision there.
func (m *Machine) Renew(now time.Time, nodes []fault.NodeID, in Map) []Notice {
	order, _ := m.concerned(nodes, in)
	var out []Notice
	for _, whom := range order {
		h := m.halves[whom]
		h.repeats = renewals
		out = append(out, m.whole(now, whom, h, h.interest.serial, false, in)...)
	}
	return out
}

// concerned returns the halves that nodes concern, in order, with the nodes for each. It leaves out halves that
// still wait for the whole state.
func (m *Machine) concerned(nodes []fault.NodeID, in Map) ([]fault.NodeID, map[fault.NodeID][]fault.NodeID) {
	concerned := make(map[fault.NodeID][]fault.NodeID)
	var order []fault.NodeID
	add := func(whom, about fault.NodeID) {
		if h := m.halves[whom]; h == nil || h.sent == 0 {
			return
		}
		if _, ok := concerned[whom]; !ok {
			order = append(order, whom)
		}
		if !slices.Contains(concerned[whom], about) {
			concerned[whom] = append(concerned[whom], about)
		}
	}
	for _, id := range nodes {
		add(id, id)
		for _, nb := range in.Neighbours(id) {
			add(nb, id)
		}
		for whom := range m.watched[id] {
			add(whom, id)
		}
	}
	slices.Sort(order)
	return order, concerned
}

// Interested processes a part of the list of a node's jobs. A list takes effect when all its parts have arrived.
func (m *Machine) Interested(now time.Time, msg *lofamov1.Interest, in Map) []Notice {
	node := fault.NodeID(msg.GetNode())
	h := m.halves[node]
	epoch := fault.Epoch(msg.GetEpoch())
	switch {
	case h == nil:
		return nil // its next digest asks again
	case servicenet.EpochSupersedes(epoch, h.epoch):
		m.begin(node, h, epoch)
	case epoch < h.epoch:
		return nil
	}
	if msg.GetSerial() != h.coming.serial || len(h.parts) != int(msg.GetParts()) {
		h.coming, h.parts = interest{serial: msg.GetSerial()}, make([]bool, msg.GetParts())
	}
	if h.parts[msg.GetPart()] {
		return nil
	}
	h.parts[msg.GetPart()] = true
	for _, id := range msg.GetNodes() {
		h.coming.nodes = append(h.coming.nodes, fault.NodeID(id))
	}
	if slices.Contains(h.parts, false) {
		return nil
	}
	m.watch(node, h, h.coming)
	h.coming, h.parts = interest{}, nil
	return m.whole(now, node, h, h.interest.serial, false, in)
}

// watch is the only writer of a half's list.
func (m *Machine) watch(node fault.NodeID, h *half, list interest) {
	for _, id := range h.interest.nodes {
		delete(m.watched[id], node)
		if len(m.watched[id]) == 0 {
			delete(m.watched, id)
		}
	}
	slices.Sort(list.nodes)
	list.nodes = slices.Compact(list.nodes)
	h.interest = list
	for _, id := range list.nodes {
		if m.watched[id] == nil {
			m.watched[id] = make(map[fault.NodeID]bool)
		}
		m.watched[id][node] = true
	}
}

// Expire forgets silent halves. The caller must call it about every Window.
func (m *Machine) Expire(now time.Time) {
	for node, h := range m.halves {
		if now.Sub(h.heard) > m.cfg.Window {
			m.watch(node, h, interest{})
			delete(m.halves, node)
		}
	}
}

package hostcore

import (
	"maps"
	"slices"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// This file has the node's view of the fault map: its own node, its neighbours and the nodes of its jobs. The view
// joins the parts of messages, refuses old ones, and reports changes. It decides nothing about faults. A node that no
// supervisor has described is UNKNOWN; one that the complete list leaves out is NORMAL.

// FaultView is for one goroutine.
type FaultView struct {
	self     fault.NodeID
	near     []fault.NodeID // itself and its neighbours
	revision uint64
	nodes    map[fault.NodeID]*lofamov1.NodeView

	coming coming
	list   interest
	backs  []putBack // the latest
}

// putBack is a step back to an earlier revision, after a restore of the store.
type putBack struct{ from, to uint64 }

// maxPutBacks is the number of steps back that the view remembers.
const maxPutBacks = 64

// coming is a message of which not all parts have come.
type coming struct {
	revision, since uint64
	list            uint32
	parts           []*lofamov1.FaultUpdate
}

// interest is the list of the nodes of the jobs here.
type interest struct {
	serial  uint32
	nodes   []fault.NodeID
	applied uint32 // the list that the last full update covered
}

// NewFaultView returns an empty fault view for that node.
func NewFaultView(self fault.NodeID, neighbours []fault.NodeID) *FaultView {
	return &FaultView{self: self, near: append([]fault.NodeID{self}, neighbours...), nodes: make(map[fault.NodeID]*lofamov1.NodeView)}
}

// Neighbours sets the neighbours. The half then needs a full update, because it kept nothing about nodes that did not
// concern it before.
func (m *FaultView) Neighbours(ids []fault.NodeID) {
	m.near = append([]fault.NodeID{m.self}, ids...)
	m.revision, m.coming = 0, coming{}
	maps.DeleteFunc(m.nodes, func(id fault.NodeID, _ *lofamov1.NodeView) bool { return !m.concerns(id) })
}

// concerns reports whether a node is of interest here. The view keeps no other nodes, because no supervisor would
// send their changes.
func (m *FaultView) concerns(id fault.NodeID) bool {
	_, listed := slices.BinarySearch(m.list.nodes, id)
	return listed || slices.Contains(m.near, id)
}

// Revision returns the map revision up to which the view is current; 0: no update yet.
func (m *FaultView) Revision() uint64 { return m.revision }

// DigestRevision returns the revision for this half's digests. It is 0 while an update is missing, so that a replica that has
// the list sends everything again.
func (m *FaultView) DigestRevision() uint64 {
	if m.Pending() {
		return 0
	}
	return m.revision
}

// Resume continues after the list of an earlier incarnation with the same boot epoch: supervisors may have that list,
// and it is no longer valid. 0 means no list.
func (m *FaultView) Resume(serial uint32) {
	if serial > 0 {
		m.list.serial = serial + 1
	}
}

// Serial is the number of the half's own list of nodes; 0: it has none.
func (m *FaultView) Serial() uint32 { return m.list.serial }

// Take handles a verified update. It returns the changed nodes, in order, and whether the supervisor wants the list
// of the nodes of the jobs here. It takes a step back between the same two revisions only once, because a later
// message may be a replay.
func (m *FaultView) Take(t *lofamov1.FaultUpdate) (changed []fault.NodeID, wanted bool) {
	wanted = t.GetWantInterest() && m.list.serial > 0
	if t.GetNode() != string(m.self) {
		return nil, false
	}
	back := putBack{m.revision, t.GetRevision()}
	switch whole := t.GetSince() == 0; {
	case whole && back.to < back.from && (!t.GetPutBack() || slices.Contains(m.backs, back)):
		return nil, wanted // by a replica that is behind
	case !whole && (t.GetRevision() <= m.revision || t.GetSince() > m.revision || m.revision == 0):
		return nil, wanted // known, or an earlier update was lost: the next digest shows it
	case !whole && t.GetInterest() != m.list.serial:
		return nil, wanted // a replica with another list leaves out nodes that it does not know to concern us
	}
	all := m.gather(t)
	if all == nil {
		return nil, wanted
	}
	if back.to < back.from {
		m.backs = append(m.backs[max(0, len(m.backs)+1-maxPutBacks):], back)
	}
	m.revision = t.GetRevision()
	if t.GetSince() == 0 {
		m.list.applied = t.GetInterest()
		return m.replace(all, t.GetIncomplete()), wanted
	}
	return m.change(all), wanted
}

// gather returns the nodes of all parts once they are there.
func (m *FaultView) gather(t *lofamov1.FaultUpdate) []*lofamov1.NodeView {
	c := &m.coming
	if c.revision != t.GetRevision() || c.since != t.GetSince() || c.list != t.GetInterest() || len(c.parts) != int(t.GetParts()) {
		*c = coming{revision: t.GetRevision(), since: t.GetSince(), list: t.GetInterest(), parts: make([]*lofamov1.FaultUpdate, t.GetParts())}
	}
	c.parts[t.GetPart()] = t
	out := []*lofamov1.NodeView{}
	for _, p := range c.parts {
		if p == nil {
			return nil
		}
		out = append(out, p.GetNodes()...)
	}
	*c = coming{}
	return out
}

// change applies a partial update.
func (m *FaultView) change(nodes []*lofamov1.NodeView) (changed []fault.NodeID) {
	for _, n := range nodes {
		if id := fault.NodeID(n.GetId()); m.concerns(id) && !same(m.nodes[id], n) {
			changed = append(changed, id)
			m.nodes[id] = n
		}
	}
	slices.Sort(changed)
	return slices.Compact(changed)
}

// replace takes over a full update. Nodes of the list that it does not mention are NORMAL; if the replica has another
// list, they keep their state until it has this one. After an incomplete update they are unknown.
func (m *FaultView) replace(nodes []*lofamov1.NodeView, incomplete bool) []fault.NodeID {
	before := m.nodes
	m.nodes = make(map[fault.NodeID]*lofamov1.NodeView, len(nodes))
	for _, n := range nodes {
		if id := fault.NodeID(n.GetId()); m.concerns(id) {
			m.nodes[id] = n
		}
	}
	var changed []fault.NodeID
	for _, id := range m.list.nodes {
		switch {
		case m.nodes[id] != nil || incomplete:
		case m.list.applied == m.list.serial:
			m.nodes[id] = &lofamov1.NodeView{Id: string(id), State: lofamov1.State_NORMAL, Cause: lofamov1.Cause_NONE}
		case before[id] != nil:
			m.nodes[id] = before[id]
		}
	}
	for id, n := range m.nodes {
		if !same(before[id], n) {
			changed = append(changed, id)
		}
	}
	for id := range before {
		if m.nodes[id] == nil {
			changed = append(changed, id)
		}
	}
	slices.Sort(changed)
	return changed
}

func same(a, b *lofamov1.NodeView) bool {
	return a != nil && a.GetState() == b.GetState() && a.GetCause() == b.GetCause() && a.GetMaintenance() == b.GetMaintenance() &&
		slices.Equal(a.GetGroups(), b.GetGroups()) && slices.EqualFunc(a.GetFaults(), b.GetFaults(), func(x, y *lofamov1.ComponentFault) bool {
		return x.GetComponent() == y.GetComponent() && x.GetState() == y.GetState() && x.GetCause() == y.GetCause()
	})
}

// Pending reports whether an update is still missing.
func (m *FaultView) Pending() bool {
	return m.revision == 0 || len(m.list.nodes) > 0 && m.list.applied != m.list.serial
}

// Node returns the view of a node, with state UNKNOWN if there is none.
func (m *FaultView) Node(id fault.NodeID) *lofamov1.NodeView {
	if n := m.nodes[id]; n != nil {
		return n
	}
	return &lofamov1.NodeView{Id: string(id), State: lofamov1.State_UNKNOWN, Cause: lofamov1.Cause_NONE}
}

// All returns the ids of all known nodes, in order.
func (m *FaultView) All() []fault.NodeID {
	out := make([]fault.NodeID, 0, len(m.nodes))
	for id := range m.nodes {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// Watch sets the nodes of the jobs here, at most servicenet.MaxInterest. It reports whether the list has changed.
func (m *FaultView) Watch(nodes []fault.NodeID) bool {
	nodes = slices.Clone(nodes)
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	if slices.Equal(nodes, m.list.nodes) {
		return false
	}
	m.list.nodes = nodes
	m.list.serial++
	for id := range m.nodes {
		if !m.concerns(id) {
			delete(m.nodes, id)
		}
	}
	return true
}

// Interest returns the list in as many messages as it needs; none before the first Watch.
func (m *FaultView) Interest(epoch fault.Epoch) (out []*lofamov1.Interest) {
	if m.list.serial == 0 {
		return nil
	}
	parts := max(1, (len(m.list.nodes)+servicenet.MaxInterestNodes-1)/servicenet.MaxInterestNodes)
	for i := range parts {
		msg := &lofamov1.Interest{Node: string(m.self), Epoch: uint64(epoch), Serial: m.list.serial, Part: uint32(i), Parts: uint32(parts)}
		for _, id := range m.list.nodes[i*servicenet.MaxInterestNodes : min(len(m.list.nodes), (i+1)*servicenet.MaxInterestNodes)] {
			msg.Nodes = append(msg.Nodes, string(id))
		}
		out = append(out, msg)
	}
	return out
}

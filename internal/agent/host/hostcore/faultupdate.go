package hostcore

import (
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// onFaultUpdate stores a supervisor's update about nodes that concern this one, and answers with the list of the nodes of
// its jobs if the supervisor wants it.
// A supervisor puts the view back only in answer to digests. So a half whose digests are not answered takes no such
// update, which would be a replay. It also takes none from a supervisor without a quorum, whose map may be old.
func (m *Machine) onFaultUpdate(now time.Time, ev Received, t *lofamov1.FaultUpdate) {
	if ev.Path != fault.PathDirect {
		return
	}
	if t.GetPutBack() && (ev.Opened.Msg.GetNoQuorumMs() != 0 || now.Sub(m.answered) > m.digestBound()) {
		return
	}
	changed, wanted := m.view.Take(t)
	m.out.Learned = append(m.out.Learned, changed...)
	if !wanted {
		return
	}
	for _, msg := range m.view.Interest(m.Epoch()) {
		m.out.Send = append(m.out.Send, Send{Path: fault.PathDirect, Interface: ev.Interface, Target: ev.Opened.Name, Interest: msg})
	}
}

// digestBound returns the time after which digests without an answer count as missing.
func (m *Machine) digestBound() time.Duration {
	return time.Duration(m.cfg.Periods.DigestMisses) * m.cfg.Periods.DigestPeriod
}

// noteQuorum handles a supervisor's report of its quorum: the milliseconds since it lost it, -1 for never having had
// one. A supervisor with a quorum may answer beside one without; while it does, nothing is stale.
func (m *Machine) noteQuorum(now time.Time, without int64) {
	if at := now.Add(-time.Duration(without) * time.Millisecond); without >= 0 && at.After(m.confirmed) {
		m.confirmed = at
	}
	stale := without != 0 && (m.confirmed.IsZero() || now.Sub(m.confirmed) > m.digestBound())
	m.out.Aged = m.out.Aged || stale != m.stale
	m.stale = stale
}

// withViewRevision adds to delivery status on the direct rail the revision of this half's fault view.
func (m *Machine) withViewRevision(p fault.Path, st *lofamov1.DeliveryStatus) *lofamov1.DeliveryStatus {
	if st != nil && p == fault.PathDirect {
		st.ViewRevision, st.Interest = m.view.DigestRevision(), m.view.Serial()
	}
	return st
}

// Known is this half's view of nodes.
type Known struct {
	Nodes    []*lofamov1.NodeView
	Revision uint64    // of the view
	Heard    time.Time // when a supervisor last answered; zero: never
	Pending  bool      // an update has not arrived yet
	Stale    bool      // the reachable supervisors have no quorum
	// Confirmed is when a supervisor last had a quorum, as far as this half knows; zero: never.
	Confirmed time.Time
}

// Known returns the view of the given nodes; without arguments, of this node and its neighbours.
func (m *Machine) Known(ids []fault.NodeID) Known {
	if len(ids) == 0 {
		ids = []fault.NodeID{m.self}
		for _, n := range m.cfg.Topo.Neighbours {
			ids = append(ids, n.ID)
		}
	}
	k := Known{Revision: m.view.Revision(), Heard: m.answered, Pending: m.view.Pending(), Stale: m.stale, Confirmed: m.confirmed}
	for _, id := range ids {
		k.Nodes = append(k.Nodes, m.view.Node(id))
	}
	return k
}

// onNeighbours handles a change of the torus around this node: a node that replaces a neighbour, joins or leaves. The half
// withdraws its observations of former neighbours and of links that are gone, and requests updates about new neighbours.
func (m *Machine) onNeighbours(now time.Time, around *halfcore.Topology) {
	for _, n := range m.cfg.Topo.Neighbours {
		if !slices.Contains(around.NeighbourIDs(), n.ID) {
			m.forgetNeighbour(now, n)
		}
	}
	for _, d := range m.cfg.Topo.Links {
		if !slices.Contains(around.Links, d) {
			m.state(now, fault.Link(d), fault.Unknown, fault.KindSelf, "", 0)
		}
	}
	m.cfg.Topo = around
	m.view.Neighbours(around.NeighbourIDs())
}

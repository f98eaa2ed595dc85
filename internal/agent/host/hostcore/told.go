package hostcore

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/topo"
)

// onTold takes in what a supervisor says of what concerns this node, and answers with the list of the
// nodes of its jobs where that is wanted.
func (m *Machine) onTold(ev Received, t *lofamov1.Told) {
	if ev.Path != fault.PathDirect {
		return
	}
	changed, wanted := m.told.Take(t)
	m.out.Learned = append(m.out.Learned, changed...)
	if !wanted {
		return
	}
	for _, msg := range m.told.Interest(m.Epoch()) {
		m.out.Send = append(m.out.Send, Send{Path: fault.PathDirect, Interface: ev.Interface, Target: ev.Opened.Name, Interest: msg})
	}
}

// noteQuorum takes what a supervisor says of its quorum: for how long it has had none, in milliseconds, -1
// for never. One that has a quorum may be heard beside one that has not: so long as it is, nothing is stale.
func (m *Machine) noteQuorum(now time.Time, without int64) {
	if at := now.Add(-time.Duration(without) * time.Millisecond); without >= 0 && at.After(m.confirmed) {
		m.confirmed = at
	}
	bound := time.Duration(m.cfg.Periods.DigestMisses) * m.cfg.Periods.DigestPeriod
	stale := without != 0 && (m.confirmed.IsZero() || now.Sub(m.confirmed) > bound)
	m.out.Aged = m.out.Aged || stale != m.stale
	m.stale = stale
}

// withTold adds to what is said on the direct rail up to where this half was told.
func (m *Machine) withTold(p fault.Path, st *lofamov1.DeliveryStatus) *lofamov1.DeliveryStatus {
	if st != nil && p == fault.PathDirect {
		st.Told, st.Interest = m.told.Told(), m.told.Serial()
	}
	return st
}

// Known is what the half was told.
type Known struct {
	Nodes    []*lofamov1.ToldNode
	Revision uint64    // up to which it was told
	Heard    time.Time // when a supervisor was last heard; zero: never
	Pending  bool      // something that is asked for has not been told yet
	Stale    bool      // the supervisors that are heard have no quorum
	// Confirmed is when a supervisor last had a quorum, as far as the half was told; zero: never.
	Confirmed time.Time
}

// Known returns what is known of nodes; none: of this one and its neighbours.
func (m *Machine) Known(ids []fault.NodeID) Known {
	if len(ids) == 0 {
		ids = []fault.NodeID{m.self}
		for _, n := range m.cfg.Topo.Neighbours {
			ids = append(ids, n.ID)
		}
	}
	k := Known{Revision: m.told.Revision(), Heard: m.answered, Pending: m.told.Pending(), Stale: m.stale, Confirmed: m.confirmed}
	for _, id := range ids {
		k.Nodes = append(k.Nodes, m.told.Node(id))
	}
	return k
}

// onNeighbours follows a node that was put in the place of a neighbour: what was said of the one before is withdrawn, and this half wants to be
// told of the new one.
func (m *Machine) onNeighbours(now time.Time, around *topo.Map) {
	for _, n := range m.cfg.Topo.Neighbours {
		if around.ID(n.Coord) != n.ID {
			m.forgetNeighbour(now, n)
		}
	}
	m.cfg.Topo = around
	m.told.Neighbours(around.NeighbourIDs())
}

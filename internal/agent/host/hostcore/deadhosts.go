package hostcore

import (
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// DeadHosts returns the directions whose neighbours have a dead host in the fault map. A neighbour with two kernels cannot tell a dead
// host from a cut bus, but the supervisors can. So this node's DNP half raises the neighbour-host bit when the supervisors reach a verdict,
// and marks the bit (watchdog.BitOfMap). A marked bit is no evidence: it never makes the host half report a dead host.
func (m *Machine) DeadHosts() [grid.NumDirections]bool {
	var dead [grid.NumDirections]bool
	for _, n := range m.cfg.Topo.Neighbours {
		is := m.hostDeadInMap(n.ID)
		for _, dir := range n.Dirs {
			dead[dir.Index()] = is
		}
	}
	return dead
}

func (m *Machine) hostDeadInMap(id fault.NodeID) bool {
	n := m.view.nodes[id]
	for _, f := range n.GetFaults() {
		if f.GetComponent() == uint32(fault.ComponentHost) && f.GetState() == lofamov1.State_FAILED {
			return true
		}
	}
	return false
}

package api

import (
	"sync"

	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
)

// regionOf returns the region of a node; empty without regions.
func (s *Server) regionOf(id fault.NodeID) string {
	if s.cfg.RegionOf == nil {
		return ""
	}
	return s.cfg.RegionOf(id)
}

// members caches the nodes of each region for one topology.
type members struct {
	mu   sync.Mutex
	topo *topology.Topology
	of   map[string][]fault.NodeID
}

// membersOf returns the nodes of a region, spares included.
func (s *Server) membersOf(region string) []fault.NodeID {
	m := &s.members
	m.mu.Lock()
	defer m.mu.Unlock()
	if topo := s.cfg.Names.Topology(); m.topo != topo {
		m.topo, m.of = topo, make(map[string][]fault.NodeID)
		for _, n := range topo.Nodes {
			name := s.regionOf(n.ID)
			m.of[name] = append(m.of[name], n.ID)
		}
	}
	return m.of[region]
}

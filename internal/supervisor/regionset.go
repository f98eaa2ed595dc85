package supervisor

import (
	"cmp"
	"context"
	"sync/atomic"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/federation"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
)

// spareRegions returns the region of a spare from the regions' own data: a parent's configuration does not know it.
type spareRegions struct {
	of atomic.Pointer[map[fault.NodeID]string]
}

func (s *spareRegions) region(id fault.NodeID) string {
	if of := s.of.Load(); of != nil {
		return (*of)[id]
	}
	return ""
}

// followRegions keeps a parent's replica up to date with the regions' marks, labels and spares.
func (s *Supervisor) followRegions(ctx context.Context) {
	read := uint64(0) // number of updates: the data has no single revision
	unread := make([]bool, len(s.cfg.RegionNames()))
	s.again(ctx, "following the settings of the regions", func() error {
		return federation.Copy{Etcd: s.store.Etcd}.FollowSet(ctx, s.cfg.RegionNames(), func(all []store.Below) {
			read++
			for i, b := range all {
				if b.Unread != nil && !unread[i] {
					s.logger.Warn("the settings of a region cannot be read: the last readable ones stay", "region", s.cfg.RegionNames()[i],
						"err", b.Unread)
				}
				unread[i] = b.Unread != nil
			}
			topo, spares := mergeTopologies(s.seed, s.cfg.RegionNames(), all, s.federation.regionOf)
			s.federation.spares.of.Store(&spares)
			s.marks.Replace(marksOf(s.cfg.RegionNames(), all, s.federation.regionOf), read)
			s.metrics.Maintenance.Set(float64(s.marks.Len()))
			s.names.Replace(topo)
			s.federation.parent.Relabel(ctx)
			s.metrics.Topology.Set(float64(s.names.Topology().Revision))
		})
	})
}

// marksOf returns the marks of all regions, each limited to the region's own nodes.
func marksOf(names []string, all []store.Below, regionOf func(fault.NodeID) string) []*lofamov1.Maintenance {
	var out []*lofamov1.Maintenance
	for i, b := range all {
		for _, m := range b.Marks {
			if of := regionOf(fault.NodeID(m.GetNode())); of == "" || of == names[i] {
				out = append(out, m.Maintenance)
			}
		}
	}
	return out
}

// mergeTopologies returns the parent's own topology with the present labels, addresses and spares of the regions, and
// the region of each spare. Only the parent's configuration assigns places, and a region speaks for its own nodes only.
func mergeTopologies(own *topology.Topology, names []string, all []store.Below, regionOf func(fault.NodeID) string) (
	*topology.Topology, map[fault.NodeID]string) {
	nodes := make([]topology.Node, len(own.Nodes))
	index := make(map[fault.NodeID]int, len(nodes))
	for i, n := range own.Nodes {
		nodes[i], index[n.ID] = n, i
	}
	spares := make(map[fault.NodeID]string)
	revision := own.Revision
	for i, b := range all {
		if b.Topology == nil {
			continue
		}
		revision = max(revision, b.Topology.Revision)
		for _, n := range b.Topology.Nodes {
			j, known := index[n.ID]
			switch of := cmp.Or(spares[n.ID], regionOf(n.ID)); {
			case known && of != "" && of != names[i]:
			case known:
				nodes[j].Labels, nodes[j].Service = n.Labels, n.Service
			case n.Spare:
				index[n.ID] = len(nodes)
				nodes = append(nodes, n)
				spares[n.ID] = names[i]
			}
		}
	}
	return topology.New(own.Dims, nodes, own.DomainLabels, revision), spares
}

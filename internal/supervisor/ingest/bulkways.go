package ingest

import (
	"cmp"
	"context"
	"slices"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"
)

// mostWays bounds the ways that are tried in turn: with all silent, each costs half a second.
const mostWays = 12

// ways returns the ways to a node, the best first: direct, then through its neighbours, then through nodes farther
// away, in case the neighbours have no service network either. At equal distance, nodes that the map calls NORMAL
// go first.
func (m *BulkManager) ways(ctx context.Context, node fault.NodeID) []bulk.Way {
	var out []bulk.Way
	if len(m.cfg.Names.Services(node)) > 0 {
		out = append(out, bulk.Way{})
	}
	at, ok := m.cfg.Names.Coord(node)
	if !ok {
		return out
	}
	normal := m.cfg.Normal(ctx)
	type gateway struct {
		id       fault.NodeID
		distance int
	}
	var gateways []gateway
	for _, id := range m.cfg.Names.All() { // by rank, so that the order is the same everywhere
		c, _ := m.cfg.Names.Coord(id)
		if id != node && len(m.cfg.Names.Services(id)) > 0 {
			gateways = append(gateways, gateway{id, m.cfg.Names.Dims().Distance(at, c)})
		}
	}
	rank := func(g gateway) int {
		if normal[g.id] {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(gateways, func(a, b gateway) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(rank(a), rank(b)))
	})
	for _, g := range gateways[:min(len(gateways), mostWays-len(out))] {
		out = append(out, bulk.Way{Via: string(g.id)})
	}
	return out
}

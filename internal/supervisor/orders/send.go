package orders

import (
	"slices"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// gateways returns the relays for a place that is not reached directly: its neighbours, and their neighbours.
func (r *diagnosisRun) gateways(at grid.Coord) []fault.NodeID {
	dims := r.topo.Dims
	var out []fault.NodeID
	add := func(c grid.Coord) {
		if id, ok := r.at[c]; ok && c != at && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	near := dims.Neighbours(at)
	for _, c := range near {
		add(c)
	}
	for _, c := range near {
		for _, far := range dims.Neighbours(c) {
			add(far)
		}
	}
	return out
}

// give sends an order to a node. From the third try on, or if there is no direct address, it also sends it through the
// torus by two of the gateways, different ones each time.
func (m *Diagnoses) give(id fault.NodeID, kind string, try int, gateways []fault.NodeID, body func(replyTo string) *lofamov1.Message) {
	var via []fault.NodeID
	if n := len(gateways); n > 0 && (try >= 3 || !m.cfg.Sender.Direct(id)) {
		via = []fault.NodeID{gateways[2*(try-1)%n], gateways[(2*try-1)%n]}
	}
	m.cfg.Sender.Order(id, kind, body, via)
}

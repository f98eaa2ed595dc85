package orders

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// newMasks returns the kind of channel masks: the nodes at the ends of masked links get them.
func newMasks(cfg *Config) *standing[chanmask.Mask, *lofamov1.MaskStatus] {
	k := newStanding(cfg, servicenet.OrderMask, order.Config[chanmask.Mask, *lofamov1.MaskStatus]{
		Usual: chanmask.All,
		Holds: func(st *lofamov1.MaskStatus, mask chanmask.Mask) bool {
			return chanmask.Mask(st.GetOrdered()) == mask && !st.GetLost()
		},
		Anew: (*lofamov1.MaskStatus).GetLost,
	}, &listed[chanmask.Mask, *lofamov1.MaskStatus]{
		names: cfg.Names, get: (*lofamov1.Message).GetMaskStatus, wanted: cfg.nodeMasks, order: maskOrder,
	})
	k.shown = true
	return k
}

// nodeMasks returns the masks of the nodes at the ends of masked links.
func (c *Config) nodeMasks() (want map[fault.NodeID]chanmask.Mask, revision uint64, changed <-chan struct{}) {
	all, revision, changed := c.Masks.All()
	want = make(map[fault.NodeID]chanmask.Mask)
	if len(all) > 0 { // the cost grows with the number of nodes
		topo := c.Names.Topology()
		ids := topo.IDs()
		for at, mask := range masksByPlace(topo.Dims, all) {
			if id, known := ids[at]; known { // else no node is there, or one of another region
				want[id] = mask
			}
		}
	}
	return want, revision, changed
}

// masksByPlace returns the masks of the places at the ends of masked links.
func masksByPlace(dims grid.Dims, links []*lofamov1.LinkMask) map[grid.Coord]chanmask.Mask {
	out := make(map[grid.Coord]chanmask.Mask)
	without := func(at grid.Coord, d grid.Direction) {
		have, ok := out[at]
		if !ok {
			have = chanmask.All
		}
		out[at] = have.With(d, false)
	}
	for _, lm := range links {
		l, ok := view.LinkOf(lm)
		if !ok || !dims.Contains(l.Node) {
			continue
		}
		a, b := l.Ends(dims)
		without(a, l.Dir)
		without(b, l.Dir.Opposite())
	}
	return out
}

func maskOrder(o order.Order[chanmask.Mask]) *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_MaskOrder{MaskOrder: &lofamov1.MaskOrder{
		Node: string(o.Node), Number: o.Number, Mask: uint32(o.Want), Epoch: o.Life, EpochUnknown: o.Life == 0,
	}}}
}

package supervisor

import (
	"context"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
)

// maskWord implements word for channel masks: it sends the masks of links to the nodes at their ends.
type maskWord struct{ s *Supervisor }

func newMaskOrders(s *Supervisor) *orders[chanmask.Mask, *lofamov1.MaskStatus] {
	k := newOrders(s, "masks", order.Config[chanmask.Mask, *lofamov1.MaskStatus]{
		Retry: order.Retry{First: 500 * time.Millisecond, Most: 10 * time.Second}, Usual: chanmask.All,
		Holds: func(st *lofamov1.MaskStatus, mask chanmask.Mask) bool {
			return chanmask.Mask(st.GetOrdered()) == mask && !st.GetLost()
		},
		Anew: (*lofamov1.MaskStatus).GetLost,
	}, maskWord{s})
	k.shown = true
	return k
}

func (k maskWord) begin(context.Context) bool { return true }

func (k maskWord) said(st *lofamov1.MaskStatus) bool {
	return k.s.names.Known(fault.NodeID(st.GetNode()))
}

func (k maskWord) changed() <-chan struct{} {
	_, _, changed := k.s.masks.All()
	return changed
}

// follow gives the machine the desired masks, for the present nodes at the ends.
func (k maskWord) follow(_ context.Context, m *order.Standing[chanmask.Mask, *lofamov1.MaskStatus]) time.Time {
	all, revision, _ := k.s.masks.All()
	topo := k.s.names.Topology()
	want := make(map[fault.NodeID]chanmask.Mask)
	if len(all) > 0 { // the cost grows with the number of nodes
		ids := topo.IDs()
		mask := func(id fault.NodeID, known bool, without func(chanmask.Mask) chanmask.Mask) {
			if !known {
				return // no node there, or one of another region
			}
			have, ok := want[id]
			if !ok {
				have = chanmask.All
			}
			want[id] = without(have)
		}
		for _, lm := range all {
			l, ok := view.LinkOf(lm)
			if !ok || !topo.Dims.Contains(l.Node) {
				continue
			}
			a, b := l.Ends(topo.Dims)
			id, known := ids[a]
			mask(id, known, func(m chanmask.Mask) chanmask.Mask { return m.With(l.Dir, false) })
			id, known = ids[b]
			mask(id, known, func(m chanmask.Mask) chanmask.Mask { return m.With(l.Dir.Opposite(), false) })
		}
	}
	m.Forget(func(id fault.NodeID) bool { return !k.s.names.Known(id) })
	m.Wanted(time.Now(), want, max(revision, topo.Revision))
	return time.Time{}
}

func (k maskWord) message(o order.Order[chanmask.Mask]) *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_MaskOrder{MaskOrder: &lofamov1.MaskOrder{
		Node: string(o.Node), Number: o.Number, Mask: uint32(o.Want), Epoch: o.Life, EpochUnknown: o.Life == 0,
	}}}
}

// followMasks keeps this replica's masks up to date with its copy of the store.
func (s *Supervisor) followMasks(ctx context.Context) {
	s.again(ctx, "following channel masks", func() error {
		return s.store.FollowMasks(ctx, s.masks.Replace)
	})
}

package supervisor

import (
	"context"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/masker"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// maskQueue bounds the statuses that wait; beyond it they are dropped: who is not heard is asked again.
const maskQueue = 1024

// maskTime is how often it is looked whether this replica leads now, or nodes have changed their places.
const maskTime = time.Second

// maskers has the masks of links in force at their ends, while this replica leads.
type maskers struct {
	s     *Supervisor
	heard chan *lofamov1.MaskStatus

	mu   sync.Mutex
	said []*lofamov1.MaskStatus
}

func newMaskers(s *Supervisor) *maskers {
	return &maskers{s: s, heard: make(chan *lofamov1.MaskStatus, maskQueue)}
}

// Mask implements rails.Masks.
func (k *maskers) Mask(st *lofamov1.MaskStatus) {
	select {
	case k.heard <- st:
	default:
		k.s.metrics.Dropped.WithLabelValues("masks").Inc()
	}
}

// Said returns what nodes said of their masks to this replica since it leads.
func (k *maskers) Said() []*lofamov1.MaskStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.said
}

// run works until the context ends.
func (k *maskers) run(ctx context.Context) {
	var m *masker.Machine // nil while another leads
	timer := time.NewTicker(maskTime)
	defer timer.Stop()
	var wake <-chan time.Time
	for {
		var heard *lofamov1.MaskStatus
		_, _, changed := k.s.masks.All()
		switch {
		case !k.s.engine.Leading():
			m, wake = nil, nil
		case m == nil:
			m = masker.New(masker.Config{Again: 500 * time.Millisecond, Most: 10 * time.Second})
		}
		if m != nil {
			k.follow(m)
			wake = k.order(m)
		}
		k.mu.Lock()
		k.said = nil
		if m != nil {
			k.said = m.Said()
		}
		k.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case heard = <-k.heard:
			if m != nil && k.s.names.Known(fault.NodeID(heard.GetNode())) {
				m.Heard(time.Now(), heard)
			}
		case <-changed:
		case <-timer.C:
		case <-wake:
		}
	}
}

// follow tells the machine what is wanted, by the nodes that are at the ends now.
func (k *maskers) follow(m *masker.Machine) {
	all, revision, _ := k.s.masks.All()
	topo := k.s.names.Topology()
	var ids map[grid.Coord]fault.NodeID
	if len(all) > 0 { // it costs as much as there are nodes
		ids = topo.IDs()
	}
	want := make(map[fault.NodeID]chanmask.Mask)
	mask := func(id fault.NodeID, known bool, without func(chanmask.Mask) chanmask.Mask) {
		if !known {
			return // nobody is there, or one of another region
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
	m.Forget(func(id fault.NodeID) bool { return !k.s.names.Known(id) })
	m.Wanted(time.Now(), want, max(revision, topo.Revision))
}

// order sends what is due, and returns when to look again; nil: nobody is waited for.
func (k *maskers) order(m *masker.Machine) <-chan time.Time {
	orders, wake := m.Tick(time.Now())
	for _, o := range orders {
		k.s.sender.Order(&lofamov1.MaskOrder{Node: string(o.Node), Number: o.Number, Mask: uint32(o.Mask)}, k.via(o))
		if o.Try > 1 && o.Try&(o.Try-1) == 0 {
			k.s.logger.Info("a node has not said that it has its channel mask: sent again", "node", o.Node, "mask", o.Mask, "try", o.Try)
		}
	}
	if wake.IsZero() {
		return nil
	}
	return time.After(time.Until(wake))
}

// via are the neighbours through which an order goes as well, from the second try on.
func (k *maskers) via(o masker.Order) []fault.NodeID {
	at, ok := k.s.names.Coord(o.Node)
	if !ok || o.Try < 2 {
		return nil
	}
	topo := k.s.names.Topology()
	ids := topo.IDs()
	var out []fault.NodeID
	for _, c := range topo.Dims.Neighbours(at) {
		if id, known := ids[c]; known {
			out = append(out, id)
		}
	}
	return out
}

// followMasks has this replica know the masks that are stored, as far as its copy goes.
func (s *Supervisor) followMasks(ctx context.Context) {
	s.again(ctx, "following channel masks", func() error {
		return s.store.FollowMasks(ctx, s.masks.Replace)
	})
}

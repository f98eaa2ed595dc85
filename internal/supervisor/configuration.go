package supervisor

import (
	"context"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/configurer"
	"github.com/lofamo/lofamo/internal/supervisor/procedure"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

const (
	// configuredQueue bounds the waiting statuses. It drops further ones, and the machine tries another node.
	configuredQueue = 64
	// configureTime is the interval between checks for a changed torus configuration. After a check the next one
	// waits at least configureShare times as long as it took: the diameter of a large torus is expensive to compute.
	configureTime  = time.Second
	configureShare = 20
)

// configurers distributes the start-up configuration to the torus while this replica leads.
type configurers struct {
	s     *Supervisor
	heard chan *lofamov1.ConfigurationStatus

	of     [3]uint64 // last seen revisions of map, masks and topology
	lookAt time.Time
}

func newConfigurers(s *Supervisor) *configurers {
	return &configurers{s: s, heard: make(chan *lofamov1.ConfigurationStatus, configuredQueue)}
}

// Configured takes a node's status of its configuration. It does not block.
func (k *configurers) Configured(st *lofamov1.ConfigurationStatus) {
	select {
	case k.heard <- st:
	default:
		k.s.metrics.Dropped.WithLabelValues("configurations").Inc()
	}
}

// run works until the context ends. In a torus that spans regions it does nothing: the leaders of two regions would
// contradict each other.
func (k *configurers) run(ctx context.Context) {
	if k.s.federation.border != nil {
		return
	}
	var m *configurer.Machine // nil while another leads
	term := uint64(0)
	timer := time.NewTicker(configureTime)
	defer timer.Stop()
	var wake <-chan time.Time
	for {
		switch t := k.s.engine.Term(); {
		case t == 0:
			m, wake = nil, nil
		case m == nil || t != term:
			m, term = configurer.New(configurer.Config{Rest: time.Second, Slowest: time.Minute, Again: 2 * time.Second, Every: 30 * time.Second}, t), t
			k.of, k.lookAt = [3]uint64{}, time.Time{}
		}
		if m != nil {
			k.follow(m)
			wake = k.give(m)
		}
		select {
		case <-ctx.Done():
			return
		case st := <-k.heard:
			if m != nil {
				m.Heard(time.Now(), st)
			}
		case <-timer.C:
		case <-wake:
		}
	}
}

// follow gives the machine the desired configuration, if a relevant input has changed.
func (k *configurers) follow(m *configurer.Machine) {
	now := time.Now()
	if now.Before(k.lookAt) {
		return
	}
	mp, known := k.s.engine.local.Map()
	masks, maskRevision, _ := k.s.masks.All()
	topo := k.s.names.Topology()
	of := [3]uint64{mp.Revision, maskRevision, topo.Revision}
	if !known || of == k.of {
		return
	}
	k.of = of
	places := make([]procedure.Place, mp.Dims().Nodes())
	for i, e := range mp.All() {
		places[mp.Dims().Rank(mp.Coord(i))] = k.s.place(mp.Dims(), mp.Coord(i), e)
	}
	plan := procedure.Whole(mp.Dims(), places)
	if len(plan.Members) == 0 {
		return
	}
	c := configurer.Content{
		Dims: mp.Dims().String(), Absent: plan.Absent, Masks: nodeMasks(mp.Dims(), masks),
		Delay: procedure.Delay(mp.Dims(), places, plan.Members, express.HopBound(k.s.periods.LinkPeriod, hopRepeats)),
	}
	var nodes []fault.NodeID
	for _, rank := range plan.Members {
		nodes = append(nodes, plan.Nodes[rank])
	}
	m.Wanted(time.Now(), c, slices.Max(of[:]), nodes)
	k.lookAt = time.Now().Add(configureShare * time.Since(now))
}

// nodeMasks returns the supervisors' mask for each node with unusable channels, by rank.
func nodeMasks(dims grid.Dims, links []*lofamov1.LinkMask) (out []configurer.Mask) {
	want := map[uint32]chanmask.Mask{}
	without := func(at grid.Coord, d grid.Direction) {
		rank := uint32(dims.Rank(at))
		have, ok := want[rank]
		if !ok {
			have = chanmask.All
		}
		want[rank] = have.With(d, false)
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
	for rank, mask := range want {
		out = append(out, configurer.Mask{Rank: rank, Mask: mask})
	}
	slices.SortFunc(out, func(a, b configurer.Mask) int { return int(a.Rank) - int(b.Rank) })
	return out
}

// give sends the orders that are due, and returns when to check again; nil: after the next change.
func (k *configurers) give(m *configurer.Machine) <-chan time.Time {
	orders, wake := m.Tick(time.Now())
	for _, o := range orders {
		for _, p := range o.Parts {
			k.s.ingest.sender.Order(o.Node, "configuration", &lofamov1.Message{Body: &lofamov1.Message_TorusConfiguration{TorusConfiguration: p}}, nil)
		}
		if o.Try > 1 && o.Try&(o.Try-1) == 0 {
			k.s.logger.Info("no node has said that it tells the torus its configuration: another one is asked", "node", o.Node, "number", o.Number, "try", o.Try)
		}
	}
	if wake.IsZero() {
		return nil
	}
	return time.After(time.Until(wake))
}

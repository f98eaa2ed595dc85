package supervisor

import (
	"context"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/mapper"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

const (
	// mapQueue bounds the waiting findings. It drops further ones, and the machine asks an incomplete mapper again.
	mapQueue = 256
	// mapTime is the interval between checks for nodes to map.
	mapTime = time.Second
)

// mappers makes nodes map the nodes without evidence at this replica, while it leads.
type mappers struct {
	s     *Supervisor
	heard chan *lofamov1.MapFindings

	mu    sync.Mutex
	found map[fault.NodeID]view.Mapped
	dead  []chanmask.Link
}

func newMappers(s *Supervisor) *mappers {
	return &mappers{s: s, heard: make(chan *lofamov1.MapFindings, mapQueue)}
}

// Mapped takes the findings of a node. It does not block.
func (k *mappers) Mapped(f *lofamov1.MapFindings) {
	select {
	case k.heard <- f:
	default:
		k.s.metrics.Dropped.WithLabelValues("mappings").Inc()
	}
}

// Of returns the findings about a node; false: there are none, or its state is known.
func (k *mappers) Of(id fault.NodeID) (view.Mapped, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m, ok := k.found[id]
	return m, ok
}

// Dead returns the links that mappers found dead and that have no other evidence.
func (k *mappers) Dead() []chanmask.Link {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.dead
}

// config returns the default configuration with this cluster's periods: a node without evidence for ten digests is
// not just late.
func (k *mappers) config() mapper.Config {
	c := mapper.DefaultConfig()
	c.After = 10 * k.s.periods.DigestPeriod
	return c
}

// run works until the context ends.
func (k *mappers) run(ctx context.Context) {
	var m *mapper.Machine // nil while another leads
	var term uint64
	timer := time.NewTicker(mapTime)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-k.heard:
			if at, ok := k.s.names.Coord(fault.NodeID(f.GetNode())); ok && m != nil {
				m.Findings(time.Now(), at, f)
			}
			continue
		case <-timer.C:
		}
		switch now := k.s.engine.Term(); {
		case now == 0:
			m = nil
		case m == nil || now != term:
			m, term = mapper.New(k.config(), now), now
		}
		if m != nil {
			k.look(m)
		}
		k.publish(m)
	}
}

// look gives the machine the present evidence, and sends its orders.
func (k *mappers) look(m *mapper.Machine) {
	now := time.Now()
	is, ok := k.s.engine.local.Map() // this replica's own copy: no quorum read each second
	switch {
	case !ok:
		return
	case unknownIn(is) == 0:
		m.Nothing()
		return
	}
	m.Evidence(now, evidenceOf(is))
	made := m.Made()
	for _, o := range m.Tick(now) {
		k.order(o)
	}
	if m.Made() > made {
		k.s.metrics.Mappings.Add(float64(m.Made() - made))
		reached := 0
		found := m.Found()
		for _, f := range found {
			if f.DNP == chanmask.Good {
				reached++
			}
		}
		if len(found) > 0 {
			k.s.logger.Info("unknown nodes mapped by delegation", "nodes", len(found), "reached", reached, "dead_links", len(m.Dead()))
		}
	}
}

// order sends an order: direct, and from the second try on, or for a node known only from mapping, through others.
func (k *mappers) order(o mapper.Order) {
	topo := k.s.names.Topology()
	node, ok := topo.Place(o.Mapper)
	if !ok {
		return
	}
	var via []fault.NodeID
	for _, c := range o.Via {
		if n, ok := topo.Place(c); ok {
			via = append(via, n.ID)
		}
	}
	if o.Try > 1 {
		for _, c := range topo.Dims.Neighbours(o.Mapper) {
			if n, ok := topo.Place(c); ok {
				via = append(via, n.ID)
			}
		}
	}
	k.s.metrics.MapOrders.Inc()
	k.s.ingest.sender.Order(node.ID, "mapping", &lofamov1.Message{Body: &lofamov1.Message_MapOrder{MapOrder: &lofamov1.MapOrder{
		Number: o.Number, Node: string(node.ID), Region: o.Region, ReplyTo: k.s.self.Report,
	}}}, via)
}

// publish shows the findings to readers; nil: none, because another replica leads.
func (k *mappers) publish(m *mapper.Machine) {
	var found map[fault.NodeID]view.Mapped
	var dead []chanmask.Link
	counts := make(map[string]int)
	if m != nil {
		topo := k.s.names.Topology()
		id := func(c grid.Coord) fault.NodeID {
			n, _ := topo.Place(c)
			return n.ID
		}
		found = make(map[fault.NodeID]view.Mapped)
		for rank, f := range m.Found() {
			counts[foundOf(f)]++
			found[id(topo.Dims.At(rank))] = view.Mapped{
				By: id(f.By), At: f.At, DNP: f.DNP, Host: f.Host, Good: f.Good, Bad: f.Bad, RoundTrip: f.RoundTrip,
			}
		}
		dead = m.Dead()
	}
	k.s.metrics.Mapped(counts, len(dead))
	k.mu.Lock()
	defer k.mu.Unlock()
	k.found, k.dead = found, dead
}

// foundOf returns the metric label for the findings about a node.
func foundOf(f mapper.Found) string {
	switch {
	case f.DNP != chanmask.Good:
		return metrics.MappedNot
	case f.Host == chanmask.Good:
		return metrics.MappedHalves
	default:
		return metrics.MappedDNP
	}
}

func unknownIn(is view.Map) (n int) {
	for range is.In(fault.Unknown) {
		n++
	}
	return n
}

// evidenceOf returns the part of the map that mapping needs: nodes, and the links between known and unknown nodes.
// Nodes of other regions are left to their own supervisors.
func evidenceOf(is view.Map) *chanmask.Map {
	out := chanmask.NewMap(is.Dims())
	place := make(map[grid.Coord]int, is.Len())
	for rank := range is.Dims().Nodes() {
		out.SetNode(is.Dims().At(rank), chanmask.Bad)
	}
	for i := range is.Len() {
		at, k := is.Coord(i), chanmask.Good
		switch is.State(i) {
		case fault.Unknown:
			k = chanmask.Unknown
		case fault.Failed:
			k = chanmask.Bad
		default:
		}
		out.SetNode(at, k)
		place[at] = i
	}
	for i := range is.In(fault.Unknown) {
		at := is.Coord(i)
		for _, d := range is.Dims().Links() {
			n, _ := is.Dims().Neighbour(at, d)
			j, ok := place[n]
			if l, _ := chanmask.LinkAt(is.Dims(), at, d); ok && is.State(j) != fault.Unknown {
				out.SetLink(l, linkOf(is.At(j).Status, d.Opposite()))
			}
		}
	}
	return out
}

// linkOf returns the state of a link as reported by a node's own end.
func linkOf(st awareness.NodeStatus, d grid.Direction) chanmask.Knowledge {
	for _, c := range st.Components {
		if c.Component == fault.Link(d) {
			switch c.State {
			case fault.Normal, fault.Sick:
				return chanmask.Good
			case fault.Failed:
				return chanmask.Bad
			default:
			}
		}
	}
	return chanmask.Unknown
}

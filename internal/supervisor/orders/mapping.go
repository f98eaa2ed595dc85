package orders

import (
	"context"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// mapping makes nodes map the nodes without evidence.
type mapping struct {
	cfg   *Config
	m     *mappingMachine // of the term
	shown atomic.Pointer[mapped]
}

// mapped are the findings, as readers get them.
type mapped struct {
	found map[fault.NodeID]view.Mapped
	dead  []chanmask.Link
}

func newMapping(cfg *Config) *mapping {
	k := &mapping{cfg: cfg}
	k.publish(nil) // so that the metrics begin at 0
	return k
}

// begin uses this cluster's periods: a node without evidence for ten digests is not just late.
func (k *mapping) begin(_ context.Context, term uint64) error {
	c := defaultMapping()
	c.After = 10 * k.cfg.Periods.DigestPeriod
	k.m = newMappingMachine(c, term)
	return nil
}

func (*mapping) changed() <-chan struct{} { return nil }

func (k *mapping) end() { k.publish(nil) }

func (k *mapping) heard(now time.Time, m *lofamov1.Message) {
	f := m.GetMapFindings()
	if at, ok := k.cfg.Names.Coord(fault.NodeID(f.GetNode())); ok {
		k.m.Findings(now, at, f)
	}
}

func (k *mapping) work(context.Context) (time.Time, error) {
	k.look(k.m)
	k.publish(k.m)
	return time.Time{}, nil
}

// look gives the machine the present evidence, and sends its orders.
func (k *mapping) look(m *mappingMachine) {
	now := time.Now()
	is, ok := k.cfg.Map() // this replica's own copy: no quorum read each second
	switch {
	case !ok:
		return
	case unknownIn(is) == 0:
		m.Nothing()
		return
	}
	evidence, occupants := evidenceOf(is)
	m.Evidence(now, evidence, occupants)
	made := m.Made()
	for _, o := range m.Tick(now) {
		k.order(o)
	}
	if m.Made() > made {
		k.cfg.Metrics.Mappings.Add(float64(m.Made() - made))
		reached := 0
		found := m.Found()
		for _, f := range found {
			if f.DNP == chanmask.Good {
				reached++
			}
		}
		if len(found) > 0 {
			k.cfg.Logger.Info("unknown nodes mapped by delegation", "nodes", len(found), "reached", reached, "dead_links", len(m.Dead()))
		}
	}
}

// order sends an order: direct, and from the second try on, or for a node known only from mapping, through others.
func (k *mapping) order(o mappingOrder) {
	topo := k.cfg.Names.Topology()
	node, ok := topo.Place(o.Mapper)
	if !ok {
		return
	}
	via := Relays(k.cfg.Names, node.ID, o.Try)
	for _, c := range o.Via {
		if n, ok := topo.Place(c); ok {
			via = append(via, n.ID)
		}
	}
	k.cfg.Metrics.MapOrders.Inc()
	k.cfg.Sender.Order(node.ID, servicenet.OrderMapping, func(replyTo string) *lofamov1.Message {
		return &lofamov1.Message{Body: &lofamov1.Message_MapOrder{MapOrder: &lofamov1.MapOrder{
			Number: o.Number, Node: string(node.ID), Region: o.Region, ReplyTo: replyTo,
		}}}
	}, via)
}

// publish shows the findings to readers; nil: none, because another replica leads.
func (k *mapping) publish(m *mappingMachine) {
	out := &mapped{}
	counts := make(map[string]int)
	if m != nil {
		out.found = make(map[fault.NodeID]view.Mapped)
		for _, f := range m.Found() {
			counts[foundOf(f)]++
			out.found[f.Node] = view.Mapped{ // the topology may be newer than the map, and have another node at that place
				By: f.By, At: f.At, DNP: f.DNP, Host: f.Host, Good: f.Good, Bad: f.Bad, RoundTrip: f.RoundTrip,
			}
		}
		out.dead = m.Dead()
	}
	k.cfg.Metrics.Mapped(counts, len(out.dead))
	k.shown.Store(out)
}

// foundOf returns the metric label for the findings about a node.
func foundOf(f mappingFound) string {
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

// evidenceOf returns the part of the map that mapping needs: nodes, and the links between known and unknown nodes. occupants
// are the ids of the nodes, by rank. Nodes of other regions are left to their own supervisors.
func evidenceOf(is view.Map) (out *chanmask.Map, occupants []fault.NodeID) {
	out, occupants = chanmask.NewMap(is.Dims()), make([]fault.NodeID, is.Dims().Places())
	place := make(map[grid.Coord]int, is.Len())
	for rank := range is.Dims().Places() {
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
		place[at], occupants[is.Dims().Rank(at)] = i, is.ID(i)
	}
	for i := range is.In(fault.Unknown) {
		at := is.Coord(i)
		for _, d := range is.Dims().Links() {
			n, has := is.Dims().Neighbour(at, d)
			j, ok := place[n]
			if l, _ := chanmask.LinkAt(is.Dims(), at, d); has && ok && is.State(j) != fault.Unknown {
				out.SetLink(l, linkOf(is.At(j).Status, d.Opposite()))
			}
		}
	}
	return out, occupants
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

package orders

import (
	"context"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// configuration distributes the start-up configuration to the torus.
type configuration struct {
	cfg *Config
	m   *configurationMachine // of the term

	of    [3]uint64 // last seen revisions of map, masks and topology
	delay networkDelays
}

// networkDelays keeps the newest Network Delay. The calculation is quadratic in the number of nodes, and most map changes
// leave all links unchanged.
type networkDelays struct {
	dims   string
	places []Place
	delay  time.Duration
}

// of returns the Network Delay of the map's torus, for the members of a plan. late must be the same in all calls.
func (n *networkDelays) of(dims grid.Dims, places []Place, members []int, late time.Duration) time.Duration {
	same := func(a, b Place) bool {
		a.Well = b.Well
		return a == b
	}
	if short := dims.Short(); n.dims != short || !slices.EqualFunc(n.places, places, same) {
		*n = networkDelays{short, places, networkDelay(dims, places, members, late)}
	}
	return n.delay
}

func newConfiguration(cfg *Config) *configuration { return &configuration{cfg: cfg} }

func (k *configuration) begin(_ context.Context, term uint64) error {
	*k = configuration{cfg: k.cfg, m: newConfigurationMachine(configurationTiming{
		Rest: time.Second, Slowest: time.Minute, Again: 2 * time.Second, Every: 30 * time.Second,
	}, term)}
	return nil
}

func (*configuration) changed() <-chan struct{} { return nil }

func (*configuration) end() {}

func (k *configuration) heard(now time.Time, m *lofamov1.Message) {
	k.m.Heard(now, m.GetConfigurationStatus())
}

// work sends the parts of the wanted configuration.
func (k *configuration) work(context.Context) (time.Time, error) {
	k.follow()
	due, wake := k.m.Tick(time.Now())
	for _, o := range due {
		for _, p := range o.Parts {
			msg := &lofamov1.Message{Body: &lofamov1.Message_TorusConfiguration{TorusConfiguration: p}}
			k.cfg.Sender.Order(o.Node, servicenet.OrderConfiguration, func(string) *lofamov1.Message { return msg }, nil)
		}
		if logged(o.Try) {
			k.cfg.Logger.Info("torus configuration sent to another node: no asked node has reported it", "node", o.Node,
				"number", o.Number, "try", o.Try)
		}
	}
	return wake, nil
}

// follow gives the machine the desired configuration, if a relevant input has changed.
func (k *configuration) follow() {
	mp, known := k.cfg.Map()
	masks, maskRevision, _ := k.cfg.Masks.All()
	topo := k.cfg.Names.Topology()
	of := [3]uint64{mp.Revision, maskRevision, topo.Revision}
	if !known || of == k.of {
		return
	}
	k.of = of
	places := k.cfg.places(mp)
	plan := wholeTorus(mp.Dims(), places)
	if len(plan.Members) == 0 {
		return
	}
	_, late := HopBound(k.cfg.Periods.LinkPeriod)
	c := torusContent{
		Dims: mp.Dims().Short(), Absent: plan.Absent, Masks: rankMasks(mp.Dims(), masks),
		Delay: k.delay.of(mp.Dims(), places, plan.Members, late),
	}
	var nodes []fault.NodeID
	for _, rank := range plan.Members {
		nodes = append(nodes, plan.Nodes[rank])
	}
	k.m.Wanted(time.Now(), c, slices.Max(of[:]), nodes)
}

// rankMasks returns the supervisors' mask for each node with unusable channels, by rank.
func rankMasks(dims grid.Dims, links []*lofamov1.LinkMask) (out []rankMask) {
	for at, mask := range masksByPlace(dims, links) {
		out = append(out, rankMask{Rank: uint32(dims.Rank(at)), Mask: mask})
	}
	slices.SortFunc(out, func(a, b rankMask) int { return int(a.Rank) - int(b.Rank) })
	return out
}

// hopRepeats is how many repeats per hop of a broadcast still fit the Network Delay.
const hopRepeats = 2

// HopBound returns the duration of a broadcast's hop without loss, and its bound with repeats.
func HopBound(linkPeriod time.Duration) (hop, late time.Duration) {
	return express.HopBound(linkPeriod, 0), express.HopBound(linkPeriod, hopRepeats)
}

// Places returns the places of a map, by rank.
func (c *Channel) Places(m view.Map) []Place { return c.cfg.places(m) }

func (c *Config) places(m view.Map) []Place {
	out := make([]Place, m.Dims().Places())
	for i := range m.Len() {
		out[m.Dims().Rank(m.Coord(i))] = c.place(m, i)
	}
	return out
}

// place returns a place of the torus as the map and the masks show it.
func (c *Config) place(m view.Map, rank int) Place {
	id, state := m.ID(rank), m.State(rank)
	p := Place{Node: id, Failed: state == fault.Failed, Well: state == fault.Normal && c.Marks.Of(id) == nil}
	for part, state := range m.Components(rank) {
		d, ok := part.LinkDirection()
		if !ok {
			p.Failed = p.Failed || part == fault.ComponentDNP && state == fault.Failed
			continue
		}
		if l, has := chanmask.LinkAt(m.Dims(), m.Coord(rank), d); has && state == fault.Normal && c.Masks.Of(l) == nil {
			p.Links |= 1 << d.Index()
		}
		if state == fault.Failed {
			p.Dead |= 1 << d.Index()
		}
	}
	return p
}

// Metrics of the committed fault map: counts of everything, and faulty parts by name. A large cluster must not need a
// large server, so each family has a bound, and a count of omitted parts.
//
// A scrape computes them from the immutable map that readers get. Detection, decisions and commits pay nothing for
// them.

package metrics

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// The bounds, in series. At most a leader exports some 6,000 series of its map, however many nodes there are.
const (
	// InfoNodes is the largest number of nodes with which each node and each link is described for dashboards (1 and
	// 3 series per node). In a larger cluster only the nodes named as not normal are described, and no links.
	InfoNodes = 1000
	// MaxNodes bounds the nodes named as not normal: FAILED ones first, then SICK, then UNKNOWN.
	MaxNodes = 1000
	// MaxComponents bounds the named components, except links: FAILED ones first, then SICK.
	MaxComponents = 1000
	// MaxLinks bounds the named link ends: FAILED ones first, then SICK. A dead node has up to twelve, its own and
	// its neighbours'.
	MaxLinks = 2000
	// MaxGivenUp bounds the named halves that their recovery daemons have given up, in the order of the nodes.
	MaxGivenUp = 500
)

// tile is the width of a node in the drawing of map_x and map_y, in its units; half of it is its height. This size
// gives Grafana's node graph room for its circles and the two lines of text below them.
const tile = 200

// rackLabel is the node label that becomes the label rack of lofamo_node_info; empty if the topology has none.
const rackLabel = "rack"

// Collector exports the map of a leader.
type Collector struct {
	get  func() (view.Map, bool)
	list func() []*lofamov1.Incident

	nodes, links, components, stopped         *prometheus.Desc
	platforms, watchdogs                      *prometheus.Desc
	nodeState, componentState, linkState      *prometheus.Desc
	nodeInfo, linkInfo, leftOut, size, groups *prometheus.Desc
	groupNodes, incidents, incidentSince      *prometheus.Desc
	halfGivenUp                               *prometheus.Desc
}

// NewCollector returns a collector of the map that get returns; false means none, on a replica that does not lead.
// incidents returns all incidents that the replica knows. Neither may block.
func NewCollector(get func() (view.Map, bool), incidents func() []*lofamov1.Incident) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("lofamo_"+name, help+" Exported by the leader only.", labels, nil)
	}
	c := &Collector{
		get: get, list: incidents,
		nodes: desc("nodes", "Nodes by state, as committed.", "state"),
		platforms: desc("platform_nodes",
			"Nodes by the platform of their halves, as committed: shared-kernel, dpu, or unknown if no report states it.",
			"platform"),
		watchdogs: desc("watchdog_nodes",
			"Nodes by the hardware watchdog that they state, as committed: self-fencing, armed, disarmed, or none.", "watchdog"),
		stopped: desc("stopped_nodes", "UNKNOWN nodes that announced a clean stop and are not back yet, as committed. A node that was SICK "+
			"when it stopped stays SICK and does not count."),
		links: desc("links", "Link ends by state, as committed: a link has two.", "state"),
		components: desc("components", "Components of nodes that are SICK or FAILED, by kind; links are in lofamo_links.",
			"component", "state"),
		nodeState: desc("node_state", "1 for the state of each node that is not NORMAL.", "node", "state"),
		componentState: desc("component_state", "1 for the state of each component, except links, that is SICK or FAILED.", "node",
			"component", "state"),
		linkState: desc("link_state", "1 for the state of each link end that is SICK or FAILED, in its node's view.", "node", "dir",
			"peer", "state"),
		halfGivenUp: desc("half_given_up", "1 for each FAILED half that its recovery daemon has given up, in nodes that are SICK. The "+
			"node's other half reports this, unless the two halves run on different kernels (platform dpu).", "node", "half"),
		nodeInfo: desc("node_info", "A node's place in the torus, its rack, and its place in a drawing: planes of constant z one above the "+
			"other, y growing downwards; in a cluster of more than 1000 nodes only for nodes in lofamo_node_state.", "node", "x", "y", "z",
			"rack", "map_x", "map_y"),
		linkInfo: desc("link_info",
			"A link, exported once, by the node in whose positive direction it lies; none in a cluster of more than 1000 "+
				"nodes.", "node", "dir", "peer"),
		leftOut: desc("map_series_left_out", "Series omitted because of a metric's bound, by the metric's name.", "metric"),
		size:    desc("torus_size", "Size of the torus in a dimension, in nodes.", "dim"),
		groups:  desc("group_faults", "Present group faults."),
		groupNodes: desc("group_fault_nodes", "Nodes that present group faults explain, by state; each node counts once.",
			"state"),
	}
	c.describeIncidents(desc)
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.nodes, c.platforms, c.watchdogs, c.stopped, c.links, c.components, c.nodeState, c.componentState, c.linkState,
		c.nodeInfo, c.linkInfo, c.leftOut, c.size,
		c.groups, c.groupNodes, c.incidents, c.incidentSince, c.halfGivenUp,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	m, ok := c.get()
	if !ok {
		return
	}
	s := scrape{Collector: c, m: m, ch: ch}
	s.counts()
	s.namedNodes()
	s.namedComponents()
	s.namedLinks()
	s.givenUp()
	s.describedLinks()
	s.standing(c.list())
}

// scrape is one export of one map.
type scrape struct {
	*Collector
	m  view.Map
	ch chan<- prometheus.Metric
}

func (s *scrape) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// bad lists the states of named components and links, the worst first.
var bad = [...]fault.State{fault.Failed, fault.Sick}

func (s *scrape) counts() {
	counts := s.m.Counts()
	for st := fault.Unknown; st.Valid(); st++ {
		s.gauge(s.nodes, float64(counts.Nodes[st]), st.String())
		s.gauge(s.links, float64(counts.Links[st]), st.String())
	}
	dims := s.m.Dims()
	for i, n := range []int{dims.X, dims.Y, dims.Z} {
		s.gauge(s.size, float64(n), string("xyz"[i]))
	}
	s.gauge(s.groups, float64(len(s.m.Groups)))
	s.placements()
	stopped := 0
	for rank := range s.m.In(fault.Unknown) {
		if s.m.Stop(rank).Reason != 0 {
			stopped++
		}
	}
	s.gauge(s.stopped, float64(stopped))
	members := s.members()
	for _, st := range []fault.State{fault.Unknown, fault.Sick, fault.Failed} {
		s.gauge(s.groupNodes, float64(members[st]), st.String())
	}
	var of [fault.NumComponents][int(fault.Failed) + 1]int
	for _, b := range s.faulty() {
		of[b.component][b.state]++
	}
	for _, c := range fault.Components() {
		if _, link := c.LinkDirection(); link || c == fault.ComponentNode {
			continue
		}
		for _, st := range bad {
			s.gauge(s.components, float64(of[c][st]), c.String(), st.String())
		}
	}
}

// members counts the nodes of all group faults by state.
func (s *scrape) members() (counts [fault.Failed + 1]int) {
	seen := make(map[fault.NodeID]bool)
	for i := range s.m.Groups {
		for _, id := range s.m.Groups[i].Members {
			if rank, ok := s.m.Rank(id); ok && !seen[id] {
				seen[id] = true
				counts[s.m.State(rank)]++
			}
		}
	}
	return counts
}

// part is a component that is SICK or FAILED.
type part struct {
	component fault.Component
	state     fault.State
}

// faulty returns all faulty components, with the ranks of their nodes.
func (s *scrape) faulty() iter.Seq2[int, part] {
	return func(yield func(int, part) bool) {
		for rank := range s.m.NotNormal() {
			for c, st := range s.m.Faulty(rank) {
				if !yield(rank, part{c, st}) {
					return
				}
			}
		}
	}
}

// placements counts the nodes by platform and by hardware watchdog.
func (s *scrape) placements() {
	platforms := map[string]int{"unknown": 0, fault.PlatformSharedKernel.String(): 0, fault.PlatformDPU.String(): 0}
	watchdogs := map[string]int{"none": 0, "disarmed": 0, "armed": 0, "self-fencing": 0}
	for rank := range s.m.Len() {
		platforms[cmp.Or(s.m.Platform(rank).String(), "unknown")]++
		watchdogs[cmp.Or(servicenet.WatchdogState(s.m.Watchdog(rank)), "none")]++
	}
	for _, k := range slices.Sorted(maps.Keys(platforms)) {
		s.gauge(s.platforms, float64(platforms[k]), k)
	}
	for _, k := range slices.Sorted(maps.Keys(watchdogs)) {
		s.gauge(s.watchdogs, float64(watchdogs[k]), k)
	}
}

// namedNodes exports the nodes that are not normal, and describes them. In a small cluster it describes all nodes.
func (s *scrape) namedNodes() {
	small := s.m.Len() <= InfoNodes
	counts, told, out := s.m.Counts(), 0, 0
	for _, st := range []fault.State{fault.Failed, fault.Sick, fault.Unknown} {
		if told == MaxNodes {
			out += counts.Nodes[st]
			continue
		}
		for rank := range s.m.In(st) {
			if told == MaxNodes {
				out++
				continue
			}
			told++
			s.gauge(s.nodeState, 1, string(s.m.ID(rank)), st.String())
			if !small {
				s.describe(rank)
			}
		}
	}
	s.gauge(s.leftOut, float64(out), "lofamo_node_state")
	left := s.m.Len() - told
	if small {
		left = 0
		for rank := range s.m.Len() {
			s.describe(rank)
		}
	}
	s.gauge(s.leftOut, float64(left), "lofamo_node_info")
}

func (s *scrape) describe(rank int) {
	id, at, rack := s.m.ID(rank), s.m.Coord(rank), ""
	if t := s.m.Topology(); t != nil {
		if n, ok := t.Node(id); ok {
			rack = n.Labels[rackLabel]
		}
	}
	x, y := Place(s.m.Dims(), at)
	s.gauge(s.nodeInfo, 1, string(id), strconv.Itoa(at.X), strconv.Itoa(at.Y), strconv.Itoa(at.Z), rack, strconv.Itoa(x), strconv.Itoa(y))
}

// Place returns the position of a place in a drawing: each plane of constant z is drawn isometrically, one above the
// other so that none hides another. X grows to the right and y downwards, as in browsers; a tile is 200 wide. No two
// places share a position.
func Place(dims grid.Dims, at grid.Coord) (x, y int) {
	const half, quarter = tile / 2, tile / 4
	plane := (dims.X+dims.Y)*quarter + half
	return (at.X - at.Y) * half, (at.X+at.Y)*quarter + (dims.Z-1-at.Z)*plane
}

func (s *scrape) namedComponents() {
	s.named(s.componentState, "lofamo_component_state", MaxComponents, func(rank int, p part) ([]string, bool) {
		_, link := p.component.LinkDirection()
		return []string{string(s.m.ID(rank)), p.component.String()}, !link
	})
}

func (s *scrape) namedLinks() {
	s.named(s.linkState, "lofamo_link_state", MaxLinks, func(rank int, p part) ([]string, bool) {
		dir, link := p.component.LinkDirection()
		if !link {
			return nil, false
		}
		return []string{string(s.m.ID(rank)), dir.String(), s.peer(rank, dir)}, true
	})
}

// givenUp exports the halves that their recovery daemons have given up. A node that is FAILED or UNKNOWN has a graver fault.
func (s *scrape) givenUp() {
	told, out := 0, 0
	for rank := range s.m.In(fault.Sick) {
		given := s.m.GivenUp(rank)
		if given == ([2]bool{}) {
			continue
		}
		for c, st := range s.m.Faulty(rank) {
			switch {
			case st != fault.Failed || c != fault.ComponentHost && c != fault.ComponentDNP:
			case c == fault.ComponentHost && !given[0] || c == fault.ComponentDNP && !given[1]:
			case told == MaxGivenUp:
				out++
			default:
				told++
				s.gauge(s.halfGivenUp, 1, string(s.m.ID(rank)), c.String())
			}
		}
	}
	s.gauge(s.leftOut, float64(out), "lofamo_half_given_up")
}

// peer returns the node at the other end of a link; empty: unknown.
func (s *scrape) peer(rank int, dir grid.Direction) string {
	at, ok := s.m.Dims().Neighbour(s.m.Coord(rank), dir)
	if !ok {
		return ""
	}
	return string(s.m.IDAt(at))
}

// named exports faulty parts with the labels that of returns, the worst first, and the number left out.
func (s *scrape) named(d *prometheus.Desc, name string, limit int, of func(int, part) ([]string, bool)) {
	told, out := 0, 0
	for _, st := range bad {
		for rank, p := range s.faulty() {
			if p.state != st {
				continue
			}
			labels, ok := of(rank, p)
			switch {
			case !ok:
			case told == limit:
				out++
			default:
				told++
				s.gauge(d, 1, append(labels, st.String())...)
			}
		}
	}
	s.gauge(s.leftOut, float64(out), name)
}

// describedLinks exports all links, or none: a drawing with only some of them would be wrong.
func (s *scrape) describedLinks() {
	left := 0
	for _, dir := range s.m.Dims().Links() {
		switch {
		case !dir.Positive():
		case s.m.Len() > InfoNodes:
			left += s.m.Len()
		default:
			for rank := range s.m.Len() {
				if peer := s.peer(rank, dir); peer != "" {
					s.gauge(s.linkInfo, 1, string(s.m.ID(rank)), dir.String(), peer)
				}
			}
		}
	}
	s.gauge(s.leftOut, float64(left), "lofamo_link_info")
}

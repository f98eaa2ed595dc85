package orders

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestFindingsStayAtTheirPlacesWhileTheTorusGrows: the topology is newer than the map for a moment, and then a place has another rank in
// each of them.
func TestFindingsStayAtTheirPlacesWhileTheTorusGrows(t *testing.T) {
	ids := map[grid.Coord]fault.NodeID{}
	now := grid.Dims{X: 5, Y: 2, Z: 1}
	for at := range now.All() {
		ids[at] = fault.DefaultNodeID(at)
	}
	k := newMapping(&Config{Names: view.NewNames(now, ids), Metrics: metrics.New(prometheus.NewRegistry())})
	m := newMappingMachine(defaultMapping(), 7)
	before := grid.Dims{X: 4, Y: 2, Z: 1}
	m.Evidence(mappingStart, chanmask.NewMap(before), occupantsOf(before))
	m.found[before.Rank(grid.Coord{Y: 1})] = mappingFound{Node: "n0-1-0", DNP: chanmask.Good}
	k.publish(m)
	if found := slices.Collect(maps.Keys(k.shown.Load().found)); !slices.Equal(found, []fault.NodeID{"n0-1-0"}) {
		t.Errorf("findings about %v, want n0-1-0", found)
	}
}

// TestFindingsAreNotAboutTheNextNodeAtTheirPlace: n1 is UNKNOWN, and a mapper finds that its DNP half answers. Then x gets its place.
// x is UNKNOWN too, and no mapper reaches it.
func TestFindingsAreNotAboutTheNextNodeAtTheirPlace(t *testing.T) {
	w := newMappedWorld(t, grid.Dims{X: 4, Y: 1, Z: 1})
	for _, x := range []int{0, 2, 3} {
		w.heard[grid.Coord{X: x}] = true
	}
	w.hosts[grid.Coord{X: 1}] = true
	w.run(time.Minute)
	names := view.NamesOf(topologyOf(w.torus.Dims, 1))
	k := newMapping(&Config{Names: names, Metrics: metrics.New(prometheus.NewRegistry())})
	k.publish(w.m)
	if f, ok := k.shown.Load().found["n1-0-0"]; !ok || f.DNP != chanmask.Good || f.By == "" {
		t.Fatalf("n1-0-0: %+v, %t: want that a mapper has reached it", f, ok)
	}
	nodes := topologyOf(w.torus.Dims, 1).Nodes
	nodes[1].ID = "x"
	names.Set(topology.New(w.torus.Dims, append(nodes, topology.Node{ID: "n1-0-0", Spare: true}), nil, 2))
	k.publish(w.m) // the map is older than the topology
	if f, ok := k.shown.Load().found["x"]; ok {
		t.Errorf("x: %+v: want no finding, because no mapper was asked about it", f)
	}
	w.nodes[1] = "x"
	w.deaf[grid.Coord{}], w.deaf[grid.Coord{X: 2}], w.deaf[grid.Coord{X: 3}] = true, true, true
	w.run(time.Second)
	k.publish(w.m)
	if found := k.shown.Load().found; len(found) != 0 {
		t.Errorf("findings %+v: want none about x or its predecessor", found)
	}
	clear(w.deaf)
	w.run(20 * time.Second)
	k.publish(w.m)
	if f := k.shown.Load().found["x"]; f.DNP != chanmask.Good {
		t.Errorf("x: %+v: want that it is mapped at once, as a newly unknown node", f)
	}
}

// TestRunningMappingDropsReplacedNode: x gets the place of n1 while a mapper's findings about n1 are under way.
func TestRunningMappingDropsReplacedNode(t *testing.T) {
	w := newMappedWorld(t, grid.Dims{X: 6, Y: 1, Z: 1})
	for _, x := range []int{0, 3, 4, 5} {
		w.heard[grid.Coord{X: x}] = true
	}
	l, _ := chanmask.LinkAt(w.torus.Dims, grid.Coord{X: 1}, grid.XPlus)
	w.torus.Cut(l)
	w.deaf[grid.Coord{}], w.deaf[grid.Coord{X: 3}] = true, true
	w.run(6 * time.Second)
	if !w.m.Mapping() || len(w.orders) == 0 {
		t.Fatal("no mapping has begun")
	}
	o := w.orders[0]
	if !slices.Contains(o.Region, 1) || !slices.Contains(o.Region, 2) {
		t.Fatalf("order %+v: want one about n1 and n2", o)
	}
	w.nodes[1] = "x"
	w.run(time.Second)
	for _, f := range w.survey(o) {
		w.m.Findings(w.now, o.Mapper, f)
	}
	for w.m.Made() == 0 {
		w.run(time.Second)
	}
	found := w.m.Found()
	if f, ok := found[1]; ok {
		t.Errorf("x: %+v: want no finding from before it came", f)
	}
	if f := found[2]; f.Node != "n2-0-0" {
		t.Errorf("n2-0-0: %+v: want its finding", f)
	}
	if dead := w.m.Dead(); slices.Contains(dead, l) {
		t.Errorf("dead links %v: want none of x, whose links no mapper has tested", dead)
	}
}

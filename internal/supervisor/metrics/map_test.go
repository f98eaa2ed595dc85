package metrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// torus returns a map of a given size in which all nodes are NORMAL.
func torus(t testing.TB, dims grid.Dims) *view.Builder {
	t.Helper()
	var nodes []topology.Node
	for rank := range dims.Nodes() {
		at := dims.At(rank)
		nodes = append(nodes, topology.Node{ID: fault.NodeID(fmt.Sprintf("n%d-%d-%d", at.X, at.Y, at.Z)), Coord: at,
			Labels: map[string]string{"rack": fmt.Sprint("r", at.Z)}})
	}
	b := view.NewBuilder(view.NamesOf(topology.New(dims, nodes, []string{"rack"}, 1)), time.Time{})
	for rank := range dims.Nodes() {
		set(b, dims, rank, fault.Normal, nil)
	}
	return b
}

// set sets the state of a node, and the states of the given components.
func set(b *view.Builder, dims grid.Dims, rank int, state fault.State, parts map[fault.Component]fault.State) {
	at := dims.At(rank)
	st := awareness.NodeStatus{ID: fault.NodeID(fmt.Sprintf("n%d-%d-%d", at.X, at.Y, at.Z)), Coord: at, State: state}
	for _, c := range fault.Components() {
		dir, link := c.LinkDirection()
		if c == fault.ComponentNode || link && !dims.HasLink(dir) {
			continue
		}
		is := fault.Normal
		if s, ok := parts[c]; ok {
			is = s
		}
		st.Components = append(st.Components, awareness.ComponentStatus{Component: c, State: is})
	}
	b.Set(view.Entry{Status: st})
}

// dies makes a whole node fail: its halves, its links, and its neighbours' links to the node.
func dies(b *view.Builder, dims grid.Dims, rank int) {
	parts := map[fault.Component]fault.State{fault.ComponentHost: fault.Failed, fault.ComponentDNP: fault.Failed}
	for _, d := range dims.Links() {
		parts[fault.Link(d)] = fault.Failed
		n, _ := dims.Neighbour(dims.At(rank), d)
		set(b, dims, dims.Rank(n), fault.Sick, map[fault.Component]fault.State{fault.Link(d.Opposite()): fault.Failed})
	}
	set(b, dims, rank, fault.Failed, parts)
}

// gather returns a collector's output for a map, one line per series.
func gather(t testing.TB, b *view.Builder) (out []string) {
	t.Helper()
	m := b.Map(7)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewCollector(func() (view.Map, bool) { return m, true }))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			out = append(out, fmt.Sprintf("%s{%s} %v", f.GetName(), strings.Join(labels, ","), m.GetGauge().GetValue()))
		}
	}
	slices.Sort(out)
	return out
}

// lines returns the lines of some families.
func lines(all []string, names ...string) (out []string) {
	for _, line := range all {
		if name, _, _ := strings.Cut(line, "{"); slices.Contains(names, name) {
			out = append(out, line)
		}
	}
	return out
}

func TestSmall(t *testing.T) {
	dims := grid.Dims{X: 3, Y: 1, Z: 1}
	b := torus(t, dims)
	dies(b, dims, 1)
	got := lines(gather(t, b), "lofamo_nodes", "lofamo_links", "lofamo_node_state", "lofamo_component_state", "lofamo_link_state",
		"lofamo_node_info", "lofamo_link_info", "lofamo_torus_size")
	want := []string{
		"lofamo_nodes{state=FAILED} 1", "lofamo_nodes{state=NORMAL} 0", "lofamo_nodes{state=SICK} 2", "lofamo_nodes{state=UNKNOWN} 0",
		"lofamo_links{state=FAILED} 4", "lofamo_links{state=NORMAL} 2", "lofamo_links{state=SICK} 0", "lofamo_links{state=UNKNOWN} 0",
		"lofamo_node_state{node=n0-0-0,state=SICK} 1", "lofamo_node_state{node=n1-0-0,state=FAILED} 1", "lofamo_node_state{node=n2-0-0,state=SICK} 1",
		"lofamo_component_state{component=dnp,node=n1-0-0,state=FAILED} 1", "lofamo_component_state{component=host,node=n1-0-0,state=FAILED} 1",
		"lofamo_link_state{dir=X+,node=n0-0-0,peer=n1-0-0,state=FAILED} 1", "lofamo_link_state{dir=X+,node=n1-0-0,peer=n2-0-0,state=FAILED} 1",
		"lofamo_link_state{dir=X-,node=n1-0-0,peer=n0-0-0,state=FAILED} 1", "lofamo_link_state{dir=X-,node=n2-0-0,peer=n1-0-0,state=FAILED} 1",
		"lofamo_node_info{map_x=0,map_y=0,node=n0-0-0,rack=r0,x=0,y=0,z=0} 1", "lofamo_node_info{map_x=100,map_y=50,node=n1-0-0,rack=r0,x=1,y=0,z=0} 1",
		"lofamo_node_info{map_x=200,map_y=100,node=n2-0-0,rack=r0,x=2,y=0,z=0} 1",
		"lofamo_link_info{dir=X+,node=n0-0-0,peer=n1-0-0} 1", "lofamo_link_info{dir=X+,node=n1-0-0,peer=n2-0-0} 1", "lofamo_link_info{dir=X+,node=n2-0-0,peer=n0-0-0} 1",
		"lofamo_torus_size{dim=x} 3", "lofamo_torus_size{dim=y} 1", "lofamo_torus_size{dim=z} 1",
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A large cluster costs no more than a small one: when it is healthy, with one node in a hundred dead, and before the
// first evidence. The counts are still right, and the number of omitted series is exported.
func TestLarge(t *testing.T) {
	dims := grid.Dims{X: 100, Y: 50, Z: 20}
	b := torus(t, dims)
	all := gather(t, b)
	if n := len(all); n > 100 {
		t.Errorf("%d series of a healthy map of %d nodes", n, dims.Nodes())
	}
	for row := range dims.Y * dims.Z { // so that no two of them share a neighbour
		y, z := row%dims.Y, row/dims.Y
		dies(b, dims, dims.Rank(grid.Coord{X: (37*y + 17*z) % dims.X, Y: y, Z: z}))
	}
	all = gather(t, b)
	if n := len(all); n < 1000 || n > 6000 {
		t.Errorf("%d series with one node in a hundred dead", n)
	}
	got := lines(all, "lofamo_nodes", "lofamo_map_series_left_out")
	want := []string{
		"lofamo_nodes{state=FAILED} 1000", "lofamo_nodes{state=NORMAL} 93000", "lofamo_nodes{state=SICK} 6000", "lofamo_nodes{state=UNKNOWN} 0",
		"lofamo_map_series_left_out{metric=lofamo_component_state} 1000", "lofamo_map_series_left_out{metric=lofamo_link_info} 300000",
		"lofamo_map_series_left_out{metric=lofamo_link_state} 10000", "lofamo_map_series_left_out{metric=lofamo_node_info} 99000",
		"lofamo_map_series_left_out{metric=lofamo_node_state} 6000",
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, line := range lines(all, "lofamo_node_state") {
		if !strings.HasSuffix(line, "state=FAILED} 1") {
			t.Errorf("%s is named, and nodes that FAILED are left out", line)
		}
	}
}

func TestNotLeading(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewCollector(func() (view.Map, bool) { return view.Map{}, false }))
	if got, err := reg.Gather(); err != nil || len(got) != 0 {
		t.Errorf("a replica that does not lead tells %v, error %v", got, err)
	}
}

// No two nodes share a position in the drawing.
func TestPlace(t *testing.T) {
	for _, dims := range []grid.Dims{{X: 1, Y: 1, Z: 1}, {X: 3, Y: 3, Z: 3}, {X: 10, Y: 2, Z: 7}, {X: 4, Y: 16, Z: 1}} {
		seen := make(map[[2]int]grid.Coord)
		for rank := range dims.Nodes() {
			x, y := Place(dims, dims.At(rank))
			if other, ok := seen[[2]int{x, y}]; ok {
				t.Errorf("%s: %s and %s are both at %d,%d", dims, other, dims.At(rank), x, y)
			}
			seen[[2]int{x, y}] = dims.At(rank)
		}
	}
}

package metrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
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

// gather returns a collector's output for a map with some incidents, one line per series.
func gather(t testing.TB, b *view.Builder, incidents ...*lofamov1.Incident) (out []string) {
	t.Helper()
	return gatherMap(t, b.Map(7), incidents...)
}

func gatherMap(t testing.TB, m view.Map, incidents ...*lofamov1.Incident) (out []string) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewCollector(func() (view.Map, bool) { return m, true }, func() []*lofamov1.Incident { return incidents }))
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

func TestSmallMapExportsEveryNode(t *testing.T) {
	dims := grid.Dims{X: 3, Y: 1, Z: 1}
	b := torus(t, dims)
	dies(b, dims, 1)
	got := lines(gather(t, b), "lofamo_nodes", "lofamo_links", "lofamo_node_state", "lofamo_component_state", "lofamo_link_state",
		"lofamo_node_info", "lofamo_link_info", "lofamo_torus_size")
	want := []string{
		"lofamo_nodes{state=FAILED} 1", "lofamo_nodes{state=NORMAL} 0", "lofamo_nodes{state=SICK} 2", "lofamo_nodes{state=UNKNOWN} 0",
		"lofamo_links{state=FAILED} 4", "lofamo_links{state=NORMAL} 2", "lofamo_links{state=SICK} 0", "lofamo_links{state=UNKNOWN} 0",
		"lofamo_node_state{node=n0-0-0,state=SICK} 1", "lofamo_node_state{node=n1-0-0,state=FAILED} 1",
		"lofamo_node_state{node=n2-0-0,state=SICK} 1",
		"lofamo_component_state{component=dnp,node=n1-0-0,state=FAILED} 1", "lofamo_component_state{component=host,node=n1-0-0,state=FAILED} 1",
		"lofamo_link_state{dir=X+,node=n0-0-0,peer=n1-0-0,state=FAILED} 1", "lofamo_link_state{dir=X+,node=n1-0-0,peer=n2-0-0,state=FAILED} 1",
		"lofamo_link_state{dir=X-,node=n1-0-0,peer=n0-0-0,state=FAILED} 1", "lofamo_link_state{dir=X-,node=n2-0-0,peer=n1-0-0,state=FAILED} 1",
		"lofamo_node_info{map_x=0,map_y=0,node=n0-0-0,rack=r0,x=0,y=0,z=0} 1",
		"lofamo_node_info{map_x=100,map_y=50,node=n1-0-0,rack=r0,x=1,y=0,z=0} 1",
		"lofamo_node_info{map_x=200,map_y=100,node=n2-0-0,rack=r0,x=2,y=0,z=0} 1",
		"lofamo_link_info{dir=X+,node=n0-0-0,peer=n1-0-0} 1", "lofamo_link_info{dir=X+,node=n1-0-0,peer=n2-0-0} 1",
		"lofamo_link_info{dir=X+,node=n2-0-0,peer=n0-0-0} 1",
		"lofamo_torus_size{dim=x} 3", "lofamo_torus_size{dim=y} 1", "lofamo_torus_size{dim=z} 1",
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A large cluster costs no more than a small one: when it is healthy, with one node in a hundred dead, and before the
// first evidence. The counts are still right, and the number of omitted series is exported.
func TestLargeMapExportsBoundedSeries(t *testing.T) {
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
		"lofamo_map_series_left_out{metric=lofamo_half_given_up} 0",
		"lofamo_map_series_left_out{metric=lofamo_incident_since_timestamp_seconds} 0",
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

// TestStoppedNodesCountOnlyUnknownNodes: LofamoAgentsNotHeard subtracts the stopped nodes from the UNKNOWN nodes. A node that was SICK when
// it stopped stays SICK. If it counted, it would hide a silent node.
func TestStoppedNodesCountOnlyUnknownNodes(t *testing.T) {
	dims := grid.Dims{X: 3, Y: 1, Z: 1}
	b := torus(t, dims)
	set(b, dims, 0, fault.Unknown, nil) // silent
	stop := awareness.Stop{Reason: fault.StopShutdown, Since: time.Unix(1000, 0), Until: time.Unix(1600, 0)}
	b.Set(view.Entry{Status: awareness.NodeStatus{ID: "n1-0-0", Coord: dims.At(1), State: fault.Sick, Cause: fault.CauseMemory, Stop: stop}})
	b.Set(view.Entry{Status: awareness.NodeStatus{ID: "n2-0-0", Coord: dims.At(2), State: fault.Unknown, Stop: stop}})
	got := lines(gather(t, b), "lofamo_stopped_nodes", "lofamo_nodes")
	want := []string{"lofamo_nodes{state=FAILED} 0", "lofamo_nodes{state=NORMAL} 0", "lofamo_nodes{state=SICK} 1",
		"lofamo_nodes{state=UNKNOWN} 2", "lofamo_stopped_nodes{} 1"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q: want %q", got, want)
	}
}

// TestHalvesThatAreGivenUpAreExported: FAILED halves that their daemons have given up are named up to a bound, except in nodes with a
// graver fault.
func TestHalvesThatAreGivenUpAreExported(t *testing.T) {
	dims := grid.Dims{X: MaxGivenUp + 20, Y: 1, Z: 1}
	give := func(b *view.Builder, rank int, state fault.State, c fault.Component, is fault.State, given [2]bool) {
		id := fault.NodeID(fmt.Sprintf("n%d-0-0", rank))
		b.Set(view.Entry{Status: awareness.NodeStatus{ID: id, Coord: dims.At(rank), State: state,
			Components: []awareness.ComponentStatus{{Component: c, State: is}}}, GivenUp: given})
	}
	host, dnp := [2]bool{true, false}, [2]bool{false, true}
	b := torus(t, dims)
	give(b, 0, fault.Sick, fault.ComponentHost, fault.Failed, host)
	give(b, 1, fault.Sick, fault.ComponentDNP, fault.Failed, dnp)
	give(b, 2, fault.Sick, fault.ComponentHost, fault.Failed, [2]bool{}) // its daemon restarts it
	give(b, 3, fault.Failed, fault.ComponentHost, fault.Failed, host)    // the whole node died later
	give(b, 4, fault.Unknown, fault.ComponentHost, fault.Unknown, host)  // the node is silent
	give(b, 5, fault.Sick, fault.ComponentHost, fault.Sick, host)        // it is back, and its record on the way
	give(b, 6, fault.Sick, fault.ComponentDNPCore, fault.Failed, dnp)    // no half
	give(b, 7, fault.Sick, fault.ComponentHost, fault.Failed, dnp)       // of the other half
	got := lines(gather(t, b), "lofamo_half_given_up")
	want := []string{"lofamo_half_given_up{half=dnp,node=n1-0-0} 1", "lofamo_half_given_up{half=host,node=n0-0-0} 1"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q: want %q", got, want)
	}
	for rank := range MaxGivenUp + 10 {
		give(b, rank, fault.Sick, fault.ComponentHost, fault.Failed, host)
	}
	all := gather(t, b)
	left := "lofamo_map_series_left_out{metric=lofamo_half_given_up} 10"
	if n := len(lines(all, "lofamo_half_given_up")); n != MaxGivenUp || !slices.Contains(all, left) {
		t.Errorf("%d series: want %d, and %s", n, MaxGivenUp, left)
	}
}

// TestGroupFaultNodesCountOnce: a node in two group faults counts once, and one that the map does not have does not count.
func TestGroupFaultNodesCountOnce(t *testing.T) {
	dims := grid.Dims{X: 3, Y: 1, Z: 1}
	b := torus(t, dims)
	dies(b, dims, 1)
	m := b.Map(7)
	m.Groups = []awareness.GroupStatus{
		{ID: "label/rack=r0", Members: []fault.NodeID{"n1-0-0", "n2-0-0", "n9-9-9"}}, {ID: "row/Y=0", Members: []fault.NodeID{"n1-0-0"}},
	}
	got := lines(gatherMap(t, m), "lofamo_group_fault_nodes")
	want := []string{
		"lofamo_group_fault_nodes{state=FAILED} 1", "lofamo_group_fault_nodes{state=SICK} 1", "lofamo_group_fault_nodes{state=UNKNOWN} 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q: want %q", got, want)
	}
}

func TestFollowerExportsNoMap(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewCollector(func() (view.Map, bool) { return view.Map{}, false },
		func() []*lofamov1.Incident {
			return []*lofamov1.Incident{{Id: "abcd-aaaaaaaa", State: lofamov1.IncidentState_OPEN}}
		}))
	if got, err := reg.Gather(); err != nil || len(got) != 0 {
		t.Errorf("a replica that does not lead tells %v, error %v", got, err)
	}
}

// No two nodes share a position in the drawing.
func TestNodesDoNotOverlapInDrawing(t *testing.T) {
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

// Every incident that is not CLOSED has one series, the CRITICAL ones first, and the counts have all that are OPEN.
func TestOpenIncidentsAreExported(t *testing.T) {
	dims := grid.Dims{X: 3, Y: 1, Z: 1}
	of := func(id, node, component string, state lofamov1.IncidentState, severity lofamov1.IncidentSeverity) *lofamov1.Incident {
		return &lofamov1.Incident{Id: id, Node: node, Component: component, State: state, Severity: severity, Cause: lofamov1.Cause_LINK,
			Fault: lofamov1.State_FAILED, Since: timestamppb.New(time.Unix(1000, 500_000_000))}
	}
	open, recovering, closed := lofamov1.IncidentState_OPEN, lofamov1.IncidentState_RECOVERING, lofamov1.IncidentState_CLOSED
	warning, critical := lofamov1.IncidentSeverity_WARNING, lofamov1.IncidentSeverity_CRITICAL
	cable := of("i", "n0-0-0", "link/X+", open, warning)
	cable.Peer, cable.Runbook, cable.Acknowledgement = "n1-0-0", "LofamoLinkBroken", &lofamov1.Acknowledgement{By: "operator/alice"}
	rack := of("k", "", "group", open, critical)
	rack.Group = "label/rack=r0"
	all := gather(t, torus(t, dims), cable, rack, of("l", "n2-0-0", "link/Y-", open, warning), of("m", "n1-0-0", "node", recovering, critical),
		of("n", "n1-0-0", "node", closed, critical))
	got := lines(all, "lofamo_incident_since_timestamp_seconds")
	for _, line := range lines(all, "lofamo_incidents") {
		if !strings.HasSuffix(line, " 0") {
			got = append(got, line)
		}
	}
	const rest = ",state=OPEN} 1000.5"
	want := []string{
		"lofamo_incident_since_timestamp_seconds{acknowledged_by=,cause=LINK,component=group,fault=FAILED,group=label/rack=r0,incident=k," +
			"node=,peer=,runbook=,severity=CRITICAL" + rest,
		"lofamo_incident_since_timestamp_seconds{acknowledged_by=,cause=LINK,component=link/Y-,fault=FAILED,group=,incident=l,node=n2-0-0," +
			"peer=,runbook=,severity=WARNING" + rest,
		"lofamo_incident_since_timestamp_seconds{acknowledged_by=,cause=LINK,component=node,fault=FAILED,group=,incident=m,node=n1-0-0,peer=," +
			"runbook=,severity=CRITICAL,state=RECOVERING} 1000.5",
		"lofamo_incident_since_timestamp_seconds{acknowledged_by=operator/alice,cause=LINK,component=link/X+,fault=FAILED,group=,incident=i," +
			"node=n0-0-0,peer=n1-0-0,runbook=LofamoLinkBroken,severity=WARNING" + rest,
		"lofamo_incidents{component=group,severity=CRITICAL} 1", "lofamo_incidents{component=link,severity=WARNING} 2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	var many []*lofamov1.Incident
	for i := range 2 * MaxIncidents {
		severity := warning
		if i%2 == 1 {
			severity = critical
		}
		many = append(many, of(fmt.Sprint(i), "n0-0-0", "node", open, severity))
	}
	named := lines(gather(t, torus(t, dims), many...), "lofamo_incident_since_timestamp_seconds")
	if n := len(named); n != MaxIncidents || slices.ContainsFunc(named, func(s string) bool { return strings.Contains(s, "WARNING") }) {
		t.Errorf("%d of %d incidents have series: want the %d CRITICAL ones", n, len(many), MaxIncidents)
	}
}

// TestNewIncidentPrecedesOldAcknowledgedOnes: old CRITICAL incidents that operators have acknowledged could take all series. A new incident
// precedes them: no alert fires without a series. A group fault stands for many nodes, so it precedes all others.
func TestNewIncidentPrecedesOldAcknowledgedOnes(t *testing.T) {
	weeks := time.Unix(1_700_000_000, 0)
	critical, warning := lofamov1.IncidentSeverity_CRITICAL, lofamov1.IncidentSeverity_WARNING
	incident := func(id string, severity lofamov1.IncidentSeverity, at time.Time, ack *lofamov1.Acknowledgement) *lofamov1.Incident {
		return &lofamov1.Incident{Id: id, State: lofamov1.IncidentState_OPEN, Severity: severity, Node: "n-" + id, Component: "node",
			Since: timestamppb.New(at), Acknowledgement: ack}
	}
	group := func(in *lofamov1.Incident) *lofamov1.Incident {
		in.Node, in.Component, in.Group = "", groupComponent, "label/rack="+in.GetId()
		return in
	}
	by, outdated := &lofamov1.Acknowledgement{By: "operator/ann"}, &lofamov1.Acknowledgement{By: "operator/ann", Outdated: true}
	newest := weeks.Add(21 * 24 * time.Hour)
	for _, tt := range []struct {
		name string
		ack  *lofamov1.Acknowledgement // of the old ones
		new  *lofamov1.Incident
		want bool
	}{
		{"a rack beside acknowledged nodes", by, group(incident("new", critical, newest, nil)), true},
		{"a rack beside other nodes", nil, group(incident("new", critical, newest, nil)), true},
		{"an acknowledged rack beside other nodes", nil, group(incident("new", critical, newest, by)), true},
		{"a node beside acknowledged nodes", by, incident("new", critical, newest, nil), true},
		{"an escalated node beside acknowledged nodes", by, incident("new", critical, newest, outdated), true},
		{"a node beside other nodes", nil, incident("new", critical, newest, nil), false},
		{"a node beside escalated nodes", outdated, incident("new", critical, newest, nil), false},
		{"a warning of a rack beside acknowledged nodes", by, group(incident("new", warning, newest, nil)), false},
	} {
		all := []*lofamov1.Incident{tt.new}
		for i := range MaxIncidents {
			all = append(all, incident(fmt.Sprintf("old%05d", i), critical, weeks.Add(time.Duration(i)*time.Second), tt.ack))
		}
		exported := gather(t, torus(t, grid.Dims{X: 3, Y: 1, Z: 1}), all...)
		got := slices.ContainsFunc(lines(exported, "lofamo_incident_since_timestamp_seconds"), func(l string) bool {
			return strings.Contains(l, "incident=new,")
		})
		left := "lofamo_map_series_left_out{metric=lofamo_incident_since_timestamp_seconds} 1"
		if got != tt.want || !slices.Contains(exported, left) {
			t.Errorf("%s: exported %t: want %t, and %s", tt.name, got, tt.want, left)
		}
	}
}

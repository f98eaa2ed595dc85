package get

import (
	"fmt"
	"slices"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
)

// TestOrdinaryClusterIsDrawnByRacks: five enrolled nodes have no places in a torus for their reader.
func TestOrdinaryClusterIsDrawnByRacks(t *testing.T) {
	info := &lofamov1.ClusterInfo{Dims: "4x2x1 without 1,1,0 2,1,0 3,1,0", Ordinary: true, DomainLabels: []string{"rack", "switch"}}
	node := func(id, at, rack string, s lofamov1.State) *lofamov1.Node {
		n := &lofamov1.Node{Id: id, Coord: at, State: s}
		if rack != "" {
			n.Labels = map[string]string{"rack": rack}
		}
		return n
	}
	end := func(id, at, d string, s lofamov1.State) *lofamov1.Link {
		return &lofamov1.Link{Node: id, Coord: at, Direction: d, State: s}
	}
	links := &lofamov1.ListLinksResponse{Links: []*lofamov1.Link{end("n1", "0,0,0", "X+", lofamov1.State_FAILED),
		end("n2", "1,0,0", "X-", lofamov1.State_NORMAL), end("n2", "1,0,0", "X+", lofamov1.State_FAILED)}}
	for _, tc := range []struct {
		racked  bool
		columns int
		want    string
	}{
		{false, 40, "[ n1  ] [ n2  ] [ n9  ] [Xn10 ]\n[!n11 ]\n\nlink n1 – n2 FAILED\nnodes [ ] NORMAL [!] SICK [X] FAILED [?] UNKNOWN\n"},
		{true, 18, "rack r9\n[ n1  ] [Xn10 ]\n\nrack r10\n[ n2  ]\n\nno rack\n[ n9  ] [!n11 ]\n\nlink n1 – n2 FAILED\n" +
			"nodes [ ] NORMAL [!] SICK [X] FAILED [?] UNKNOWN\n"},
	} {
		rack := func(name string) string {
			if tc.racked {
				return name
			}
			return ""
		}
		nodes := &lofamov1.ListNodesResponse{Cluster: info, Nodes: []*lofamov1.Node{node("n1", "0,0,0", rack("r9"), lofamov1.State_NORMAL),
			node("n2", "1,0,0", rack("r10"), lofamov1.State_NORMAL), node("n10", "2,0,0", rack("r9"), lofamov1.State_FAILED),
			node("n9", "3,0,0", "", lofamov1.State_NORMAL), node("n11", "0,1,0", "", lofamov1.State_SICK)}}
		m, err := NewMap(nodes, links)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.tiles(info, command.Painter{}, tc.columns); got != tc.want {
			t.Errorf("racks %v:\n%s\nwant:\n%s", tc.racked, got, tc.want)
		}
	}
}

// TestChosenTileIsMarked: the chosen node and its line, in the order of the tiles.
func TestChosenTileIsMarked(t *testing.T) {
	info := &lofamov1.ClusterInfo{Dims: "3x1x1", Ordinary: true, DomainLabels: []string{"rack"}}
	nodes := &lofamov1.ListNodesResponse{Cluster: info}
	for i, rack := range []string{"r10", "r9", ""} {
		n := &lofamov1.Node{Id: fmt.Sprint("n", i), Coord: fmt.Sprint(i, ",0,0"), State: lofamov1.State_NORMAL}
		if rack != "" {
			n.Labels = map[string]string{"rack": rack}
		}
		nodes.Nodes = append(nodes.Nodes, n)
	}
	m, err := NewMap(nodes, &lofamov1.ListLinksResponse{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"rack r9", "[ n1 ]", "", "rack r10", "> n0 ]", "", "no rack", "[ n2 ]", ""}
	if lines, at := m.Tiles(info, command.Painter{}, 30, "n0"); !slices.Equal(lines, want) || at != 4 {
		t.Errorf("line %d of %q, want 4 of %q", at, lines, want)
	}
	var order []string
	for _, n := range m.InTiles(info) {
		order = append(order, n.GetId())
	}
	if !slices.Equal(order, []string{"n1", "n0", "n2"}) {
		t.Errorf("in the order %q", order)
	}
}

// TestNamesSortAsPeopleCount: a number in a name counts as a number.
func TestNamesSortAsPeopleCount(t *testing.T) {
	names := []string{"n10", "n9", "n1", "a2b10", "a2b9", "n01", "n", "r99999999999999999999", "r7"}
	want := []string{"a2b9", "a2b10", "n", "n01", "n1", "n9", "n10", "r7", "r99999999999999999999"}
	if slices.SortFunc(names, natural); !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

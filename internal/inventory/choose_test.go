package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// planned writes an inventory of nodes in racks and plans it. A node's name and rack come from two letters.
func planned(t *testing.T, former Inventory, dims string, nodes ...string) (Inventory, int, error) {
	t.Helper()
	text := "cluster: hall7\nsupervisors: [{id: s1, address: 10.0.0.101}]\nnodes:\n"
	if dims != "" {
		text = fmt.Sprintf("dims: %q\n%s", dims, text)
	}
	for i, n := range nodes {
		name, coord, _ := strings.Cut(n, "@")
		text += fmt.Sprintf("- {id: %q, coord: %q, service: 10.0.1.%d, labels: {rack: r%s}}\n", name, coord, i+1, name[:1])
	}
	file := filepath.Join(t.TempDir(), "inventory.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	inv, added, err := Plan(file, former, nil)
	return inv, added.Places, err
}

func exposed(t *testing.T, inv Inventory) int {
	t.Helper()
	d, err := grid.ParseTorus(inv.Dims)
	if err != nil {
		t.Fatal(err)
	}
	var labels []map[string]string
	var at []grid.Coord
	for _, n := range inv.Nodes {
		c, err := n.at(d)
		if err != nil {
			t.Fatal(err)
		}
		labels, at = append(labels, n.Labels), append(at, c)
	}
	p, err := grid.Place(d, grid.NewDomains([]string{"rack"}, labels), at)
	if err != nil {
		t.Fatal(err)
	}
	return p.Quality().Exposed()
}

func placesOf(inv Inventory) map[string]string {
	out := map[string]string{}
	for _, n := range inv.Nodes {
		out[string(n.ID)] = n.Coord
	}
	return out
}

func TestPlanChoosesSeparatedPlaces(t *testing.T) {
	var nodes []string
	for i := range 30 {
		nodes = append(nodes, fmt.Sprintf("%c%d", "abc"[i/10], i))
	}
	inv, chosen, err := planned(t, Inventory{}, "", nodes...)
	if err != nil || chosen != 30 || exposed(t, inv) != 0 {
		t.Fatalf("%d places chosen, %v", chosen, err)
	}
	again, _, err := planned(t, Inventory{}, "", nodes...)
	if err != nil || fmt.Sprint(placesOf(again)) != fmt.Sprint(placesOf(inv)) {
		t.Errorf("places %v, then %v, %v", placesOf(inv), placesOf(again), err)
	}
	inv, chosen, err = planned(t, Inventory{}, "4x2", "a0@1,0,0", "a1", "a2", "a3", "b0", "b1", "b2", "b3@3,1,0")
	if err != nil || chosen != 6 {
		t.Fatalf("%d places chosen, %v", chosen, err)
	}
	if at := placesOf(inv); at["a0"] != "1,0,0" || at["b3"] != "3,1,0" || exposed(t, inv) != 0 {
		t.Errorf("places %v, %d exposed", at, exposed(t, inv))
	}
}

// A changed inventory without places moves no node that stays.
func TestPlanKeepsPlacesOfFormerInventory(t *testing.T) {
	first, _, err := planned(t, Inventory{}, "", "a0", "a1", "b0", "b1", "c0", "c1")
	if err != nil {
		t.Fatal(err)
	}
	second, chosen, err := planned(t, first, "", "d0", "a0", "a1", "b0", "c0", "c1", "c2")
	if err != nil || chosen != 2 {
		t.Fatalf("%d places chosen, %v", chosen, err)
	}
	before, after := placesOf(first), placesOf(second)
	for _, id := range []string{"a0", "a1", "b0", "c0", "c1"} {
		if after[id] != before[id] {
			t.Errorf("%s moves from %s to %s", id, before[id], after[id])
		}
	}
	same, chosen, err := planned(t, second, "", "d0", "a0", "a1", "b0", "c0", "c1", "c2")
	if err != nil || chosen != 0 || same.Dims != second.Dims {
		t.Errorf("unchanged: %d places chosen in %s, want none in %s; %v", chosen, same.Dims, second.Dims, err)
	}
}

func TestPlanRefuses(t *testing.T) {
	for _, tc := range []struct {
		dims  string
		nodes []string
		names string
	}{
		{"", []string{"a0@0,0,0", "b0"}, "dims: given nothing: want the torus, because a node has a coord"},
		{"2x2", []string{"a0", "b0"}, "nodes: given 2: want one for each of 4 places"},
		{"2", []string{"a0@1,0,0", "b0@1,0,0", "c0"}, "nodes: given 3"},
		{"3", []string{"a0@1,0,0", "b0@1,0,0", "c0"}, "node 0 has it"},
		{"2x", []string{"a0", "b0"}, "dims"},
		{"2", []string{"a0@x", "b0"}, "nodes[0].coord: "},
	} {
		if _, _, err := planned(t, Inventory{}, tc.dims, tc.nodes...); err == nil || !strings.Contains(err.Error(), tc.names) {
			t.Errorf("%s %v: error %v: want one that has %q", tc.dims, tc.nodes, err, tc.names)
		}
	}
	inv := load(t)
	inv.Nodes[0].Coord = ""
	if err := inv.Validate(); err == nil || !strings.Contains(err.Error(), "nodes[0].coord: given nothing: want the node's place") {
		t.Errorf("Validate: %v", err)
	}
	if _, err := inv.choose(Inventory{}); err == nil || !strings.Contains(err.Error(), "nodes[0].id: given nothing: want a name") {
		t.Errorf("node without id and coord: %v", err)
	}
}

package topology

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// grownTo returns a topology of n nodes that joined one after the other.
func grownTo(t interface{ Fatal(...any) }, n int) *Topology {
	top := New(grid.Dims{}, nil, nil, 1)
	for i := range n {
		var err error
		if top, err = top.Join([]Node{joiner(fmt.Sprint("n", i+1))}, allEnds{}); err != nil {
			t.Fatal(err)
		}
	}
	return top
}

func TestSingleWitnessNamesReasonAndRemedy(t *testing.T) {
	five, layer := grownTo(t, 5), grownTo(t, 82)
	region := *five
	region.Nodes, region.placed, region.Region = five.Nodes[1:], 4, "west"
	const of = "if both die at once, or the link between them is cut, only the service network notices the death of "
	for _, tc := range []struct {
		name  string
		top   *Topology
		fixed bool
		want  string
	}{
		{"nobody", New(grid.Dims{}, nil, nil, 1), false, ""},
		{"two nodes", grownTo(t, 2), false, ""},
		{"three nodes", grownTo(t, 3), false, ""},
		{"five nodes", five, false, "n5: one witness, n1: " + of + "n5; one more node gives it a second witness, and so does " +
			"`lofamoctl node move n2 --to 2,1,0`"},
		{"five nodes at fixed places", five, true, "n5: one witness, n1: " + of + "n5; "},
		{"a witness in another region", &region, true, "n5: one witness, 0,0,0: " + of + "n5; "},
		{"six nodes", grownTo(t, 6), false, ""},
		{"a new layer", layer, false, "n82: one witness, n1: " + of + "n82; one more node at 1,0,1 gives it a second witness"},
	} {
		var got []string
		for _, s := range tc.top.SingleWitness(tc.fixed) {
			got = append(got, fmt.Sprintf("%s: %s; %s", s.GetNode(), s.GetReason(), s.GetRemedy()))
			if !strings.Contains(s.GetReason(), s.GetWitness()) {
				t.Errorf("%s: witness %s: %s", tc.name, s.GetWitness(), s.GetReason())
			}
		}
		if text := strings.Join(got, "\n"); text != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, text, tc.want)
		}
	}
}

// Each remedy works: the move, and one more node, whatever its labels are. Nodes come and go as they like.
func TestRemediesGiveSecondWitness(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rack := func() map[string]string {
			return map[string]string{"rack": rapid.StringMatching("[abc]").Draw(t, "rack")}
		}
		top := New(grid.Dims{}, nil, fault.DomainLabels(), 1)
		for i := range rapid.IntRange(1, 20).Draw(t, "steps") {
			n := joiner(fmt.Sprint("n", i+1))
			n.Labels = rack()
			next, err := top.Join([]Node{n}, allEnds{})
			if len(top.Placed()) > 3 && rapid.IntRange(0, 2).Draw(t, "leaves") == 0 {
				next, err = top.Leave([]fault.NodeID{rapid.SampledFrom(top.Placed()).Draw(t, "who").ID}, false)
			}
			if err == nil { // else the torus would be in several parts
				top = next
			}
		}
		for _, s := range top.SingleWitness(false) {
			where, move, _ := strings.Cut(s.GetRemedy(), " gives it a second witness")
			n := joiner("further")
			n.Labels = rack()
			if _, at, ok := strings.Cut(where, " at "); ok {
				c, err := grid.ParseCoord(at)
				if err != nil {
					t.Fatal(err)
				}
				n.Spare, n.Coord = false, c
			}
			id := fault.NodeID(s.GetNode())
			if more, err := top.Join([]Node{n}, allEnds{}); err != nil || len(more.Neighbours(id)) < 2 {
				t.Fatalf("%s: %s: %v with %s, %v", top.Dims, id, more.Neighbours(id), where, err)
			}
			var who, at string
			if _, err := fmt.Sscanf(move, ", and so does `lofamoctl node move %s --to %s", &who, &at); err != nil {
				continue // no single move does
			}
			to, err := grid.ParseCoord(strings.TrimSuffix(at, "`"))
			if err != nil {
				t.Fatal(err)
			}
			moved, err := top.Move([]Move{{Node: fault.NodeID(who), To: to}}, allEnds{})
			if err != nil || len(moved.Neighbours(id)) < 2 {
				t.Fatalf("%s: %s: %v%s, %v", top.Dims, id, moved.Neighbours(id), move, err)
			}
		}
	})
}

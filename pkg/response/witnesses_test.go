package response

import (
	"slices"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
)

// TestNodeCalledSupervisorIsWitness: a node may be called supervisor, and a supervisor like a half. The witnesses of a fault tell one from
// the other.
func TestNodeCalledSupervisorIsWitness(t *testing.T) {
	const named = "supervisor"
	with := cluster{nodes: map[fault.NodeID]place{named: {NodeInfo: NodeInfo{ID: named}}, "n1": {}, "n2": {}}}
	without := cluster{nodes: map[fault.NodeID]place{"n1": {}, "n2": {}}}
	for name, tc := range map[string]struct {
		cluster   cluster
		witnesses []string
		accused   fault.NodeID
		nodes     []fault.NodeID
		own       bool
		all       int
	}{
		"a supervisor":                          {with, []string{"supervisor/s1"}, "n1", nil, false, 1},
		"all supervisors count once":            {with, []string{"supervisor/s1", "supervisor/s2"}, "n1", nil, false, 1},
		"a supervisor called host":              {without, []string{"supervisor/host"}, "n1", nil, false, 1},
		"a node called supervisor":              {with, []string{"supervisor/host"}, "n1", []fault.NodeID{named}, false, 1},
		"both":                                  {with, []string{"supervisor/dnp", "supervisor/s1"}, "n1", []fault.NodeID{named}, false, 2},
		"the accused node's own word":           {with, []string{"supervisor/dnp", "supervisor/host"}, named, nil, true, 1},
		"the supervisors against such a node":   {with, []string{"supervisor/s1"}, named, nil, false, 1},
		"other nodes, each of them counts once": {with, []string{"n1/host", "n2/dnp", "n1/dnp"}, "n1", []fault.NodeID{"n2"}, true, 2},
		"a group fault":                         {with, []string{"supervisor/s1", "n1/dnp"}, "", []fault.NodeID{"n1"}, false, 2},
	} {
		nodes, own, all := tc.cluster.witnesses(Evidence{Witnesses: tc.witnesses}, tc.accused)
		if !slices.Equal(nodes, tc.nodes) || own != tc.own || all != tc.all {
			t.Errorf("%s: nodes %v, own %t, all %d: want %v, %t, %d", name, nodes, own, all, tc.nodes, tc.own, tc.all)
		}
	}
}

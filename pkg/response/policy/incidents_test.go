package policy

import (
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// dead returns the changes of the map for a dead node: its parts, and the neighbours' ends of its links.
func dead(o ReplayOptions, at time.Duration, node response.NodeInfo) []Recorded {
	out := []Recorded{change(at, node.ID, fault.ComponentNode, fault.Failed), change(at, node.ID, fault.ComponentMemory, fault.Unknown)}
	for _, c := range []fault.Component{fault.ComponentHost, fault.ComponentDNP} {
		out = append(out, change(at, node.ID, c, fault.Failed))
	}
	for _, d := range grid.Directions() {
		peer, _ := o.Topology.Dims.Neighbour(node.Coord, d)
		out = append(out, change(at, fault.DefaultNodeID(peer), fault.Link(d.Opposite()), fault.Failed))
	}
	for i := range out {
		f := out[i].Event.(response.FaultChanged).Fault
		f.Cause = fault.CauseNode
		out[i].Event = response.FaultChanged{Fault: f}
	}
	return out
}

// TestDefaultPoliciesNotifyOncePerIncident: the shipped policies are enforced. However many nodes, parts and links fail, an incident
// leads to one Kubernetes event and at most one alert. A condition shows each dead node.
func TestDefaultPoliciesNotifyOncePerIncident(t *testing.T) {
	o := options(t, grid.Dims{X: 4, Y: 4, Z: 4})
	o.Enforce = true
	rack := func() (out []Recorded) { // its nodes die within three seconds, and the map finds the group fault last
		g := response.Group{ID: "label/rack=r2", Kind: "LABEL", State: fault.Failed, Cause: fault.CauseNode, Of: 16,
			Since: start.Add(4 * time.Second), At: start.Add(4 * time.Second)}
		for _, n := range o.Topology.Nodes {
			if n.Coord.X == 2 {
				out = append(out, dead(o, time.Duration(len(g.Members))*200*time.Millisecond, n)...)
				g.Members = append(g.Members, n.ID)
			}
		}
		return append(out, Recorded{g.Since, response.GroupChanged{Group: g}})
	}
	for _, tc := range []struct {
		name               string
		events             []Recorded
		told               []string
		conditions, alerts int
	}{
		{"a dead node", dead(o, 0, o.Topology.Nodes[21]), []string{"n1-1-1/node"}, 1, 1},
		{"a cut cable", []Recorded{change(0, "n0-0-0", fault.Link(grid.XPlus), fault.Failed),
			change(200*time.Millisecond, "n1-0-0", fault.Link(grid.XMinus), fault.Failed)}, []string{"n0-0-0/link/X+"}, 0, 0},
		{"a dead rack", rack(), []string{"group label/rack=r2"}, 16, 1},
	} {
		report, err := Replay(tc.events, o)
		if err != nil {
			t.Fatal(err)
		}
		count := map[response.Kind]int{}
		var told []string
		for _, d := range report.Decisions {
			if d.Act != response.Starts {
				continue
			}
			if count[d.Kind]++; d.Kind == response.KubernetesEvent {
				told = append(told, d.Target.String())
			}
		}
		if !slices.Equal(told, tc.told) || count[response.Alertmanager] != tc.alerts || count[response.KubernetesCondition] != tc.conditions {
			t.Errorf("%s: events of %q, %d conditions and %d alerts: want %q, %d and %d", tc.name, told, count[response.KubernetesCondition],
				count[response.Alertmanager], tc.told, tc.conditions, tc.alerts)
		}
	}
}

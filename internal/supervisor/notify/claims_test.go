package notify_test

import (
	"testing"

	"github.com/lofamo/lofamo/internal/supervisor/notify"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestMajorityOfManagedNodesStatesHowFarStoreWas: few liars do not raise the claim, although most nodes are silent or report to other
// replicas. Nodes that named themselves, spares and strangers do not count. Few that know nothing do not lower the claim.
func TestMajorityOfManagedNodesStatesHowFarStoreWas(t *testing.T) {
	const managed = 4 // n0 to n3; n4 to n6 named themselves, n7 is a spare, and n8 is a stranger
	var nodes []topology.Node
	for i := range managed + 4 {
		n := topology.Node{ID: id(i), Coord: grid.Coord{X: i}, Spare: i == managed+3}
		if i >= managed && !n.Spare {
			n.Labels = map[string]string{fault.ManagedLabel: "false"}
		}
		nodes = append(nodes, n)
	}
	names := view.NamesOf(topology.New(grid.Dims{X: managed + 3, Y: 1, Z: 1}, nodes, nil, 1))
	for _, tc := range []struct {
		revisions []uint64 // by node; 0: silent
		want      uint64
	}{
		{nil, 0}, {[]uint64{900}, 0}, {[]uint64{900, 900}, 0}, {[]uint64{900, 901, 902}, 900}, {[]uint64{900, 900, 5, 5}, 5},
		{[]uint64{5, 900, 901, 902}, 900}, {[]uint64{900, 0, 0, 0, 900, 900, 900, 900, 900}, 0},
	} {
		n := notify.New(notify.Config{Names: names})
		for i, revision := range tc.revisions {
			d := notify.Digest{Node: id(i), Epoch: 1, Revision: revision, Denied: revision / 100}
			if i%2 == 0 {
				n.Digest(d)
			} else {
				n.Forwarded(d)
			}
		}
		if got := n.Claimed(); got.Revision != tc.want || got.Denied != tc.want/100 {
			t.Errorf("%d: %+v: want %d", tc.revisions, got, tc.want)
		}
	}
}

package servicenet

import (
	"slices"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// TestLostPathsAreNamed: a node that has lost some of its service interfaces is named with them; one that has lost all is another fault.
func TestLostPathsAreNamed(t *testing.T) {
	for _, tc := range []struct {
		down []string
		want string
	}{
		{nil, ""},
		{[]string{"direct/eth0"}, "2 of 3 service paths left: eth0 is down"},
		{[]string{"direct/eth0", "direct/eth2"}, "1 of 3 service paths left: eth0, eth2 are down"},
		{[]string{"direct/eth0", "direct/eth1", "direct/eth2"}, ""},
		{[]string{"gossip", "torus"}, ""},
	} {
		d := &lofamov1.DeliveryStatus{}
		for _, name := range []string{"direct/eth0", "direct/eth1", "direct/eth2", "gossip", "torus"} {
			d.Rails = append(d.Rails, &lofamov1.RailStatus{Name: name, Down: slices.Contains(tc.down, name)})
		}
		if got := LostPathsWords(LostPaths(d)); got != tc.want {
			t.Errorf("down %q: %q, want %q", tc.down, got, tc.want)
		}
	}
	if lost, of := LostPaths(nil); lost != nil || of != 0 {
		t.Errorf("of a node that states nothing: %q of %d", lost, of)
	}
}

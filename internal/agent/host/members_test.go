package host

import (
	"testing"

	"github.com/lofamo/lofamo/pkg/servicenet/gossip"
)

// TestSmallTorusHasRoomForNewMembers: the bound is of the start of the half, and a torus grows without a restart.
func TestSmallTorusHasRoomForNewMembers(t *testing.T) {
	for places, want := range map[int]int{8: leastMembers, 90: leastMembers, 1000: 2064, 1 << 20: gossip.MaxMembers} {
		if got := gossipMembers(places); got != want {
			t.Errorf("%d places: %d members, want %d", places, got, want)
		}
	}
}

package orders

import (
	"maps"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestFindingsStayAtTheirPlacesWhileTheTorusGrows: the topology is newer than the map for a moment, and then a place has another rank in
// each of them.
func TestFindingsStayAtTheirPlacesWhileTheTorusGrows(t *testing.T) {
	ids := map[grid.Coord]fault.NodeID{}
	now := grid.Dims{X: 5, Y: 2, Z: 1}
	for at := range now.All() {
		ids[at] = fault.DefaultNodeID(at)
	}
	k := newMapping(&Config{Names: view.NewNames(now, ids), Metrics: metrics.New(prometheus.NewRegistry())})
	m := newMappingMachine(defaultMapping(), 7)
	before := grid.Dims{X: 4, Y: 2, Z: 1}
	m.Evidence(mappingStart, chanmask.NewMap(before))
	m.found[before.Rank(grid.Coord{Y: 1})] = mappingFound{DNP: chanmask.Good}
	k.publish(m)
	if found := slices.Collect(maps.Keys(k.shown.Load().found)); !slices.Equal(found, []fault.NodeID{"n0-1-0"}) {
		t.Errorf("findings about %v, want n0-1-0", found)
	}
}

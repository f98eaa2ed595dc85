package get

import (
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestNodesWithoutLabelCountAsDomains: witnesses lie in no more domains than there are.
func TestNodesWithoutLabelCountAsDomains(t *testing.T) {
	labels := []map[string]string{{"rack": "r1"}, {}, {}, {}}
	d := grid.Dims{X: 2, Y: 2, Z: 1}
	p, err := grid.Arrange(d, grid.NewDomains([]string{"rack"}, labels), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(qualityLines(p.Quality(), []string{"a", "b", "c", "d"}), "\n")
	want := "rack: each node has witnesses in at least 2 of 4 domains; 3 nodes without the label, each a domain of its own"
	if !strings.Contains(got, want) {
		t.Errorf("%s: want %q", got, want)
	}
}

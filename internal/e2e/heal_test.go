package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
)

// TestHealRightAfterKill: a half that was just killed starts, even if its daemon has not noticed the end yet.
func TestHealRightAfterKill(t *testing.T) {
	t.Parallel()
	l := startCluster(t, "2x1x1", 1)
	const node = "n1-0-0"
	n, err := l.Cluster.Node(node)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if _, err := l.Cluster.Inject(t.Context(), node, cluster.Fault{Kind: cluster.KillDNP}); err != nil {
			t.Fatalf("kill %d: %v", i+1, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := l.Cluster.Heal(ctx, node) // fails if the half does not answer
		cancel()
		if err != nil {
			t.Fatalf("heal right after kill %d: %v", i+1, err)
		}
		if s, err := l.Cluster.Status(t.Context(), n); err != nil || !s.DNP.Running {
			t.Fatalf("after heal %d: %+v, %v", i+1, s, err)
		}
	}
}

package supervisor_test

import (
	"log/slog"
	"testing"

	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// TestGoneLeaderIsReplacedWithinItsLease: if the kernel refuses connections to the leader, another replica leads, although the leader's
// lease outlasts the test. The process of the earlier leader still runs in this test, but must lose the lead.
func TestGoneLeaderIsReplacedWithinItsLease(t *testing.T) {
	t.Parallel()
	c, sups, leader := threeWith(t, supervisortest.Options{}, supervisor.EndlessLease, func() *slog.Logger { return supervisortest.Logger(t) })
	sups[leader].StopServing()
	c.AwaitLeader(t, (leader+1)%3, (leader+2)%3)
	supervisortest.Eventually(t, "the earlier leader to lead no longer", func() bool { return !sups[leader].Leads() })
}

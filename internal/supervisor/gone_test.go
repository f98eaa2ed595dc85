package supervisor_test

import (
	"log/slog"
	"testing"
	"time"

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

// TestLeaderTakesRaftsLeadBack: the other replicas confirm a leader's silence by raft, so the leader's member leads raft, and takes raft's
// lead back from a follower's member.
func TestLeaderTakesRaftsLeadBack(t *testing.T) {
	t.Parallel()
	options := func(s *supervisor.Supervisor) {
		supervisor.PatientLease(s)
		supervisor.RaftAgain(time.Second)(s)
	}
	c, sups, leader := threeWith(t, supervisortest.Options{}, options, func() *slog.Logger { return supervisortest.Logger(t) })
	held := func(what string) {
		t.Helper()
		for _, s := range sups {
			supervisortest.Eventually(t, what, func() bool { return s.RaftHeldBy(c.Configs[leader].ID) })
		}
	}
	held("the leader's member to lead raft")
	if err := sups[(leader+1)%3].TakeRaftLead(t.Context()); err != nil {
		t.Fatal(err)
	}
	held("the leader's member to lead raft again")
}

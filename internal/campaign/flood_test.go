package campaign

import (
	"slices"
	"syscall"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestFloodWithoutQuorum floods three supervisors, two of which are stopped in the middle, so that no commit is
// possible (rows 12 and 15 of the fault catalogue). The sender's log stays within its bound, and reports that do not
// fit are coalesced and counted as left out. Afterwards every report is either accepted, once and unaltered, or was
// left out; the last state reported counts.
func TestFloodWithoutQuorum(t *testing.T) {
	t.Parallel()
	const node = fault.NodeID("n0-0-0")
	c := newCampaign(t, 0)
	o := c.orders[node]
	o.Flood = 400 // two hundred times the rate of a node at rest
	c.orders = map[fault.NodeID]order{node: o}
	c.AwaitLeader(t)
	c.startSender(t, node)
	c.awaitCommitted(t, 500)
	for _, p := range c.sups[1:] {
		if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	c.await(t, "the log to be full", func() bool { return c.leftOut >= 1000 })
	for _, p := range c.sups[1:] {
		if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	c.AwaitLeader(t)
	c.mu.Lock()
	so := c.committed
	c.mu.Unlock()
	c.awaitCommitted(t, so+1000)
	if err := c.senders[node].stop.Close(); err != nil {
		t.Fatal(err)
	}
	c.await(t, "the flood to end", func() bool { return c.done })

	j, err := readJournal(journalPath(o.Dir))
	if err != nil {
		t.Fatal(err)
	}
	leader := c.AwaitLeader(t)
	c.checkLast(t, c.Client(t, c.Configs[leader].GRPC), node, j.last)
	c.senders[node].kill(t)
	for _, p := range c.sups {
		p.kill(t)
	}
	c.checkFlood(t, j)
}

// checkLast checks that the map reaches the last reported state of every component. Changes of flapping components are
// held back for a time.
func (c *campaign) checkLast(t *testing.T, client lofamov1.FaultSupervisorClient, node fault.NodeID, last int) {
	t.Helper()
	for i := range supervisortest.OwnComponents {
		said := makeReport(node, last-i, 1).Observations[0]
		what := said.Component.String() + " to be " + said.State.String()
		supervisortest.Eventually(t, what, func() bool {
			n, err := client.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: string(node)})
			if err != nil {
				return false
			}
			return slices.ContainsFunc(n.GetComponents(), func(comp *lofamov1.Component) bool {
				return comp.GetName() == said.Component.String() && comp.GetState().String() == said.State.String()
			})
		})
	}
}

// checkFlood checks that at most as many reports are missing as were left out, and that an accepted report states the
// number.
func (c *campaign) checkFlood(t *testing.T, j journalAccount) {
	t.Helper()
	accepted := c.audit(t).Accepted()
	for id, contents := range accepted {
		if len(contents) != 1 || contents[0] != j.made[id] {
			t.Errorf("%s was accepted as %v, made as %q", id, contents, j.made[id])
		}
	}
	missing, said := len(j.made)-len(accepted), 0
	if missing > c.leftOut {
		t.Errorf("%d reports were not accepted, and %d left out", missing, c.leftOut)
	}
	for id, n := range j.leftOut {
		if len(accepted[id]) > 0 {
			said += n
		}
	}
	// The last reports left out may have no successor that counts them. The counted number may also be too high: if a
	// report leaves the log while it is being accepted, its successor counts the same reports again.
	if said < c.leftOut*9/10 {
		t.Errorf("accepted reports say of %d that they were left out, and %d were", said, c.leftOut)
	}
	t.Logf("made %d, accepted %d, left out %d; accepted reports say so of %d", len(j.made), len(accepted), c.leftOut, said)
}

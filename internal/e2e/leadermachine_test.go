package e2e

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/netlab"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestDeadMachineOfLeaderIsNamedWithinItsLease kills the leader's machine with its node, of three machines, LOFAMO_LEADER_DEATHS times. No
// packet leaves the machine any more, so no kernel refuses a connection. The node is FAILED before the election lease could end.
func TestDeadMachineOfLeaderIsNamedWithinItsLease(t *testing.T) {
	rounds := 2
	if s := os.Getenv("LOFAMO_LEADER_DEATHS"); s != "" {
		var err error
		if rounds, err = strconv.Atoi(s); err != nil || rounds < 1 {
			t.Fatalf("LOFAMO_LEADER_DEATHS=%s: want a number from 1 on", s)
		}
	}
	l := startLab(t, cluster.Options{Dims: grid.Dims{X: 3, Y: 1, Z: 1}, Supervisors: 3, ServiceInterfaces: 1, BinDir: binaries})
	var took []time.Duration
	for i := range rounds {
		tryWired(t, l, "round "+strconv.Itoa(i), func(t wired) { took = append(took, t.leaderDies()) })
	}
	if slices.Sort(took); len(took) > 0 {
		t.Logf("the node is named after %v: median %s, worst %s", took, took[len(took)/2], took[len(took)-1])
	}
}

// leaderDies kills the leader's machine, and returns the time until a watcher at another replica sees its node FAILED. Then it starts the
// machine again.
func (t wired) leaderDies() time.Duration {
	t.Helper()
	leader := t.leaderFirst()
	node := ""
	for k, s := range t.Cluster.Info().Supervisors {
		if s.ID == leader[0] {
			node = string(t.Cluster.Info().Nodes[k].ID)
		}
	}
	named := t.namedAt(leader[1], node)
	began := time.Now()
	for _, iface := range []string{"sup0", "svc0"} {
		t.must(t.net.Cut(leader[0], iface, netlab.Both))
	}
	t.must(t.net.CutService(node))
	for _, d := range []grid.Direction{grid.XPlus, grid.XMinus} {
		t.must(t.net.CutLink(node, d, netlab.Both))
	}
	t.must(t.Cluster.KillSupervisor(t.Context(), leader[0]))
	t.inject(node, simple(cluster.KillNode))
	var took time.Duration
	select {
	case at := <-named:
		took = at.Sub(began).Round(time.Millisecond)
	case <-time.After(patience):
		t.Errorf("waited %s for %s to be FAILED", patience, node)
	}
	t.Logf("%s and %s are dead: named after %s", leader[0], node, took)
	if took > store.LeaseTTL*time.Second {
		t.Errorf("%s is named after %s: want less than the lease, %d s", node, took, store.LeaseTTL)
	}
	t.must(t.net.HealNetwork())
	t.must(t.Cluster.StartSupervisor(leader[0]))
	t.heal(node)
	t.settled()
	for _, s := range t.Since(t.mark) {
		if s.GetNode() != node && s.GetTo() == failed && slices.Contains([]string{"node", "host", "dnp"}, s.GetComponent()) {
			t.Errorf("a node that lives was called FAILED: %s", s)
		}
	}
	return took
}

// namedAt watches the map of one replica, and returns a channel with the time at which it shows a node FAILED.
func (t wired) namedAt(replica, node string) <-chan time.Time {
	t.Helper()
	c := t.at(replica, pki.RoleViewer)
	now, err := c.ListEvents(t.Context(), &lofamov1.ListEventsRequest{Limit: 1})
	t.must(err)
	named := make(chan time.Time, 1)
	go func() {
		_ = c.Watch(t.Context(), client.WatchOptions{After: now.GetRevision()}, func(r *lofamov1.WatchResponse) error {
			for _, e := range r.GetEvents() {
				if e.GetNode() == node && e.GetComponent() == "node" && e.GetTo() == failed {
					select {
					case named <- time.Now():
					default:
					}
				}
			}
			return nil
		})
	}()
	return named
}

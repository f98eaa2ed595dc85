package e2e

import (
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
)

// stopLimit is long enough for a machine under load to kill a neighbour meanwhile and to start a node again.
const stopLimit = 40 * time.Second

// TestAnnouncedStopIsNoFault stops daemons by SIGTERM: the node is UNKNOWN and no fault, its neighbour's death is found
// meanwhile, it is NORMAL after its return, and a node that does not return is FAILED after the limit.
func TestAnnouncedStopIsNoFault(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x2x2", cluster.Options{Supervisors: 3, Periods: patient(), Supervisor: func(c *config.Supervisor) {
		limit := config.Duration(stopLimit)
		c.StopLimit = &limit
	}})
	const stopping, neighbour = "0,0,0", "1,0,0"
	try(t, l, "a neighbour dies beside a stopped node", func(t trial) {
		before, id := t.incidents(), t.stop(stopping)
		n := t.becomes(id, "node", lofamov1.State_UNKNOWN)
		if !strings.Contains(n.GetReason(), "as it announced") {
			t.Errorf("%s: want the announcement as its reason", n)
		}
		if n := t.node(stopping); n.GetStopped().GetReason() != "stop" || n.GetReason() != "stopped" || n.GetStopped().GetUntil() == nil {
			t.Errorf("%v: want a node that has stopped", n)
		}
		for _, args := range [][]string{{"get", "nodes"}, {"get", "node", id}, {"explain", id}, {"map"}} {
			if out := t.lofamoctl(args...); !strings.Contains(strings.ToLower(out), "stopped") {
				t.Errorf("lofamoctl %s does not show the stop:\n%s", strings.Join(args, " "), out)
			}
		}
		t.inject(neighbour, simple(cluster.KillNode))
		dead := t.node(neighbour).GetId()
		t.becomesWithin(patience, dead, "node", failed)
		t.oneIncident(before, dead, "node")
		t.startDaemon(id)
		t.heal(neighbour)
		for _, s := range t.Since(t.mark) {
			if s.GetNode() == id && s.GetComponent() == "node" && (s.GetTo() == failed || s.GetTo() == sick) {
				t.Errorf("the stop is a fault: %s", s)
			}
		}
	})
	try(t, l, "a node does not come back", func(t trial) {
		before, began := t.incidents(), time.Now()
		id := t.stop(stopping)
		s := t.becomesWithin(stopLimit+patience, id, "node", failed)
		if since := time.Since(began); since < stopLimit {
			t.Errorf("FAILED after %s: want at least %s", since, stopLimit)
		}
		if !strings.Contains(s.GetReason(), "did not come back from the stop") {
			t.Errorf("%s: want the stop in its reason", s)
		}
		t.oneIncident(before, id, "node")
		t.startDaemon(id)
		t.settled()
	})
}

// stop sends SIGTERM to a node's daemon, waits until it has ended, and returns the node's id.
func (t trial) stop(name string) string {
	t.Helper()
	id := t.node(name).GetId()
	if err := t.Cluster.StopRun(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return id
}

// startDaemon starts a node's daemon again.
func (t trial) startDaemon(name string) {
	t.Helper()
	t.until("the daemon of "+name+" to start", func() bool { return t.Cluster.StartRun(name) == nil })
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
)

// Nodes get better places while the cluster runs: two of them exchange theirs, and then one moves to an empty place and back. The
// map accuses nobody because of it, also if the leader or the node's daemon ends during a move. It names a node that dies at its
// new place.
func TestNodesGetBetterPlaces(t *testing.T) {
	t.Parallel()
	const racks = "cbacbac" // by rank: two nodes have all their witnesses in one rack
	l := clusterOf(t, "2x2x2 without 1,1,1", cluster.Options{Supervisors: 3, Periods: patient(), Supervisor: func(cfg *config.Supervisor) {
		quick(cfg)
		for i := range cfg.Nodes {
			cfg.Nodes[i].Labels = map[string]string{"rack": racks[i : i+1]}
		}
	}})
	try(t, l, "two nodes exchange their places, and the leader dies meanwhile", func(t trial) {
		if out := t.lofamoctl("get", "topology", "--improve"); !strings.Contains(out, "rack: 2 nodes are exposed") {
			t.Fatalf("before:\n%s", out)
		}
		leader, killed := t.leader(), make(chan error, 1)
		go func() { killed <- t.killOnceAt(leader, "n0-0-0", "1,0,0") }()
		said := t.lofamoctl("node", "improve")
		if err := errors.Join(<-killed, t.Cluster.StartSupervisor(leader)); err != nil {
			t.Fatal(err)
		}
		t.settled()
		t.neverFailed()
		t.othersWereSpared("n0-0-0", "n1-0-0")
		complete := strings.Contains(said, "step 1: n0-0-0") && strings.Contains(said, "no node is exposed")
		if n := t.node("n0-0-0"); !complete || n.GetCoord() != "1,0,0" {
			t.Errorf("n0-0-0 is at %s:\n%s", n.GetCoord(), said)
		}
	})
	try(t, l, "a node moves to an empty place", func(t trial) {
		t.lofamoctl("node", "move", "n1-1-0", "--to", "1,1,1")
		t.settled()
		t.neverFailed()
		t.othersWereSpared("n1-1-0")
		if n := t.node("n1-1-0"); n.GetCoord() != "1,1,1" {
			t.Errorf("it is at %s", n.GetCoord())
		}
	})
	try(t, l, "a daemon ends between the order and the stop of its halves", func(t trial) {
		const id = "n1-1-0"
		n, err := t.Cluster.Node(id)
		if err != nil {
			t.Fatal(err)
		}
		if err := t.Cluster.KillRun(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		t.lofamoctl("node", "move", id, "--to", "1,1,0", "--wait", "0")
		t.until("the DNP half stores the order", func() bool {
			word, err := storage.PeerOrders().Load(n.StateDir)
			return err == nil && word.Place() == "1,1,0"
		})
		if err := t.Cluster.StartRun(id); err != nil {
			t.Fatal(err)
		}
		t.settled()
		t.neverFailed()
		t.othersWereSpared(id)
	})
	for _, id := range []string{"n0-0-0", "n1-1-0"} {
		try(t, l, "death of a node that moved: "+id, func(t trial) {
			t.inject(id, simple(cluster.KillNode))
			t.becomes(id, "node", failed)
			t.othersWereSpared(id)
		})
	}
}

// killOnceAt kills a supervisor as soon as the topology has a node at a place.
func (t trial) killOnceAt(supervisor, node, place string) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		if n, err := t.Client.GetNode(ctx, node); err == nil && n.GetCoord() == place {
			return t.Cluster.KillSupervisor(ctx, supervisor)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not come to %s: %w", node, place, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

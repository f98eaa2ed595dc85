package e2e

import (
	"bufio"
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/lab"
)

// flow has a node report its temperature as FAILED and as NORMAL in turn, each once the previous one is in the map,
// until it is stopped; stop returns the number of each.
func (t trial) flow(node string) (stop func() (failures int)) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			for _, at := range []struct {
				value float64
				state lofamov1.State
			}{{110, failed}, {45, normal}} {
				mark := t.Mark()
				if _, err := t.Cluster.Inject(context.Background(), node, sensor("temperature", at.value)); err != nil {
					t.Error(err)
					return
				}
				wait, done := context.WithTimeout(context.Background(), patience)
				_, err := t.Wait(wait, mark, lab.Becomes(node, "temperature", at.state))
				done()
				if err != nil {
					t.Errorf("a report of %s is lost: %v", node, err)
					return
				}
			}
			n++
		}
	})
	return func() int {
		cancel()
		wg.Wait()
		return n
	}
}

// replace runs lofamoctl node replace. It kills the command when its output contains interrupt, unless that is empty.
func (t trial) replace(broken, spare, interrupt string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settling)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "lofamoctl"), "node", "replace", broken, spare, "--dir", t.Cluster.Dir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	for s := bufio.NewScanner(out); s.Scan(); {
		t.Log(s.Text())
		if interrupt != "" && strings.Contains(s.Text(), interrupt) {
			killed = cmd.Process.Kill() == nil
		}
	}
	// The command may be one step further when it is killed. Then its next run does not print that step, and ends well.
	if err := cmd.Wait(); err != nil && !killed {
		t.Fatalf("node replace: %v", err)
	}
}

// TestSpareReplacesDeadNode replaces a dead node by a spare while reports flow: the command is interrupted twice and started again,
// no configuration is edited, all links of the coordinates come up with the spare, the replacement's masks are removed,
// and no report is lost or doubled.
func TestSpareReplacesDeadNode(t *testing.T) {
	t.Parallel()
	const broken, spare = "n1-0-1", "spare-0"
	often, periods := config.Duration(50*time.Millisecond), patient()
	periods.SensorPeriod = &often
	l := clusterOf(t, "2x2x2", cluster.Options{Supervisors: 1, Spares: 1, Periods: periods})
	tr := begin(t, l)
	nodes := []string{"n0-0-1", "n1-1-1", "n0-1-0"} // two neighbours, and one far away
	var stops []func() int
	for _, n := range nodes {
		stops = append(stops, tr.flow(n))
	}
	tr.inject(broken, simple(cluster.KillNode))
	tr.becomes(broken, "node", failed)
	tr.replace(broken, spare, "masking the links")
	tr.replace(broken, spare, "gets the place")
	tr.replace(broken, spare, "")

	masks, err := operator(t, l).ListMasks(t.Context())
	if err != nil || len(masks.GetMasks()) > 0 {
		t.Errorf("masks that are left: %v, %v", masks, err)
	}
	for i, stop := range stops {
		n := stop()
		said := tr.received(nodes[i] + " temperature FAILED")
		said = slices.DeleteFunc(said, func(r *lofamov1.ReportStatus) bool {
			return !r.GetCommitted() || r.GetDigest() || r.GetNode() != nodes[i]
		})
		if n == 0 || len(said) != n {
			t.Errorf("%s said %d times that its temperature FAILED, and %d of these are there", nodes[i], n, len(said))
		}
		t.Logf("%s: %d reports each way", nodes[i], n)
	}
	tr.settled()
	if n := tr.node(spare); n.GetCoord() != "1,0,1" || n.GetSpare() || n.GetMaintenance() != nil || n.GetState() != normal {
		t.Errorf("the spare: %v", n)
	}
	if n := tr.node(broken); !n.GetSpare() || n.GetMaintenance() == nil {
		t.Errorf("the broken node: %v", n)
	}
	for _, s := range l.Since(tr.mark) { // nothing else was called wrong
		known := slices.Contains(nodes, s.GetNode()) && s.GetComponent() == "temperature"
		if touches := strings.HasPrefix(s.GetComponent(), "link/"); s.GetTo() == failed && s.GetNode() != broken && s.GetNode() != spare &&
			!known && !touches {
			t.Errorf("found FAILED: %s", s)
		}
	}

	// The neighbour keeps its order: it finds the spare again after a restart.
	tr.inject("n0-0-1", simple(cluster.KillDNP))
	tr.becomes("n0-0-1", "dnp", failed)
	tr.heal("n0-0-1")
	tr.settled()

	// The node is mended, and gets its place back; the spare waits for the next one.
	if err := l.Cluster.Heal(t.Context(), broken); err != nil {
		t.Fatal(err)
	}
	tr.replace(spare, broken, "")
	tr.settled()
	// Its halves are stopped, and its daemon answers: it waits.
	tr.until("the spare waits again", func() bool {
		return tr.agentOn(spare, "status", "--ready").Run() != nil && tr.agentOn(spare, "status", "--live").Run() == nil
	})
}

// TestSpareFromShell runs the commands of docs/topology.md in one shell.
func TestSpareFromShell(t *testing.T) {
	t.Parallel()
	out, err := inShell(t, []string{
		"lofamoctl up --detach --force-new --spares 1", "lofamoctl inject n1-0-1 kill-node", "lofamoctl node replace n1-0-1 spare-0",
		"lofamoctl down",
	})
	if err != nil || !strings.Contains(out, "spare-0 is in the place of n1-0-1") {
		t.Fatalf("%v; the commands and their output:\n%s", err, out)
	}
}

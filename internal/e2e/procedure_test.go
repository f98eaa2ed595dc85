package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/lab"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// procedure has the torus gone through a procedure as an operator. each is called with every progress.
func (t trial) procedure(req *lofamov1.StartProcedureRequest, each func(*lofamov1.ProcedureProgress)) *lofamov1.ProcedureReport {
	t.Helper()
	c, err := t.Cluster.ClientAs(pki.RoleOperator)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := c.StartProcedure(ctx, req, func(p *lofamov1.ProcedureProgress) error {
		t.Logf("%s, round %d, %d of %d through", p.GetState(), p.GetRound(), p.GetEnded(), p.GetNodes())
		each(p)
		return nil
	})
	if err != nil {
		t.Fatalf("procedure %v: %v", req, err)
	}
	for _, n := range r.GetNodes() {
		t.Logf("%s: clear %t, held %d, %v", n.GetNode(), n.GetClear(), n.GetHeld(), n.GetSteps())
	}
	t.Logf("clear %t after %d rounds in %d ms, silent %v, holding %v", r.GetClear(), r.GetRounds(), r.GetTookMs(), r.GetSilent(),
		r.GetHolding())
	return r
}

// clears runs procedures with tests of the links until one is clear and hears all nodes. A busy machine may hold up a node for too long.
func (t trial) clears(nodes int) {
	t.Helper()
	t.until("a clear procedure that hears every node", func() bool {
		r := t.procedure(&lofamov1.StartProcedureRequest{Diagnose: true, Reason: "a test", DrainTimeoutMs: 20_000},
			func(*lofamov1.ProcedureProgress) {})
		return r.GetClear() && len(r.GetNodes()) == nodes && len(r.GetSilent()) == 0
	})
}

// drains drains the torus and tests its links while reports flow through it. A live node without links delays the end
// of the drain until it times out; in the middle of the drain another link is cut. The procedure ends at all nodes that
// it reached and is reported, the findings are complete, and no report is lost.
func drains(t *testing.T, l *lab.Lab) {
	try(t, l, "link cut in the middle of a drain", func(t trial) {
		const byTorus, alone = "n1-1-1", "n1-0-0" // the one has no other way for its reports, the other no link
		t.inject(byTorus, simple(cluster.CutService))
		for _, d := range grid.Directions() {
			t.inject(alone, cluster.Fault{Kind: cluster.CutLink, Dir: d})
		}
		t.becomes(byTorus, "service-network", failed, sick)
		t.becomes(alone, "link/Z-", failed)
		var once sync.Once
		r := t.procedure(&lofamov1.StartProcedureRequest{Diagnose: true, Reason: "a test", DrainTimeoutMs: 8000},
			func(p *lofamov1.ProcedureProgress) {
				if p.GetState() != lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN {
					return
				}
				once.Do(func() {
					t.inject(byTorus, sensor("temperature", 110))
					t.inject("n0-0-1", cluster.Fault{Kind: cluster.CutLink, Dir: grid.YPlus})
				})
			})
		if r.GetClear() || !slices.Equal(r.GetSilent(), []string{alone}) || len(r.GetNodes()) != 8 {
			t.Errorf("clear %t, silent %v, %d nodes", r.GetClear(), r.GetSilent(), len(r.GetNodes()))
		}
		for _, n := range r.GetNodes() {
			if heard := n.GetNode() != alone; heard != (n.GetError() == "") || heard != (len(n.GetSteps()) > 0) || n.GetClear() {
				t.Errorf("%v", n)
			}
		}
		found := named(r.GetDiagnosis())
		for _, x := range found {
			if x != "PART_LINK n0-0-1 Y+" && !strings.HasPrefix(x, "PART_LINK "+alone) && !slices.Contains(beside(alone), x) && !late(x) {
				t.Errorf("named: %s", x)
			}
		}
		if !slices.Contains(found, "PART_LINK n0-0-1 Y+") { // cut before the tests began
			t.Errorf("the link that was cut is not named: %v", found)
		}
		kept, err := t.Client.GetProcedure(t.Context())
		if err != nil || kept.GetWave() != r.GetWave() || kept.GetReason() != "a test" {
			t.Errorf("the last report: %v, %v", kept, err)
		}
		t.becomes("n0-0-1", "link/Y+", failed)
		t.becomes(byTorus, "temperature", failed)
		t.until("nothing waits for a supervisor any more", func() bool {
			return !slices.ContainsFunc(t.nodeIDs(), func(id string) bool { return t.asks(id).Delivery.GetLogged() > 0 })
		})
	})
}

// beside are the faults of the links of a node of a 2x2x2 torus in the form of a report: under the lower end if that is
// the neighbour's.
func beside(id string) []string {
	var out []string
	dims := grid.Dims{X: 2, Y: 2, Z: 2}
	for i := range dims.Nodes() {
		at := dims.At(i)
		for _, d := range grid.Directions() {
			if to, ok := dims.Neighbour(at, d); ok && string(fault.DefaultNodeID(to)) == id {
				out = append(out, fmt.Sprintf("PART_LINK %s %s", fault.DefaultNodeID(at), d))
			}
		}
	}
	return out
}

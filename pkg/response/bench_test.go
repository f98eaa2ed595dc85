package response_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// manyPolicies returns n policies for the same component and state, so that no index helps. The last condition of each
// is false, so that all of it is evaluated.
func manyPolicies(tb testing.TB, n int) []*response.Policy {
	tb.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `---
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: p%d}
spec:
  mode: enforce
  match: >-
    fault.component == "memory" && fault.state == "FAILED" && fault.recurrence < 100 && size(fault.groups) == 0
    && "rack" in node.labels && node.labels["rack"].startsWith("r") && !(node.id in ["a", "b"]) && fault.duration > duration("%dh")
  steps:
  - {name: cordon, executor: kubernetes.cordon}
`, i, 1+i%100)
	}
	docs, err := policy.Parse([]byte(b.String()))
	if err != nil {
		tb.Fatal(err)
	}
	return policy.Policies(docs)
}

// BenchmarkChange measures one change of one node to FAILED, with 100 policies and 100,000 nodes. The bound is 1 ms for
// ns/fault. Half of the operations are recoveries, which no policy matches; they are not included.
func BenchmarkChange(b *testing.B) {
	l := newLab(b, quick(), grid.Dims{X: 50, Y: 50, Z: 40}, manyPolicies(b, 100)...)
	l.lead()
	var took time.Duration
	faults := 0
	for i := 0; b.Loop(); i++ {
		state := fault.Failed
		if i%2 == 1 {
			state = fault.Normal
		}
		f := l.own(l.topo.Nodes[i/2%len(l.topo.Nodes)].ID, fault.ComponentMemory, state)
		l.now = l.now.Add(time.Millisecond)
		f.Since = l.now
		began := time.Now()
		l.e.Step(l.now, response.FaultChanged{Fault: f})
		if state == fault.Failed {
			took, faults = took+time.Since(began), faults+1
		}
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(faults), "ns/fault")
}

// TestChangeIsQuick holds the cost of a change far below the bound of 1 ms by its memory allocation, which does not
// depend on the machine's load: a change evaluates 100 policies for one node, independently of all other nodes.
func TestChangeIsQuick(t *testing.T) {
	pols := manyPolicies(t, 100)
	cost := func(dims grid.Dims) float64 {
		l := newLab(t, quick(), dims, pols...)
		l.lead()
		i := 0
		return testing.AllocsPerRun(100, func() {
			i++
			state := fault.Failed
			if i%2 == 1 {
				state = fault.Normal
			}
			l.now = l.now.Add(time.Millisecond)
			l.e.Step(l.now, response.FaultChanged{Fault: l.own("n1-1-1", fault.ComponentMemory, state)})
		})
	}
	small, large := cost(grid.Dims{X: 4, Y: 4, Z: 4}), cost(grid.Dims{X: 25, Y: 20, Z: 20})
	if large > small+1 {
		t.Errorf("%v allocations a change with 10,000 nodes, %v with 64: want as many", large, small)
	}
	if most := 100 * 20.0; large > most {
		t.Errorf("%v allocations a change: want at most %v, 20 a policy", large, most)
	}
}

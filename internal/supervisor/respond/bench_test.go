package respond

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

const condition = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: tell}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  steps:
  - {name: tell, executor: kubernetes.condition, parameters: {type: MemoryFailed, reason: Memory}}
  undo: {onRecovery: true, after: 0s}
`

// act is an attempt, with the time at which an executor received it.
type act struct {
	executor.Job
	at time.Time
}

// asked starts a leader and returns the channel on which its executor announces attempts.
func asked(b *testing.B, dims grid.Dims) (*lab, <-chan act) {
	b.Helper()
	l := newLab(b, dims, condition)
	r := l.start("", 0)
	b.Cleanup(func() { l.end(r) })
	acts := make(chan act, dims.Nodes())
	r.cfg.Executors[response.KubernetesCondition] = answers(func(_ context.Context, j executor.Job) executor.Result {
		acts <- act{j, time.Now()}
		return executor.Done("")
	})
	return l, acts
}

// report reports percentiles of the durations.
func report(b *testing.B, all []time.Duration) {
	b.Helper()
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
}

// BenchmarkFaultToEffect measures, on a real etcd, from a change in this replica's copy of the map to the call of the
// executor.
func BenchmarkFaultToEffect(b *testing.B) {
	l, acts := asked(b, grid.Dims{X: 4, Y: 4, Z: 4})
	var all []time.Duration
	for b.Loop() {
		id := fault.DefaultNodeID(l.names.Dims().At(len(all) % 64))
		start := time.Now()
		l.set(id, fault.Failed)
		all = append(all, (<-acts).at.Sub(start))
		l.set(id, fault.Normal)
		<-acts // undone
	}
	report(b, all)
}

// BenchmarkStorm measures 1,000 faults at once, each from the first fault to the call of the executor.
func BenchmarkStorm(b *testing.B) {
	l, acts := asked(b, grid.Dims{X: 10, Y: 10, Z: 10})
	var all []time.Duration
	for b.Loop() {
		for _, s := range []fault.State{fault.Failed, fault.Normal} {
			start := time.Now()
			for rank := range 1000 {
				l.set(fault.DefaultNodeID(l.names.Dims().At(rank)), s)
			}
			for range 1000 {
				if a := <-acts; !a.Undo {
					all = append(all, a.at.Sub(start))
				}
			}
		}
	}
	report(b, all)
}

// BenchmarkRoots measures the work of a responder when one incident changes while many are open: it finds the root causes of all, and
// compares them with the former ones.
func BenchmarkRoots(b *testing.B) {
	for _, count := range []int{16, 1000} {
		b.Run(fmt.Sprint(count, " stand"), func(b *testing.B) {
			all := make([]*store.StoredIncident, count)
			for i := range all {
				node := string(fault.DefaultNodeID(grid.Dims{X: 16, Y: 16, Z: 16}.At(i)))
				all[i] = &store.StoredIncident{Incident: &lofamov1.Incident{Id: fmt.Sprintf("k3f9-%08d", i*7919%count), Node: node,
					Component: "temperature", State: lofamov1.IncidentState_OPEN}}
			}
			before := rootsOf(all)
			b.ReportAllocs()
			for b.Loop() {
				if !sameRoots(before, rootsOf(all)) {
					b.Fatal("the root causes differ")
				}
			}
		})
	}
}

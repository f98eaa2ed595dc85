package responder

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
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

// act is an attempt, and when an executor was asked for it.
type act struct {
	executor.Job
	at time.Time
}

// asked starts a leader whose executor says when it is asked.
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

// report says where of all durations these shares lie.
func report(b *testing.B, all []time.Duration) {
	b.Helper()
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
}

// BenchmarkFaultToEffect: from a change of this replica's copy of the map to the executor that is asked, on a real etcd.
func BenchmarkFaultToEffect(b *testing.B) {
	l, acts := asked(b, grid.Dims{X: 4, Y: 4, Z: 4})
	var all []time.Duration
	for b.Loop() {
		id := fault.DefaultNodeID(l.names.Dims().At(len(all) % 64))
		start := time.Now()
		l.set(id, fault.Failed)
		all = append(all, (<-acts).at.Sub(start))
		l.set(id, fault.Normal)
		<-acts // it is put back
	}
	report(b, all)
}

// BenchmarkStorm: 1,000 faults at once, each from the first of them to the executor that is asked.
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

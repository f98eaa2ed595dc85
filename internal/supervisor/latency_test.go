package supervisor_test

import (
	"slices"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// BenchmarkDatagramToWatch measures from before a signed report is sent to the event at a watcher, and to RECEIVED
// and COMMITTED at the sender, with one replica and with three.
func BenchmarkDatagramToWatch(b *testing.B) {
	for _, bc := range []struct {
		name            string
		replicas        int
		follower, asSee bool
	}{{"one", 1, false, false}, {"three", 3, false, false}, {"three via a follower", 3, true, false}, {"three as seen", 3, false, true}} {
		b.Run(bc.name, func(b *testing.B) {
			c := supervisortest.New(b, supervisortest.Options{Replicas: bc.replicas, Dims: "8x8x1", Preset: config.PresetRelaxed})
			var sups []*supervisor.Supervisor
			for _, cfg := range c.Configs {
				sups = append(sups, start(b, cfg))
			}
			_ = sups
			leader := c.AwaitLeader(b)
			at := leader
			if bc.follower {
				at = (leader + 1) % bc.replicas
			}
			events, _ := watch(b, c.Client(b, c.Configs[at].GRPC), &lofamov1.WatchRequest{AsSeen: bc.asSee})
			begin(b, events)
			var agents []*supervisortest.Agent
			for _, a := range c.Agents {
				agents = append(agents, a)
			}
			var seen, received, committed []time.Duration
			n := 0
			for b.Loop() {
				// Use a component without earlier reports: no hold-off, no second change.
				a := agents[n%len(agents)]
				comp := supervisortest.OwnComponents[n/len(agents)%len(supervisortest.OwnComponents)]
				st := fault.Sick
				if n/len(agents)/len(supervisortest.OwnComponents)%2 == 1 {
					st = fault.Failed
				}
				n++
				id, env := a.Report(b, fault.HalfHost, false, fault.Observation{Component: comp, State: st, Kind: fault.KindSelf})
				begun := time.Now()
				a.Send(b, c.Configs[at].Report, env)
				nextEvents(b, events)
				seen = append(seen, time.Since(begun))
				received = append(received, a.Await(b, id, lofamov1.Ack_RECEIVED).At.Sub(begun))
				committed = append(committed, a.Await(b, id, lofamov1.Ack_COMMITTED).At.Sub(begun))
				for len(events) > 0 {
					<-events
				}
			}
			for what, list := range map[string][]time.Duration{"event": seen, "received": received, "committed": committed} {
				slices.Sort(list)
				b.ReportMetric(float64(list[len(list)/2].Microseconds())/1000, what+"-p50-ms")
				b.ReportMetric(float64(list[len(list)*99/100].Microseconds())/1000, what+"-p99-ms")
			}
		})
	}
}

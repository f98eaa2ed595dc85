package awareness

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// BenchmarkIncidents measures one update that follows a change, beside faults that stand: the time that a commit waits for
// its incidents.
func BenchmarkIncidents(b *testing.B) {
	dims := grid.Dims{X: 16, Y: 16, Z: 16}
	for _, faults := range []int{0, 1, 64, 1024} {
		b.Run(fmt.Sprint(faults), func(b *testing.B) {
			l := &ledger{T: &testing.T{}, now: ledgerStart, nodes: make(map[fault.NodeID]*NodeStatus), kept: make(map[string]Incident)}
			l.build(dims)
			l.lead()
			for i := range faults {
				l.kill(string(l.cfg.IDs[dims.At((i*4+1)%dims.Nodes())]))
			}
			l.update(time.Second)
			st := *l.nodes[l.cfg.IDs[dims.At(0)]]
			states := [...]fault.State{fault.Sick, fault.Normal}
			for i := 0; b.Loop(); i++ {
				l.now = l.now.Add(time.Minute)
				st.Components[4].State = states[i%2]
				l.Update(l.now, IncidentUpdate{Nodes: []NodeStatus{st}})
			}
		})
	}
}

// BenchmarkIncidentStorm measures one update of 64 changes while parts of all 4,096 nodes flap between SICK and NORMAL:
// some thousand incidents stand.
func BenchmarkIncidentStorm(b *testing.B) {
	dims := grid.Dims{X: 16, Y: 16, Z: 16}
	l := &ledger{T: &testing.T{}, now: ledgerStart, nodes: make(map[fault.NodeID]*NodeStatus), kept: make(map[string]Incident)}
	l.build(dims)
	l.lead()
	r := rand.New(rand.NewPCG(1, 2))
	storm := func() {
		var u IncidentUpdate
		for range 64 {
			st := l.nodes[l.cfg.IDs[dims.At(r.IntN(dims.Nodes()))]]
			c := &st.Components[4+r.IntN(4)]
			if c.State = fault.Sick; r.IntN(2) == 0 {
				c.State = fault.Normal
			}
			u.Nodes = append(u.Nodes, *st)
		}
		l.now = l.now.Add(40 * time.Millisecond)
		l.Update(l.now, u)
	}
	for range 2000 {
		storm()
	}
	b.ReportMetric(float64(len(l.standing)), "standing")
	for b.Loop() {
		storm()
	}
	b.ReportMetric(float64(len(l.standing)), "standing")
}

package dnpcore

import (
	"math/bits"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/routing"
)

// Global flow control (seed 003 §4.4.2): a half whose message slots stay nearly full announces this by broadcast, and
// all nodes inject fewer deferrable messages: chunks of large objects, which their receivers request again. It never
// holds up reports, answers and orders, nor messages in flight.

// trickle divides Config.BulkRate for a node's injection while another node is overloaded.
const trickle = 8

// flowPriority is the broadcast's priority: above jobs (0 to 3), which may cause the overload, and below procedures.
const flowPriority express.Priority = 4

// tickFlow checks this half's own load.
func (m *Machine) tickFlow(now time.Time) {
	if m.flow.Look(now, bits.OnesCount64(m.hops.on), m.room()) {
		m.flowStats.Announced++
		_, _ = m.raiseEureka(now, express.TopicFlow, flowPriority, routing.AppendFlow(nil, routing.FlowLife)) // the next one repeats it
	}
}

// onFlow handles another half's announcement of overload. A false announcement only slows large objects down, for
// routing.FlowLife.
func (m *Machine) onFlow(now time.Time, body []byte) {
	if life, err := routing.DecodeFlow(body); err == nil {
		m.flow.Heard(now, life)
	}
}

// mayInject reports whether a chunk of this node may set out now.
func (m *Machine) mayInject(now time.Time) bool {
	level := m.flow.Level(now)
	if m.cfg.NoFlow || level == routing.Free || level == routing.Slow && m.inject.take(now) {
		return true
	}
	m.flowStats.Held++
	return false
}

// FlowStats holds the counters of flow control.
type FlowStats struct {
	Level     routing.Level
	Announced uint64 // times that this half announced an overload
	Held      uint64 // chunks of this node that did not set out
}

// FlowStats returns the counters.
func (m *Machine) FlowStats(now time.Time) FlowStats {
	s := m.flowStats
	s.Level = m.flow.Level(now)
	return s
}

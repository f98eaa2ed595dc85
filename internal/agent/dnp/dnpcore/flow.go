package dnpcore

import (
	"math/bits"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/routing"
)

// Global flow control (seed 003 §4.4.2): a half whose places for messages stay nearly full tells all others by broadcast, and all
// inject less of what can wait: chunks of large objects, that their receivers pull again. Reports, answers and orders are never
// held up, nor what is under way already.

// trickle is what share of Config.BulkRate a node injects while another is overloaded.
const trickle = 8

// flowPriority is that of the broadcast: above jobs' (0 to 3), which may be what the overload is made of, and below procedures.
const flowPriority express.Priority = 4

// tickFlow looks at this half's own load.
func (m *Machine) tickFlow(now time.Time) {
	if m.flow.Look(now, bits.OnesCount64(m.hops.on), m.room()) {
		m.flowStats.Told++
		_, _ = m.raiseEureka(now, express.TopicFlow, flowPriority, routing.AppendFlow(nil, routing.FlowLife)) // refused: it is said again
	}
}

// onFlow takes the word of another half that it is overloaded. A half that says so without need slows large objects down, for
// routing.FlowLife after each word, and nothing else.
func (m *Machine) onFlow(now time.Time, body []byte) {
	if life, err := routing.DecodeFlow(body); err == nil {
		m.flow.Heard(now, life)
	}
}

// mayInject says whether a chunk of this node may set out now.
func (m *Machine) mayInject(now time.Time) bool {
	level := m.flow.Level(now)
	if m.cfg.NoFlow || level == routing.Free || level == routing.Slow && m.inject.take(now) {
		return true
	}
	m.flowStats.Held++
	return false
}

// FlowStats count what flow control did.
type FlowStats struct {
	Level routing.Level
	Told  uint64 // times that this half has said that it is overloaded
	Held  uint64 // chunks of this node that did not set out
}

// FlowStats returns the counters.
func (m *Machine) FlowStats(now time.Time) FlowStats {
	s := m.flowStats
	s.Level = m.flow.Level(now)
	return s
}

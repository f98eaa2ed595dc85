package half

import (
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/procedure"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// The DNP half's counts go into the counters of the register file, and the host half publishes them. The broadcasts
// begin at place 0, topic after topic. The fault management procedure follows (ProcedureCounts), and from
// OtherCounters on the entries of Counted, in that order.
const (
	CountsOfTopic = 4 // raised, delivered, repeated, dropped
	OtherCounters = 32
)

var (
	_ [OtherCounters - ProcedureCounts - numProcedureCounts]struct{}
	_ = [1]struct{}{}[max(0, len(Counted)+halfcore.Rules+OtherCounters-MasterCounter)]
)

// MasterCounter is the place of the master of this part of the torus. The value is 0 for none, else
// 2*(rank+1), plus 1 if the part is cut off from all supervisors. The watchdog and the links follow
// (linkcounters.go).
const MasterCounter = 63

// Counted lists the counters other than those of broadcasts, by metric and its label; the rules of the channel
// protocol follow. Append only: two versions of the halves may share a node during an upgrade.
var Counted = [...]struct{ Metric, Label string }{
	{"lofamo_agent_dnp_mailbox_dropped_total", ""},
	{"lofamo_agent_dnp_mailbox_refused_total", ""},
	{"lofamo_agent_jobs_mail_dropped_total", "dnp"},
	{"lofamo_agent_barriers_total", "complete"},
	{"lofamo_agent_barriers_total", "failed"},
	{"lofamo_agent_messages_routed_total", "nearer"},
	{"lofamo_agent_messages_routed_total", "derouted"},
	{"lofamo_agent_messages_routed_total", "flooded"},
	{"lofamo_agent_messages_routed_total", "swapped"},
	{"lofamo_agent_messages_routed_total", "ended"},
	{"lofamo_agent_flow_told_total", ""},
	{"lofamo_agent_flow_held_total", ""},
	{"lofamo_agent_messages_in_pieces_total", "whole"},
	{"lofamo_agent_messages_in_pieces_total", "missing"},
	{"lofamo_agent_messages_in_pieces_total", "altered"},
	{"lofamo_agent_data_total", "delivered"},
	{"lofamo_agent_data_total", "refused"},
	{"lofamo_agent_data_total", "spoiled"},
	{"lofamo_agent_data_pieces_sent_total", ""},
}

// Count is one counter's value.
type Count struct {
	Metric, Label string
	Value         uint64
}

// BrokenRules is the metric that counts violations of a protocol rule.
const BrokenRules = "lofamo_agent_protocol_broken_total"

// The DNP half's counts of the fault management procedure follow the broadcasts.
const (
	ProcedureCounts = CountsOfTopic * express.NumTopics

	CountState    = iota - 1 // procedure.State
	CountWave                // the low 32 bits
	CountClear               // procedures that ended with the torus empty
	CountNotClear            // with messages in it, or members that had not answered
	CountRefused             // procedures that this half wanted and did not begin
	CountHeldUp              // messages that waited for the end
	CountWaiting             // of these, now
	CountHeld                // messages that may wait, in this half, while a procedure is under way
	numProcedureCounts
)

// draining reports whether the DNP half holds back messages that may wait.
func (p *Page) draining() bool {
	state := procedure.State(p.File.Counter(ProcedureCounts + CountState))
	return state.Valid() && state != procedure.Normal
}

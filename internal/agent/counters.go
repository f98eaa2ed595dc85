package agent

import (
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/status"
)

// What the DNP half counts goes into the counters of the register file, and the host half tells people. From place 0 on stand the broadcasts,
// topic after topic; behind them the fault management procedure (procedureCounts); from otherCounters on what stands in counted, in that order.
const (
	countsOfTopic = 4 // raised, delivered, repeated, dropped
	otherCounters = 32
)

var (
	_ [otherCounters - procedureCounts - numProcedureCounts]struct{}
	_ = [1]struct{}{}[max(0, len(counted)+dnpcore.Rules+otherCounters-masterCounter)]
)

// masterCounter is the place of the master of this part of the torus: 0 none, else one more than its rank, twice, and 1 if the part is cut off from all supervisors.
// Behind it stand the watchdog and the links (linkcounters.go).
const masterCounter = 63

// counted are the counters that are none of broadcasts, by metric and its label; behind them stand the rules of the channel protocol. Append only: two versions of
// the halves may share a node during an upgrade.
var counted = [...]struct{ metric, label string }{
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

// count is one of them.
type count struct {
	metric, label string
	value         uint64
}

const brokenRules = "lofamo_agent_protocol_broken_total"

func counterFamilies() []metric {
	return []metric{
		{"lofamo_agent_dnp_mailbox_dropped_total", "Messages of the DNP half to the host half dropped because its mailbox was full.", nil},
		{"lofamo_agent_dnp_mailbox_refused_total", "Messages to the DNP half that were no messages.", nil},
		{"lofamo_agent_jobs_mail_dropped_total", "Messages between the halves about jobs that found no room, by the half that had them to send.", []string{"half"}},
		{"lofamo_agent_barriers_total", "Barriers at which somebody of this node waited, by how they ended.", []string{"result"}},
		{"lofamo_agent_messages_routed_total", "Messages with a destination that the DNP half sent on, by how.", []string{"how"}},
		{"lofamo_agent_flow_told_total", "Times that the DNP half has told all others that it is overloaded.", nil},
		{"lofamo_agent_flow_held_total", "Chunks of this node held back because a node was overloaded.", nil},
		{"lofamo_agent_messages_in_pieces_total", "Messages of several pieces that came to the DNP half, by how they ended.", []string{"result"}},
		{"lofamo_agent_data_total", "Data broadcast to all nodes that came here, by what became of it.", []string{"result"}},
		{"lofamo_agent_data_pieces_sent_total", "Pieces of such data sent to neighbours.", nil},
		{brokenRules, "Times that neighbours broke a rule of the channel protocol, by rule.", []string{"rule"}},
	}
}

// publishCounters publishes the counters, once a second.
func (d *dnpHalf) publishCounters(now time.Time) {
	s := d.core.ExpressStats()
	var out [regfile.NumCounters]uint32
	for t := range express.NumTopics {
		dropped := s.Refused[t] + s.Expired[t] + s.Evicted[t]
		for i, v := range [countsOfTopic]uint64{s.Raised[t], s.Delivered[t], s.Repeated[t], dropped} {
			out[countsOfTopic*t+i] = uint32(v)
		}
	}
	box, bars, routed, flow, pieces, data := d.box.Stats(), d.core.BarrierStats(), d.core.RouteStats(), d.core.FlowStats(now), d.core.ReorderStats(), d.core.DataStats()
	others := [len(counted)]uint64{
		box.DroppedFull, box.Bad, d.jobMail.dropped, bars.Completed, bars.Failed,
		routed.Routed, routed.Derouted, routed.Flooded, routed.Swapped, routed.Ended, flow.Told, flow.Held,
		pieces.Whole, pieces.Missing, pieces.Altered, data.Delivered, data.Refused, data.Spoiled, data.Sent,
	}
	d.countProcedures(out[procedureCounts:otherCounters])
	at := otherCounters
	for _, v := range others {
		out[at] = uint32(v)
		at++
	}
	for _, rules := range d.core.ProtocolStats() {
		for r, n := range rules {
			out[at+r] += uint32(n)
		}
	}
	if rank, cutOff, known := d.core.Master(now); known {
		out[masterCounter] = uint32(rank+1)<<1 | uint32(one(cutOff))
	}
	d.countLinks(out[watchdogCounters:])
	_ = d.page.file.SetCounters(out)
}

// master is who speaks for this part of the torus, as the DNP half says; nil: there is none. Its caller holds the mutex.
func (h *hostHalf) master() *status.Master {
	c := h.page.file.Counter(masterCounter)
	if rank := int(c>>1) - 1; rank >= 0 && rank < h.topo.Dims.Nodes() {
		return &status.Master{Node: string(h.topo.ID(h.topo.Dims.At(rank))), CutOff: c&1 != 0}
	}
	return nil
}

// broadcasts reads those of broadcasts, by topic; those of topics that are not known are "other".
func (h *hostHalf) broadcasts() map[string]status.Broadcasts {
	out := map[string]status.Broadcasts{}
	counts := h.page.file.Counters()
	for t := range express.NumTopics {
		name := "other"
		if t > 0 {
			name = express.Topic(t).String()
		}
		c := counts[countsOfTopic*t:]
		out[name] = status.Broadcasts{Raised: c[0], Delivered: c[1], Repeated: c[2], Dropped: c[3]}
	}
	return out
}

func (s sink) broadcasts(by map[string]status.Broadcasts) {
	for topic, b := range by {
		s.counter("lofamo_agent_broadcasts_raised_total", uint64(b.Raised), topic)
		s.counter("lofamo_agent_broadcasts_delivered_total", uint64(b.Delivered), topic)
		s.counter("lofamo_agent_broadcasts_repeated_total", uint64(b.Repeated), topic)
		s.counter("lofamo_agent_broadcasts_dropped_total", uint64(b.Dropped), topic)
	}
}

// otherCounts are the others, as of now. Its caller holds the mutex.
func (h *hostHalf) otherCounts() (out []count) {
	counts, at := h.page.file.Counters(), otherCounters
	for _, c := range counted {
		out = append(out, count{c.metric, c.label, uint64(counts[at])})
		at++
	}
	for r := range dnpcore.Rules {
		out = append(out, count{brokenRules, dnpcore.Rule(r).String(), uint64(counts[at+r])})
	}
	return append(out, count{"lofamo_agent_jobs_mail_dropped_total", "host", h.postDropped()})
}

func (s sink) counts(all []count) {
	for _, c := range all {
		if c.label == "" {
			s.counter(c.metric, c.value)
		} else {
			s.counter(c.metric, c.value, c.label)
		}
	}
}

// torusCounters are those for people, by what is left of a metric's name.
func (h *hostHalf) torusCounters() map[string]uint64 {
	out := map[string]uint64{}
	for _, c := range h.otherCounts() {
		name := strings.TrimSuffix(strings.TrimPrefix(c.metric, "lofamo_agent_"), "_total")
		if c.label != "" {
			name += "/" + c.label
		}
		out[name] = c.value
	}
	return out
}

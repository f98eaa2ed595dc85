package host

import (
	"strings"

	"github.com/lofamo/lofamo/pkg/torus/express"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/local"
)

func counterFamilies() []metric {
	return []metric{
		{"lofamo_agent_dnp_mailbox_dropped_total", "Messages of the DNP half to the host half dropped because its mailbox was full.", nil},
		{"lofamo_agent_dnp_mailbox_refused_total", "Messages to the DNP half that were no messages.", nil},
		{"lofamo_agent_jobs_mail_dropped_total", "Messages between the halves about jobs that found no room, by the half that had them to send.",
			[]string{"half"}},
		{"lofamo_agent_barriers_total", "Barriers at which somebody of this node waited, by how they ended.", []string{"result"}},
		{"lofamo_agent_messages_routed_total", "Messages with a destination that the DNP half sent on, by how.", []string{"how"}},
		{"lofamo_agent_flow_told_total", "Times that the DNP half has told all others that it is overloaded.", nil},
		{"lofamo_agent_flow_held_total", "Chunks of this node held back because a node was overloaded.", nil},
		{"lofamo_agent_messages_in_pieces_total", "Messages of several pieces that came to the DNP half, by how they ended.", []string{"result"}},
		{"lofamo_agent_data_total", "Data broadcasts received here, by result.", []string{"result"}},
		{"lofamo_agent_data_pieces_sent_total", "Pieces of such data sent to neighbours.", nil},
		{half.BrokenRules, "Times that neighbours broke a rule of the channel protocol, by rule.", []string{"rule"}},
	}
}

// master returns the master of this part of the torus, as known to the DNP half; nil: none. The caller holds the
// mutex.
func (h *hostHalf) master() *local.MasterStatus {
	c, around := h.page.File.Counter(half.MasterCounter), h.Around.Load()
	if rank := int(c>>1) - 1; rank >= 0 && rank < around.Dims.Places() {
		return &local.MasterStatus{Node: string(around.ID(around.Dims.At(rank))), CutOff: c&1 != 0}
	}
	return nil
}

// broadcasts reads the counters of broadcasts, by topic; unknown topics count as "other".
func (h *hostHalf) broadcasts() map[string]local.BroadcastStatus {
	out := map[string]local.BroadcastStatus{}
	counts := h.page.File.Counters()
	for t := range express.NumTopics {
		name := "other"
		if t > 0 {
			name = express.Topic(t).String()
		}
		c := counts[half.CountsOfTopic*t:]
		out[name] = local.BroadcastStatus{Raised: c[0], Delivered: c[1], Repeated: c[2], Dropped: c[3]}
	}
	return out
}

func (s sink) broadcasts(by map[string]local.BroadcastStatus) {
	for topic, b := range by {
		s.counter("lofamo_agent_broadcasts_raised_total", uint64(b.Raised), topic)
		s.counter("lofamo_agent_broadcasts_delivered_total", uint64(b.Delivered), topic)
		s.counter("lofamo_agent_broadcasts_repeated_total", uint64(b.Repeated), topic)
		s.counter("lofamo_agent_broadcasts_dropped_total", uint64(b.Dropped), topic)
	}
}

// otherCounts are the others, as of now. Its caller holds the mutex.
func (h *hostHalf) otherCounts() (out []half.Count) {
	counts, at := h.page.File.Counters(), half.OtherCounters
	for _, c := range half.Counted {
		out = append(out, half.Count{Metric: c.Metric, Label: c.Label, Value: uint64(counts[at])})
		at++
	}
	for r := range halfcore.Rules {
		out = append(out, half.Count{Metric: half.BrokenRules, Label: halfcore.Rule(r).String(), Value: uint64(counts[at+r])})
	}
	return append(out, half.Count{Metric: "lofamo_agent_jobs_mail_dropped_total", Label: "host", Value: h.postDropped()})
}

func (s sink) counts(all []half.Count) {
	for _, c := range all {
		if c.Label == "" {
			s.counter(c.Metric, c.Value)
		} else {
			s.counter(c.Metric, c.Value, c.Label)
		}
	}
}

// torusCounters returns the informational counters, keyed by the metric's name without its prefix and suffix.
func (h *hostHalf) torusCounters() map[string]uint64 {
	out := map[string]uint64{}
	for _, c := range h.otherCounts() {
		name := strings.TrimSuffix(strings.TrimPrefix(c.Metric, "lofamo_agent_"), "_total")
		if c.Label != "" {
			name += "/" + c.Label
		}
		out[name] = c.Value
	}
	return out
}

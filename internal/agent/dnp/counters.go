package dnp

import (
	"time"

	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half"
)

// publishCounters publishes the counters, once a second.
func (d *dnpHalf) publishCounters(now time.Time) {
	s := d.core.ExpressStats()
	var out [regfile.NumCounters]uint32
	for t := range express.NumTopics {
		dropped := s.Refused[t] + s.Expired[t] + s.Evicted[t]
		for i, v := range [half.CountsOfTopic]uint64{s.Raised[t], s.Delivered[t], s.Repeated[t], dropped} {
			out[half.CountsOfTopic*t+i] = uint32(v)
		}
	}
	box, bars, routed, flow, pieces, data := d.box.Stats(), d.core.BarrierStats(), d.core.RouteStats(), d.core.FlowStats(now),
		d.core.ReorderStats(), d.core.DataStats()
	others := [len(half.Counted)]uint64{
		box.DroppedFull, box.Bad, d.jobMail.dropped, bars.Completed, bars.Failed,
		routed.Routed, routed.Derouted, routed.Flooded, routed.Swapped, routed.Ended, flow.Announced, flow.Held,
		pieces.Whole, pieces.Missing, pieces.Altered, data.Delivered, data.Refused, data.Spoiled, data.Sent,
	}
	d.countProcedures(out[half.ProcedureCounts:half.OtherCounters])
	at := half.OtherCounters
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
		out[half.MasterCounter] = uint32(rank+1) << 1
		if cutOff {
			out[half.MasterCounter] |= 1
		}
	}
	d.countLinks(out[half.WatchdogCounters:])
	_ = d.page.File.SetCounters(out)
}

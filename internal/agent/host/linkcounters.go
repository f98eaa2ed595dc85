package host

import (
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half"
)

func linkFamilies() []metric {
	half, dir := []string{"half"}, []string{"dir"}
	return []metric{
		{"lofamo_agent_watchdog_reads_total", "Reads of the other half's watchdog word, by the half that read.", half},
		{"lofamo_agent_watchdog_misses_total", "Of these, reads that did not find the word valid.", half},
		{"lofamo_agent_watchdog_corrupt_total", "Of these, reads that found it corrupt.", half},
		{"lofamo_agent_watchdog_late_total", "Reads more than half a period late: the half then doubts itself and accuses no one.",
			half},
		{"lofamo_agent_watchdog_writes_missed_total", "Periods in which a half did not write its own watchdog word in time.", half},
		{"lofamo_agent_link_state", "State of a link at this end, one series a state.", []string{"dir", "state"}},
		{
			"lofamo_agent_link_rtt_seconds",
			"Smoothed time from a heartbeat to the first frame that acknowledges it, 0 before the first; the wait for the neighbour's next frame, " +
				"up to a period, is in it.", dir,
		},
		{"lofamo_agent_link_sent_total", "Frames sent on a link.", dir},
		{"lofamo_agent_link_received_total", "Frames of a link that were accepted.", dir},
		{"lofamo_agent_link_lost_total", "Frames of a link that never came, by the gaps in their sequence.", dir},
		{"lofamo_agent_link_crc_errors_total", "Damaged frames of a link that a gap in the sequence bears out: errors of the link.", dir},
		{"lofamo_agent_link_strange_total", "Damaged frames that no gap bears out: anybody can send those.", dir},
		{"lofamo_agent_link_forged_total", "Frames whose MAC is wrong: an attack, or another key.", dir},
		{"lofamo_agent_link_reordered_total", "Frames of a link that came out of order.", dir},
		{"lofamo_agent_link_duplicates_total", "Frames of a link that came twice.", dir},
		{"lofamo_agent_link_replays_total", "Frames older than the window, or of an earlier session or epoch.", dir},
		{"lofamo_agent_link_refused_total", "Frames that were malformed, of an unknown session, or of another link.", dir},
		{"lofamo_agent_link_doubts_total", "Times that this end of a link doubted itself, because it ran late.", dir},
	}
}

// linkCounts holds the counts of both watchdogs and the links, for one scrape.
type linkCounts struct {
	watchdog [2][half.NumWatchdogCounts]uint64 // host half, DNP half
	links    [grid.NumDirections][half.NumLinkCounts]uint32
}

// linkCounts reads them. Its caller holds the mutex.
func (h *hostHalf) linkCounts() (c linkCounts) {
	c.watchdog[0] = half.WatchdogCounts(h.core.WatchdogStats())
	all := h.page.File.Counters()
	for i := range c.watchdog[1] {
		c.watchdog[1][i] = uint64(all[half.WatchdogCounters+i])
	}
	for i := range c.links {
		copy(c.links[i][:], all[half.LinkCounters+half.PlacesOfLink*i:])
	}
	return c
}

func (s sink) links(c linkCounts) {
	for i, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		w, name := c.watchdog[i], h.String()
		s.counter("lofamo_agent_watchdog_reads_total", w[half.CountReads], name)
		s.counter("lofamo_agent_watchdog_misses_total", w[half.CountMisses], name)
		s.counter("lofamo_agent_watchdog_corrupt_total", w[half.CountCorrupt], name)
		s.counter("lofamo_agent_watchdog_late_total", w[half.CountLate], name)
		s.counter("lofamo_agent_watchdog_writes_missed_total", w[half.CountUnwritten], name)
	}
	for i, d := range grid.Directions() {
		l := c.links[i]
		if l[half.CountLinkState] == 0 {
			continue
		}
		for st := torus.LinkUnknown; st.Valid(); st++ {
			s.gauge("lofamo_agent_link_state", one(torus.LinkState(l[half.CountLinkState]) == st), d.String(), st.String())
		}
		s.gauge("lofamo_agent_link_rtt_seconds", float64(l[half.CountRoundTrip])/1e6, d.String())
		for at, name := range half.LinkTotals {
			if name != "" {
				s.counter(name, uint64(l[at]), d.String())
			}
		}
	}
}

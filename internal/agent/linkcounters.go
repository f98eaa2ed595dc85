package agent

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"
)

// What the DNP half counts of its watchdog and its links stands behind the master in the counters of the register file, in the order of
// watchdogCounts and linkCounts, link after link in the order of grid.Directions. Append only: two versions of the halves may share a node.
const (
	watchdogCounters = masterCounter + 1
	linkCounters     = watchdogCounters + numWatchdogCounts
	// placesOfLink is more than there are counts, for those to come.
	placesOfLink = 16
)

var (
	_ [regfile.NumCounters - linkCounters - placesOfLink*grid.NumDirections]struct{}
	_ [placesOfLink - numLinkCounts]struct{}
)

// The counts of a watchdog.
const (
	countReads = iota
	countMisses
	countCorrupt
	countLate
	countUnwritten
	numWatchdogCounts
)

// The counts of a link. The state is a torus.LinkState; 0: there is no such link, or the DNP half is of an earlier version.
const (
	countLinkState = iota
	countRoundTrip // in µs
	countLinkSent
	countReceived
	countLost
	countCRC
	countCRCStrange
	countMAC
	countReordered
	countDuplicates
	countReplays
	countRefusedFrames
	countOwnLate
	numLinkCounts
)

func linkFamilies() []metric {
	half, dir := []string{"half"}, []string{"dir"}
	return []metric{
		{"lofamo_agent_watchdog_reads_total", "Reads of the other half's watchdog word, by the half that read.", half},
		{"lofamo_agent_watchdog_misses_total", "Of these, reads that did not find the word valid.", half},
		{"lofamo_agent_watchdog_corrupt_total", "Of these, reads that found it corrupt.", half},
		{"lofamo_agent_watchdog_late_total", "Reads that came late by more than half a period: the half doubts itself then, and accuses nobody.", half},
		{"lofamo_agent_watchdog_writes_missed_total", "Periods in which a half did not write its own watchdog word in time.", half},
		{"lofamo_agent_link_state", "State of a link at this end, one series a state.", []string{"dir", "state"}},
		{
			"lofamo_agent_link_rtt_seconds",
			"Smoothed time from a heartbeat to the first frame that acknowledges it, 0 before the first; the wait for the neighbour's next frame, up to a period, is in it.", dir,
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

// countLinks publishes the watchdog's counts and the links'.
func (d *dnpHalf) countLinks(out []uint32) {
	read, unwritten := d.core.WatchdogStats()
	for i, v := range watchdogCounts(read, unwritten) {
		out[i] = uint32(v)
	}
	out = out[numWatchdogCounts:]
	states := d.core.LinkStates()
	for i, s := range d.core.LinkStats() {
		for j, v := range [numLinkCounts]uint64{
			uint64(states[i]), uint64(s.RoundTrip / time.Microsecond), s.Sent, s.Received, s.Lost, s.CRC, s.CRCStrange, s.MAC, s.Late, s.Duplicates, s.Replays,
			s.Malformed + s.Sessions + s.Misrouted, s.OwnLate,
		} {
			out[placesOfLink*i+j] = uint32(v)
		}
	}
}

func watchdogCounts(r watchdog.ReaderStats, unwritten uint64) [numWatchdogCounts]uint64 {
	return [numWatchdogCounts]uint64{r.Reads, r.Misses, r.Corrupt, r.Late, unwritten}
}

// linkCounts is what was read of both watchdogs and the links, for one scrape.
type linkCounts struct {
	watchdog [2][numWatchdogCounts]uint64 // host half, DNP half
	links    [grid.NumDirections][numLinkCounts]uint32
}

// linkCounts reads them. Its caller holds the mutex.
func (h *hostHalf) linkCounts() (c linkCounts) {
	c.watchdog[0] = watchdogCounts(h.core.WatchdogStats())
	all := h.page.file.Counters()
	for i := range c.watchdog[1] {
		c.watchdog[1][i] = uint64(all[watchdogCounters+i])
	}
	for i := range c.links {
		copy(c.links[i][:], all[linkCounters+placesOfLink*i:])
	}
	return c
}

func (s sink) links(c linkCounts) {
	for i, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		w, name := c.watchdog[i], h.String()
		s.counter("lofamo_agent_watchdog_reads_total", w[countReads], name)
		s.counter("lofamo_agent_watchdog_misses_total", w[countMisses], name)
		s.counter("lofamo_agent_watchdog_corrupt_total", w[countCorrupt], name)
		s.counter("lofamo_agent_watchdog_late_total", w[countLate], name)
		s.counter("lofamo_agent_watchdog_writes_missed_total", w[countUnwritten], name)
	}
	for i, d := range grid.Directions() {
		l := c.links[i]
		if l[countLinkState] == 0 {
			continue
		}
		for st := torus.LinkUnknown; st.Valid(); st++ {
			s.gauge("lofamo_agent_link_state", one(torus.LinkState(l[countLinkState]) == st), d.String(), st.String())
		}
		s.gauge("lofamo_agent_link_rtt_seconds", float64(l[countRoundTrip])/1e6, d.String())
		for at, name := range linkTotals {
			if name != "" {
				s.counter(name, uint64(l[at]), d.String())
			}
		}
	}
}

// linkTotals are the metrics of those counts of a link that only grow.
var linkTotals = [numLinkCounts]string{
	countLinkSent: "lofamo_agent_link_sent_total", countReceived: "lofamo_agent_link_received_total", countLost: "lofamo_agent_link_lost_total",
	countCRC: "lofamo_agent_link_crc_errors_total", countCRCStrange: "lofamo_agent_link_strange_total", countMAC: "lofamo_agent_link_forged_total",
	countReordered: "lofamo_agent_link_reordered_total", countDuplicates: "lofamo_agent_link_duplicates_total", countReplays: "lofamo_agent_link_replays_total",
	countRefusedFrames: "lofamo_agent_link_refused_total", countOwnLate: "lofamo_agent_link_doubts_total",
}

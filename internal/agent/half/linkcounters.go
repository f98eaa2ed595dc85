package half

import (
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"
)

// The DNP half's counts of its watchdog and its links follow the master in the counters of the register file, in the
// order of the constants below, link after link in the order of grid.Directions. Append only: two versions
// of the halves may share a node.
const (
	WatchdogCounters = MasterCounter + 1
	LinkCounters     = WatchdogCounters + NumWatchdogCounts
	// PlacesOfLink is more than there are counts, for those to come.
	PlacesOfLink = 16
)

var (
	_ [regfile.NumCounters - LinkCounters - PlacesOfLink*grid.NumDirections]struct{}
	_ [PlacesOfLink - NumLinkCounts]struct{}
)

// The counts of a watchdog.
const (
	CountReads = iota
	CountMisses
	CountCorrupt
	CountLate
	CountUnwritten
	NumWatchdogCounts
)

// The counts of a link. The state is a torus.LinkState; 0: there is no such link, or the DNP half is of an earlier version.
const (
	CountLinkState = iota
	CountRoundTrip // in µs
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
	NumLinkCounts
)

// WatchdogCounts returns the counters of a watchdog reader in the order of the counter file; unwritten counts skipped writes.
func WatchdogCounts(r watchdog.ReaderStats, unwritten uint64) [NumWatchdogCounts]uint64 {
	return [NumWatchdogCounts]uint64{r.Reads, r.Misses, r.Corrupt, r.Late, unwritten}
}

// LinkTotals are the metrics of those counts of a link that only grow.
var LinkTotals = [NumLinkCounts]string{
	countLinkSent: "lofamo_agent_link_sent_total", countReceived: "lofamo_agent_link_received_total",
	countLost: "lofamo_agent_link_lost_total",
	countCRC:  "lofamo_agent_link_crc_errors_total", countCRCStrange: "lofamo_agent_link_strange_total",
	countMAC:       "lofamo_agent_link_forged_total",
	countReordered: "lofamo_agent_link_reordered_total", countDuplicates: "lofamo_agent_link_duplicates_total",
	countReplays:       "lofamo_agent_link_replays_total",
	countRefusedFrames: "lofamo_agent_link_refused_total", countOwnLate: "lofamo_agent_link_doubts_total",
}

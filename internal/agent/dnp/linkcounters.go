package dnp

import (
	"time"

	"github.com/lofamo/lofamo/internal/agent/half"
)

// countLinks publishes the counters of the watchdog and the links.
func (d *dnpHalf) countLinks(out []uint32) {
	read, unwritten := d.core.WatchdogStats()
	for i, v := range half.WatchdogCounts(read, unwritten) {
		out[i] = uint32(v)
	}
	out = out[half.NumWatchdogCounts:]
	states := d.core.LinkStates()
	for i, s := range d.core.LinkStats() {
		for j, v := range [half.NumLinkCounts]uint64{
			uint64(states[i]), uint64(s.RoundTrip / time.Microsecond), s.Sent, s.Received, s.Lost, s.CRC, s.CRCStrange, s.MAC, s.Late,
			s.Duplicates, s.Replays,
			s.Malformed + s.Sessions + s.Misrouted, s.OwnLate,
		} {
			out[half.PlacesOfLink*i+j] = uint32(v)
		}
	}
}

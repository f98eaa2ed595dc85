package sim

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
)

// registers is the page that the halves of a node share. Guards and torn words are regfile's own
// business and tested there.
type registers struct {
	dnp        watchdog.DNPWord
	host       watchdog.HostWord
	descriptor watchdog.DescriptorWord
	details    [grid.NumDirections]uint32
	causes     [grid.NumDirections]uint32
	peers      [grid.NumDirections]uint32
	words      map[watchdog.Addr]uint32
	stores     [2]uint32 // of the halves' watchdog words
}

// write writes the DNP half's words.
func (r *registers) write(out *dnpcore.Output) {
	for _, s := range out.Stores {
		r.words[s.Addr] = s.Value
	}
	for _, e := range out.Details {
		r.details[e.Dir.Index()] = e.Value
	}
	for _, e := range out.Causes {
		r.causes[e.Dir.Index()] = e.Value
	}
	for _, e := range out.Peers {
		r.peers[e.Dir.Index()] = e.Value
	}
	if out.WriteDescriptor {
		r.descriptor = out.Descriptor
	}
	if out.WriteDNP {
		r.stores[1]++
		r.dnp = out.DNP
		r.dnp.Valid = true
	}
}

// cable has the faults of one direction of a link, at its sending end.
type cable struct {
	cut     bool
	corrupt float64 // share of the frames that arrive damaged
	lose    float64
	session uint32    // that the receiving end has keys for
	before  uint32    // the one before it
	bad     time.Time // when the cable was last cut, lossy or corrupting

	arrivals [maxOvertaking + 1]time.Time // arrival times of the last frames, oldest first
}

// maxOvertaking is the largest number of later frames that may overtake a frame. If one more does, torus.Link counts the frame as lost.
const maxOvertaking = 2

// sound reports whether all frames pass undamaged.
func (c *cable) sound() bool { return !c.cut && c.corrupt == 0 && c.lose == 0 }

// reading is the value of a simulated sensor.
type reading struct {
	state fault.State
	value float64
}

package sim

import (
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// registers is the page that the halves of a node share. Guards and torn words are regfile's own
// business and tested there.
type registers struct {
	dnp        watchdog.DNPWord
	host       watchdog.HostWord
	descriptor watchdog.DescriptorWord
	details    [grid.NumDirections]uint32
	causes     [grid.NumDirections]uint32
	words      map[watchdog.Addr]uint32
}

// cable is what may be wrong with one direction of a link, at its sending end.
type cable struct {
	cut     bool
	corrupt float64 // share of the frames that arrive damaged
	lose    float64
	session uint32 // that the receiving end has keys for
	before  uint32 // the one before it
}

// sound says whether everything does.
func (c *cable) sound() bool { return !c.cut && c.corrupt == 0 && c.lose == 0 }

// reading is what a simulated sensor shows.
type reading struct {
	state fault.State
	value float64
}

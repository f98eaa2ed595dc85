package dnp

import (
	"context"
	"fmt"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// This file counts the damaged frames that a link's network interface has dropped. Interface and kernel let few of them
// through, so that the links themselves (pkg/torus) see only a gap in the sequence.
//
// An interface may carry the frames of several links: only the frames that the link's machine itself misses count
// against the link.

// The counters of Documentation/ABI/testing/sysfs-class-net-statistics. The first should include the others (struct
// rtnl_link_stats64), but not every driver keeps to that.
const (
	allErrors = iota
	crcErrors
	frameErrors
	numCounters
)

var interfaceErrorFiles = [numCounters]string{allErrors: "rx_errors", crcErrors: "rx_crc_errors", frameErrors: "rx_frame_errors"}

// interfaceErrors is the interface of one link. It is polled like a sensor, off the packet path. Its reading is NORMAL,
// because it has no bounds, or UNKNOWN when the interface has no such counters. The value is the number of damaged
// frames since the first reading, and never falls.
type interfaceErrors struct {
	sys   source.Root
	name  string
	dir   grid.Direction
	last  [numCounters]uint64
	known [numCounters]bool // last was read
	total uint64
}

// newInterfaceErrors returns the source for the link in direction dir, on the named interface.
func newInterfaceErrors(sysfs, name string, dir grid.Direction) *interfaceErrors {
	return &interfaceErrors{sys: source.Root(sysfs), name: name, dir: dir}
}

// Name returns "iferrors:", the interface's name and the link's direction.
func (s *interfaceErrors) Name() string { return "iferrors:" + s.name + ":" + s.dir.String() }

// Component returns the link.
func (s *interfaceErrors) Component() fault.Component { return fault.Link(s.dir) }

// Read reads the counters. It leaves out an unreadable counter if others are readable.
func (s *interfaceErrors) Read(context.Context) (source.Reading, error) {
	var growth [numCounters]uint64
	var found bool
	var failed error
	for i, f := range interfaceErrorFiles {
		v, err := s.sys.Uint("class/net", s.name, "statistics", f)
		if err != nil {
			s.known[i] = false // later values have a base of their own
			if failed == nil && !source.Missing(err) {
				failed = err
			}
			continue
		}
		found = true
		// A counter that fell was reset: its present value is a new base.
		if s.known[i] && v > s.last[i] {
			growth[i] = v - s.last[i]
		}
		s.last[i], s.known[i] = v, true
	}
	s.total += max(growth[allErrors], growth[crcErrors]+growth[frameErrors])
	r := source.Reading{Component: s.Component(), Source: s.Name(), State: fault.Unknown}
	switch {
	case found:
		r.State, r.Value = fault.Normal, float64(s.total)
		r.Detail = source.Detail(fmt.Sprintf("%s: %d damaged frames", s.name, s.total))
	case failed != nil:
		r.Detail = source.Detail(failed.Error())
		return r, failed
	default:
		r.Detail = source.Detail("no error counters of interface " + s.name + " on this machine")
	}
	return r, nil
}

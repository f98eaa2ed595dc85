package awareness

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// record is the newest statement of one half on one component of its node or of a neighbour.
type record struct {
	slot   slot
	state  fault.State
	kind   fault.Kind
	path   fault.Path
	detail string
	ended  bool // a kernel reported the end of the process: see hints.go
	stamp
	said  time.Time // when the report was made, by the hops' clocks
	came  time.Time // when it arrived here
	began time.Time // when the state began, by the observer's and the hops' clocks
	since time.Time // first arrival of this state here; restating does not move it
}

// stamp is a report's position in its half's sequence.
type stamp struct {
	epoch fault.Epoch
	seq   fault.Seq
}

func stampOf(id fault.ReportID) stamp { return stamp{id.Epoch, id.Seq} }

func (p stamp) newer(than stamp) bool {
	return p.epoch > than.epoch || (p.epoch == than.epoch && p.seq > than.seq)
}

// silent reports whether the observer hears no authentic frame on the link or the bus.
func (r *record) silent() bool {
	return r != nil && r.state == fault.Failed && r.kind == fault.KindSilence
}

// restarting reports whether the record marks a link whose far DNP half has announced its restart. It is the only
// statement about a link that a descriptor can contain.
func (r *record) restarting() bool {
	return r != nil && r.state == fault.Sick && r.kind == fault.KindDescriptor
}

// described are the components that a neighbour can report on: those of the remote fault descriptor (seed 001, Table V)
// and the host itself.
var described = [...]fault.Component{
	fault.ComponentHost, fault.ComponentServiceNetwork, fault.ComponentMemory,
	fault.ComponentPeripheral0, fault.ComponentPeripheral1,
}

func describedIndex(c fault.Component) (int, bool) {
	for i, d := range described {
		if c == d {
			return i, true
		}
	}
	return 0, false
}

// slot numbers the subjects of a half's statements: the components of its own node, then the described components of
// each distinct neighbour in the order of node.neighbours.
type slot uint8

// maxSlots bounds slots: a neighbour in each direction. A set of slots is the bits of a uint64.
const maxSlots = fault.NumComponents + grid.NumDirections*len(described)

func ownSlot(c fault.Component) slot { return slot(c) }

func aboutSlot(neighbour, index int) slot {
	return slot(fault.NumComponents + neighbour*len(described) + index)
}

// about returns the slot's neighbour, -1 for the half's own node, and the component.
func (s slot) about() (neighbour int, c fault.Component) {
	if int(s) < fault.NumComponents {
		return -1, fault.Component(s)
	}
	i := int(s) - fault.NumComponents
	return i / len(described), described[i%len(described)]
}

func (s slot) bit() uint64 { return 1 << s }

// made returns when the report was made, by the hops' clocks.
func made(d fault.Delivery, now time.Time) time.Time {
	for _, h := range d.Hops {
		now = now.Add(-max(0, h.Held))
	}
	return now
}

// sent is made for a report that may have waited at supervisors too.
func sent(d fault.Delivery, now time.Time) time.Time { return made(d, now.Add(-d.Waited)) }

// wellFormed reports whether the observer can make the observation. Of its own node it can state anything but the node
// as such; of a neighbour, the contents of the descriptor; of an own link, the neighbour's announcements about its DNP
// half.
func wellFormed(about int, o fault.Observation) bool {
	if !o.Component.Valid() || o.Component == fault.ComponentNode || !o.State.Valid() {
		return false
	}
	if about >= 0 {
		_, ok := describedIndex(o.Component)
		return ok && o.Kind == fault.KindDescriptor
	}
	if _, link := o.Component.LinkDirection(); link && o.Kind == fault.KindDescriptor {
		return o.State == fault.Sick
	}
	return slices.Contains(ownKinds[:], o.Kind) && (o.Kind != fault.KindAbsent || o.State == fault.Unknown)
}

// ownKinds are the kinds of statement that a half may make about its own node. Gossip, votes, challenges and missing
// digests belong to the supervisor.
var ownKinds = [...]fault.Kind{fault.KindSelf, fault.KindWatchdog, fault.KindSilence, fault.KindHandshake, fault.KindErrorRatio,
	fault.KindAbsent}

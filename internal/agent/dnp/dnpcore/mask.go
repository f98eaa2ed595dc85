package dnpcore

import (
	"fmt"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// The channel mask (seed 003 §5.2.3.1): a masked link carries heartbeats, tests and acknowledgements, so that there is
// evidence of it, and no messages. What is wanted is known at once, to the neighbour too, by FlagMasked, so that neither end
// sends any more; it is in force when nothing waits on the link, for a router's world must not change under a message
// that is on its way. What waits there goes another way meanwhile, or is given up after hopLife: its origin has it still. While the fault
// management procedure is under way nothing is masked until it says that the network is clear, or is over.
//
//	usable ──wanted masked──► draining ──nothing waits──► masked ──wanted usable──► usable
//
// A message that comes over a masked link all the same is taken: the neighbour may be draining, or of a version that knows no
// masks.
type masks struct {
	order.Holder[chanmask.State]
	base  chanmask.Mask // what the configuration leaves
	force chanmask.Mask // what is in force at this end
}

// maskAgain is the time between two statuses while there is something to say that is not a matter of course.
const maskAgain = 30 * time.Second

// maskNoteEvery is the least time between two lines in the log of what a neighbour does with its end of a link.
const maskNoteEvery = 10 * time.Second

func newMasks(cfg Config, now time.Time) masks {
	k := masks{Holder: order.Holder[chanmask.State]{State: chanmask.Fresh(), Lost: cfg.MaskLost}, base: chanmask.All.Without(cfg.Masked...)}
	if cfg.Mask != nil {
		k.State = *cfg.Mask
	}
	if !cfg.Procedure.MaskDead { // it has no word any more
		k.State.Own = chanmask.All
	}
	k.force = k.wanted() // nothing is on its way yet
	if k.speaks() {
		k.Tell(now.Add(cfg.Periods.DigestPeriod))
	}
	return k
}

// wanted is what is to be in force.
func (k *masks) wanted() chanmask.Mask { return k.State.InForce() & k.base }

// speaks says whether the supervisors are told without being asked.
func (k *masks) speaks() bool {
	return k.Lost || k.State != chanmask.Fresh() || k.base != chanmask.All
}

// OwnMask is this node's own word on its channels, of a person at the node (lofamo-agent mask). Its diagnosis has one without this event
// (Config.Procedure.MaskDead).
type OwnMask struct{ Mask chanmask.Mask }

func (OwnMask) dnpEvent() {}

// MaskKept says that this state is on disk, or that the disk does not take it.
type MaskKept struct{ State chanmask.State }

func (MaskKept) dnpEvent() {}

// onMaskKept has the supervisors told, unless there is a newer state to keep.
func (m *Machine) onMaskKept(now time.Time, of chanmask.State) {
	if m.mask.Stored(of) {
		m.tickMask(now)
	}
}

// masked says whether a link is kept free of messages, by either end (§6.1).
func (m *Machine) masked(l *link) bool {
	return !chanmask.Used(m.mask.wanted()&m.mask.force, l.dir, l.peer.Masked)
}

// masking says whether there is a link that works and is masked: then it is no fault that no way leads on.
func (m *Machine) masking() bool {
	for _, l := range m.links {
		if l != nil && l.usable() && m.masked(l) {
			return true
		}
	}
	return false
}

// mayChangeMask says whether a link may leave the set of those that messages go by: nothing waits there.
func (m *Machine) mayChangeMask(l *link) bool { return l.hop.InFlight() == 0 }

// setHeld takes the word of a person at the node.
func (m *Machine) setHeld(now time.Time, usable chanmask.Mask) {
	next := m.mask.State
	if next.Held = chanmask.All &^ usable; next != m.mask.State {
		m.changeMask(now, next)
	}
}

// setOwn takes this node's own word, of its diagnosis.
func (m *Machine) setOwn(now time.Time, own chanmask.Mask) {
	next := m.mask.State
	if next.Own = own & chanmask.All; next != m.mask.State {
		m.changeMask(now, next)
	}
}

// onMaskOrder takes the supervisors' word, and answers whatever it is: who asks again has not heard.
func (m *Machine) onMaskOrder(now time.Time, o *lofamov1.MaskOrder) {
	next, verdict := m.mask.State.Order(o.GetNumber(), chanmask.Mask(o.GetMask()))
	if m.mask.State.Number == 0 && order.OtherLife(o.GetEpoch(), o.GetEpochUnknown(), uint64(m.Epoch())) {
		verdict = 0
	}
	switch verdict {
	case 0:
		m.note(NoteRefused, "channel mask %d (%s) is of boot epoch %d: this half holds none, and takes one of its own", o.GetNumber(),
			chanmask.Mask(o.GetMask()), o.GetEpoch())
	case chanmask.Taken:
		m.mask.Lost = false
		m.changeMask(now, next)
	case chanmask.Stale:
		m.note(NoteRefused, "channel mask %d (%s) is not newer than %d", o.GetNumber(), chanmask.Mask(o.GetMask()), next.Number)
	default:
	}
	m.mask.Tell(now)
	m.tickMask(now)
}

// changeMask is the only writer of what is wanted. Neighbours are told at once, supervisors when it is kept.
func (m *Machine) changeMask(now time.Time, next chanmask.State) {
	was := m.mask.wanted()
	m.mask.Change(next)
	m.out.SaveMask = true
	if now := m.mask.wanted(); now != was {
		m.note(NoteMask, "channel mask: %s (was %s), by order %d", now, was, next.Number)
	}
	for _, l := range m.links {
		if l == nil || was.Usable(l.dir) == m.mask.wanted().Usable(l.dir) {
			continue
		}
		m.beat(l)
		if m.masked(l) {
			m.reroute(now, l)
		}
	}
	m.settleMask(now)
}

// peerMasked follows what the neighbour says of its end.
func (m *Machine) peerMasked(now time.Time, l *link) {
	if since := now.Sub(l.maskNoted); l.maskNoted.IsZero() || since >= maskNoteEvery {
		more := ""
		if l.maskQuiet > 0 {
			more = fmt.Sprintf(" (and %d changes since the last line)", l.maskQuiet)
		}
		m.note(NoteMask, "link %s: masked by the neighbour %t%s", l.dir, l.peer.Masked, more)
		l.maskNoted, l.maskQuiet = now, 0
	} else { // a neighbour that says now this and now that fills no log
		l.maskQuiet++
	}
	if l.peer.Masked {
		m.reroute(now, l)
	}
}

// settleMask brings into force what may be.
func (m *Machine) settleMask(now time.Time) {
	want, force := m.mask.wanted(), m.mask.force
	if want == force {
		return
	}
	for _, l := range m.links {
		if l != nil && (want.Usable(l.dir) || m.mayChangeMask(l) && !m.maskWaits()) {
			force = force.With(l.dir, want.Usable(l.dir))
		}
	}
	for _, d := range grid.Directions() {
		if m.links[d.Index()] == nil { // a channel that the torus does not have
			force = force.With(d, want.Usable(d))
		}
	}
	if force == m.mask.force {
		return
	}
	m.mask.force = force
	m.mask.Tell(now)
	m.store(watchdog.AddrChannelMask, uint32(force))
}

// tickMask has what is wanted come into force, and the supervisors told.
func (m *Machine) tickMask(now time.Time) {
	m.settleMask(now)
	if !m.mask.Tells(now) {
		return
	}
	m.mask.Tell(time.Time{})
	if m.mask.speaks() {
		m.mask.Tell(now.Add(maskAgain))
	}
	m.answerOrder(0, &lofamov1.Message{Body: &lofamov1.Message_MaskStatus{MaskStatus: &lofamov1.MaskStatus{
		Node: string(m.self), Half: lofamov1.Half_HALF_DNP, Epoch: uint64(m.Epoch()), Number: m.mask.State.Number,
		Ordered: uint32(m.mask.State.Ordered), Own: uint32(m.mask.State.OwnWord() & m.mask.base), InForce: uint32(m.mask.force), Lost: m.mask.Lost,
	}}})
}

// MaskView is what there is to say of the channel mask of this node.
type MaskView struct {
	State      chanmask.State
	Configured chanmask.Mask // what the configuration leaves
	InForce    chanmask.Mask // at this end
	Links      chanmask.Mask // that the node has
	Peers      chanmask.Mask // what the neighbours leave, as they said last
	Lost       bool
}

// Masks returns it.
func (m *Machine) Masks() MaskView {
	v := MaskView{State: m.mask.State, Configured: m.mask.base, InForce: m.mask.force, Peers: chanmask.All, Lost: m.mask.Lost}
	for _, l := range m.links {
		if l != nil {
			v.Links = v.Links.With(l.dir, true)
			v.Peers = v.Peers.With(l.dir, !l.peer.Masked)
		}
	}
	return v
}

// Mask returns what is to be kept of the channel mask, and what of it is in force.
func (m *Machine) Mask() (chanmask.State, chanmask.Mask) { return m.mask.State, m.mask.force }

package dnpcore

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// The channel mask (seed 003 §5.2.3.1): a masked link carries heartbeats, tests and acknowledgements, which provide
// evidence about it, but no messages. The wanted mask takes effect for new messages at once, at the neighbour too
// (FlagMasked). The mask is in force when no message waits on the link, because a router's routes must not change under
// a message in flight. Messages that wait there take another route or expire after hopLife; their origin still has
// them. During the fault management procedure nothing is masked until the network is clear or the procedure is over.
//
//	usable ──wanted masked──► draining ──nothing waits──► masked ──wanted usable──► usable
//
// A message that arrives over a masked link is accepted: the neighbour may be draining, or of a version that knows no
// masks.
type masks struct {
	order.Holder[chanmask.State]
	base  chanmask.Mask // channels that the configuration leaves usable
	force chanmask.Mask // the mask in force at this end
}

// maskAgain is the time between two statuses while the mask is not the default one.
const maskAgain = 30 * time.Second

func newMasks(cfg Config, now time.Time) masks {
	k := masks{Holder: order.Holder[chanmask.State]{State: chanmask.Fresh(), Lost: cfg.MaskLost}, base: chanmask.All.Without(cfg.Masked...)}
	if cfg.Mask != nil {
		k.State = *cfg.Mask
	}
	if !cfg.Procedure.MaskDead { // the node has no mask of its own any more
		k.State.Own = chanmask.All
	}
	k.force = k.wanted() // nothing is in flight yet
	if k.speaks() {
		k.Tell(now.Add(cfg.Periods.DigestPeriod))
	}
	return k
}

// wanted returns the mask that is to come into force.
func (k *masks) wanted() chanmask.Mask { return k.State.InForce() & k.base }

// speaks reports whether this half sends its mask to the supervisors unasked.
func (k *masks) speaks() bool {
	return k.Lost || k.State != chanmask.Fresh() || k.base != chanmask.All
}

// OwnMask is a mask that a person sets at this node (lofamo-agent mask). The node's diagnosis sets one without this
// event (Config.Procedure.MaskDead).
type OwnMask struct{ Mask chanmask.Mask }

func (OwnMask) dnpEvent() {}

// MaskKept reports that this state is on disk, or the disk's error.
type MaskKept struct {
	State chanmask.State
	Err   error // nil: it is on disk
}

func (MaskKept) dnpEvent() {}

// onMaskKept reports a stored state to the supervisors, unless a newer one is waiting for the disk.
func (m *Machine) onMaskKept(now time.Time, ev MaskKept) {
	if m.mask.Stored(now, ev.State, ev.Err) {
		m.tickMask(now)
	}
}

// masked reports whether either end keeps a link free of messages (§6.1).
func (m *Machine) masked(l *link) bool {
	return !chanmask.Used(m.mask.wanted()&m.mask.force, l.dir, l.peer.Masked)
}

// masking reports whether a working link is masked: then a missing route is no fault.
func (m *Machine) masking() bool {
	for _, l := range m.links {
		if l != nil && l.usable() && m.masked(l) {
			return true
		}
	}
	return false
}

// mayChangeMask reports whether a link may become masked: no message waits there.
func (m *Machine) mayChangeMask(l *link) bool { return l.hop.InFlight() == 0 }

// setHeld applies the mask that a person sets at this node.
func (m *Machine) setHeld(now time.Time, usable chanmask.Mask) {
	next := m.mask.State
	if next.Held = chanmask.All &^ usable; next != m.mask.State {
		m.changeMask(now, next)
	}
}

// setOwn applies the mask that this node's diagnosis sets.
func (m *Machine) setOwn(now time.Time, own chanmask.Mask) {
	next := m.mask.State
	if next.Own = own & chanmask.All; next != m.mask.State {
		m.changeMask(now, next)
	}
}

// onMaskOrder applies the supervisors' order. It always answers, because a repeated order shows that an answer was
// lost.
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

// changeMask is the only writer of the wanted mask. It informs neighbours at once, and supervisors when the mask is
// stored.
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

// peerMasked records a mask change at the neighbour's end.
func (m *Machine) peerMasked(now time.Time, l *link) {
	if more, ok := l.maskNotes.take(now, "changes"); ok {
		m.note(NoteMask, "link %s: masked by the neighbour %t%s", l.dir, l.peer.Masked, more)
	}
	if l.peer.Masked {
		m.reroute(now, l)
	}
}

// settleMask brings the wanted mask into force where possible.
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

// tickMask brings the wanted mask into force, stores it again if the disk has refused it, and reports it to the
// supervisors.
func (m *Machine) tickMask(now time.Time) {
	m.settleMask(now)
	m.out.SaveMask = m.mask.StoresAgain(now) || m.out.SaveMask
	if !m.mask.Tells(now) {
		return
	}
	m.mask.Tell(time.Time{})
	if m.mask.speaks() {
		m.mask.Tell(now.Add(maskAgain))
	}
	m.answerOrder(0, &lofamov1.Message{Body: &lofamov1.Message_MaskStatus{MaskStatus: &lofamov1.MaskStatus{
		Node: string(m.self), Half: lofamov1.Half_HALF_DNP, Epoch: uint64(m.Epoch()), Number: m.mask.State.Number,
		Ordered: uint32(m.mask.State.Ordered), Own: uint32(m.mask.State.OwnWord() & m.mask.base), InForce: uint32(m.mask.force),
		Lost: m.mask.Lost,
	}}})
}

// MaskView is the channel mask of this node, for display.
type MaskView struct {
	State      chanmask.State
	Configured chanmask.Mask // channels that the configuration leaves usable
	InForce    chanmask.Mask // at this end
	Links      chanmask.Mask // links that the node has
	Peers      chanmask.Mask // channels that the neighbours leave usable, by their last status
	Lost       bool
}

// Masks returns the channel mask of this node, for display.
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

// Mask returns the channel mask to store, and the mask in force.
func (m *Machine) Mask() (chanmask.State, chanmask.Mask) { return m.mask.State, m.mask.force }

package dnpcore

import (
	"time"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// link holds the machine's state of one direction.
type link struct {
	dir      grid.Direction
	dst      grid.Coord
	machine  *torus.Link
	session  bool         // a handshake has succeeded: frames can be sent
	detail   torus.Detail // without the loss rate
	loss     uint16       // as last written
	peer     torus.PeerStatus
	wake     time.Time
	stats    torus.LinkStats // at the last look
	bucket   bucket
	bulk     bucket // for back messages
	cause    uint32 // as last written
	hop      *torus.Hop
	ackDue   bool        // acknowledge received messages with this step
	swap     bool        // a message took the slot of one that is in flight there
	rxEpoch  fault.Epoch // the neighbour's at the start of its present stream; 0: not known, or of another session
	protocol [halfcore.Rules]uint64

	maskNotes noteLimit // about the neighbour's mask
}

func newLink(cfg Config, d grid.Direction, now time.Time) (*link, error) {
	dst, _ := cfg.Topo.Dims.Neighbour(cfg.Topo.Coord, d)
	p := cfg.Periods
	lc := torus.LinkConfig{
		Dir: d, Src: cfg.Topo.Coord, Dst: dst,
		Period: p.LinkPeriod, Misses: p.LinkMisses, Grace: cfg.LinkGrace,
		SickRatio: p.LinkSickRatio, ClearRatio: p.LinkClearRatio, Window: p.LinkWindow, MinErrors: p.LinkMinErrors,
		HoldOff: p.LinkHoldOff,
	}
	if err := lc.Validate(); err != nil {
		return nil, err
	}
	l := &link{dir: d, dst: dst, machine: torus.NewLink(lc, now), wake: now, bucket: newBucket(cfg.RelayRate, cfg.RelayRate, now),
		bulk: newBucket(cfg.BulkRate, cfg.BulkBurst, now), cause: watchdog.BitOfMap}
	l.detail = l.machine.Detail()
	return l, nil
}

// extension returns the detail word.
func (l *link) extension() Extension {
	d := l.detail
	if !d.Silent {
		d.Loss = l.loss
	}
	return Extension{l.dir, d.Encode()}
}

// usable reports whether a message sent by the link is likely to arrive soon. A neighbour that is being restarted does
// not read its messages yet.
func (l *link) usable() bool {
	return l.session && l.detail.State() != torus.LinkBroken && !l.detail.Restarting
}

// informed reports whether the neighbour's status is currently known.
func (l *link) informed() bool {
	return !l.detail.Silent && l.detail.Rx != torus.LinkUnknown && l.detail.Rx != torus.LinkBroken
}

// status returns the status of this node that every frame by a link carries.
func (m *Machine) status(l *link) torus.Status {
	w := m.word
	w.Valid = true
	m.told = m.hostStatus()
	return torus.Status{
		Epoch: m.sender.Epoch(), DNP: w.Encode(), Host: m.told.Host, HostDead: m.told.HostDead,
		Hops: !m.cfg.NoHops, Diagnosis: !m.cfg.NoHops, Express: m.express.machine != nil, Masked: !m.mask.wanted().Usable(l.dir),
	}
}

func (m *Machine) tickLink(now time.Time, l *link) {
	out := l.machine.Step(now, torus.Tick{})
	m.afterLink(now, l, &out)
	m.sendOwn(l, &out)
	if out.Redial || !l.session {
		m.redial = append(m.redial, l.dir)
	}
	m.resend(now, l)
}

// beat sends the status by a link.
func (m *Machine) beat(l *link) {
	if l.session {
		m.frames = append(m.frames, Outgoing{l.dir, l.machine.NextFrame(m.status(l))})
	}
}

// beatAll informs all neighbours at once: the host's state does not wait for the next heartbeat.
func (m *Machine) beatAll() {
	for _, l := range m.links {
		if l != nil {
			m.beat(l)
		}
	}
}

func (m *Machine) onFrame(now time.Time, ev *Frame) {
	l := m.links[ev.Dir.Index()]
	if l == nil {
		return
	}
	out := l.machine.Step(now, torus.FrameReceived{Frame: ev.Frame, Waited: ev.Waited, More: ev.More})
	m.afterLink(now, l, &out)
	if !out.Accepted {
		return
	}
	m.sendOwn(l, &out)
	switch ev.Frame.Type {
	case torus.TypeMessage:
		m.onMessage(now, l, ev.Frame.Payload, torus.HopHeader{})
	case torus.TypeHop:
		m.onHop(now, l, ev.Frame.Epoch, ev.Frame.Payload)
	case torus.TypeEureka:
		m.onExpress(now, l, ev.Frame.Payload)
	case torus.TypeBarrier:
		m.onBarrierFrame(now, l, ev.Frame.Payload)
	case torus.TypeTest:
		m.onTestFrame(now, l, ev.Frame.Payload)
	default: // frames without a payload, or with one not known here
	}
}

// onLink handles the events of a link other than frames.
func (m *Machine) onLink(now time.Time, ev Event) {
	switch ev := ev.(type) {
	case Bad:
		m.onBad(now, ev)
	case Session:
		m.onSession(now, ev)
	case Refused:
		m.onRefused(now, ev)
	}
}

func (m *Machine) onBad(now time.Time, ev Bad) {
	if l := m.links[ev.Dir.Index()]; l != nil {
		out := l.machine.Step(now, torus.FrameBad{Kind: ev.Kind, Count: ev.Count, More: ev.More})
		m.afterLink(now, l, &out)
	}
}

// onRefused checks the hint that the neighbour's process has ended: the link's machine asks for probes.
func (m *Machine) onRefused(now time.Time, ev Refused) {
	l := m.links[ev.Dir.Index()]
	if l == nil {
		return
	}
	out := l.machine.Step(now, torus.Refused{})
	m.afterLink(now, l, &out)
	m.sendOwn(l, &out)
}

// sendOwn sends the frames that the link's machine asks for.
func (m *Machine) sendOwn(l *link, out *torus.LinkOutput) {
	if out.SendHeartbeat {
		m.beat(l)
	}
	if out.SendAsk && l.session {
		m.frames = append(m.frames, Outgoing{l.dir, l.machine.NextAsk(m.status(l))})
	}
}

// onSession begins to send at once, because the first frame informs the neighbour of the session.
func (m *Machine) onSession(now time.Time, ev Session) {
	l := m.links[ev.Dir.Index()]
	if l == nil {
		return
	}
	out := l.machine.Step(now, torus.SessionStarted{ID: ev.ID})
	l.session = true
	l.rxEpoch = 0 // the neighbour's link may have begun anew: it led to another node for a moment
	m.afterLink(now, l, &out)
	m.beat(l)
	m.waysChanged(now)
}

// afterLink handles the output of a link machine's step.
func (m *Machine) afterLink(now time.Time, l *link, out *torus.LinkOutput) {
	l.wake = out.Wake
	if loss := l.machine.Loss(); loss != l.loss {
		l.loss = loss
		m.out.Details = append(m.out.Details, l.extension()) // for failure prediction; wakes no half
	}
	if !out.Changed && !out.PeerChanged {
		return
	}
	was, knew, masked := l.detail, l.peer.Hops, l.peer.Masked
	if out.Changed {
		m.linkChanged(now, l, out.Detail)
	}
	l.peer = out.Peer
	m.neighbourChanged(l)
	m.hopChanged(now, l, was, knew)
	m.waysChanged(now)
	if l.peer.Masked != masked {
		m.peerMasked(now, l)
	}
}

func (m *Machine) linkChanged(now time.Time, l *link, d torus.Detail) {
	if d == l.detail {
		return
	}
	m.note(NoteLink, "link %s: %s (was %s)", l.dir, d, l.detail)
	l.detail = d
	m.word.Links[l.dir.Index()] = linkHealth(d.State())
	m.out.Details = append(m.out.Details, l.extension())
	m.out.Ring = true
	m.exceptions.level(watchdog.AddrChannel(l.dir), watchdog.ChannelSilence, d.Silent)
	m.exceptions.level(watchdog.AddrChannel(l.dir), watchdog.ChannelHandshake, d.Handshake)
	m.stateLink(now, l)
}

// stateLink reports the link while this half speaks; otherwise the host half reports it.
func (m *Machine) stateLink(now time.Time, l *link) {
	state, kind, detail := fault.Unknown, fault.KindSelf, ""
	switch l.detail.State() {
	case torus.LinkNormal:
		state = fault.Normal
	case torus.LinkSick:
		state, kind = fault.Sick, fault.KindErrorRatio
		if l.detail.Restarting { // as the neighbour announced
			kind, detail = fault.KindDescriptor, "restarting"
		} else if l.detail.ExpressDeaf && l.detail.Rx == torus.LinkNormal {
			detail = torus.DeafDetail
		}
	case torus.LinkBroken:
		if l.detail.Silent {
			m.failed(now, fault.Link(l.dir), fault.KindSilence, "", l.detail.HeardAge, l.detail.Refused(m.cfg.Periods.Link()))
			return
		}
		state, kind = fault.Failed, fault.KindHandshake
	default:
	}
	m.state(now, fault.Link(l.dir), state, kind, detail)
}

// linkHealth returns the link's field of Table III. The field cannot express unknown; the detail can.
func linkHealth(s torus.LinkState) watchdog.Health {
	switch s {
	case torus.LinkSick:
		return watchdog.HealthSick
	case torus.LinkBroken:
		return watchdog.HealthBroken
	default:
		return watchdog.HealthNormal
	}
}

// neighbourChanged writes the state of a neighbour's host into the bit and the nibble of its direction: a bit with an
// empty nibble is a breakdown, one with a nibble lists the broken parts (§IV-B, Tables III and V). Over a silent link
// both are cleared, because the state is unknown. The last cause before a breakdown stays on the extension page until
// the host lives again.
//
// A neighbour whose window to its host is silent, or whose DNP half has just started, sends a host word that is not valid, and does not
// call the host dead. Then the fault map decides (DeadHosts). The DNP half sets BitOfMap in the word of the last cause, so that the host
// half does not report the verdict as its own evidence.
func (m *Machine) neighbourChanged(l *link) {
	i := l.dir.Index()
	var failed bool
	var faults watchdog.NeighbourFaults
	if l.informed() {
		word, err := watchdog.DecodeHostWord(l.peer.Host)
		switch {
		case l.peer.HostDead, err == nil && !word.Valid && m.deadHosts.dead[i]:
			failed = true
			cause := l.cause &^ watchdog.BitOfMap
			if err == nil && word.Faults().Any() {
				cause = l.peer.Host &^ watchdog.ValidBit
			}
			if !l.peer.HostDead {
				cause |= watchdog.BitOfMap
			}
			m.storeCause(l, cause)
		default:
			m.storeCause(l, watchdog.BitOfMap)
			if err == nil {
				faults = word.Faults()
				failed = faults.Any()
			}
		}
	}
	if m.word.NeighbourHostFailed[i] == failed && m.descriptor.Neighbours[i] == faults {
		return
	}
	m.word.NeighbourHostFailed[i], m.descriptor.Neighbours[i] = failed, faults
	m.out.WriteDescriptor, m.out.Ring = true, true
	m.note(NoteNeighbour, "neighbour host %s: failed %t, descriptor %+v", l.dir, failed, faults)
}

func (m *Machine) storeCause(l *link, raw uint32) {
	if raw != l.cause {
		l.cause = raw
		m.out.Causes = append(m.out.Causes, Extension{l.dir, raw})
	}
}

// watchChannels raises the channel bits of the counters that moved since the last look.
func (m *Machine) watchChannels(now time.Time) {
	for _, l := range m.links {
		if l == nil {
			continue
		}
		s, was := l.machine.Stats(), l.stats
		l.stats = s
		var bits uint32
		for _, c := range [...]struct {
			bit      uint32
			now, was uint64
		}{
			{watchdog.ChannelCRC, s.CRC + s.CRCStrange, was.CRC + was.CRCStrange},
			{watchdog.ChannelMAC, s.MAC, was.MAC},
			{watchdog.ChannelMalformed, s.Malformed, was.Malformed},
			{watchdog.ChannelGap, s.Lost, was.Lost},
			{watchdog.ChannelReplay, s.Replays, was.Replays},
		} {
			if c.now > c.was {
				bits |= c.bit
			}
		}
		if bits != 0 {
			m.raise(now, watchdog.AddrChannel(l.dir), bits)
		}
		if n := s.Ahead - was.Ahead; n > 0 {
			m.breaks(now, l, halfcore.RuleOrder, n)
		}
	}
}

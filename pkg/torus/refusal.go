package torus

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Refused says that a frame of this end came back unread: the peer's kernel answered that no socket is bound to its
// address, as after the end of the peer's process. The owner has checked that the answer quotes that very frame, once
// for each frame; anybody can send the answer, but only who has seen the frame can quote it.
//
// It is a hint and no verdict. The machine then sends refuseProbes frames of TypeAsk within refuseWait, and a peer
// that lives proves it by any frame. The link is silent only if no frame has come, a heartbeat of the peer is overdue by
// refuseWait, and the kernel refused every one of these frames too. So a host that rejects our frames with the same
// answer, while the frames of its living half arrive, makes no silent link. Hints about a peer that does not set
// FlagAnswers change nothing while its frames arrive: that peer is not asked. If the peer is already silent, a hint makes
// the machine set Redial at its next Tick, with or without that flag.
type Refused struct{}

func (Refused) linkEvent() {}

// refuseProbes is the number of frames that must come back as well.
const refuseProbes = 2

// refusal is the checking of a hint:
//
//	none ──Refused──► asking ──all refused, refuseWait over, heartbeat overdue──► the link is silent
//	  ▲                 │
//	  └── a frame, or silent by the heartbeats
//
// A check that a frame ended counts as refuted: the next one begins SilentAfter later or not at all.
type refusal struct {
	since  time.Time // of the check that runs; zero: none does
	count  int       // frames refused since then, the first included
	probes int       // sent since then
	next   time.Time // no check begins before
}

// refuseWait is the least time from the first refusal to the verdict, and from the due time of a missing heartbeat.
func (l *Link) refuseWait() time.Duration { return l.cfg.Period / 4 }

// refused handles a refused frame, and reports whether to ask the peer now.
func (l *Link) refused(now time.Time) (ask bool) {
	r := &l.refusal
	switch {
	case l.rx == LinkBroken && !l.hearing:
		l.peerEnded = true
		return false
	case !l.hearing || l.restart.on || !l.peer.Answers:
		return false
	case !r.since.IsZero():
		r.count++
		return false
	case now.Before(r.next):
		return false
	}
	*r = refusal{since: now, count: 1, probes: 1, next: now.Add(l.cfg.SilentAfter())}
	return true
}

// asks reports whether to ask the peer again.
func (l *Link) asks(now time.Time) bool {
	if !due(now, l.askAt()) {
		return false
	}
	l.refusal.probes++
	return true
}

// askAt returns when to ask the peer again; zero: not at all.
func (l *Link) askAt() time.Time {
	r := &l.refusal
	if r.since.IsZero() || r.probes >= refuseProbes {
		return time.Time{}
	}
	return r.since.Add(l.refuseWait() * time.Duration(r.probes) / refuseProbes)
}

// refusedAt returns when a link whose probes were all refused is silent; zero: not for that reason.
func (l *Link) refusedAt() time.Time {
	r := &l.refusal
	if r.since.IsZero() || r.probes < refuseProbes || r.count <= r.probes {
		return time.Time{}
	}
	overdue := l.stats.LastHeard.Add(l.cfg.Period)
	return fault.Later(fault.Later(r.since, overdue).Add(l.refuseWait()), l.inTimeSince())
}

// endRefusal ends the check of a hint.
func (l *Link) endRefusal() { l.refusal = refusal{next: l.refusal.next} }

// answers reports whether to answer a frame: it asks for that, and the last answer is not too recent.
func (l *Link) answers(now time.Time, f *Frame) bool {
	if f.Type != TypeAsk || now.Before(l.answerAt) {
		return false
	}
	l.answerAt = now.Add(l.cfg.Period / 16)
	return true
}

// NextAsk returns the frame to send now instead of NextFrame, when LinkOutput.SendAsk is set.
func (l *Link) NextAsk(st Status) Frame {
	l.SetStatus(st)
	f := Frame{Type: TypeAsk}
	l.Fill(&f)
	return f
}

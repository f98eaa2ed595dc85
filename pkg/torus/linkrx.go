package torus

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// receive handles an authentic frame and reports whether it is new and of this link.
func (l *Link) receive(now time.Time, ev *FrameReceived) bool {
	f := &ev.Frame
	if f.Direction != l.cfg.Dir.Opposite() || f.Src != l.cfg.Dst || f.Dst != l.cfg.Src {
		l.stats.Misrouted++
		return false
	}
	forgive := l.forgive || !l.hearing || f.Type == TypeRestarting
	if ev.More {
		if held, fresh := l.holdBack(now, f, forgive); held {
			return l.overtook(now, ev, fresh)
		}
	}
	gap, verdict := l.seq.accept(f.Session, f.Epoch, f.Seq, forgive)
	switch verdict {
	case seqDuplicate:
		l.stats.Duplicates++
		return false
	case seqReplay:
		l.stats.Replays++
		return false
	case seqLate:
		l.stats.Late++
	case seqNext:
		if now.After(l.doubtUntil) {
			l.forgive = false
		}
		l.countCRC(gap)
	}
	l.stats.Received++
	l.resumed = false
	if verdict == seqNext && f.Type == TypeRestarting {
		was := l.peer // the announcer does not know the half's capabilities
		l.peer = peerStatus(f)
		l.peer.Hops, l.peer.Diagnosis, l.peer.Express, l.peer.Masked = was.Hops, was.Diagnosis, was.Express, was.Masked
		l.peer.Answers = was.Answers
		l.announced(now, f.Payload)
		return true
	}
	if verdict == seqNext && !l.restart.first.IsZero() {
		l.becomeRestarted()
	}
	l.release(now)
	l.heard(now, f, verdict, now.Add(-ev.Waited))
	return true
}

// overtook handles a frame whose number is held back.
func (l *Link) overtook(now time.Time, ev *FrameReceived, fresh bool) bool {
	if !fresh {
		l.stats.Duplicates++
		return false
	}
	l.stats.Received++
	l.resumed = false
	l.heard(now, &ev.Frame, seqLate, now.Add(-ev.Waited))
	return true
}

// heard handles a sign of life that arrived at the given time. A frame that the announcement of a restart overtook is none.
func (l *Link) heard(now time.Time, f *Frame, verdict seqVerdict, at time.Time) {
	if l.restart.on || f.Type == TypeRestarting {
		return
	}
	l.stats.LastHeard = fault.Later(l.stats.LastHeard, at)
	l.endDoubt()
	l.endRefusal()
	if !l.hearing {
		l.hearing, l.hearingSince = true, at
	}
	if l.rx == LinkUnknown {
		l.becomeNormalRx()
	}
	if verdict == seqNext {
		l.peer = peerStatus(f)
		l.takeAck(now, f)
	}
}

func peerStatus(f *Frame) PeerStatus {
	return PeerStatus{
		DNP: f.DNP, Host: f.Host, HostDead: f.Flags&FlagHostDead != 0, Hops: f.Flags&FlagHops != 0, Diagnosis: f.Flags&FlagDiagnosis != 0,
		Express: f.Flags&FlagExpress != 0,
		Masked:  f.Flags&FlagMasked != 0, Answers: f.Flags&FlagAnswers != 0, Epoch: f.Epoch,
	}
}

// countCRC sorts the damaged frames seen since the last authentic one: as many as are missing from the sequence were
// the peer's, the others anyone's.
func (l *Link) countCRC(gap uint64) {
	own := min(l.crcPending, gap)
	l.stats.CRC += own
	l.stats.CRCStrange += l.crcPending - own
	l.crcPending = 0
}

// silenceAt returns when the link becomes silent without further frames; zero if it is silent already.
func (l *Link) silenceAt() time.Time {
	owed := l.owedAt()
	if owed.IsZero() {
		return owed
	}
	at := fault.Later(owed, l.inTimeSince())
	if l.hearing {
		at = fault.Earliest(at, l.refusedAt())
	}
	return at
}

// owedAt is silenceAt of an end that is never late.
func (l *Link) owedAt() time.Time {
	switch {
	case l.restart.on:
		silent := l.stats.LastHeard.Add(l.silentAfter())
		if l.stats.LastHeard.IsZero() {
			silent = l.start.Add(l.cfg.grace())
		}
		return fault.Later(l.restart.until, silent)
	case l.hearing:
		return l.stats.LastHeard.Add(l.silentAfter())
	case l.rx == LinkUnknown:
		return l.start.Add(l.cfg.grace())
	case l.resumed && l.rx != LinkBroken:
		return l.start.Add(l.silentAfter())
	}
	return time.Time{}
}

// rxClearAt returns when a broken or sick receiving way has been good for the hold-off; zero while it is not good.
func (l *Link) rxClearAt() time.Time {
	switch {
	case l.rx == LinkBroken && l.hearing:
		return l.hearingSince.Add(l.cfg.holdOff())
	case l.rx == LinkSick && !l.restart.on && !l.cleanSince.IsZero():
		return l.cleanSince.Add(l.cfg.holdOff())
	}
	return time.Time{}
}

func due(now, at time.Time) bool { return !at.IsZero() && !now.Before(at) }

func (l *Link) judgeRx(now time.Time) {
	if due(now, l.silenceAt()) {
		if l.resumed && !l.restart.on && l.rx != LinkUnknown {
			l.becomeUnknown()
		} else {
			l.becomeSilent(now)
		}
		return
	}
	if l.restart.on {
		return // until a frame comes
	}
	l.release(now)
	frames, errors := l.seq.judged()
	ratio := errorRatio(errors, frames)
	sick := errors >= l.cfg.MinErrors && ratio > l.cfg.SickRatio
	switch l.rx {
	case LinkUnknown: // until the first frame, which does not wait for this
	case LinkNormal:
		if sick {
			l.becomeSick()
		}
	case LinkSick:
		switch {
		case ratio > l.cfg.ClearRatio:
			l.cleanSince = time.Time{}
		case l.cleanSince.IsZero():
			l.cleanSince = now
		case due(now, l.rxClearAt()):
			l.becomeNormalRx()
		}
	case LinkBroken:
		paused := l.heardAtOnce() || l.peerPaused() && l.excused(now)
		if paused || due(now, l.rxClearAt()) {
			wasSick := paused && l.before == LinkSick
			l.becomeNormalRx()
			if sick || wasSick {
				l.becomeSick()
			}
		}
	}
}

// heardAtOnce reports whether a machine that has resumed a silent link hears the peer within SilentAfter. The silence then
// ended while no process was reading, or at once after that. A machine that starts without a copy has no hold-off.
func (l *Link) heardAtOnce() bool {
	return l.broke && l.hearing && l.hearingSince.Sub(l.start) < l.cfg.SilentAfter() && !l.peerDeaf
}

// peerPaused reports whether a pause of the peer explains the silence: frames came again within maxPause·SilentAfter, no
// sequence number is missing, and the peer heard this end. (Frames that the network has delayed look the same.)
func (l *Link) peerPaused() bool {
	return l.silent && l.hearing && l.hearingSince.Sub(l.silentFrom) < maxPause*l.cfg.SilentAfter() && !l.peerDeaf &&
		len(l.heldBack.numbers) == 0 && l.seq.lostNothing()
}

// needsSession reports whether to request a new session because the peer may have lost the old one. It waits while a pause
// of the peer may explain the silence: the sequence numbers of a new session cannot prove that no frame was lost. It waits
// at most half a Grace, because a peer that has just started needs its session within Grace. A resumed link that has heard
// nothing waits silentAfter. While the peer is away as announced, the link waits longer than a restart takes (restartWait): a half that
// restarts resumes its session, but a half that has begun its link again has none.
func (l *Link) needsSession(now time.Time) bool {
	switch {
	case l.hearing:
		return false
	case l.restart.on:
		return now.Sub(l.restart.first) >= min(restartWait, l.cfg.grace()/2)
	case l.rx == LinkBroken:
		return l.peerEnded || now.Sub(l.silentFrom) >= min(maxPause*l.cfg.SilentAfter(), l.cfg.grace()/2)
	}
	return l.resumed && l.rx == LinkUnknown && now.Sub(l.start) >= l.silentAfter()
}

// excused reports whether a pause that has just ended needs no hold-off, and counts it: within a HoldOff, at most maxExcused do.
func (l *Link) excused(now time.Time) bool {
	oldest := &l.excuses[l.excuse]
	if !oldest.IsZero() && now.Sub(*oldest) < l.cfg.holdOff() {
		l.silentFrom = time.Time{} // this silence ends by HoldOff
		return false
	}
	*oldest, l.excuse = now, (l.excuse+1)%maxExcused
	return true
}

// errorRatio is errors over frames received or missing (seed 001 §IV-B).
func errorRatio(errors, frames int) float64 {
	if frames == 0 {
		return 0
	}
	return float64(errors) / float64(frames)
}

// becomeUnknown gives up an earlier life's view of a link that is silent now. The peer may have stopped with us, as
// in a restart of the whole cluster, and gets the grace of a start.
func (l *Link) becomeUnknown() {
	l.endDoubt()
	l.setRx(LinkUnknown, false, 0)
}

func (l *Link) becomeNormalRx() { l.setRx(LinkNormal, false, 0) }
func (l *Link) becomeSick()     { l.setRx(LinkSick, false, 0) }

// becomeSilent breaks the receiving way, or finds a broken one silent again within its hold-off, which is no change.
// From here on it is unknown which of our frames the peer receives.
func (l *Link) becomeSilent(now time.Time) {
	was := l.rx
	if l.restart.on {
		was = l.restart.was // SICK only for the time of the restart
	}
	l.peerEnded = due(now, l.refusedAt())
	l.hearing, l.restart.on = false, false
	l.endRefusal()
	l.tx, l.ackingSince = LinkUnknown, time.Time{}
	if l.rx == LinkBroken {
		return
	}
	l.seq.fallSilent()
	since := l.stats.LastHeard
	if since.IsZero() {
		since = l.start
	}
	l.silentFrom, l.before = since, was
	l.setRx(LinkBroken, true, now.Sub(since))
}

func (l *Link) setRx(s LinkState, silent bool, heardAge time.Duration) {
	l.rx, l.silent, l.broke, l.heardAge = s, silent, false, heardAge.Truncate(time.Millisecond)
	l.cleanSince = time.Time{}
}

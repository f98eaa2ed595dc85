package torus

import (
	"cmp"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// takeAck handles the newest frame's acknowledgement of our frames. An acknowledgement from a peer that calls itself
// deaf is an old one.
func (l *Link) takeAck(now time.Time, f *Frame) {
	deaf := f.Flags&FlagDeaf != 0
	l.peerDeaf = deaf
	if deaf {
		l.ackingSince = time.Time{}
	}
	if f.Session == l.txSession && f.Ack > l.txSeq {
		l.stats.Ahead++
	}
	if deaf || f.Session != l.txSession || f.Ack <= l.acked || f.Ack > l.txSeq {
		return
	}
	l.acked, l.unackedSince = f.Ack, time.Time{}
	if l.timedSeq != 0 && f.Ack >= l.timedSeq {
		l.timed(now.Sub(l.timedAt))
	}
	if f.Ack < l.txSeq {
		l.unackedSince = now
	}
	switch {
	case l.tx == LinkUnknown:
		l.becomeHeard()
	case l.tx == LinkBroken && l.ackingSince.IsZero():
		l.ackingSince = now
	}
}

// timed measures one round trip. It is for people: no decision depends on it.
func (l *Link) timed(d time.Duration) {
	l.timedSeq = 0
	l.stats.RoundTrip = cmp.Or(l.stats.RoundTrip, d)
	l.stats.RoundTrip += (d - l.stats.RoundTrip) / 8
}

// unheardAt returns when the peer counts as not hearing us, unless its acknowledgement moves before; it is zero when
// no acknowledgement is due. The time counts only while we hear the peer. A peer that does not call itself deaf may
// be waiting longer because frames on the way to it are lost.
func (l *Link) unheardAt() time.Time {
	if !l.hearing || l.unackedSince.IsZero() || l.tx == LinkBroken && l.ackingSince.IsZero() {
		return time.Time{}
	}
	since := fault.Later(l.unackedSince, l.hearingSince)
	wait := l.cfg.UnheardAfter()
	if !l.peerDeaf {
		wait += time.Duration(max(0, MaxMisses-l.cfg.Misses)) * l.cfg.Period
	}
	return fault.Later(since, l.doubtUntil).Add(wait)
}

// txClearAt returns when a broken sending way has been acknowledged for the hold-off.
func (l *Link) txClearAt() time.Time {
	if l.tx != LinkBroken || l.ackingSince.IsZero() {
		return time.Time{}
	}
	return l.ackingSince.Add(l.cfg.holdOff())
}

func (l *Link) judgeTx(now time.Time) {
	switch {
	case due(now, l.unheardAt()):
		l.becomeUnheard()
	case due(now, l.txClearAt()):
		l.becomeHeard()
	}
}

func (l *Link) becomeHeard() { l.tx, l.ackingSince = LinkNormal, time.Time{} }

// becomeUnheard breaks the sending way: the handshake of §IV-B is lost in this direction.
func (l *Link) becomeUnheard() { l.tx, l.ackingSince = LinkBroken, time.Time{} }

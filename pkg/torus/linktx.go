package torus

import "time"

// takeAck takes what the newest frame says of our own frames. An acknowledgement from a peer that
// calls itself deaf is an old one.
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

// timed takes the time of one round trip. It is for people: nothing is decided by it.
func (l *Link) timed(d time.Duration) {
	l.timedSeq = 0
	if l.stats.RoundTrip == 0 {
		l.stats.RoundTrip = d
	}
	l.stats.RoundTrip += (d - l.stats.RoundTrip) / 8
}

// unheardAt is when the peer must be taken not to hear us, if its acknowledgement does not move
// before; zero when there is nothing to wait for. The time counts only while the peer is heard. A
// peer that does not call itself deaf may be waiting longer because we lose frames on the way to it.
func (l *Link) unheardAt() time.Time {
	if !l.hearing || l.unackedSince.IsZero() || l.tx == LinkBroken && l.ackingSince.IsZero() {
		return time.Time{}
	}
	since := latest(l.unackedSince, l.hearingSince)
	wait := l.cfg.UnheardAfter()
	if !l.peerDeaf {
		wait += time.Duration(max(0, MaxMisses-l.cfg.Misses)) * l.cfg.Period
	}
	return latest(since, l.doubtUntil).Add(wait)
}

// txClearAt is when a broken sending way has been acknowledged for the hold-off.
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

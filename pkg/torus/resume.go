package torus

import (
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// LinkSnapshot is the state from which a link machine resumes after its process was killed: the numbers of both ways,
// and their judged states. It is stored before any frame that uses a number or acknowledges one, so that the peer
// never sees a frame that is not in it (seed 000 §4.1). It omits the sick ratio's window and the counters for people.
type LinkSnapshot struct {
	// Sending: the session, the last number given out, the highest acknowledged.
	TxSession uint32
	TxSeq     uint64
	Acked     uint64
	// Receiving: the session and epoch that are followed, the highest number, and a bit for each of those below that
	// came; and the session that is awaited, when one is.
	Started   bool
	Awaiting  bool
	RxSession uint32
	Next      uint32
	PeerEpoch fault.Epoch
	High      uint64
	Replay    uint64
	// The judged state of either way.
	Rx, Tx   LinkState
	Silent   bool
	HeardAge time.Duration
	Peer     PeerStatus // by the newest frame
}

// Snapshot returns the state for ResumeLink.
func (l *Link) Snapshot() LinkSnapshot {
	s, rx := &l.seq, l.rx
	if l.restart.on {
		rx = l.restart.was
	}
	return LinkSnapshot{
		TxSession: l.txSession, TxSeq: l.txSeq, Acked: l.acked,
		Started: s.started, Awaiting: s.awaiting, RxSession: s.session, Next: s.next, PeerEpoch: s.epoch, High: s.high, Replay: s.replay,
		Rx: rx, Tx: l.tx, Silent: l.silent, HeardAge: l.heardAge, Peer: l.peer,
	}
}

// Forget keeps the numbers and drops the judged state of the link, which is too old.
func (s LinkSnapshot) Forget() LinkSnapshot {
	s.Rx, s.Tx, s.Silent, s.HeardAge, s.Peer = LinkUnknown, LinkUnknown, false, 0, PeerStatus{}
	return s
}

// ResumeLink starts a machine at now that resumes where another one, of a process that is gone, stopped. Silence in
// between is not held against the peer: no process was reading. A way that was good counts as good until it has been
// silent for as long as makes a link silent; from then on its state is unknown, as at a start. A broken one is broken
// until it is good again. It is good at once if the machine hears the peer within that time: the silence may have ended
// before the start.
func ResumeLink(cfg LinkConfig, now time.Time, s LinkSnapshot) *Link {
	l := NewLink(cfg, now)
	if !s.Rx.Valid() || !s.Tx.Valid() {
		return l // not a snapshot: begin cold
	}
	l.txSession, l.txSeq, l.acked = s.TxSession, s.TxSeq, s.Acked
	q := &l.seq
	q.awaiting, q.next, q.session = s.Awaiting, s.Next, s.RxSession
	if s.Started {
		q.begin(s.PeerEpoch, s.High)
		q.replay = s.Replay
	}
	l.rx, l.tx, l.silent, l.heardAge, l.peer = s.Rx, s.Tx, s.Silent, s.HeardAge, s.Peer
	l.resumed, l.broke = true, s.Rx == LinkBroken && s.Silent
	l.doubtUntil, l.forgive = now.Add(cfg.Period), true
	l.last = l.Detail()
	return l
}

// Unheard reports whether the machine resumes another one and has not received a frame yet: its states are the earlier ones.
func (l *Link) Unheard() bool { return l.resumed }

// ResumeSession returns a session with the last sealed sequence number: the next one must be above it.
func ResumeSession(id uint32, txKey, rxKey [KeySize]byte, lastSeq uint64) *Session {
	s := NewSession(id, txKey, rxKey)
	s.lastSeq = lastSeq
	return s
}

// Keys returns the secret keys that ResumeSession requires besides the last sequence number.
func (s *Session) Keys() (tx, rx [KeySize]byte) { return s.txKey, s.rxKey }

// String names the session without its keys.
func (s *Session) String() string { return fmt.Sprintf("session %08x", s.id) }

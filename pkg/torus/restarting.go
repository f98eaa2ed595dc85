package torus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// MaxRestarting bounds how long announcements hold back the judgement of silence, from the first one that follows an
// ordinary frame. So no announcer can put it off forever.
const MaxRestarting = 30 * time.Second

// restartWait is how long a peer may be away as announced before this end requests a new session. A half usually restarts within a second.
const restartWait = 2500 * time.Millisecond

// Restarting is the payload of a frame of TypeRestarting. The process that holds the sender's sockets and its copy
// says that the DNP half is gone and will be back. The frame is of the half's session and takes the next of its
// sequence numbers, but it is no sign of life: the half is not running.
//
//	offset  size  field
//	     0     4  milliseconds from the sending until the sender means to be back
//	     4     4  which attempt this is, from 1
//
// Additions of a later version follow, and are ignored.
type Restarting struct {
	Back    time.Duration // in whole milliseconds
	Attempt uint32
}

const restartingSize = 8

// ErrRestarting refuses the payload of a frame of TypeRestarting.
var ErrRestarting = errors.New("payload of a restarting frame is too short")

// Append encodes r at the end of dst.
func (r Restarting) Append(dst []byte) []byte {
	ms := min(max(0, r.Back.Milliseconds()), math.MaxUint32)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(dst, uint32(ms)), r.Attempt)
}

// DecodeRestarting reads the payload of a frame of TypeRestarting.
func DecodeRestarting(b []byte) (Restarting, error) {
	if len(b) < restartingSize {
		return Restarting{}, fmt.Errorf("%d bytes, want %d: %w", len(b), restartingSize, ErrRestarting)
	}
	return Restarting{
		Back:    time.Duration(binary.BigEndian.Uint32(b)) * time.Millisecond,
		Attempt: binary.BigEndian.Uint32(b[4:]),
	}, nil
}

// RestartingFrame makes the announcement out of a frame that has everything but type, flag and payload: way,
// coordinates, session, epoch, the next sequence number, the acknowledgement and the watchdog words as the half left
// them, and FlagHostDead if its host half is dead too. Meanwhile no other sender may use the session.
func RestartingFrame(of Frame, r Restarting) Frame {
	of.Type = TypeRestarting
	of.Flags |= FlagRestart
	of.Payload = r.Append(nil)
	return of
}

// restart is a link's knowledge of its peer's restart.
type restart struct {
	on    bool      // the peer's half is gone, and the judgement is held back
	was   LinkState // the state of the receiving way once the half is back
	first time.Time // the first announcement since an ordinary frame; zero: none
	until time.Time // when the peer means to be back
}

// announced handles an announcement. Further ones after the bound change nothing.
func (l *Link) announced(now time.Time, payload []byte) {
	r, err := DecodeRestarting(payload)
	if err != nil {
		l.stats.Malformed++
		return
	}
	l.stats.Restarting++
	if l.restart.first.IsZero() {
		l.restart.first = now
	}
	bound := l.restart.first.Add(MaxRestarting)
	if !now.Before(bound) {
		return
	}
	l.restart.until = fault.Earliest(now.Add(r.Back), bound)
	if !l.restart.on {
		l.becomeRestarting()
	}
}

// becomeRestarting makes the link sick: the peer's half is gone and has announced its return. The restart explains a
// silence that had broken the link.
func (l *Link) becomeRestarting() {
	was := LinkNormal
	if l.rx == LinkSick {
		was = LinkSick
	}
	l.setRx(LinkSick, false, 0)
	l.endDoubt()
	l.hearing = false
	l.restart.on, l.restart.was = true, was
}

// becomeRestarted ends the restart: an ordinary frame of the peer has come.
func (l *Link) becomeRestarted() {
	was := l.restart.was
	on := l.restart.on
	l.restart = restart{}
	if on {
		l.setRx(was, false, 0)
	}
}

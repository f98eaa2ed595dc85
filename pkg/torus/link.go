package torus

import (
	"errors"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// LinkState is one end's view of a link, or of one way of a link.
type LinkState uint8

// The states, in the order of severity.
const (
	LinkUnknown LinkState = iota + 1 // nothing heard yet, within the start-up grace
	LinkNormal
	LinkSick   // errors over frames received passed the threshold (seed 001 §IV-B), or the peer restarts
	LinkBroken // silent, or the peer does not hear us
)

var linkStateNames = [...]string{LinkUnknown: "UNKNOWN", LinkNormal: "NORMAL", LinkSick: "SICK", LinkBroken: "BROKEN"}

// String returns the state's name.
func (s LinkState) String() string {
	if s.Valid() {
		return linkStateNames[s]
	}
	return fmt.Sprintf("LinkState(%d)", uint8(s))
}

// Valid reports whether s is one of the states.
func (s LinkState) Valid() bool { return s >= LinkUnknown && s <= LinkBroken }

// DefaultGrace is LinkConfig.Grace where that is 0.
const DefaultGrace = time.Second

// MaxReturns and MaxDoubt bound the doubt of an end that is late again and again and receives no frame of the peer.
// Without them, an end that is always late would never notice a death.
//
// The doubt ends after MaxReturns late steps that the peer could have ended by a frame. It also ends when this end has
// been in time without a frame for MaxDoubt times as long as makes a link silent. The period after each late step does
// not count, nor the time from the last step before the next one, at most a period too. So lateness hides a death for at
// most MaxDoubt times the silence, MaxReturns+2 absences and 2·(MaxReturns+2) periods. Without the absences that is 2 s
// at preset default, 0.64 s at fast and 21 s at relaxed. With absences as long as silence it is 4.55 s, 1.46 s and 55 s.
// On a link that loses frames, silence takes up to 17 periods.
const (
	MaxReturns = 32
	MaxDoubt   = 4
)

// maxPause bounds the silence that a pause of the peer may explain, in multiples of SilentAfter. A peer that is silent for
// longer has probably been found dead.
const maxPause = 4

// maxExcused bounds the pauses within one HoldOff after which a link is good again at once. A peer that pauses more often has a
// link that is BROKEN for HoldOff.
const maxExcused = 3

// MaxWindow bounds LinkConfig.Window, in frames: the machine keeps a byte for each.
const MaxWindow = 100_000

// LinkConfig is the fixed configuration of a link machine.
type LinkConfig struct {
	Dir grid.Direction // the way out of this node
	Src grid.Coord     // this node
	Dst grid.Coord     // the neighbour in direction Dir

	Period time.Duration // between heartbeats
	// Misses is the number of heartbeats that may be lost in a row, if the next is not late. The link is silent when
	// no authentic frame came for (Misses+1)·Period. It is unheard when the peer's acknowledgement stood still for
	// (Misses+2)·Period and the peer calls itself deaf. So Misses-1 may be lost with a whole period left for delay. A
	// link that loses frames may miss more: see ToleratedMisses.
	Misses int
	// Grace is the time after the start of the machine in which silence is no fault; 0 is DefaultGrace.
	Grace time.Duration

	SickRatio  float64 // sick above this share of lost frames, 0 to 1
	ClearRatio float64 // no longer sick at or below this share, at most SickRatio
	Window     int     // over this many last frames
	MinErrors  int     // and not below this number of lost ones
	// HoldOff is how long a link must be good before it leaves sick or broken. It delays good news only: bad news is
	// never held back. It counts as at least (Misses+2)·Period. There is none after a silence shorter than four
	// times SilentAfter in which no frame was lost: the peer paused. That holds for at most three pauses in a HoldOff.
	// There is none either after a silence that ended while no process of this end was reading: see ResumeLink.
	HoldOff time.Duration
}

// Validate names every field that is out of range.
func (c LinkConfig) Validate() error {
	var errs []error
	check := func(ok bool, field string, given any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("link %s: %s %v: want %s", c.Dir, field, given, want))
		}
	}
	check(c.Dir.Valid(), "Dir", uint8(c.Dir), "1 to 6")
	check(encodable(c.Src), "Src", c.Src, fmt.Sprintf("each part 0 to %d", grid.MaxSize-1))
	check(encodable(c.Dst), "Dst", c.Dst, fmt.Sprintf("each part 0 to %d", grid.MaxSize-1))
	check(c.Period > 0, "Period", c.Period, "more than 0")
	check(c.Misses >= 1 && c.Misses <= 1000, "Misses", c.Misses, "1 to 1000")
	check(c.Grace >= 0, "Grace", c.Grace, "0 or more")
	check(c.SickRatio > 0 && c.SickRatio < 1, "SickRatio", c.SickRatio, "above 0 and below 1")
	check(c.ClearRatio >= 0 && c.ClearRatio <= c.SickRatio, "ClearRatio", c.ClearRatio, fmt.Sprintf("0 to SickRatio (%v)", c.SickRatio))
	check(c.Window >= 10 && c.Window <= MaxWindow, "Window", c.Window, fmt.Sprintf("10 to %d", MaxWindow))
	check(c.MinErrors >= 1 && c.MinErrors <= c.Window, "MinErrors", c.MinErrors, fmt.Sprintf("1 to Window (%d)", c.Window))
	check(c.HoldOff >= 0, "HoldOff", c.HoldOff, "0 or more")
	return errors.Join(errs...)
}

// SilentAfter is the time without an authentic frame after which a link that loses nothing is
// silent.
func (c LinkConfig) SilentAfter() time.Duration { return time.Duration(c.Misses+1) * c.Period }

// UnheardAfter returns the time without progress of the peer's acknowledgement after which the peer counts as not
// hearing us. It is one period more than the peer itself needs to find us silent.
func (c LinkConfig) UnheardAfter() time.Duration { return time.Duration(c.Misses+2) * c.Period }

func (c LinkConfig) holdOff() time.Duration { return max(c.HoldOff, c.UnheardAfter()) }

func (c LinkConfig) grace() time.Duration {
	if c.Grace == 0 {
		return DefaultGrace
	}
	return c.Grace
}

// Status is this node's own status in every frame.
type Status struct {
	Epoch     fault.Epoch // boot epoch of this DNP half
	DNP, Host uint32      // watchdog words
	HostDead  bool        // this node's host half is stale
	Hops      bool        // this half understands hops
	Diagnosis bool        // this half passes probes on
	Express   bool        // and express broadcasts
	Masked    bool        // this half's channel mask keeps messages off this link
}

// PeerStatus is the neighbour's own status in its newest frame.
type PeerStatus struct {
	DNP, Host uint32
	HostDead  bool
	Hops      bool
	Diagnosis bool
	Express   bool
	Masked    bool // it sends no messages by this link, and wants none
	Answers   bool // it answers frames of TypeAsk
	Epoch     fault.Epoch
}

// LinkEvent is something that happens to a link: Tick, FrameReceived, FrameBad, SessionStarted, Refused or ExpressDeaf.
type LinkEvent interface{ linkEvent() }

// Tick is the passing of time. The owner steps every link with it at LinkOutput.Wake or before;
// coming later than a Period makes the machine doubt itself: the link is then not silent before the machine has been in
// time for as long as makes a link silent.
type Tick struct{}

// FrameReceived is a frame that Decode has accepted.
type FrameReceived struct {
	Frame  Frame
	Waited time.Duration // since it arrived
	// More: the frame waited in a second socket, and another event of the link follows at the same time. Nothing is judged
	// before it, because a frame that waited longer shows nothing about the ones behind it. The frame may have overtaken
	// frames of the first socket; those count as missing only if they do not come within a Period.
	More bool
}

// FrameBad is a packet that Decode has refused, see KindOf, or Count of them (0 is 1).
type FrameBad struct {
	Kind  BadKind
	Count uint64
	More  bool // as in FrameReceived
}

// SessionStarted says that a handshake has produced a session, to be used for sending from now on. Frames of the
// previous session are accepted until the first frame of the new one comes.
type SessionStarted struct{ ID uint32 }

// ExpressDeaf reports whether the neighbour leaves the pings of the express broadcast unanswered, though the link
// carries heartbeats.
type ExpressDeaf struct{ Deaf bool }

func (ExpressDeaf) linkEvent()    {}
func (Tick) linkEvent()           {}
func (FrameReceived) linkEvent()  {}
func (FrameBad) linkEvent()       {}
func (SessionStarted) linkEvent() {}

// LinkOutput lists the actions and the news for the owner after a step.
type LinkOutput struct {
	// SendHeartbeat, given for a Tick and for a frame that asks for it: send NextFrame now.
	SendHeartbeat bool
	// SendAsk, given for a Tick or Refused only: send NextAsk now.
	SendAsk bool
	// Accepted, for FrameReceived: the frame is new and of this link; its payload may be used.
	// Duplicates, replays and frames of a session or an epoch gone by are not accepted.
	Accepted bool
	// Redial: the peer is silent, or away as announced, and may have lost the session: request a handshake. It is set with every Tick while
	// that holds; the dialler limits the rate.
	Redial bool
	// Late: this step came so late that the machine doubts itself.
	Late bool

	State       LinkState
	Detail      Detail
	Changed     bool // State or Detail differs from the last step's
	Peer        PeerStatus
	PeerChanged bool
	Wake        time.Time // step with a Tick at this time, exactly
}

// LinkStats are counters since the start of the machine.
type LinkStats struct {
	Sent       uint64 // frames given out by Fill
	Received   uint64 // frames accepted
	Lost       uint64 // frames that never came, by the gaps in the sequence
	Late       uint64 // accepted, but out of order
	Duplicates uint64
	Replays    uint64 // older than the window, of an earlier session or epoch
	Misrouted  uint64 // authentic, but of another link's coordinates or direction
	CRC        uint64 // damaged frames that a gap in the sequence bears out
	CRCStrange uint64 // damaged frames without a matching gap: anyone can send those
	MAC        uint64 // forgeries
	Sessions   uint64 // packets of a session unknown here
	Malformed  uint64
	OwnLate    uint64    // steps at which this machine had to doubt itself
	Ahead      uint64    // frames that acknowledge numbers that this end has not sent: impossible
	Restarting uint64    // announcements that the peer's DNP half is being restarted
	LastHeard  time.Time // zero: never
	// RoundTrip is the smoothed time from a heartbeat to the first frame that acknowledges it; 0: none has yet. The
	// wait for the peer's next frame, up to a period, is in it.
	RoundTrip time.Duration

	WindowFrames, WindowErrors int // the present input of the sick ratio
}

// Link is the machine of one end of one link: per way, and for both together.
//
//	receiving:  UNKNOWN ──first frame──► NORMAL ◄──HoldOff at ClearRatio── SICK
//	               │                      │  └────── over SickRatio ──────►  │
//	               └─Grace──► BROKEN ◄────┴───── (Misses+1)·Period silent ───┘
//	                             ├── HoldOff of frames ──► NORMAL or SICK
//	                             └── frames again within maxPause·SilentAfter, none lost ──► NORMAL or SICK, as before
//
//	sending:    UNKNOWN ──ack moves──► NORMAL ──ack stands for (Misses+2)·Period──► BROKEN
//	                                      ◄──────── HoldOff of moving acks ────────────┘
//
//	restart:    any ──announcement──► SICK (restarting) ──frame──► NORMAL, or SICK as before
//	                                       └──until and silent──► BROKEN
//
// While a link is silent (and in the hold-off after), the sending way is UNKNOWN, because only the peer could report
// its state. The link is broken when either way is, else it has the state of the receiving way.
//
// It belongs to one goroutine. Its memory is bounded by LinkConfig.Window.
type Link struct {
	cfg   LinkConfig
	start time.Time
	wake  time.Time // result of the last step
	ran   time.Time // of the last step

	status   Status
	nextBeat time.Time

	// Doubt of ourselves: until doubtUntil nothing is held against the peer, and the first gap
	// that shows after it is forgiven too, for it began while we slept.
	doubtUntil time.Time
	forgive    bool
	returned   time.Time     // end of the last time away in which this end doubted itself; zero: there was none
	returns    int           // times away since the last sign of life, while the peer owed one
	waited     time.Duration // in time without one, before the last time away

	// Receiving way.
	rx           LinkState
	silent       bool                  // why rx is broken; with it stays heardAge
	heardAge     time.Duration         // from the last frame to the verdict of silence
	silentFrom   time.Time             // arrival of that last frame; the machine's start if there was none
	peerEnded    bool                  // the peer's kernel refuses frames of this end, so a pause cannot explain the silence
	before       LinkState             // the state of rx before the silence
	excuses      [maxExcused]time.Time // ends of the newest pauses that needed no hold-off: see excused
	excuse       int                   // index of the oldest
	hearing      bool                  // frames come now, regardless of rx
	hearingSince time.Time
	cleanSince   time.Time // of a sick link: since when at or below ClearRatio; zero: not
	seq          sequence
	heldBack     heldBack
	crcPending   uint64 // damaged frames since the last authentic one
	restart      restart
	refusal      refusal
	answerAt     time.Time // no frame of TypeAsk is answered before
	resumed      bool      // this machine resumes another one, and has not received a frame yet
	broke        bool      // the silence that rx is broken by began before this machine

	// Sending way.
	tx           LinkState
	txSession    uint32
	txSeq        uint64    // last given out
	acked        uint64    // highest that the peer has acknowledged
	timedSeq     uint64    // number of the frame that measures RoundTrip; 0: none in flight
	timedAt      time.Time // when it was due
	unackedSince time.Time // since when a frame waits for its acknowledgement; zero: none does
	ackingSince  time.Time // of a broken tx: since when acks move again; zero: they do not
	peerDeaf     bool      // by the newest frame

	expressDeaf bool // set by the owner

	peer  PeerStatus
	last  Detail
	stats LinkStats
}

// NewLink starts a machine at now. The configuration must have passed Validate.
func NewLink(cfg LinkConfig, now time.Time) *Link {
	if err := cfg.Validate(); err != nil {
		panic("torus: NewLink with a configuration that was not validated: " + err.Error())
	}
	l := &Link{cfg: cfg, start: now, nextBeat: now, rx: LinkUnknown, tx: LinkUnknown}
	l.seq.init(cfg.Window)
	l.last = l.Detail()
	return l
}

// Config returns the machine's configuration.
func (l *Link) Config() LinkConfig { return l.cfg }

// Stats returns the counters.
func (l *Link) Stats() LinkStats {
	s := l.stats
	s.Lost = l.seq.lost
	s.WindowFrames, s.WindowErrors = l.seq.judged()
	return s
}

// State is the link as a whole.
func (l *Link) State() LinkState { return l.Detail().State() }

// Detail is the link way by way. A silent link says nothing of the sending way until it is good
// again, so that a flapping one does not change with every flap.
func (l *Link) Detail() Detail {
	d := Detail{Rx: l.rx, Tx: l.tx, Silent: l.silent, HeardAge: l.heardAge, Restarting: l.restart.on, ExpressDeaf: l.expressDeaf}
	if l.silent {
		d.Tx = LinkUnknown
	}
	d.Handshake = d.Tx == LinkBroken
	return d
}

// Loss returns the present sick ratio, in the unit of Detail.Loss; Detail leaves it out.
func (l *Link) Loss() uint16 {
	frames, errors := l.seq.judged()
	return uint16(min(errorRatio(errors, frames)*LossUnits, LossUnits-1))
}

// NextFrame returns the heartbeat to send now. Besides when Step asks, it may be called at any time to send an urgent
// change of status.
func (l *Link) NextFrame(st Status) Frame {
	l.SetStatus(st)
	f := Frame{Type: TypeHeartbeat}
	l.Fill(&f)
	return f
}

// SetStatus sets the node's status for frames that Fill fills before the first NextFrame. Without an epoch the peer
// of a resumed session takes them for replays.
func (l *Link) SetStatus(st Status) { l.status = st }

// Fill sets everything in f but its type and payload, with the status last given to NextFrame or SetStatus.
// Every frame filled takes a sequence number: send it, or the peer counts it as lost.
func (l *Link) Fill(f *Frame) {
	l.txSeq++
	l.stats.Sent++
	f.Direction, f.Src, f.Dst = l.cfg.Dir, l.cfg.Src, l.cfg.Dst
	f.Flags &^= FlagHostDead | FlagDeaf | FlagHops | FlagDiagnosis | FlagExpress | FlagMasked
	f.Flags |= FlagAnswers
	if l.status.HostDead {
		f.Flags |= FlagHostDead
	}
	if l.deaf() {
		f.Flags |= FlagDeaf
	}
	if l.status.Hops {
		f.Flags |= FlagHops
	}
	if l.status.Diagnosis {
		f.Flags |= FlagDiagnosis
	}
	if l.status.Masked {
		f.Flags |= FlagMasked
	}
	if l.status.Express {
		f.Flags |= FlagExpress
	}
	f.Session, f.Seq, f.Ack = l.txSession, l.txSeq, 0
	if l.seq.session == l.txSession {
		f.Ack = l.seq.high
	}
	f.Epoch, f.DNP, f.Host = l.status.Epoch, l.status.DNP, l.status.Host
}

// deaf is the value of FlagDeaf for the peer. Unlike rx it follows the frames without hold-off.
func (l *Link) deaf() bool { return l.silent && !l.hearing }

// Step applies one event at one time and returns the consequences. Time must not run backwards.
func (l *Link) Step(now time.Time, ev LinkEvent) LinkOutput {
	out := LinkOutput{Late: l.doubt(now)}
	peer, more := l.peer, false
	switch ev := ev.(type) {
	case Tick:
		out.SendHeartbeat, out.SendAsk = l.beat(now), l.asks(now)
	case FrameReceived:
		out.Accepted, more = l.receive(now, &ev), ev.More
		out.SendHeartbeat = out.Accepted && l.answers(now, &ev.Frame)
	case FrameBad:
		l.bad(ev)
		more = ev.More
	case SessionStarted:
		l.newSession(ev.ID)
	case Refused:
		out.SendAsk = l.refused(now)
	case ExpressDeaf:
		l.expressDeaf = ev.Deaf
	}
	if !more {
		l.judgeRx(now)
		l.judgeTx(now)
	}

	out.Detail = l.Detail()
	out.State = out.Detail.State()
	out.Changed = out.Detail != l.last
	out.Peer, out.PeerChanged = l.peer, l.peer != peer
	_, tick := ev.(Tick)
	out.Redial = tick && l.needsSession(now)
	l.last = out.Detail
	l.wake = l.nextWake()
	out.Wake = l.wake
	return out
}

// doubt notes whether this step comes so late that unread frames may be waiting: then any apparent loss is our own
// fault (faults.md 2). The lateness counts from the last step, if that came after the time to wake: one absence
// counts once, however many packets wait after it.
func (l *Link) doubt(now time.Time) bool {
	ran, from := l.ran, fault.Later(l.wake, l.ran)
	l.ran = now
	if l.wake.IsZero() || now.Sub(from) <= l.cfg.Period {
		return false
	}
	l.stats.OwnLate++
	owed := l.owedFrom()
	l.waited += max(0, ran.Sub(fault.Later(l.doubtUntil, owed)))
	l.doubtUntil = now.Add(l.cfg.Period)
	l.forgive = true
	if l.returns <= MaxReturns {
		l.returned = now
		if !now.Before(owed) {
			l.returns++
		}
	}
	return true
}

// inTimeSince returns when this end has been in time for long enough to blame the peer for silence: for as long as
// makes a link silent. The time away is no silence of the peer. After more than MaxReturns times away without a sign of
// life, this end takes one more period to read what waits, and then doubts itself no more. See also MaxDoubt.
func (l *Link) inTimeSince() time.Time {
	switch {
	case l.returned.IsZero():
		return l.doubtUntil
	case l.returns > MaxReturns:
		return l.returned.Add(l.cfg.Period)
	}
	silent := l.silentAfter()
	end := fault.Later(l.doubtUntil, l.owedFrom()).Add(MaxDoubt*silent - l.waited)
	return fault.Later(l.doubtUntil, fault.Earliest(end, l.returned.Add(silent)))
}

// endDoubt resets the bounds of the doubt, after a sign of life and at the start of a grace.
func (l *Link) endDoubt() { l.returns, l.waited = 0, 0 }

// owedFrom returns since when silence of the peer counts.
func (l *Link) owedFrom() time.Time { return l.owedAt().Add(-l.silentAfter()) }

// beat reports whether a heartbeat is due. It keeps the phase, so that links started together stay on one timer.
func (l *Link) beat(now time.Time) bool {
	if now.Before(l.nextBeat) {
		return false
	}
	passed := int64(now.Sub(l.nextBeat) / l.cfg.Period)
	l.nextBeat = l.nextBeat.Add(time.Duration(passed+1) * l.cfg.Period)
	if l.unackedSince.IsZero() {
		l.unackedSince = now
	}
	if l.timedSeq == 0 {
		l.timedSeq, l.timedAt = l.txSeq+1, now // the heartbeat that follows
	}
	return true
}

func (l *Link) newSession(id uint32) {
	l.txSession, l.txSeq, l.acked = id, 0, 0
	l.timedSeq, l.unackedSince = 0, time.Time{}
	l.seq.expect(id)
}

func (l *Link) bad(ev FrameBad) {
	n := max(1, ev.Count)
	switch ev.Kind {
	case BadCRC, BadInterface:
		l.crcPending += n
	case BadMAC:
		l.stats.MAC += n
	case BadSession:
		l.stats.Sessions += n
	default:
		l.stats.Malformed += n
	}
}

func (l *Link) nextWake() time.Time {
	w := fault.Earliest(l.nextBeat, l.silenceAt())
	w = fault.Earliest(fault.Earliest(w, l.askAt()), l.rxClearAt())
	w = fault.Earliest(w, l.unheardAt())
	return fault.Earliest(w, l.txClearAt())
}

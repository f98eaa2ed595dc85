package watchdog

import (
	"errors"
	"fmt"
	"time"
)

// WindowState is what a half knows about the window to the kernel of its other half. Zero: the two halves have one kernel
// and no window.
type WindowState uint8

// The states.
const (
	WindowAlive   WindowState = iota + 1 // the other half's process sends frames
	WindowRefused                        // the other half's kernel refuses frames: it lives, and the process has ended
	WindowSilent                         // no frame and no refusal: the kernel is dead, the process is stopped, or the path is cut
	WindowClaimed                        // the other end claims to be this half: its kernel lives, and the other half is not there
)

// String returns alive, refused, silent or claimed.
func (s WindowState) String() string {
	switch s {
	case WindowAlive:
		return "alive"
	case WindowRefused:
		return "refused"
	case WindowSilent:
		return "silent"
	case WindowClaimed:
		return "claimed"
	}
	return fmt.Sprintf("WindowState(%d)", uint8(s))
}

// refusalLife is how long a refusal counts. A kernel answers one peer with a few refusals at once, and then with one a second.
const refusalLife = 2500 * time.Millisecond

// claimLife is how long a claim counts after the other end has shown this half's keys. It exceeds the pause between the caller's
// handshakes.
const claimLife = 5 * time.Second

// replayBits is the number of sequence numbers below the highest one that may still arrive.
const replayBits = 64

// The errors of Window.Hear, each counted separately.
var (
	// ErrWindowReplay: the frame arrived before, or is too old for the replay window.
	ErrWindowReplay = errors.New("window frame repeated")
	// ErrWindowLeased: another process holds the other half's side of the window.
	ErrWindowLeased = errors.New("window held by another process")
	// ErrWindowUndecided: a frame of a new session does not show whether the holder has sent it.
	ErrWindowUndecided = errors.New("frame of a session that is not in use yet")
)

// WindowConfig configures one end of a window.
type WindowConfig struct {
	TRead  time.Duration // period in which this half reads the other half's word
	Misses int           // K of ReaderConfig
	Life   uint64        // random number of this process
}

// Window is one end of the window between the two halves of a node that run under two kernels. Each half has a register
// file of its own. With each write of its watchdog word, a half sends all its words in one datagram, and the other end
// stores them in its register file. So a lost datagram is only a missed write, and Reader and Writer need not know
// about the window.
//
// Window is pure: the caller authenticates frames, moves words and sends. A half that hears no statement for three
// quarters of TRead asks for an answer. So the states of the window are known before the Reader's verdict.
//
// The window's lease replaces the lock of a half on its register file. The first process whose statement arrives holds the
// side of the other half for TRead after each of its statements. Meanwhile only a process with a newer boot epoch on the same
// kernel may take it over: the restarted half. A process on another kernel is a second one, even with a newer epoch, because the
// holder's kernel cannot have booted meanwhile.
type Window struct {
	cfg   WindowConfig
	start time.Time

	heard    time.Time // last authentic frame
	back     time.Time // first frame after the last silence
	before   time.Time // last frame before that silence
	stated   time.Time // last statement of the holder
	refused  time.Time // last refusal by the peer's kernel
	denied   time.Time // last time that the peer called this process a second claimant
	claimed  time.Time // last time that the other end claimed to be this half
	life     uint64    // of the holder; 0: none yet
	epoch    uint64    // of the holder
	boot     BootID    // of the holder's kernel, or of an earlier holder's
	booted   bool      // boot is the holder's
	session  uint32
	top      uint64 // highest sequence number of the session
	seen     uint64 // bit i: top-i has arrived
	statedAt uint64 // sequence number of the newest statement of the session
	stats    WindowStats
}

// WindowStats counts from the start.
type WindowStats struct {
	Statements uint64 // accepted
	Mail       uint64 // accepted
	Replays    uint64 // frames that arrived before
	Leased     uint64 // statements of second claimants, and handshakes with another process of this half
	Malformed  uint64 // payloads that are no datagram
	Unknown    uint64 // datagrams of a later version
	Refusals   uint64 // by the peer's kernel
}

// NewWindow returns one end of a window. It panics if TRead is not positive.
func NewWindow(cfg WindowConfig, now time.Time) *Window {
	if err := positive("TRead", cfg.TRead); err != nil {
		panic("watchdog: NewWindow: " + err.Error())
	}
	return &Window{cfg: cfg, start: now}
}

// WindowFrame is an authentic frame from the other half.
type WindowFrame struct {
	Session uint32
	Seq     uint64
	Epoch   uint64 // boot epoch of the sender
	Ask     bool   // the sender wants an answer
	Payload []byte // a datagram, or empty
}

// WindowOutput is the result of a frame.
type WindowOutput struct {
	Answer bool         // send an empty frame at once
	Deny   bool         // send AppendDenial: the sender is a second claimant
	Words  []WindowWord // to store, in this order; they point into the payload's decoded form
	Beat   bool         // validate the watchdog word with its last value: its owner has a later version
	Mail   []byte       // for this half's mailbox; it points into the payload
	Holder bool         // a new process holds the other half's side
}

// Hear processes a frame. After an error, the frame counts at most as a sign of life.
func (w *Window) Hear(now time.Time, f WindowFrame) (WindowOutput, error) {
	if !w.fresh(f) {
		w.stats.Replays++
		return WindowOutput{}, fmt.Errorf("frame %d of session %08x: %w", f.Seq, f.Session, ErrWindowReplay)
	}
	if last := w.lastSign(); now.Sub(last) > w.patience() {
		w.back, w.before = now, last
	}
	w.heard = now
	out := WindowOutput{Answer: f.Ask}
	if len(f.Payload) == 0 {
		return out, nil
	}
	d, err := DecodeWindow(f.Payload)
	switch {
	case errors.Is(err, ErrWindowVersion):
		w.stats.Unknown++
		if !d.Statement {
			return out, err
		}
	case err != nil:
		w.stats.Malformed++
		return out, err
	case d.Denied:
		w.denied = now
		return out, nil
	}
	if d.Life != w.life {
		if w.Leased(now) && !w.succeeds(f, d) {
			out.Deny = true
			return out, w.leased(f)
		}
		if !d.Statement {
			return out, nil // only a statement begins a lease
		}
		w.life, w.booted, out.Holder = d.Life, false, true
	}
	w.epoch = f.Epoch
	if d.Mail != nil {
		w.stats.Mail++
		out.Mail = d.Mail
		return out, nil
	}
	if err != nil { // of a later version: its owner writes its watchdog word
		w.stated, out.Beat = now, true
		return out, err
	}
	w.stats.Statements++
	w.stated, w.boot, w.booted = now, d.Boot, true
	if f.Seq > w.statedAt { // an older one that was overtaken has old words
		w.statedAt, out.Words = f.Seq, d.Words
	}
	return out, nil
}

// Leased reports whether a process holds the other half's side.
func (w *Window) Leased(now time.Time) bool {
	return w.life != 0 && now.Before(w.stated.Add(w.cfg.TRead))
}

// succeeds reports whether the sender of a datagram may take the side over while the holder's lease lasts. A datagram that does not
// name the sender's kernel is judged by its epoch alone.
func (w *Window) succeeds(f WindowFrame, d WindowDatagram) bool {
	return f.Epoch > w.epoch && (d.Boot == w.boot || d.Boot == BootID{} || !w.booted)
}

func (w *Window) leased(f WindowFrame) error {
	w.stats.Leased++
	return fmt.Errorf("second process of the other half, boot epoch %d beside %d: %w", f.Epoch, w.epoch, ErrWindowLeased)
}

// Admit decides about a frame of a session that was made beside the current one, and is not in use yet. Without an error the
// caller goes over to that session, and passes the frame to Hear. After one, the frame is no sign of life, and the holder's
// session stays: the frame is not the holder's, or does not show it. Deny is as in WindowOutput.
func (w *Window) Admit(now time.Time, f WindowFrame) (deny bool, err error) {
	if !w.Leased(now) {
		return false, nil
	}
	d, err := DecodeWindow(f.Payload)
	if known := err == nil || errors.Is(err, ErrWindowVersion); known && (!d.Denied && d.Life == w.life || d.Statement && w.succeeds(f, d)) {
		return false, nil
	}
	if len(f.Payload) == 0 { // the first frame of the holder's own new session may be an answer
		return false, ErrWindowUndecided
	}
	return true, w.leased(f)
}

// fresh reports whether a frame has not arrived before, and remembers it. Sequence numbers restart with each session; a
// caller accepts frames of the previous session only until the first one of the next.
func (w *Window) fresh(f WindowFrame) bool {
	switch {
	case f.Session != w.session:
		w.session, w.top, w.seen, w.statedAt = f.Session, f.Seq, 1, 0
		return true
	case f.Seq > w.top:
		w.seen, w.top = w.seen<<(f.Seq-w.top)|1, f.Seq // a shift by 64 or more leaves 0
		return true
	case w.top-f.Seq >= replayBits || w.seen>>(w.top-f.Seq)&1 == 1:
		return false
	}
	w.seen |= 1 << (w.top - f.Seq)
	return true
}

// Refused takes a refusal by the peer's kernel, which quoted a frame of this end.
func (w *Window) Refused(now time.Time) {
	w.refused = now
	w.stats.Refusals++
}

// Claimed notes that the process at the other end has proved, in a handshake, to have this half's key.
func (w *Window) Claimed(now time.Time) {
	w.claimed = now
	w.stats.Leased++
}

// patience is the time without a frame after which the window is no longer alive.
func (w *Window) patience() time.Duration { return time.Duration(max(w.cfg.Misses, 1)) * w.cfg.TRead }

// Hears reports whether frames of the other half arrive, with or without words.
func (w *Window) Hears(now time.Time) bool { return now.Sub(w.lastSign()) <= w.patience() }

// lastSign returns the time of the last frame, or the start time if none has arrived.
func (w *Window) lastSign() time.Time {
	if w.heard.IsZero() {
		return w.start
	}
	return w.heard
}

// State returns the state of the window, and the time since the last frame of the other half; before the first frame, the
// time since the start. After a silence the window is alive again with the first statement: until then, the other half's
// watchdog word is not valid, which says nothing about that half. If no statement follows, frames alone count again after
// patience: by then the other half is stale by its own fault.
func (w *Window) State(now time.Time) (WindowState, time.Duration) {
	since := w.lastSign()
	if !w.back.IsZero() && w.stated.Before(w.back) && now.Sub(w.back) <= w.patience() {
		since = w.before
	}
	switch {
	case now.Sub(since) <= w.patience():
		return WindowAlive, now.Sub(since)
	case w.claimed.After(since) && now.Sub(w.claimed) <= claimLife:
		return WindowClaimed, now.Sub(since)
	case !w.refused.IsZero() && w.refused.After(since) && now.Sub(w.refused) <= refusalLife:
		return WindowRefused, now.Sub(since)
	}
	return WindowSilent, now.Sub(since)
}

// Asks reports whether to send a frame that asks for an answer: no statement came for three quarters of TRead. With the
// next write, the question then leaves, and a refusal arrives, well before the Reader's verdict. A kernel's refusal
// quotes an empty frame as a whole with its MAC, and so can be believed.
func (w *Window) Asks(now time.Time) bool {
	return w.stated.IsZero() || now.Sub(w.stated) > w.cfg.TRead-w.cfg.TRead/4
}

// Lost reports whether to request a new session: no frame came for a whole TRead.
func (w *Window) Lost(now time.Time) bool { return w.heard.IsZero() || now.Sub(w.heard) > w.cfg.TRead }

// Denied reports whether the other end called this process a second claimant within the last second.
func (w *Window) Denied(now time.Time) bool {
	return !w.denied.IsZero() && now.Sub(w.denied) < time.Second
}

// Peer returns the boot epoch of the process that holds the other half's side, and the boot of its kernel; zeros before
// its first statement.
func (w *Window) Peer() (epoch uint64, boot BootID) { return w.epoch, w.boot }

// Stats returns the counters.
func (w *Window) Stats() WindowStats { return w.stats }

package routing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Global flow control (seed 003 §4.4.2). A node whose buffers stay nearly full broadcasts that all others should
// inject fewer messages that can wait. The notice expires by itself, and is repeated while the overload lasts.
const (
	// flowHigh and flowLow are shares of the buffers, in eighths: overloaded at the first or more for flowSustain,
	// and no more below the second. Between the two the state stays.
	flowHigh, flowLow = 6, 3
	flowSustain       = 50 * time.Millisecond
	// FlowLife is how long a notice counts at its receiver. It also bounds the effect of a lost or late notice.
	FlowLife = time.Second
	// flowAgain is the interval of repetition: each notice may be lost once without a gap.
	flowAgain = FlowLife / 2
	// maxFlowLife bounds the life that a sender may request.
	maxFlowLife = 2 * time.Second

	flowVersion  = 1
	flowBodySize = 3
)

// Level says how many messages that can wait may be injected.
type Level uint8

// The levels.
const (
	Free Level = iota + 1 // as ever
	Slow                  // little
	Stop                  // nothing
)

var levelNames = [...]string{Free: "free", Slow: "slow", Stop: "stop"}

// String returns the level's name.
func (l Level) String() string {
	if l >= 1 && int(l) < len(levelNames) {
		return levelNames[l]
	}
	return fmt.Sprintf("Level(%d)", uint8(l))
}

// Flow is a node's knowledge of overload: its own, and that of other nodes.
//
//	calm ──6/8 full for 50 ms──► overloaded: says so, again each 500 ms ──below 3/8──► calm
//
// It does not repeat a notice that another node sent less than 500 ms ago. So if all nodes of a torus are overloaded
// one sends, and not each of thousands.
//
// It belongs to one goroutine. The zero value is calm.
type Flow struct {
	over  bool      // this node's buffers are
	since time.Time // of the first look that found them nearly full, while calm; zero: they are not
	until time.Time // others are, or this one has said so
	used  int       // at the last look, of room
	room  int
}

// Look records how many messages the node holds and how many it has room for, and reports whether to broadcast a
// notice now. Call it with every tick, without exception.
func (f *Flow) Look(now time.Time, used, room int) (tell bool) {
	f.used, f.room = used, room
	switch {
	case f.over && 8*used < flowLow*room:
		f.over, f.since = false, time.Time{}
	case f.over:
	case 8*used < flowHigh*room:
		f.since = time.Time{}
	case f.since.IsZero():
		f.since = now
	case now.Sub(f.since) >= flowSustain:
		f.over = true
	}
	if !f.over || f.until.Sub(now) > flowAgain { // all have heard it already, from here or from another node
		return false
	}
	f.Heard(now, FlowLife)
	return true
}

// Heard handles a notice that some node is overloaded, for a time.
func (f *Flow) Heard(now time.Time, life time.Duration) {
	if until := now.Add(min(life, maxFlowLife)); until.After(f.until) {
		f.until = until
	}
}

// Level returns the present level of injection here: a node's own perception is "a factor into the decision to stop
// injection".
func (f *Flow) Level(now time.Time) Level {
	switch {
	case !now.Before(f.until):
		return Free
	case 8*f.used >= flowLow*f.room && f.room > 0:
		return Stop
	}
	return Slow
}

// Overloaded reports whether this node is overloaded.
func (f *Flow) Overloaded() bool { return f.over }

// ErrFlow refuses the body of a broadcast.
var ErrFlow = errors.New("invalid flow control word")

// AppendFlow encodes the body of a broadcast: version, 1; how long it counts in ms, 16 bits, big endian, 1 to 2,000.
func AppendFlow(dst []byte, life time.Duration) []byte {
	return binary.BigEndian.AppendUint16(append(dst, flowVersion), uint16(max(1, min(life, maxFlowLife).Milliseconds())))
}

// DecodeFlow reads it.
func DecodeFlow(b []byte) (life time.Duration, err error) {
	if len(b) != flowBodySize || b[0] != flowVersion {
		return 0, fmt.Errorf("%d bytes: %w", len(b), ErrFlow)
	}
	ms := binary.BigEndian.Uint16(b[1:])
	if life = time.Duration(ms) * time.Millisecond; life <= 0 || life > maxFlowLife {
		return 0, fmt.Errorf("%d ms, want 1 to %d: %w", ms, maxFlowLife.Milliseconds(), ErrFlow)
	}
	return life, nil
}

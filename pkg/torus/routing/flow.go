package routing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Global flow control (seed 003 §4.4.2). A node whose buffers stay nearly full tells all others, by broadcast, to inject less of what
// can wait. The word expires by itself, and is repeated while the need lasts.
const (
	// flowHigh and flowLow are shares of the buffers, in eighths: overloaded at the first or more for flowSustain, and no more
	// below the second. What lies between changes nothing.
	flowHigh, flowLow = 6, 3
	flowSustain       = 50 * time.Millisecond
	// FlowLife is how long a word counts where it is heard, and so for how long one that is lost or late may cost or spare anything.
	FlowLife = time.Second
	// flowAgain is how soon it is repeated: each may be lost once without a gap.
	flowAgain = FlowLife / 2
	// maxFlowLife bounds what anybody may ask for.
	maxFlowLife = 2 * time.Second

	flowVersion  = 1
	flowBodySize = 3
)

// Level is how much may be injected of what can wait.
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

// Flow is what a node knows of overload: its own, and that some other node has told of.
//
//	calm ──6/8 full for 50 ms──► overloaded: says so, again each 500 ms ──below 3/8──► calm
//
// It does not say what another has said less than 500 ms ago: so of a torus in which all are overloaded one speaks, and not each
// of thousands.
//
// It belongs to one goroutine. The zero value is calm.
type Flow struct {
	over  bool      // this node's buffers are
	since time.Time // of the first look that found them nearly full, while calm; zero: they are not
	until time.Time // others are, or this one has said so
	used  int       // at the last look, of room
	room  int
}

// Look takes how many messages the node holds of how many it has room for, and says whether all nodes are to be told now.
// It is to be called with every tick, whatever else happens.
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

// Heard takes the word that some node is overloaded, for a time.
func (f *Flow) Heard(now time.Time, life time.Duration) {
	if until := now.Add(min(life, maxFlowLife)); until.After(f.until) {
		f.until = until
	}
}

// Level returns what may be injected here now: what this node perceives itself is "a factor into the decision to stop injection".
func (f *Flow) Level(now time.Time) Level {
	switch {
	case !now.Before(f.until):
		return Free
	case 8*f.used >= flowLow*f.room && f.room > 0:
		return Stop
	}
	return Slow
}

// Overloaded says whether this node is.
func (f *Flow) Overloaded() bool { return f.over }

// ErrFlow refuses the body of a broadcast.
var ErrFlow = errors.New("flow control word makes no sense")

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

package express

import (
	"errors"
	"math/bits"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Mask is a set of directions.
type Mask uint8

// MaskOf returns the set of the directions given.
func MaskOf(dirs ...grid.Direction) Mask {
	var m Mask
	for _, d := range dirs {
		m |= 1 << d.Index()
	}
	return m
}

// Has reports whether d is in the set.
func (m Mask) Has(d grid.Direction) bool { return d.Valid() && m>>d.Index()&1 != 0 }

// each calls f with the index of each direction, in order.
func (m Mask) each(f func(i int)) {
	for ; m != 0; m &= m - 1 {
		f(bits.TrailingZeros8(uint8(m)))
	}
}

// Config sets a machine.
type Config struct {
	Self   grid.Coord
	Epoch  fault.Epoch   // boot epoch of the DNP half
	Links  Mask          // those that the torus gives the node, in any state
	Period time.Duration // of a link's heartbeats: repeats begin with it
	// MaxPayload bounds the payloads that the machine sends, in bytes. Set it where frames are shorter than usual; 0
	// means the constant MaxPayload.
	MaxPayload int
	// NoPings asks no link whether it is deaf: for simulations of the flooding alone.
	NoPings bool
	Resume  Resume
}

// Resume is the state that an earlier life in the same boot epoch has kept. The zero value means none.
type Resume struct {
	Number uint64        // last one used
	Seen   []byte        // as Output.KeepSeen had it
	Held   [MaxHeld]Kept // as Output.Keep had it
}

// Kept is a broadcast that an earlier life held.
type Kept struct {
	Bytes []byte
	Age   time.Duration // since it was kept last
}

// Event is an input of a machine: Raise, *Received, Tick or Ways.
type Event interface{ expressEvent() }

// Raise asks for a broadcast. The Body is the machine's from then on.
type Raise struct {
	Topic    Topic
	Priority Priority
	Body     []byte
}

// Received is the payload of an authentic frame of TypeEureka that came by the link in direction Dir of this node. It
// is handed over by pointer so that it costs no allocation, and not kept.
type Received struct {
	Dir     grid.Direction
	Payload []byte
}

// Tick says that time has passed. It may come late: nothing is concluded from that.
type Tick struct{}

// Ways gives the links that carry broadcasts now. Open links have a session with a neighbour that understands
// broadcasts. Good links are also not broken, so that an acknowledgement can be expected. The machine also tries open
// links that are not good: perhaps only the way back is broken.
type Ways struct{ Open, Good Mask }

// Relinked gives the links of a node whose torus has changed. Ways follow.
type Relinked struct{ Links Mask }

func (Raise) expressEvent()     {}
func (Relinked) expressEvent()  {}
func (*Received) expressEvent() {}
func (Tick) expressEvent()      {}
func (Ways) expressEvent()      {}

// Send is the payload of a frame of TypeEureka to send. It is the machine's until the next Step.
type Send struct {
	Dir     grid.Direction
	Payload []byte
}

// Keep is a place of the copy to store now; nil Bytes free it.
type Keep struct {
	Place int // 0 to MaxHeld-1
	Bytes []byte
}

// MaxKeep bounds Keep.Bytes, MaxKeepSeen Output.KeepSeen.
const (
	keepHeader  = 1 + 1
	MaxKeep     = keepHeader + MaxPayload
	MaxKeepSeen = keptIDs * idSize
)

// Output lists the shell's actions, in this order: keep places, keep seen messages, send, deliver; and call Step again at Wake.
// Its slices but Deliver are the machine's own and last until the next Step.
type Output struct {
	Keep     []Keep
	KeepSeen []byte // nil: as before
	Send     []Send // new broadcasts, the highest priority first; then acknowledgements and pings; then repeats
	// Deliver are broadcasts that came here for the first time, or were raised here: each ID once. Only a half that
	// was killed before it could note that it had delivered one does so again.
	Deliver []Message
	Bad     bool      // a received payload was malformed
	Raised  ID        // of Raise, if Err is nil
	Err     error     // of Raise
	Deaf    Mask      // links that carry heartbeats and no broadcasts, as of now
	Wake    time.Time // step with a Tick then, or a little later; zero: never, as things are
}

// The errors of Raise. Test with errors.Is.
var (
	ErrRate    = errors.New("too many broadcasts of this node")
	ErrNoRoom  = errors.New("no room for a broadcast of this priority")
	ErrInvalid = errors.New("not a broadcast")
)

// Stats count broadcasts. Arrays are by topic; their place 0 is of topics that are not known.
type Stats struct {
	Held       int // now
	Raised     [NumTopics]uint64
	Delivered  [NumTopics]uint64 // of others
	Sent       [NumTopics]uint64 // to a neighbour, for the first time
	Repeated   [NumTopics]uint64 // to a neighbour, again
	Refused    [NumTopics]uint64 // budget spent or no room: the sender tries again
	Expired    [NumTopics]uint64 // given up after Life with a neighbour that should have acknowledged it
	Evicted    [NumTopics]uint64 // given up before, for it waited for broken links alone and its place was needed
	Preempted  [NumTopics]uint64 // had to wait on a link for one of a higher priority
	Duplicates uint64
	Bad        uint64 // payloads that make no sense
	Pings      uint64 // sent
	Unanswered uint64 // of them
}

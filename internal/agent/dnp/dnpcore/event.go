package dnpcore

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/routing"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/delivery"
	"github.com/lofamo/lofamo/internal/agent/relay"
)

// Event is what happens to a DNP half.
type Event interface{ dnpEvent() }

// Tick says only that time has passed.
type Tick struct{}

// Host is the host watchdog word. A taken one was read and invalidated because Output.TakeHost
// asked for it; another was only looked at, because the host half rang.
type Host struct {
	Taken      bool
	Sample     watchdog.Sample // if taken
	Unreadable bool            // the page could not be read at all: Word does not count
	Word       watchdog.HostWord
}

// Reading is what one sensor says.
type Reading struct {
	Component fault.Component
	State     fault.State
	Value     float64 // °C, W or V
	// Thresholds are the bounds that the sensor is judged by; nil: as before.
	Thresholds *watchdog.Thresholds
}

// Readings are the sensors' latest words.
type Readings struct{ Readings []Reading }

// Frame is an authentic frame that came in by the link in direction Dir of this node. It is
// handed over by pointer so that a packet costs no allocation; the machine does not keep it.
type Frame struct {
	Dir   grid.Direction
	Frame torus.Frame
}

// Bad is a packet that was refused, or Count of them.
type Bad struct {
	Dir   grid.Direction
	Kind  torus.BadKind
	Count uint64
}

// Session says that the handshake of a link has given a session.
type Session struct {
	Dir grid.Direction
	ID  uint32
}

// FromHost is a message of the host half by mailbox: its own envelope that is to go up by the
// torus, or another's that is to go down. Held is how long it lay in the mailbox.
type FromHost struct {
	Message relay.Message
	Held    time.Duration
}

// Opened is the answer to Output.Open: the envelope verified.
type Opened struct{ Opened servicenet.Opened }

// Sealed is the answer to Output.Seal: the envelope signed.
type Sealed struct {
	Envelope []byte
	Seal     Seal
}

// Exception says that the shell met a condition that an exception register stands for (Table VI).
type Exception struct {
	Register watchdog.Addr
	Bits     uint32
}

// Refresh says that the register page is a fresh one: everything must be written again.
type Refresh struct{}

// Health says how a half of this node fares: this one, or the host half as its daemon said. Its ages are as of the
// moment at which the machine is told. It is not changed any more; nil: nothing is known any more.
type Health struct {
	Half   fault.Half
	Health *lofamov1.HalfHealth
}

// Hint is something about the rails that is the outbox' to judge: Damaged or SpoolState.
type Hint struct{ Event servicenet.Event }

func (Hint) dnpEvent()      {}
func (Health) dnpEvent()    {}
func (Tick) dnpEvent()      {}
func (Refresh) dnpEvent()   {}
func (Host) dnpEvent()      {}
func (Readings) dnpEvent()  {}
func (*Frame) dnpEvent()    {}
func (Bad) dnpEvent()       {}
func (Session) dnpEvent()   {}
func (FromHost) dnpEvent()  {}
func (Opened) dnpEvent()    {}
func (Sealed) dnpEvent()    {}
func (Exception) dnpEvent() {}

// Outgoing is a frame to send by the link in direction Dir. A frame that cannot be sent is lost:
// heartbeats follow, and origins repeat their messages.
type Outgoing struct {
	Dir   grid.Direction
	Frame torus.Frame
}

// Store is a register to write.
type Store struct {
	Addr  watchdog.Addr
	Value uint32
}

// Extension is a word of the extension page to write, one of each kind a direction.
type Extension struct {
	Dir   grid.Direction
	Value uint32
}

// Seal asks for one message to be signed with the DNP half's key and given back by Sealed. Exactly
// one of Reports, Answer and Order is set.
type Seal struct {
	Reports []fault.Report
	Status  *lofamov1.DeliveryStatus // to go with Reports; nil: none
	Health  servicenet.Health        // to go with Reports
	Answer  *lofamov1.Answer
	Order   *lofamov1.Message // an answer to an order
	Attempt int               // from 1: the first of a report goes by the own host if that can send
}

// NoteKind sorts what is worth a line in the log.
type NoteKind uint8

// The kinds of notes.
const (
	NoteHost        NoteKind = iota + 1 // the other half's verdict changed
	NoteLate                            // this half was late itself and did not accuse
	NoteCorrupt                         // the host word was torn or flipped
	NoteUnreadable                      // the register page could not be read
	NoteRefused                         // a message that is not for this half, or not sensible
	NoteLink                            // a link changed
	NoteNeighbour                       // what is known of a neighbour's host changed
	NoteCore                            // the core's health changed
	NoteSensorStale                     // the sensors stopped answering
	NoteSelfTest                        // a module failed the self-test
	NoteSelfTested                      // a module passed it, again or for the first time
	NoteDiagnosis                       // a diagnosis was ordered, or found something
	NoteProtocol                        // a neighbour breaks a rule of the channel protocol
	NoteMissing                         // pieces of a message are missing, or were altered on the way
	NoteMask                            // a channel mask changed, here or at a neighbour
	NoteProcedure                       // the fault management procedure is in another state, or is not begun
	NotePeers                           // somebody else is at the other end of a link, or this node has another place
	NoteConfig                          // the supervisors tell all nodes something of the torus
	NoteMaster                          // another node is the master of this part of the torus
)

// Note is something worth a line in the log. Notes about repeated conditions come once, when the
// condition begins.
type Note struct {
	Kind NoteKind
	Text string
}

// Output is what the shell is to do now, in this order: the effects, keep, go over to other peers, write registers and
// words, ring, take, send frames, pass to the host, open, seal, redial; and to call Step
// again at Wake at the latest. Its slices are the machine's own and last until the next Step.
type Output struct {
	delivery.Effects
	Keep            []Keep
	KeepExpress     []express.Keep       // places of broadcasts to store or free
	KeepSeen        []byte               // the broadcasts that were seen, to store after KeepExpress; nil: as before
	Acts            []*lofamov1.ActOrder // for whoever makes acts here: Acted follows, or they are asked again
	Stores          []Store
	Details         []Extension // torus.Detail words
	Causes          []Extension // host words of neighbours whose host is dead
	WriteDescriptor bool
	Descriptor      watchdog.DescriptorWord
	WriteDNP        bool
	DNP             watchdog.DNPWord
	Ring            bool // wake the host half: something but Valid changed
	TakeHost        bool // read and invalidate the host word, and give the result to Step
	Frames          []Outgoing
	ToHost          []relay.Message // lost if the mailbox does not take them
	Hand            []HostMail      // held here: tell NotTaken if it does not
	Open            [][]byte        // envelopes to verify
	Seal            []Seal
	Judge           []JudgeData         // data to verify: answer by DataOpened
	Redial          []grid.Direction    // handshakes to ask for; the shell limits their rate
	Eurekas         []express.Message   // jobs' broadcasts, for the host half
	EurekasRaised   []EurekaRaised      // answers to RaiseEureka
	Barriers        []BarrierStatus     // answers to ArriveAt, and what is over
	Probes          []selftest.Probe    // for the modules register path, report path and bulk: results come by Test
	TestMail        []TestMail          // for the mailbox
	SaveTests       bool                // Baselines goes into the copy
	Drains          bool                // the torus begins to drain, or goes on: the host half finds it among the counters
	SaveMask        bool                // Mask is to be kept, which may take long: MaskKept says when it is
	SavePeers       bool                // Peers is to be kept, which may take long: PeersKept says when it is
	KeepOrders      []byte              // orders of plain kinds to keep, which may take long: OrdersKept says when they are; nil: as before
	ApplyOrders     []order.Application // orders of plain kinds to bring into force, which may take long: OrderApplied follows
	Repeer          []grid.Direction    // links that begin anew with PeerAt: their sessions are gone
	Tested          bool                // a module fails, or does no more: the host half is told before it is rung
	Missing         []routing.Missing   // messages of several pieces that did not come whole: evidence of a fault on the way
	Notes           []Note
	Wake            time.Time
}

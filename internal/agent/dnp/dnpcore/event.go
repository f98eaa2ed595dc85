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

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// Event is an input to a DNP half.
type Event interface{ dnpEvent() }

// Tick says only that time has passed.
type Tick struct{}

// Host is the host watchdog word. If Taken, the shell read and invalidated the word because of Output.TakeHost;
// otherwise it only looked at it because the host half rang.
type Host struct {
	Taken      bool
	Sample     watchdog.Sample // if taken
	Unreadable bool            // the page could not be read: Word is not valid
	Word       watchdog.HostWord
	Window     halfcore.Window // to the host half's kernel
}

// Reading is the reading of one sensor.
type Reading struct {
	Component fault.Component
	State     fault.State
	Absent    bool    // the node has no such sensor; State is Unknown
	Value     float64 // °C, W or V
	Detail    string
	// Thresholds are the bounds that judge the sensor; nil: as before.
	Thresholds *watchdog.Thresholds
}

// Readings holds the sensors' latest readings.
type Readings struct{ Readings []Reading }

// Frame is an authentic frame that arrived by the link in direction Dir of this node. It is passed by pointer so that a
// packet costs no allocation; the machine does not keep it.
type Frame struct {
	Dir    grid.Direction
	Frame  torus.Frame
	Waited time.Duration // since it arrived
	More   bool          // another event of the link follows at the same time, see torus.FrameReceived
}

// Waited are frames that arrived at links earlier, those of each link in order. It is passed by pointer, as Frame is.
type Waited struct{ Frames []Frame }

// Bad is one refused packet, or Count packets.
type Bad struct {
	Dir   grid.Direction
	Kind  torus.BadKind
	Count uint64
	More  bool // as in Frame
}

// Session says that the handshake of a link has produced a session.
type Session struct {
	Dir grid.Direction
	ID  uint32
}

// Refused says that a frame sent by the link came back unread: see torus.Refused.
type Refused struct{ Dir grid.Direction }

// FromHost is a mailbox message from the host half: its own envelope that is to go up through the torus, or another
// node's that is to go down. Held is how long it lay in the mailbox.
type FromHost struct {
	Message halfcore.Relay
	Held    time.Duration
}

// Opened is the answer to Output.Open: the envelope verified.
type Opened struct{ Opened servicenet.Opened }

// Sealed is the answer to Output.Seal: the envelope signed.
type Sealed struct {
	Envelope []byte
	Seal     Seal
}

// Exception says that the shell met the condition of an exception register (Table VI).
type Exception struct {
	Register watchdog.Addr
	Bits     uint32
}

// Refresh says that the register page is new and that all registers must be written again.
type Refresh struct{}

// Health is the health of a half of this node: this half's own, or the host half's as reported by its daemon. The last words in this
// half's own are those of the host's kernel, on a node with two. Its ages count from the delivery of the event. It is immutable; nil:
// nothing is known any more.
type Health struct {
	Half   fault.Half
	Health *lofamov1.HalfHealth
}

// Ended says that the host half's process has ended, for certain: the kernel confirmed it to the shell. How is the
// cause, such as "ended by signal 9"; Age is the time since the end was seen.
type Ended struct {
	How string
	Age time.Duration
}

// DeadHosts holds the directions whose neighbours have a dead host in the fault map, as this node's host half knows it. It
// counts for DeadHostsLife: the host half repeats it.
type DeadHosts struct{ Dead [grid.NumDirections]bool }

// DeadHostsLife is how long a DeadHosts counts.
const DeadHostsLife = 5 * time.Second

// Hint is an observation about the rails for the outbox to judge: Damaged or SpoolState.
type Hint struct{ Event servicenet.Event }

func (DeadHosts) dnpEvent() {}
func (Hint) dnpEvent()      {}
func (Health) dnpEvent()    {}
func (Ended) dnpEvent()     {}
func (Tick) dnpEvent()      {}
func (Refresh) dnpEvent()   {}
func (Host) dnpEvent()      {}
func (Readings) dnpEvent()  {}
func (*Frame) dnpEvent()    {}
func (*Waited) dnpEvent()   {}
func (Bad) dnpEvent()       {}
func (Session) dnpEvent()   {}
func (Refused) dnpEvent()   {}
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

// Extension is a word of the extension page to write; the page has one of each kind per direction.
type Extension struct {
	Dir   grid.Direction
	Value uint32
}

// Seal asks the shell to sign one message with the DNP half's key and to return it by Sealed. Exactly one of Reports,
// Answer and Order is set.
type Seal struct {
	Reports []fault.Report
	Status  *lofamov1.DeliveryStatus // sent along with Reports; nil: none
	Health  servicenet.Health        // sent along with Reports
	Answer  *lofamov1.Answer
	Order   *lofamov1.Message // an answer to an order
	Attempt int               // from 1: the first attempt of a report goes through this node's host if that can send
}

// NoteKind classifies log notes.
type NoteKind uint8

// The kinds of notes.
const (
	NoteHost        NoteKind = iota + 1 // the verdict on the other half changed
	NoteLate                            // this half starts or stops being starved of processor time
	NoteOverBudget                      // this half used more than its budget of processor time, and gives up more work
	NoteBudgetEased                     // it used little, and gives up less
	NoteCorrupt                         // the host word was torn or flipped
	NoteUnreadable                      // the register page or a stored order could not be read
	NoteRefused                         // a message was not for this half, or not sensible
	NoteLink                            // a link changed
	NoteNeighbour                       // the known state of a neighbour's host changed
	NoteCore                            // the core's health changed
	NoteSensorStale                     // the sensors stopped answering
	NoteSelfTest                        // a module failed the self-test
	NoteSelfTested                      // a module passed the self-test, for the first time or after a failure
	NoteDiagnosis                       // a diagnosis was ordered, or had findings
	NoteProtocol                        // a neighbour breaks a rule of the channel protocol
	NoteMissing                         // pieces of a message are missing, or were altered on the way
	NoteMask                            // a channel mask changed, here or at a neighbour
	NoteProcedure                       // the fault management procedure changed its state, or could not begin
	NotePeers                           // a link has another peer, or this node has another place
	NoteConfig                          // the supervisors sent configuration to all nodes of the torus
	NoteMaster                          // another node is the master of this part of the torus
)

// Note is an event for the log. A repeated condition causes one note, when it begins.
type Note struct {
	Kind NoteKind
	Text string
}

// Output is what the shell is to do now, in this order: the effects, keep, go over to other peers, write registers and
// words, ring, take, send frames, pass to the host, open, seal, redial. The shell must call Step again at Wake at the
// latest. The slices belong to the machine and are valid until the next Step.
type Output struct {
	servicenet.SenderEffects
	Keep            []Keep
	KeepExpress     []express.Keep       // places of broadcasts to store or free
	KeepSeen        []byte               // the broadcasts that were seen, to store after KeepExpress; nil: unchanged
	Acts            []*lofamov1.ActOrder // for this node's executor of acts: Acted follows, or the order repeats
	Stores          []Store
	Details         []Extension // torus.Detail words
	Causes          []Extension // host words of neighbours whose host is dead
	Peers           []Extension // marks of the nodes at the other ends of links: halfcore.PeerMark
	WriteDescriptor bool
	Descriptor      watchdog.DescriptorWord
	WriteDNP        bool
	DNP             watchdog.DNPWord
	Ring            bool // wake the host half: a field other than Valid changed
	TakeHost        bool // read and invalidate the host word, and pass the result to Step
	Frames          []Outgoing
	ToHost          []halfcore.Relay // lost if the mailbox is full
	Hand            []HostMail       // held here: send NotTaken if the mailbox is full
	Open            [][]byte         // envelopes to verify
	Seal            []Seal
	Judge           []JudgeData         // data to verify: DataOpened is the answer
	Redial          []grid.Direction    // handshakes to ask for; the shell limits their rate
	Eurekas         []express.Message   // jobs' broadcasts, for the host half
	EurekasRaised   []EurekaRaised      // answers to RaiseEureka
	Barriers        []BarrierStatus     // answers to ArriveAt, and completed barriers
	Probes          []selftest.Probe    // for the modules register path, report path and bulk: Test returns the results
	TestMail        []TestMail          // for the mailbox
	SaveTests       bool                // Baselines goes into the copy
	Drains          bool                // the drain starts or continues: the host half sees it in the counters
	SaveMask        bool                // store Mask, which may take long: MaskKept follows
	SavePeers       bool                // store Peers, which may take long: PeersKept follows
	KeepOrders      []byte              // plain orders to store, perhaps slowly: OrdersKept follows; nil: none
	ApplyOrders     []order.Application // plain orders to apply, perhaps slowly: OrderApplied follows
	Farewell        []Outgoing          // send them before Repeer: the former peers' keys go with it
	Repeer          []grid.Direction    // links that start again with PeerAt, without a session, or end: see LinkTo
	Tested          bool                // a module starts or stops failing: tell the host half before ringing it
	Missing         []routing.Missing   // messages whose pieces did not all arrive: evidence of a fault
	Notes           []Note
	Wake            time.Time
}

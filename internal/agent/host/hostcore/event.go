package hostcore

import (
	"net/netip"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// Event is an input to a host half's machine.
type Event interface{ hostEvent() }

// Tick means only that time has passed.
type Tick struct{}

// Neighbours replaces this node's neighbours: place and links are unchanged, neighbours have other names.
type Neighbours struct{ Topo *halfcore.Topology }

func (Neighbours) hostEvent() {}

// Registers is the content of the register file. Taken registers were read and invalidated because
// Output.TakeDNP asked for it; the others were only looked at, because the DNP half rang.
type Registers struct {
	Taken  bool
	Sample watchdog.Sample // of the DNP word, if taken
	// Unreadable means that the page could not be read at all; the fields below are then invalid.
	Unreadable bool

	DNP           watchdog.DNPWord
	DNPRaw        uint32
	Descriptor    watchdog.DescriptorWord
	DescriptorRaw uint32
	Details       [grid.NumDirections]torus.Detail
	Causes        [grid.NumDirections]uint32 // last host word of neighbours that died with a cause
	Peers         [grid.NumDirections]uint32 // for each link, the mark of the node that the DNP half's words describe; 0: not stated

	Temperature, Power, Voltage uint32    // value registers; 0: there is no such sensor
	Sensed                      [3]Sensed // the same sensors, finer

	Router0, Router1, RDMA, Engine uint32 // exception registers

	Window halfcore.Window // to the DNP half's kernel

	// Draining: the DNP half holds back messages that may wait, because the torus drains (seed 003 §4.5.3).
	Draining bool
}

// Sensed is a sensor's value beside its register.
type Sensed struct {
	Thousandths int32  // of °C, W or V; watchdog.AbsentSensor with the register 0: the node has no such sensor
	Thresholds  uint32 // the register
}

// Reading is one sensor's reading.
type Reading struct {
	Component fault.Component
	State     fault.State
	Absent    bool // the node has no such part; State is Unknown
	Detail    string
	// A value that may move towards a threshold before there is a fault; a Quantity of 0: none.
	Quantity         fault.Quantity
	Value, Threshold float64
}

// Readings are the sensors' latest words, in any order and number.
type Readings struct{ Readings []Reading }

// Received is a verified message for this half: from the service network, or by the torus through the DNP half.
type Received struct {
	Opened    servicenet.Opened
	Path      fault.Path
	Interface uint8          // the service interface, on the direct rail
	From      netip.AddrPort // the datagram's sender, on the direct rail
}

// Arrived is another origin's envelope that the DNP half received by the torus and wants passed to
// the supervisors. Held is how long it lay in the mailbox.
type Arrived struct {
	Message halfcore.Relay
	Held    time.Duration
}

// Supervisors names the supervisors to report to and, as a hint, the leader.
type Supervisors struct {
	Targets []string
	Leader  string
}

// Hint is evidence about the rails for the outbox to judge: RailUp, RailDown, PathFailed, Damaged or SpoolState.
type Hint struct{ Event servicenet.Event }

// Watch lists the nodes that clients on this node watch, besides its neighbours: those of its jobs.
type Watch struct{ Nodes []fault.NodeID }

// Health is the health of a half of this node: this one, or the other as it reported by mailbox. Its ages refer to
// the moment of the event. It is immutable; nil: unknown.
type Health struct {
	Half   fault.Half
	Health *lofamov1.HalfHealth
}

// Ended says that the DNP half's process has ended, for certain: the kernel confirmed it to the shell. How is the
// cause, such as "ended by signal 9"; Age is the time since the end was seen.
type Ended struct {
	How string
	Age time.Duration
}

// Restart announces to the supervisors that a half of this node is about to be restarted, or ends that notice.
// Output.Announced has its kind when they have committed it.
type Restart struct{ Notice fault.RestartNotice }

// Stop announces to the supervisors that this node is about to be stopped, or that it is back. Output.Announced has its
// kind when they have committed it.
type Stop struct{ Notice fault.Stop }

// GossipHeard reports a message from another member of the gossip. It shows that the service network works, even if
// no supervisor answers.
type GossipHeard struct{}

func (Tick) hostEvent()        {}
func (Registers) hostEvent()   {}
func (Readings) hostEvent()    {}
func (Received) hostEvent()    {}
func (Arrived) hostEvent()     {}
func (Supervisors) hostEvent() {}
func (Hint) hostEvent()        {}
func (GossipHeard) hostEvent() {}
func (Watch) hostEvent()       {}
func (Health) hostEvent()      {}
func (Ended) hostEvent()       {}
func (Restart) hostEvent()     {}
func (Stop) hostEvent()        {}

// Send is one message to be signed with the host half's key and sent.
type Send struct {
	Path      fault.Path
	Interface uint8              // the service interface, on the direct rail
	Target    string             // supervisor id, on the direct rail
	Addr      netip.AddrPort     // if valid, instead of Target: where a supervisor wants the answer
	Session   bool               // a MAC of the session with Target will do, where there is one
	Checksum  *lofamov1.Checksum // agreed with Target; nil: the default
	MayWait   bool               // on the torus rail: a drain may hold it, because it repeats known states

	// Exactly one of these is set.
	Reports []fault.Report // of this half, all under one signature
	Answer  *Answer
	Relayed *Relayed
	Request *lofamov1.PathRequest // its key is still empty: one for each id
	Ack     *lofamov1.PathAck
	// Interest is the list of the nodes of the jobs here.
	Interest *lofamov1.Interest
	Order    *lofamov1.Message // an answer to an order

	Status *lofamov1.DeliveryStatus // to go with Reports; nil: none
	Health servicenet.Health        // to go with Reports
}

// Answer echoes a challenge.
type Answer struct {
	Nonce []byte
	Epoch fault.Epoch
}

// Relayed wraps another origin's envelope.
type Relayed struct {
	Inner []byte
	Hops  []fault.Hop
}

// NoteKind classifies the events that deserve a log line.
type NoteKind uint8

// The kinds of notes.
const (
	NoteDNP         NoteKind = iota + 1 // the other half's verdict changed
	NoteLate                            // this half starts or stops being starved of processor time
	NoteOverBudget                      // this half used more than its budget of processor time, and gives up more work
	NoteBudgetEased                     // it used little, and gives up less
	NoteCorrupt                         // the DNP word was torn or flipped
	NoteUnreadable                      // the register page could not be read
	NoteRefused                         // a message that is not for this half, or not sensible
	NoteServiceNet                      // the service network's state changed
	NoteSensorStale                     // the sensors stopped answering
	NoteSelfTest                        // a module failed the self-test
	NoteSelfTested                      // a module passed it, again or for the first time
)

// Note is a line for the log. A repeated condition causes one note, when it begins.
type Note struct {
	Kind NoteKind
	Text string
}

// Output is what the shell is to do now, in this order: the effects, write the host word, ring, take,
// probes and test mail, send, relay. The shell then calls Step again at Wake at the latest.
type Output struct {
	servicenet.SenderEffects
	WriteHost bool
	Host      watchdog.HostWord
	Ring      bool             // wake the DNP half: the host word has changed
	TakeDNP   bool             // read and invalidate the DNP word, and give the result to Step
	Probes    []selftest.Probe // for the modules but the mailbox: results come by Test
	TestMail  []TestMail       // for the mailbox
	SaveTests bool             // Baselines goes into the copy
	Send      []Send
	Relay     []halfcore.Relay // to the DNP half by mailbox
	Notes     []Note
	Learned   []fault.NodeID // nodes whose view has changed
	Aged      bool           // whether the staleness of the fault view has changed
	Acts      []Act          // orders for the action runner: Acted follows, or the supervisor asks again
	Announced []NoticeKind   // kinds whose newest notice is now committed
	AskGossip int            // number of gossip members to ping; 0: none. GossipHeard follows if one answers
	Wake      time.Time
}

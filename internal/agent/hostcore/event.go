package hostcore

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/relay"
)

// Event is what happens to a host half.
type Event interface{ hostEvent() }

// Tick says only that time has passed.
type Tick struct{}

// Registers is what the register file says. Taken registers were read and invalidated because
// Output.TakeDNP asked for it; the others were only looked at, because the DNP half rang.
type Registers struct {
	Taken  bool
	Sample watchdog.Sample // of the DNP word, if taken
	// Unreadable says that the page could not be read at all; nothing below counts then.
	Unreadable bool

	DNP           watchdog.DNPWord
	DNPRaw        uint32
	Descriptor    watchdog.DescriptorWord
	DescriptorRaw uint32
	Details       [grid.NumDirections]torus.Detail
	Causes        [grid.NumDirections]uint32 // last host word of neighbours that died with a cause

	Temperature, Power, Voltage uint32 // value registers; 0: there is no such sensor

	Router0, Router1, RDMA, Engine uint32 // exception registers
}

// Reading is what one sensor says.
type Reading struct {
	Component fault.Component
	State     fault.State
	Detail    string
}

// Readings are the sensors' latest words, in any order and number.
type Readings struct{ Readings []Reading }

// Received is a verified message that came for this half: from the service network, or from the
// DNP half, which had it by the torus.
type Received struct {
	Opened    servicenet.Opened
	Path      fault.Path
	Interface uint8 // the service interface, on the direct rail
}

// Arrived is another origin's envelope that the DNP half received by the torus and wants passed to
// the supervisors. Held is how long it lay in the mailbox.
type Arrived struct {
	Message relay.Message
	Held    time.Duration
}

// Supervisors says whom to report to and, as a hint, who leads.
type Supervisors struct {
	Targets []string
	Leader  string
}

func (Tick) hostEvent()        {}
func (Registers) hostEvent()   {}
func (Readings) hostEvent()    {}
func (Received) hostEvent()    {}
func (Arrived) hostEvent()     {}
func (Supervisors) hostEvent() {}

// Send is one message to be signed with the host half's key and sent.
type Send struct {
	Path      fault.Path
	Interface uint8  // the service interface, on the direct rail
	Target    string // supervisor id, on the direct rail
	Addr      string // instead of Target: "ip:port" that a supervisor asked the answer to be sent to

	// Exactly one of these is set.
	Reports []fault.Report // of this half, all under one signature
	Answer  *Answer
	Relayed *Relayed
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

// NoteKind sorts what is worth a line in the log.
type NoteKind uint8

// The kinds of notes.
const (
	NoteDNP         NoteKind = iota + 1 // the other half's verdict changed
	NoteLate                            // this half was late itself and did not accuse
	NoteCorrupt                         // the DNP word was torn or flipped
	NoteUnreadable                      // the register page could not be read
	NoteShortened                       // the outbox gave up part of its history
	NoteRefused                         // a message that is not for this half, or not sensible
	NoteEpoch                           // the supervisors know a higher boot epoch
	NoteServiceNet                      // the service network's state changed
	NoteSensorStale                     // the sensors stopped answering
)

// Note is something worth a line in the log. Notes about repeated conditions come once, when the
// condition begins.
type Note struct {
	Kind NoteKind
	Text string
}

// Output is what the shell is to do now, in this order: persist NewEpoch, write the host word,
// ring, take, send, relay; and to call Step again at Wake at the latest.
type Output struct {
	NewEpoch  fault.Epoch // non-zero: persist it before sending anything
	WriteHost bool
	Host      watchdog.HostWord
	Ring      bool // wake the DNP half: the host word says something new
	TakeDNP   bool // read and invalidate the DNP word, and give the result to Step
	Send      []Send
	Relay     []relay.Message // to the DNP half by mailbox
	Notes     []Note
	Wake      time.Time
}

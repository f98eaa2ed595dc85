package servicenet

import (
	"fmt"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// PathID names a path: one service interface of a half to one supervisor (seed 004's PathID). The
// zero value names none.
type PathID struct {
	Interface  uint8  // index into OutboxConfig.Interfaces
	Supervisor string // id
}

// PathState is the state of a half's paths; see the diagram of paths.
type PathState uint8

// The path states of seed 004, Figure 2, and the software re-establishment of its §IV-B.
const (
	PathMigrated       PathState = iota + 1 // reports go by the primary, no alternate is loaded
	PathRearm                               // an alternate is being loaded
	PathArmed                               // the alternate is loaded: a switch needs no exchange of messages
	PathReestablishing                      // neither works: every path gets a REQ, reports go by other rails
)

var pathStateNames = [...]string{"", "MIGRATED", "REARM", "ARMED", "REESTABLISHING"}

func (s PathState) String() string {
	if s == 0 || int(s) >= len(pathStateNames) {
		return fmt.Sprintf("PathState(%d)", uint8(s))
	}
	return pathStateNames[s]
}

// Event is an input of an outbox: Tick, Supervisors, Acked, RailUp, RailDown, PathFailed, Damaged, Replied or
// SpoolState.
type Event interface{ outboxEvent() }

// Tick says only that time has passed.
type Tick struct{}

// Supervisors lists the present supervisors and, as a hint, the leader.
type Supervisors struct {
	Targets []string // ids
	Leader  string   // empty: not known
}

// Acked is an acknowledgement that Open has verified, and the rail on which it came.
type Acked struct {
	Ack        *lofamov1.Ack
	Supervisor string // its sender
	Path       fault.Path
	Interface  uint8 // on the direct rail: where it came in
}

// RailUp says that a rail can be used again.
type RailUp struct {
	Path      fault.Path
	Interface uint8 // of the direct rail
}

// RailDown says that a rail cannot be used now: no carrier, no address, refused by the kernel. It
// moves waiting reports to other rails at once. Three answers on the rail lift it, as RailUp does.
type RailDown struct {
	Path      fault.Path
	Interface uint8  // of the direct rail
	Why       string // for the note of the migration
}

// PathFailed says that one path cannot be used now: an ICMP error came back, or a send failed. ICMP is not
// signed, so each path is believed to have failed only once in a while, which grows.
type PathFailed struct {
	Path PathID
	Why  string
}

// Damaged says that a damaged packet came from a path, or Again from its supervisor, which received a damaged packet
// of ours. The outbox repeats at once the reports that wait for an answer there, though not more often than once a
// round trip, and each report only a few times.
type Damaged struct {
	Path       fault.Path
	Interface  uint8  // of the direct rail
	Supervisor string // empty: not known, so any of the interface
}

// Replied is a REP that Open has verified and of which the shell has made its session.
type Replied struct {
	Interface  uint8 // where it came in
	Supervisor string
	Reply      *lofamov1.PathReply
}

// SpoolState reports whether reports are kept on disk.
type SpoolState struct {
	Err string // why not; empty: they are
}

func (Tick) outboxEvent()        {}
func (Supervisors) outboxEvent() {}
func (Acked) outboxEvent()       {}
func (RailUp) outboxEvent()      {}
func (RailDown) outboxEvent()    {}
func (PathFailed) outboxEvent()  {}
func (Damaged) outboxEvent()     {}
func (Replied) outboxEvent()     {}
func (SpoolState) outboxEvent()  {}

// Send is one datagram, to be made now and only once: the outbox repeats lost ones.
type Send struct {
	Reports   []fault.Report           // at least one; ages include the time in the log; their observations are not to be changed
	Status    *lofamov1.DeliveryStatus // to go with them; nil: none
	Path      fault.Path
	Interface uint8              // on the direct rail
	Target    string             // supervisor id; empty on rails that have no target
	Attempt   int                // from 1, the highest of the reports; several rails of one attempt share it
	Session   bool               // a MAC of the session with Target will do; otherwise a signature
	Checksum  *lofamov1.Checksum // agreed with Target; nil: CRC-32C
	Room      int                // bytes for reports, status and health together
}

// PathMessage is a REQ or an ACK of seed 004, Figure 8, to be sent once by the path. Exactly one of
// Request and Ack is set. The key of a request is left empty: the shell makes one X25519 key for each
// id, which its repetitions and the same id by other paths carry as well.
type PathMessage struct {
	Path    PathID
	Request *lofamov1.PathRequest
	Ack     *lofamov1.PathAck
}

// Migration is a change of the primary path or of the path state, for the log and the metrics.
type Migration struct {
	From, To PathID // the primary before and after; equal when only the state changed
	State    PathState
	Why      string
}

// Kept is a report of an earlier life that the spool gave back.
type Kept struct {
	Report fault.Report
	Age    time.Duration // since it was kept
}

// Output is what the shell is to do, in this order: persist NewEpoch, keep, forget, send.
type Output struct {
	Send           []Send
	Paths          []PathMessage
	Keep           []fault.Report   // for the spool: reports that entered the log
	Forget         []fault.ReportID // for the spool: reports that left it
	Replaced       []fault.ReportID // of those: never committed, as coalesced or renumbered
	Migrations     []Migration
	NewEpoch       fault.Epoch // non-zero: persist it before sending; the reports already carry it
	ServiceNetwork fault.State // of the direct rail; UNKNOWN before the first verdict
	Changed        bool        // ServiceNetwork changed in this step
	// Isolated: no rail at all has brought an answer for NetworkDeadAfter.
	Isolated        bool
	IsolatedChanged bool
	Dropped         int       // reports left out in this step because the log was full
	DroppedWhat     string    // with Dropped: the main subject of the log
	TooLong         int       // reports left out in this step because they do not fit a datagram
	Wake            time.Time // step again then; zero: nothing to wait for
}

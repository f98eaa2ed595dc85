package response

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Event is an input of the engine.
type Event interface{ event() }

// FaultChanged is a committed change of a component. Every replica gets it: followers use it to count recurrences. It
// also comes when only the evidence or the cause has changed. It carries the committed evidence; Output.Look
// requests missing evidence, and newer evidence in place of old.
type FaultChanged struct {
	Fault

	// Stood: the state was older than this replica's view of the map. Only Since tells when it began, possibly by
	// another clock.
	Stood bool
}

// GroupChanged is a committed change of a group fault.
type GroupChanged struct {
	Group

	Stood bool // as of FaultChanged
}

// Seen answers Output.Look with the current evidence. It changes no state. State is the state that the evidence
// supports: the engine ignores evidence for another state than it knows, which arrives while a change of the state is
// on its way. 0: not known.
type Seen struct {
	Target   Target
	State    fault.State
	Evidence Evidence
}

// Booted reports a boot epoch of the node's host.
type Booted struct {
	Node  fault.NodeID
	Epoch fault.Epoch
}

// Tick reports that Output.Wake has been reached.
type Tick struct{}

// PoliciesChanged is the complete set of valid policies from now on. Unread names the policies in force that this
// version cannot read, because another version wrote them. Responses that these began wait for a leader that can read
// them. Targets holds a number for each target that policies may name: another number means that the target was changed.
type PoliciesChanged struct {
	Policies []*Policy
	Unread   []string
	Targets  map[string]uint64
}

// TopologyChanged is the complete set of nodes from now on. Without regions, every place of the torus has a node. With regions, a
// place without a node here belongs to another region.
type TopologyChanged struct {
	Dims  grid.Dims
	Nodes []NodeInfo
}

// NodeInfo is one node of the topology.
type NodeInfo struct {
	ID     fault.NodeID
	Coord  grid.Coord
	Spare  bool // it has no place in the torus: Coord is meaningless
	Labels map[string]string
}

// SupervisorsChanged lists the supervisors, their nodes, and which of them are alive.
type SupervisorsChanged struct{ Supervisors []SupervisorInfo }

// SupervisorInfo is one supervisor.
type SupervisorInfo struct {
	ID    string
	Node  fault.NodeID // empty: on none of the nodes
	Alive bool
	// Unknown: it may run on any of the nodes. Node is empty.
	Unknown bool
}

// MaintenanceChanged lists all marked nodes from now on.
type MaintenanceChanged struct{ Nodes []fault.NodeID }

// IncidentsChanged lists the root causes of all open incidents from now on, with the incidents' ids. Every other fault is a
// consequence of one of them, or not yet assigned.
type IncidentsChanged struct {
	Roots map[Target]string
	// Ends holds the other end of each root that is a cable. If only that end is faulty, it counts as the root.
	Ends map[Target]Target
	// Parts holds the ids of incidents by listed consequence. Responses to these are listed with the incident.
	Parts map[Target]string
	// Standing holds the notice of each incident that is not closed, by id. The notice is above 0 while an escalation
	// has outdated the incident's acknowledgement. It grows with each such escalation, and policies then notify again.
	Standing map[string]uint32
}

// Led reports that this replica leads from now on. It starts with the committed records and map.
type Led struct {
	Token uint64 // grows with every leader; a leader that uses one token twice has ended all its earlier work
	// Salt distinguishes the ids of this term from those of any other term with the same token: in a recreated store,
	// tokens start again. Random letters and digits; empty: ids contain none.
	Salt    string
	Records []Record
	Faults  []Fault // all that are not NORMAL
	Groups  []Group // all standing groups
	Epochs  []Booted
}

// Lost reports that this replica no longer leads, or that a commit was refused.
type Lost struct{}

// Outcome is the result of an attempt.
type Outcome uint8

// The outcomes.
const (
	Succeeded  Outcome = iota + 1
	Unchanged          // failed, and this attempt has changed nothing
	Partly             // failed after it had changed something
	NotKnown           // the outcome is unknown
	StaleToken         // refused: the executor has seen a higher token
)

// Result is an executor's report on an attempt. Attempt numbers are unique across tokens, so the result may reach a
// later leader than the one that began the attempt.
type Result struct {
	Attempt
	Outcome Outcome
	Detail  string
}

// Verb is a person's request.
type Verb uint8

// The verbs.
const (
	Approve Verb = iota + 1
	Deny
	Cancel
	Retry
	SettleHappened // of a step with unknown outcome: it has happened; of one that could not be undone: it is undone
	SettleNot      // it has not happened
	CloseBreaker   // without a response
)

var verbNames = [...]string{"", "approve", "deny", "cancel", "retry", "settle as happened", "settle as not happened", "close the breaker"}

func (v Verb) String() string {
	if v == 0 || int(v) >= len(verbNames) {
		return "an unknown verb"
	}
	return verbNames[v]
}

// Asked is a person's request. If it cannot be granted, Output.Err gives the reason, and nothing changes.
type Asked struct {
	Subject  string // of the certificate; two subjects are two persons
	Verb     Verb
	Response string
	Reason   string // for people
}

func (FaultChanged) event()       {}
func (GroupChanged) event()       {}
func (Seen) event()               {}
func (Booted) event()             {}
func (Tick) event()               {}
func (PoliciesChanged) event()    {}
func (TopologyChanged) event()    {}
func (SupervisorsChanged) event() {}
func (MaintenanceChanged) event() {}
func (IncidentsChanged) event()   {}
func (Led) event()                {}
func (Lost) event()               {}
func (Result) event()             {}
func (Asked) event()              {}

// Output lists the caller's actions after a step: see the package comment for the order.
type Output struct {
	// Records to commit, in order; each key at most once.
	Records []Record
	// Forget lists keys of records that are no longer needed, none of which is in Records. Deleting them is not urgent.
	Forget []string
	// Effects to start once the records are committed.
	Effects []Effect
	// Unsettled are a former leader's attempts at steps that are not Repeatable. The caller asks their executors for the outcomes
	// and returns each as a Result. Asking does not change the target, so the caller need not commit anything first.
	Unsettled []Effect
	// Stops are attempts that should end: their time is over, or a person has cancelled them. An executor that cannot
	// stop one lets it continue; the engine still needs the result.
	Stops []Attempt
	// Look lists targets for which the engine requests evidence: Seen is the answer.
	Look []Target
	// Decisions for the audit, in order.
	Decisions []Decision
	// Wake is the latest time for the next Tick; zero when nothing is pending.
	Wake time.Time
	// Err is the reason why a request (Asked) or the records of a Led cannot be accepted. A leader with unacceptable
	// records does nothing.
	Err error
}

// Attempt identifies one attempt for ever.
type Attempt struct {
	Response string
	Step     int
	Attempt  int
}

// Effect is one attempt at a step, or at undoing it. Its executor refuses a token lower than one that it has seen. For
// one response and step, it also refuses an attempt that is not higher than all that it has seen; attempts at a step
// and at undoing it share one numbering. If Recheck is set, it checks the target before it acts. It undoes only its own
// changes.
type Effect struct {
	Attempt
	Undo       bool
	Kind       Kind
	Parameters map[string]string
	Target     Target
	Members    []fault.NodeID // of a group fault; for a step that writes to a node's object, the managed ones
	Incident   string         // id of the incident that the target belonged to; empty: none was known
	Notice     uint32         // of that incident when the response was proposed: above 0 it notifies again
	Token      uint64         // an executor that has seen a higher one refuses it
	// IdempotencyKey is the same for all attempts at this step, and another for undoing it.
	IdempotencyKey string
	// Recheck: an earlier attempt may have happened. The executor checks that first, and does not repeat it.
	Recheck bool
	Timeout time.Duration
	Began   time.Time // when the leader decided on the attempt, by that leader's wall clock
}

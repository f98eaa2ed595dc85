package response

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Event is something that the engine is told.
type Event interface{ event() }

// FaultChanged is a committed change of a component, told to every replica: to followers so that they know how often
// it has happened. It is told again when only the evidence or the cause is another.
type FaultChanged struct {
	Fault

	// Stood: it was so already when this replica began to follow the map. When it began only Since says, perhaps by another's clock.
	Stood bool
}

// GroupChanged is a committed change of a group fault.
type GroupChanged struct{ Group }

// Seen is the answer to Output.Look: what the evidence is now. It changes no state.
type Seen struct {
	Target   Target
	Evidence Evidence
}

// Booted says that the node's host has a boot epoch now.
type Booted struct {
	Node  fault.NodeID
	Epoch fault.Epoch
}

// Tick says that time has passed: Output.Wake was reached.
type Tick struct{}

// PoliciesChanged is the set of policies that counts from now on, checked. Those in force that cannot be read here are named:
// another version has written them, and what they began waits for a leader that can.
type PoliciesChanged struct {
	Policies []*Policy
	Unread   []string
}

// TopologyChanged is who there is from now on.
type TopologyChanged struct {
	Dims  grid.Dims
	Nodes []NodeInfo
}

// NodeInfo is one node of the topology.
type NodeInfo struct {
	ID     fault.NodeID
	Coord  grid.Coord
	Spare  bool // it has no place in the torus: Coord says nothing
	Labels map[string]string
}

// SupervisorsChanged is where the supervisors run, and which of them live.
type SupervisorsChanged struct{ Supervisors []SupervisorInfo }

// SupervisorInfo is one supervisor.
type SupervisorInfo struct {
	ID    string
	Node  fault.NodeID // empty: on none of the nodes
	Alive bool
	// Unknown: nobody knows whether it runs on one of the nodes, so that it may be on any. Node is empty.
	Unknown bool
}

// MaintenanceChanged are all nodes that are marked from now on.
type MaintenanceChanged struct{ Nodes []fault.NodeID }

// Led says that this replica leads from now on. It begins with what is committed: the records, and the map.
type Led struct {
	Token uint64 // grows with every leader; who leads twice under one has ended all that it did before
	// Salt tells the ids of this term from those of any other that had, or will have, the same token: in a store that was made anew
	// tokens begin anew. Random letters and digits; empty: ids have none.
	Salt    string
	Records []Record
	Faults  []Fault // all that are not NORMAL
	Groups  []Group // all that stand
	Epochs  []Booted
}

// Lost says that it leads no longer, or that a commit was refused.
type Lost struct{}

// Outcome is how an attempt ended.
type Outcome uint8

// The outcomes.
const (
	Succeeded  Outcome = iota + 1
	Unchanged          // it failed, and this attempt has changed nothing
	Partly             // it failed, and something was changed
	NotKnown           // nobody can say
	StaleToken         // it was refused: a higher token has been seen
)

// Result is what an executor says of an attempt. No two attempts have the same number, under whatever token, so it may
// come to a later leader than the one that began it.
type Result struct {
	Attempt
	Outcome Outcome
	Detail  string
}

// Verb is what a person asks for.
type Verb uint8

// The verbs.
const (
	Approve Verb = iota + 1
	Deny
	Cancel
	Retry
	SettleHappened // of a step of unknown outcome: it has happened; of one that could not be put back: it is put back
	SettleNot      // it has not
	CloseBreaker   // of no response
)

var verbNames = [...]string{"", "approve", "deny", "cancel", "retry", "settle as happened", "settle as not happened", "close the breaker"}

func (v Verb) String() string {
	if v == 0 || int(v) >= len(verbNames) {
		return "an unknown verb"
	}
	return verbNames[v]
}

// Asked is a person's word. What cannot be done is said by Output.Err, and changes nothing.
type Asked struct {
	Subject  string // of the certificate; two are two persons
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
func (Led) event()                {}
func (Lost) event()               {}
func (Result) event()             {}
func (Asked) event()              {}

// Output is what a step asks of the caller: see the package comment for the order.
type Output struct {
	// Records to commit, in order; each key at most once.
	Records []Record
	// Forget are keys of records that nobody needs any more. That they are deleted is of no hurry.
	Forget []string
	// Effects to start once the records are committed.
	Effects []Effect
	// Stops are attempts that are to end: their time is over, or a person has cancelled them. An executor that cannot
	// end one lets it go on; its result is wanted all the same.
	Stops []Attempt
	// Look are targets whose evidence is wanted: Seen is the answer.
	Look []Target
	// Decisions for the audit, in order.
	Decisions []Decision
	// Wake is when to Tick next at the latest; zero when nothing is pending.
	Wake time.Time
	// Err says why an Asked, or records of a Led, cannot be taken. A leader whose records cannot be taken does nothing.
	Err error
}

// Attempt names one attempt for ever.
type Attempt struct {
	Response string
	Step     int
	Attempt  int
}

// Effect is one attempt at a step, or at putting it back. Its executor refuses a token lower than one that it has seen,
// and of one response and step an attempt that is not higher than all that it has seen: attempts at a step and at putting it
// back are numbered together. It looks before it acts where Recheck says so, and puts back only what it did itself.
type Effect struct {
	Attempt
	Undo       bool
	Kind       Kind
	Parameters map[string]string
	Target     Target
	Members    []fault.NodeID // of a group fault
	Token      uint64         // an executor that has seen a higher one refuses
	// IdempotencyKey is the same for all attempts at this step, and another for putting it back.
	IdempotencyKey string
	// Recheck: an attempt before may have happened. It is to be looked for first, and not done again.
	Recheck bool
	Timeout time.Duration
}

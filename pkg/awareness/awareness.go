// Package awareness turns evidence into the fault map: reports of the halves, neighbours'
// descriptors, link views from both ends, answers to challenges and gossip's hints go in; the state
// of every component of every node, and the ordered changes of it, come out (seed 001 §III-C).
//
// It is pure: the map is a function of the evidence and of the times at which it came. It holds no
// clock, socket, store or goroutine; the leader's shell feeds Machine.Step, sends the challenges,
// commits the changes and sleeps until Output.Wake.
//
// # What is believed
//
//   - A half's own newest word counts; a digest is the half's full statement, and what it no longer
//     mentions is withdrawn. Reports only count when they are newer, by (boot epoch, sequence), than
//     what the same half said before, so replays and reordering change nothing. A change that comes later
//     than a half's word counts is history: the digests have said since what is now.
//   - A half is FAILED when its other half's watchdog says so (§III-E), or the descriptors of as many
//     neighbours as it takes for a whole node, and a challenge to it stays unanswered for ChallengeHalf.
//   - A whole node is FAILED when ⌊D/2⌋+1 live neighbours, never fewer than 2, hear nothing from it
//     on any of their links, and a challenge to both of its halves on all rails stays unanswered for
//     ChallengeNode. D is the number of its distinct neighbours. Where fewer neighbours live than
//     that, a majority of the living and ChallengeSingle are needed, and the verdict is marked
//     single-witness.
//   - Only an answer that echoes an open challenge, or a report of a newer boot epoch, is proof of
//     life against an accusation. A fresh report of the same epoch may have been sent just before
//     death: it makes the machine ask once more, not believe.
//   - A leader that has just taken over says nobody is FAILED for Grace, and one that had heard nobody
//     at all says so of nobody for not answering until the ways have had time to come back.
//   - FAILED of a half or of a node stays until there is such proof. Everything else that nobody
//     restates for DigestMisses digest periods becomes UNKNOWN, never NORMAL.
//
// # Size
//
// What a machine keeps of a node against which nothing is held is some 1.6 KB: a statement that all is
// well is one bit of the report that it came with. A report that says nothing new, or a Restated in its
// place, costs the same in any torus, and does not look at the node unless something of it depends on the
// time. Of a torus in regions (Config.Foreign) a machine holds its own nodes and those at its border.
//
// It is not the judge of what to do about a fault: that is pkg/response.
package awareness

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Event is something that the machine is told: Evidence, Restated, Answered, ForeignVerdict, GossipOpinion or Tick.
type Event interface{ event() }

// Evidence is a verified report. Duplicates and any order are harmless.
type Evidence struct{ fault.Delivery }

// Restated says that the half's newest whole digest has come again with the same words (see Words), all
// ages grown by the time between: it is a sign of life, and what the digest states counts on. A step that
// cannot apply it says so by Output.Unknown and changes nothing: then the digest itself is wanted.
type Restated struct {
	Origin fault.Origin
	Epoch  fault.Epoch
	Seq    fault.Seq // of the new digest
	Path   fault.Path
	Held   time.Duration // by all hops together
}

// Answered is a verified answer to a challenge.
type Answered struct {
	Nonce  [16]byte
	Origin fault.Origin
	Epoch  fault.Epoch
	Path   fault.Path
}

// GossipOpinion is what memberlist believes. An opinion of death makes the machine ask the node
// whether it lives; no opinion ever changes a state.
type GossipOpinion struct {
	Node  fault.NodeID
	Alive bool
}

// Labelled says that the nodes have other labels now, or that other labels are failure domains; see Config. Nothing
// that was heard is forgotten: the failure domains are formed anew, and what rests on them is looked at again.
type Labelled struct {
	Labels       map[fault.NodeID]map[string]string
	DomainLabels []string
}

// Tick says that time has passed: Output.Wake was reached.
type Tick struct{}

func (Evidence) event()      {}
func (Restated) event()      {}
func (Answered) event()      {}
func (GossipOpinion) event() {}
func (Labelled) event()      {}
func (Tick) event()          {}

// Output is what a step asks of the shell.
type Output struct {
	// Changes of the map, by rank of the node and component; a component changes at most once.
	Changes []Change
	// Challenges to send now, by rank.
	Challenges []Challenge
	// Groups that began, changed their members or ended (then NORMAL) in this step, by ID.
	Groups []GroupStatus
	// Warnings that began, changed or ended in this step, by rank of the node and component.
	Warnings []WarningStatus
	// Wake is when to Tick next at the latest; zero when nothing is pending.
	Wake time.Time
	// Unknown says that a Restated could not be applied: the machine has no whole digest of that epoch, or
	// the half has said something else since.
	Unknown bool
}

// Change is one component of a node (or, for fault.ComponentNode, the node) changing its state or
// the cause given for it.
type Change struct {
	Node      fault.NodeID
	Component fault.Component
	From, To  fault.State // equal when only the cause, SingleWitness, Inferred or Unreachable changed
	Cause     fault.Cause
	// Path of the evidence that decided; 0 where no report did (missing digests).
	Path fault.Path
	// Observer whose evidence decided: "node/half", or "supervisor/ID" for votes and missing digests.
	Observer string
	// Latency is the age of the deciding observation at this moment: by the ages that observer and
	// hops give plus the time since its arrival. Silence is counted from the last frame heard, which
	// may precede the fault by up to one LinkPeriod, and of several votes the oldest counts: so it is
	// an upper estimate. -1 when no age is known.
	Latency time.Duration
	Kind    fault.Kind
	// Reason is the rule that led here, in words; "flapping" in it means that the change was held
	// back by HoldOff.
	Reason string
	// SingleWitness marks a verdict with fewer live witnesses than the quorum, or none outside of a
	// failure domain that they share.
	SingleWitness bool
	// Flapping marks a change of a component that changes too often: HoldOff holds its changes back.
	Flapping bool
	Platform fault.Platform // platform of the node's halves; 0: not stated
}

// Challenge asks a node for a sign of life. The shell sends it straight to the node and, through
// each of Via, along the torus.
type Challenge struct {
	Node  fault.NodeID
	Half  fault.Half // who is asked; 0: either
	Nonce [16]byte
	// Via are the node's neighbours that live, those that do not accuse it first.
	Via []fault.NodeID
	// Again says that the question was put just before by all rails; this is for the case that a datagram
	// was lost, and goes straight only.
	Again bool
	// Term is the leader's term. Issued is the time of the challenge in ns, by a clock that never goes back within a term, so that a
	// node can tell an old challenge from a new one. The shell sets both.
	Term   uint64
	Issued int64
}

// NodeStatus is one node of the map.
type NodeStatus struct {
	ID            fault.NodeID
	Coord         grid.Coord
	State         fault.State
	Cause         fault.Cause
	SingleWitness bool
	Inferred      bool              // UNKNOWN, and enclosed by the dead: nobody living could see it
	Unreachable   bool              // UNKNOWN, and no living way leads there
	Rule          string            // short name of the rule: docs/awareness.md
	Groups        []string          // ids of the group faults that it is a member of
	Since         time.Time         // when State last changed
	Life          time.Time         // the last sign of life of either half; zero for none
	HalfLife      [2]time.Time      // the same of the host half and of the DNP half; not committed
	Components    []ComponentStatus // those that the node has, in order; ComponentNode is not among them
	Registers     fault.Registers
	RegistersAt   time.Time // zero: none received
	HostEpoch     fault.Epoch
	DNPEpoch      fault.Epoch
	Platform      fault.Platform // platform of its halves; 0: not stated
	Restart       Restart        // announced by the node; zero: none
}

// ComponentStatus is one component of a node.
type ComponentStatus struct {
	Component fault.Component
	State     fault.State
	// Cause is CauseNone unless the state is SICK or FAILED. For a link it tells a fault of the link
	// (LINK) from silence that the peer's death explains (DNP, NODE).
	Cause    fault.Cause
	Since    time.Time
	Rule     string           // short name of the rule: docs/awareness.md
	Flapping bool             // its changes are held back: see Config.HoldOff
	Evidence []EvidenceStatus // newest first
}

// EvidenceStatus is one observation that bears on a component.
type EvidenceStatus struct {
	Kind     fault.Kind
	Observer string     // "node/half" or "supervisor/ID"
	Path     fault.Path // 0 when the supervisor itself observed
	At       time.Time  // when the observed state began, by the ages given; zero when unknown
	State    fault.State
	Detail   string
}

// LinkStatus is one end of a link.
type LinkStatus struct {
	Node      fault.NodeID
	Coord     grid.Coord
	Direction grid.Direction
	Peer      fault.NodeID
	PeerCoord grid.Coord
	State     fault.State
	Cause     fault.Cause
	Since     time.Time
	Rule      string
	Flapping  bool
	Evidence  []EvidenceStatus
}

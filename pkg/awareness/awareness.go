// Package awareness turns evidence into the fault map. Its input is reports of the halves, neighbours'
// descriptors, link views from both ends, answers to challenges and gossip hints. Its output is the
// state of every component of every node, and the ordered changes of these states (seed 001 §III-C).
//
// The package is pure: the map depends only on the evidence and its arrival times. It holds no
// clock, socket, store or goroutine. The leader's shell feeds Machine.Step, sends the challenges,
// commits the changes and sleeps until Output.Wake.
//
// # Rules of evidence
//
//   - A half's newest statement counts. A digest is the half's full statement and withdraws everything
//     that it no longer mentions. A report counts only if it is newer, by (boot epoch, sequence), than
//     earlier reports of the same half, so replays and reordering change nothing. A change report that
//     arrives after the half's statements have expired is history: later digests state the present.
//   - A half is FAILED when its other half's watchdog reports it (§III-E), or the descriptors of a quorum
//     of neighbours do, and a challenge to it stays unanswered for ChallengeHalf.
//   - A whole node is FAILED when ⌊D/2⌋+1 live neighbours, never fewer than 2, hear nothing from it
//     on any of their links, and a challenge to both of its halves on all rails stays unanswered for
//     ChallengeNode. D is the number of its distinct neighbours. If fewer neighbours than that are
//     alive, the verdict needs a majority of the live ones and ChallengeSingle, and is marked
//     single-witness.
//   - Against an accusation, only an answer that echoes an open challenge, or a report of a newer boot
//     epoch, proves life. A fresh report of the same epoch may have been sent just before
//     death: it makes the machine send another challenge, but proves nothing.
//   - A new leader issues no FAILED verdict for Grace. A leader that received nothing from any node
//     blames no node for missing answers until the network paths have had time to recover.
//   - FAILED of a half or of a node stays until there is such proof. Every other state that is not
//     restated for DigestMisses digest periods becomes UNKNOWN, never NORMAL.
//
// # Size
//
// A healthy node takes some 1.6 KB of the machine's memory: a statement that a component is NORMAL is one
// bit of the report that contained it. A report without news, or a Restated in its place, has the same cost
// in any torus. It does not re-evaluate the node unless the node's state depends on the time.
// If the torus is split into regions (Config.Foreign), a machine holds its own nodes and those at its border.
//
// Package awareness does not decide how to react to a fault: that is pkg/response.
package awareness

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Event is an input of the machine: Evidence, Restated, Answered, Refused, ForeignVerdict, GossipOpinion, Labelled, Moved,
// Revoked or Tick.
type Event interface{ event() }

// Evidence is a verified report. Duplicates and any order are harmless.
type Evidence struct{ fault.Delivery }

// Restated reports that the half's newest whole digest has arrived again with the same content (see Words), all ages
// grown by the time between. It is a sign of life and renews the digest's statements. A step that cannot apply it
// changes nothing and sets Output.Unknown: the shell must then request the full digest.
type Restated struct {
	Origin fault.Origin
	Epoch  fault.Epoch
	Seq    fault.Seq // of the new digest
	Path   fault.Path
	Held   time.Duration // by all hops, in total
}

// Answered is a verified answer to a challenge.
type Answered struct {
	Nonce  [16]byte
	Origin fault.Origin
	Epoch  fault.Epoch
	Path   fault.Path
}

// Refused reports that the node's kernel refused a challenge at every address to which the shell sent it straight: no
// process listens there. The answer quoted the nonce. It may shorten the wait for an answer, and changes nothing else.
type Refused struct {
	Node  fault.NodeID
	Nonce [16]byte
}

// GossipOpinion is the opinion of memberlist. An opinion of death makes the machine challenge the node; no opinion ever
// changes a state.
type GossipOpinion struct {
	Node  fault.NodeID
	Alive bool
}

// Labelled replaces the nodes' labels and the keys that count as failure domains; see Config. The evidence is kept: the
// machine rebuilds the failure domains and re-evaluates everything that depends on them.
type Labelled struct {
	Labels       map[fault.NodeID]map[string]string
	DomainLabels []string
}

// Tick reports that Output.Wake has been reached.
type Tick struct{}

func (Evidence) event()      {}
func (Restated) event()      {}
func (Answered) event()      {}
func (Refused) event()       {}
func (GossipOpinion) event() {}
func (Labelled) event()      {}
func (Tick) event()          {}

// Output lists the shell's actions after a step.
type Output struct {
	// Changes of the map, by rank of the node and component; a component changes at most once.
	Changes []Change
	// Challenges to send now, by rank.
	Challenges []Challenge
	// Groups that began, changed their members or ended (state NORMAL) in this step, by ID.
	Groups []GroupStatus
	// Warnings that began, changed or ended in this step, by rank of the node and component.
	Warnings []WarningStatus
	// Settled lists nodes that no longer wait after a change of places, or that have a link that no longer waits, although no state changed.
	// A node may occur twice. The caller must store their Wiring and their links' rules. Otherwise the next leader waits again.
	Settled []fault.NodeID
	// Wake is the latest time for the next Tick; zero when nothing is pending.
	Wake time.Time
	// Unknown reports that a Restated could not be applied: the machine has no whole digest of that epoch, or the half
	// has since sent another report.
	Unknown bool
}

// Change is a change in the state or cause of one component of a node, or of the node (fault.ComponentNode).
type Change struct {
	Node      fault.NodeID
	Component fault.Component
	From, To  fault.State // equal when only the cause, SingleWitness, Inferred or Unreachable changed
	Cause     fault.Cause
	// Path of the deciding evidence; 0 if no report decided (missing digests).
	Path fault.Path
	// Observer of the deciding evidence: "node/half", or "supervisor/ID" for votes and missing digests.
	Observer string
	// Latency is the current age of the deciding observation: the ages stated by observer and hops plus the time since
	// its arrival. Silence counts from the last frame received, which may precede the fault by up to one LinkPeriod,
	// and of several votes the oldest counts. Latency is therefore an upper estimate. -1 when no age is known.
	Latency time.Duration
	Kind    fault.Kind
	// Reason describes the rule that led to the change. If it contains "flapping", HoldOff delayed the change.
	Reason string
	// SingleWitness marks a verdict with fewer live witnesses than the quorum, or with witnesses that all share a
	// failure domain.
	SingleWitness bool
	// Flapping marks a change of a component that changes too often: HoldOff delays its changes.
	Flapping bool
	Platform fault.Platform // platform of the node's halves; 0: not stated
	// Flag is inferred, unreachable, revoked or stopped, of a node that is now so. Else it is empty.
	Flag string
	Was  Aspect // before this change, beside From
}

// Aspect is the visible part of a component beside its state.
type Aspect struct {
	Cause         fault.Cause
	SingleWitness bool
	Flag          string // as in Change
}

// Void reports whether a reader sees the same before and after the change. The machine makes no such change. Changes
// that were merged may be one.
func (c *Change) Void() bool {
	return c.From == c.To && c.Was == Aspect{c.Cause, c.SingleWitness, c.Flag}
}

// Challenge requests a sign of life from a node. The shell sends it straight to the node and, through each of Via,
// along the torus.
type Challenge struct {
	Node  fault.NodeID
	Half  fault.Half // the challenged half; 0: either
	Nonce [16]byte
	// Via are the node's live neighbours, those that do not accuse it first.
	Via []fault.NodeID
	// Again marks a repetition of a challenge that has just gone out on all rails, in case a datagram was lost. It is
	// only sent directly.
	Again bool
	// Term is the leader's term. Issued is the time of the challenge in ns, by a clock that never goes back within a
	// term, so that a node can tell an old challenge from a new one. The shell sets both.
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
	Inferred      bool              // UNKNOWN, and enclosed by dead nodes: no live witness could see it
	Unreachable   bool              // UNKNOWN, and no live path leads to it
	Rule          string            // short name of the rule: docs/awareness.md
	Reason        string            // the rule in words, for this case; empty if the node is NORMAL, or its rule was not kept
	Groups        []string          // ids of its group faults
	Since         time.Time         // when State last changed
	Life          time.Time         // newest sign of life of either half; zero for none
	HalfLife      [2]time.Time      // the same of the host half and of the DNP half; not committed
	Components    []ComponentStatus // the node's components in order, without ComponentNode
	Registers     fault.Registers
	RegistersAt   time.Time // zero: none received
	HostEpoch     fault.Epoch
	DNPEpoch      fault.Epoch
	Platform      fault.Platform // platform of its halves; 0: not stated
	Restart       Restart        // announced by the node; zero: none
	Stop          Stop           // announced by the node; zero: none
	LinksSettle   time.Time      // after a return: when the usual rules apply to the node's links again; zero: they apply now
	Wiring        Wiring         // where its links lead; the map's copies do not keep it
}

// Wiring is where a node's links lead, and what is known about links that lead to another peer since a change of places.
type Wiring struct {
	Peers    [grid.NumDirections]fault.NodeID // by direction; "": no link. All empty: not kept
	Followed uint8                            // bits of directions: ends that have followed
	Unclear  uint8                            // bits of directions: ends whose peer changed again before their link had settled
	// Former are the boot epochs of the host half and of the DNP half at the place that the node had before. Zero: the node
	// has not moved, or its reports need no comparison with these any more.
	Former [2]fault.Epoch
	// Revision of the topology in which the links lead there; 0: unknown. In a later topology a link may have led to another
	// peer and back, so Followed may be about the earlier link to the same peer.
	Revision uint64
}

// AtNewPlace returns the status of a node at a new place before its first report from there. fresh is the status of any unheard
// node at that place, and was is the node's last status at its former place.
func AtNewPlace(fresh, was NodeStatus) NodeStatus {
	fresh.HostEpoch, fresh.DNPEpoch, fresh.Platform = was.HostEpoch, was.DNPEpoch, was.Platform
	fresh.Wiring.Former = [2]fault.Epoch{was.HostEpoch, was.DNPEpoch}
	return fresh
}

// ComponentStatus is one component of a node.
type ComponentStatus struct {
	Component fault.Component
	State     fault.State
	// Cause is CauseNone unless the state is SICK or FAILED. For a link, LINK marks a fault of the link, and DNP or
	// NODE mark silence that the peer's death explains.
	Cause    fault.Cause
	Since    time.Time
	Rule     string           // short name of the rule: docs/awareness.md
	Reason   string           // as in NodeStatus
	Flapping bool             // its changes are delayed: see Config.HoldOff
	Evidence []EvidenceStatus // newest first
}

// EvidenceStatus is one observation that bears on a component.
type EvidenceStatus struct {
	Kind     fault.Kind
	Observer string     // "node/half" or "supervisor/ID"
	Path     fault.Path // 0 when the supervisor itself observed
	At       time.Time  // when the observed state began, by the stated ages; zero when unknown
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

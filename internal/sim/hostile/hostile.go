// Package hostile plays well-formed but untrue input through everything that turns reports into actions: the decoder,
// the awareness machine, the evidence that the leader gathers, the gates and the response engine.
//
// A Sequence is a small torus, up to three nodes whose keys an enemy holds, and their actions: lies of every kind that
// the decoder admits, replays of others' signed reports, links that fall silent, halves that do not answer. Draw makes
// a sequence from a seed and Play plays it, in virtual time and one goroutine, so that the same sequence gives the same
// outcome. Honest nodes send digests, answer challenges and describe their links truthfully, even to a liar at the
// other end; one of them may restart as planned. After the lies the world must return to the truth.
//
//	seed ─► Draw ─► Sequence ─► Play ─► Violations ─► Shrink ─► testdata/*.txt
//
// It differs from internal/sim, which runs the halves and the supervisors completely and costs a thousand times as much
// per simulated second. It is for tests only: nothing here runs in a cluster.
package hostile

import (
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Verb is an action of a liar or of the world around it.
type Verb uint8

// The verbs. Node is the liar except where another meaning is given.
const (
	Say      Verb = iota + 1 // Node/Half reports one observation; its next digest withdraws it
	Claim                    // the same, and every later digest repeats it
	Withdraw                 // Node/Half drops its claims
	Replay                   // repeats the report sent Index reports ago, by Path, with one hop that states Held
	Answer                   // repeats the answer given Index answers ago
	Usurp                    // Node answers, in its own name, the challenge sent Index challenges ago
	Mode                     // Node's end of the link in Direction behaves according to Link
	Mute                     // Node/Half answers challenges only after Held; 0: never
	Speak                    // Node/Half answers challenges at once again
	Hush                     // Node/Half sends no digests for Held
	Boot                     // Node/Half starts again, with an epoch higher by Index
	Gossip                   // memberlist calls About dead
	Trend                    // Node/Half sends readings of Component that approach their threshold
	Lose                     // all messages of About, an honest node, are lost for Held
	Lead                     // another supervisor takes over, with the committed map
	Announce                 // Node/Half announces that Of restarts within Held; 0: the restart is over
	Plan                     // About, an honest node, restarts its host half, which it has announced within Held
	// Refuse forges kernels' answers that nothing listens at About: to the challenge sent Index challenges ago, and to
	// all challenges within Held. The forger has read the challenges, as if it stood on their way.
	Refuse
	numVerbs
)

var verbNames = [...]string{"", "say", "claim", "withdraw", "replay", "answer", "usurp", "link", "mute", "speak", "hush", "boot",
	"gossip", "trend", "lose", "lead", "announce", "plan", "refuse"}

// String returns the verb's name in text sequences.
func (v Verb) String() string {
	if v == 0 || v >= numVerbs {
		return fmt.Sprintf("Verb(%d)", uint8(v))
	}
	return verbNames[v]
}

// LinkMode is the behaviour of a liar's end of a link.
type LinkMode uint8

// The modes.
const (
	Works    LinkMode = iota + 1
	Silent            // it sends no frames
	Deaf              // its frames state that it receives none
	Noisy             // its frames are damaged
	Restarts          // it announces that its DNP half restarts
	HostDead          // its frames carry a descriptor that declares its own host dead
	Refusing          // it sends no frames, and its kernel refuses those of the other end
	numLinkModes
)

var linkModeNames = [...]string{"", "works", "silent", "deaf", "noisy", "restarts", "host-dead", "refusing"}

// String returns the mode's name in text sequences.
func (l LinkMode) String() string {
	if l == 0 || l >= numLinkModes {
		return fmt.Sprintf("LinkMode(%d)", uint8(l))
	}
	return linkModeNames[l]
}

// Action is one event of a sequence.
type Action struct {
	At        time.Duration // from the leader's first action
	Do        Verb
	Node      int // rank
	Half      fault.Half
	About     int        // rank
	Of        fault.Half // that restarts
	Component fault.Component
	State     fault.State
	Kind      fault.Kind
	Age       time.Duration
	Digest    bool // the report claims to be a partial digest
	Ended     bool // the observation claims that a kernel reported the end of a process
	Direction grid.Direction
	Link      LinkMode
	Path      fault.Path
	Held      time.Duration
	Index     int
}

// Sequence is a world and its events.
type Sequence struct {
	Dims    grid.Dims
	Racks   bool // the nodes of one X share a failure domain
	Liars   []int
	Dead    int             // rank of an honest node that really dies when the lies begin; -1: none
	Refuses bool            // the kernel of the dead node lives, and refuses frames and challenges
	Loss    int             // percent of the datagrams of honest nodes that are lost
	Seed    uint64          // of the losses and delays
	Kinds   []response.Kind // policies with one of these steps for every fault
	Shipped bool            // also the shipped policies, in mode enforce
	Actions []Action
}

// liar reports whether the enemy holds a node's keys.
func (s *Sequence) liar(rank int) bool {
	return slices.Contains(s.Liars, rank)
}

// Package express is the Express Broadcast Network (seed 003 §4.2 to §4.4 and §7.2). A node broadcasts to all nodes
// connected with the sender, over the torus links alone, ahead of all other traffic on them, and around any
// damage.
//
// It is pure: it opens no socket, reads no clock and draws no random number. It knows no frames: it sends payloads of
// torus frames of TypeEureka and TypeBarrier, and its caller (internal/agent/dnp/dnpcore, a simulator) says which of
// a node's links can carry such frames.
//
// # Flooding
//
// The origin of a broadcast sends it to all its neighbours. A node that gets it for the first time delivers it
// locally and sends it to all the others. So every broadcast builds a tree of its own, around any damage (§4.2,
// Figure 3). A node ignores duplicates, by their ID. The direction from which a broadcast came first is the parent in
// that tree.
//
// From hop to hop it is reliable: a node sends it to a neighbour until that neighbour acknowledges it, or sends it
// itself, and gives up Life after it was raised. It carries its age, so that no broadcast is in the network for
// longer than Life, and remembering IDs for twice as long is enough. Repeats ride on ticks that come anyway.
//
// # Bounds
//
// A node holds at most MaxHeld broadcasts. A low priority may use fewer of these places than a high one, so that high
// ones always find room (see Room). A broadcast without room is not acknowledged, so its sender keeps it and tries
// again, back to its origin. On each link at most Window broadcasts wait for their acknowledgement. One of a higher
// priority does not wait for that: it replaces a lower one, which is sent again later (§4.3.4). New ones have a
// budget for each link and each origin, so that one bad node cannot fill the network.
//
// # Authorization
//
// Frames are authenticated from hop to hop by the link's MAC and by nothing else. So statements of a DNP half (states
// of a procedure, barriers, flow control, master) are believed because every half on their way belongs to the
// cluster. An insider, that is a half whose key was stolen, can make such statements in any node's name, withhold
// traffic that has no way around it, and spend other origins' numbers; it cannot exceed its links' budgets. Orders of
// supervisors and messages of jobs are therefore signed envelopes in the Body. Nodes pass them on at once and act
// upon them only when the signature is good.
//
// # Payload of frames of TypeEureka
//
// All integers are big endian. Kinds that are not known are ignored.
//
//	kind 1, a broadcast              kind 2, acknowledgement
//	offset size field                offset size field
//	  0     1   1                      0     1   2
//	  1     1   topic                  1     1   n, 1 to MaxAcks
//	  2     1   priority, 0 to 7       2   22·n  IDs: origin x, y, z; epoch; number
//	  3     1   0
//	  4     2   hops made, this one    kind 3, a ping, and kind 4, its echo
//	            included             offset size field
//	  6     2   age in ms              0     1   3 or 4
//	  8     6   origin x, y, z         1     8   a number of the asker's
//	 14     8   origin's boot epoch
//	 22     8   number, from 1
//	 30     n   body, at most MaxBody
//
// Kinds 5 to 7 are of data of more than one frame: they stand at Data. The payload of frames of TypeBarrier stands at
// Barrier.
package express

import (
	"fmt"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Topic is the subject of a broadcast; it selects the receivers at a node.
type Topic uint8

// The topics. A node passes on those that it does not know.
const (
	TopicJob    Topic = iota + 1 // of a job (§4.4.3): goes to the host half, which serves the jobs on its local socket
	TopicManage                  // fault management procedure (§4.5): states, drain, diagnosis orders
	TopicMask                    // channel mask and configuration from the supervisors (§4.4.1)
	TopicFlow                    // global flow control (§4.4.2)
	TopicMaster                  // selection of a master (§4.4.4)
)

var topicNames = [...]string{TopicJob: "job", TopicManage: "manage", TopicMask: "mask", TopicFlow: "flow", TopicMaster: "master"}

// NumTopics is one more than the last topic known, for arrays of counters; their place 0 is of those not known.
const NumTopics = int(TopicMaster) + 1

// String returns the topic's name.
func (t Topic) String() string {
	if t >= 1 && int(t) < NumTopics {
		return topicNames[t]
	}
	return fmt.Sprintf("Topic(%d)", uint8(t))
}

func (t Topic) index() int {
	if int(t) < NumTopics {
		return int(t)
	}
	return 0
}

// Priority orders broadcasts: 0 is the lowest, MaxPriority the highest, which goes before all others (§4.3.4).
type Priority uint8

// MaxPriority is the highest priority.
const MaxPriority Priority = 7

// ID names a broadcast. Number counts from 1 within the boot epoch of the origin's DNP half.
type ID struct {
	Origin grid.Coord
	Epoch  fault.Epoch
	Number uint64
}

// String returns "x,y,z epoch/number".
func (id ID) String() string { return fmt.Sprintf("%s %d/%d", id.Origin, id.Epoch, id.Number) }

// Message is a broadcast.
type Message struct {
	ID
	Topic    Topic
	Priority Priority
	// Hops is the number of hops made so far: 0 at the origin.
	Hops uint16
	// Body is at most MaxBody bytes long. In a delivered message the receiver owns it.
	Body []byte
}

// Bounds.
const (
	// MaxBody is the longest body of a broadcast, in bytes: with everything around it it fits a frame on a path with
	// an MTU of 1,500.
	MaxBody = 1200
	// MaxHeld is the number of broadcasts that a node holds at once.
	MaxHeld = 64
	// Window is the number of a node's broadcasts that wait for their acknowledgement on a link at once.
	Window = 16
	// MaxAcks is the number of broadcasts that one frame acknowledges.
	MaxAcks = 48
)

// Room returns how many of the MaxHeld places may be occupied when a broadcast of a priority still gets one: 64 for
// the highest, 36 for the lowest.
func Room(p Priority) int { return MaxHeld - 4*int(MaxPriority-min(p, MaxPriority)) }

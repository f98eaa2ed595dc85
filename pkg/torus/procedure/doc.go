// Package procedure is the fault management procedure of the Chaos router (seed 003 §4.5, Figures 7 and 8, §5.2.1.3) at one node:
// the whole torus stops taking new messages, empties, tests its links, may change its channel masks, and goes on.
//
// It is pure: it broadcasts nothing and reads no clock. The owner carries its messages to all nodes that can be reached, tells it
// what it heard and how many messages this node holds, and does what Output says.
//
//	Normal ──start, or heard of one──► ErrorDetectPropagate
//	                                          │ 1 Network Delay
//	                                          ▼
//	                    ┌────────────── SystemDrain ◄───────────────┐
//	        all claim   │                     │ somebody holds,     │ 2 hops
//	        to be empty │                     │ or did not claim    │
//	                    │                     ▼                     │
//	                    │               NetworkClear ───────────────┤
//	                    │                                           │ DrainTimeout
//	                    ▼                                           ▼
//	                 Decision ◄──────────── Drop ───────────── DropPackets
//	                    │ 2 Network Delays
//	        ┌───────────┴────────────┐
//	        │ somebody wants them    │ nobody
//	        ▼                        ▼
//	    Diagnostics ──Diagnose──► (masks) ──2 Network Delays──► Normal
//
// # How it differs from the paper
//
// The paper's wire is up or down, and a barrier is complete when nobody asserts it. Ours goes over links that lose packets: the barrier
// is complete when all members have claimed that they held nothing from the beginning of the round on, and never because
// nobody spoke. So a node that cannot answer makes the drain time out; it is named, and the network is then not called clear.
// Messages are not dropped either: in DropPackets they stay where they are held, and are counted as stuck. The mask may
// change in Diagnostics alone, when the network is clear, and before any node goes on: nodes are apart by one Network Delay at most.
//
// # Waves
//
// A procedure has the number of its wave, one more than the last that the starter knows of. So two who start at once start the
// same. Who hears of a higher wave joins it where it is; of a lower one that is over, says so. Within a wave who hears of a later
// state goes there; every state has a time-out besides, so that a node that hears nobody comes back to Normal by itself, within
// Timing.Longest of when it left it, whatever comes.
//
// # A bad node
//
// After a procedure no other is joined for Timing.Rest, and none that the same node has started more often than Timing.Budget
// allows. So a node that always starts one, or raises the wave, holds the torus for Longest out of Longest and Rest at most, and
// after its budget not at all. The starter's name is the word of whoever broadcasts: an insider who lies about it is bounded by Rest.
package procedure

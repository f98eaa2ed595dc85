// Package procedure is the fault management procedure of the Chaos router (seed 003 §4.5, Figures 7 and 8, §5.2.1.3) at one node:
// the whole torus stops taking new messages that can wait, empties, tests its links, may change its channel masks, and goes on.
//
// It is pure: it broadcasts nothing and reads no clock. The owner (internal/agent/dnp/dnpcore) carries its broadcasts and its
// sets to all nodes that can be reached, tells it what it heard and how many messages this node holds, and does what Output says.
//
//	Normal ──start, or heard of one──► ErrorDetectPropagate
//	                                          │ all have joined, or 1 Network Delay
//	                                          ▼
//	                    ┌────────────── SystemDrain ◄───────────────┐
//	     all have       │                     │ somebody holds       │ 2 hops
//	     confirmed      │                     │ after it had claimed │
//	                    │                     ▼                      │
//	                    │               NetworkClear ───────────────┤
//	                    │                                           │ DrainTimeout
//	                    ▼                                           ▼
//	                 Decision ◄──────────── Drop ───────────── DropPackets
//	        ┌───────────┴────────────┐
//	        │ somebody wants them    │ 2 Network Delays, and nobody does
//	        ▼                        ▼
//	    Diagnostics ──Diagnose──► (masks) ──1 Network Delay──► Normal
//
// # Who says what
//
// States are said by the starter alone, when it enters one and every Repeat while the drain lasts: one broadcast a state, however large the
// torus. All others follow by what they hear and by their own time-outs. What all must say goes into sets that only grow and are
// merged on the way (package express, barriers), which costs a node some thirty frames a set and not one broadcast of each node:
//
//	Joined      takes part
//	Empty r     held nothing for two hops in round r
//	Confirm r   held nothing from that claim on until it knew that all had claimed
//	Present     is there at the time-out: who is not was silent
//	Stuck       holds messages then
//
// # Why the network is clear when it is called so
//
// The paper's wire is up or down, and a barrier is complete when nobody asserts it. Over links that lose packets silence says
// nothing: a set is complete when all members are in it. Say that T is when the last member claims to be Empty in a round. Nobody
// can know before T that all have; so each member that confirms held nothing from its own claim, before T, until it knew, after
// T. When all have confirmed, all held nothing at T, at one and the same time, however late, lost or unequal anything was: no
// clock and no Network Delay is in the argument. What a neighbour has not acknowledged its sender still holds, so nothing is
// between two nodes either. Who gets a message between the two cannot confirm: it says so at once, and a new round begins. So a
// member that cannot answer makes the drain time out; it is named, and the network is then not called clear.
//
// Messages are not dropped: in DropPackets they stay where they are held, and are counted as stuck. The mask may change in
// Diagnostics alone, when the network is clear, and before any node goes on: nodes are apart by one Network Delay at most.
//
// # Several at once
//
// A procedure is named by its wave, its starter and a number of the starter's (Key). The wave is one more than the last that the
// starter knows of, so of two procedures the later one has the higher, mostly: who begins cold knows none, and counts from 1; and
// one that is far ahead is joined, but not counted on from, so that nobody uses the numbers up. Of two that meet, all nodes take
// the same: one that a supervisor ordered before one that a node began by itself, the newer order, the higher wave, the lower
// starter. A procedure that has ended here is not joined again.
//
// # A bad node
//
// After a procedure none that a node began by itself is joined for Limits.Rest, none that the same node has started more often
// than Limits.Budget allows, and none that wants more time than this node would. So a node that always starts one, or raises the
// wave, holds the torus for Longest out of Longest and Rest at most, and after its budget not at all. The starter's name is the
// word of whoever broadcasts: an insider who lies about it is bounded by Rest. Orders of supervisors are neither rested nor
// counted: each has a number that is used once (see Heard.Ordered). Every state has a time-out, and Normal is reached
// Plan.Longest after it was left, whatever comes.
package procedure

// Package procedure is the fault management procedure of the Chaos router (seed 003 §4.5, Figures 7 and 8, §5.2.1.3)
// at one node: the whole torus stops taking new messages that can wait, empties, tests its links, may change its
// channel masks, and goes on.
//
// It is pure: it broadcasts nothing and reads no clock. The owner (internal/agent/dnp/dnpcore) carries its broadcasts
// and its sets to all reachable nodes, passes in received broadcasts and the number of messages that this node holds,
// and carries out the Output.
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
//	        │ some node asked        │ 2 Network Delays, and no node has asked
//	        ▼                        ▼
//	    Diagnostics ──Diagnose──► (masks) ──1 Network Delay──► Normal
//
// # Announcements
//
// Only the starter announces states, when it enters one and every Repeat while the drain lasts: one broadcast a
// state, however large the torus. All others follow from received broadcasts and from their own time-outs. Statements
// that all nodes must make go into sets that only grow and are merged on the way (package express, barriers). That
// costs a node some thirty frames a set instead of one broadcast of each node:
//
//	Joined      takes part
//	Empty r     held nothing for two hops in round r
//	Confirm r   held nothing from that claim on until it knew that all had claimed
//	Present     is there at the time-out: who is not was silent
//	Stuck       holds messages then
//
// # Why NetworkClear is reliable
//
// The paper's wire is up or down, and a barrier is complete when no node asserts the wire. Over links that lose
// packets silence proves nothing: a set is complete when all members are in it. Let T be the time when the last
// member claims to be Empty in a round. No member can know before T that all have; so each member that confirms held
// nothing from its own claim, before T, until it knew, after T. When all have confirmed, all held nothing at T, at
// one and the same time, in spite of any delay, loss or difference: no clock and no Network Delay is in the argument.
// A sender still holds a message that its neighbour has not acknowledged, so nothing is between two nodes either. A
// member that gets a message between claim and confirmation cannot confirm: it says so at once, and a new round
// begins. A member that cannot answer makes the drain time out; it is named, and the network then does not count as
// clear.
//
// A node may request diagnostics only before it enters Decision. It then broadcasts the request. Even the most delayed
// node, one Network Delay behind the most advanced node, then reaches that node while it is still in Decision
// (§4.5.4). A node refuses its own later requests, but follows a late request of another node. A node that sends late can
// therefore split the nodes, as two starters do. A node that changes to another procedure repeats only its own request
// there.
//
// Messages are not dropped: in DropPackets they stay where they are held, and are counted as stuck. The mask may
// change only in Diagnostics, when the network is clear, and before any node goes on: nodes are apart by one Network
// Delay at most.
//
// # Several at once
//
// A procedure is named by its wave, its starter and a number of the starter's (Key). The wave is one more than the
// last one known to the starter, so the later of two procedures usually has the higher wave. But a node that begins
// cold knows none and counts from 1; and nodes join a wave that is far ahead without counting on from its number, so
// that no starter can use the numbers up. Of two procedures that meet, all nodes take the same one: an order of a
// supervisor before a node's own procedure, then the newer order, the higher wave, the lower starter. A node does not
// join a procedure again that has ended here.
//
// # A bad node
//
// After a procedure, for Limits.Rest, a node joins none that another node began by itself. It never joins one if the
// same node has started more often than Limits.Budget allows, or if it takes more time than this node's own would. So
// a node that always starts one, or raises the wave, holds the torus for at most Longest out of Longest and Rest, and
// after its budget not at all. The starter's name is only a claim of the broadcaster: an insider who lies about it is
// bounded by Rest. Orders of supervisors are neither rested nor counted: each has a number that is used once (see
// Heard.Ordered). Every state has a time-out, and a node is back in Normal at most Plan.Longest after it left that
// state.
package procedure

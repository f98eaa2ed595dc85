// Package chaos is a cycle-level model of the Chaos router (seed 003 §2) on meshes and tori of any number of
// dimensions: frames, multiqueue, crossbar, channels, and routing with and without the paper's additions for faults
// (§5.2.3.1). It exists for the paper's studies (package experiment); no part runs in a cluster.
//
// # The model
//
// A router has an input and an output frame for each of its channels, one more of each for its processor (injection
// and ejection), and a multiqueue. Each holds one packet. A channel joins the output frame of one router and the
// input frame of its neighbour, in both directions. Time is counted in cycles; a flit moves from one buffer to the
// next in one cycle. A packet is routed when its header is there and decoded (virtual cut-through), so that it may be
// spread over several routers.
//
//	cycle      action of the header, when the way is free
//	t          leaves the output frame over the channel
//	t+1        is decoded in the neighbour's input frame (Config.Decode cycles)
//	t+2        goes through the crossbar
//	t+3        leaves the next output frame
//
// Once a header has left a buffer the packet's other flits follow in the cycles thereafter, without a gap: each
// buffer that a header enters is empty and holds a whole packet, and flits came in without a gap. So the place of
// every flit follows from the times of its header, and the engine books only those: a buffer that a header leaves in
// cycle t may take another in cycle t + flits − 1, in which the tail leaves. The tests move real flits beside it and
// find the same.
//
// # One cycle of a router
//
//  1. Packets of the multiqueue, oldest first, go to a free output frame of their list; of several one at random.
//     They are preferred to those in input frames.
//  2. Packets in input frames follow the same rule, in turn.
//  3. A packet that waits in an input frame for Config.InputWait cycles enters the multiqueue, if that has room; and
//     at once when the packet exchange needs its frame.
//  4. When the multiqueue is full and no packet in it could go, one at random goes to any free output frame but the
//     processor's: derouting.
//
// The list of a packet holds the profitable and functional channels, without its arrival channel unless that is the
// only functional one (No Routeback). If that list is empty, it holds all functional channels (fast derouting). It is
// made once, when the packet arrives.
//
// # Why it does not lock up
//
// Packet exchange: a router fills the output frame of a channel only while the input frame of the same channel is
// empty, or being emptied, or emptied by the same decision (into a free slot, or into the one that the derouted
// packet leaves). Of a channel's four frames (two at each end) one is then always free: the last to be filled cannot
// be an output frame, for its own input frame would be free; nor an input frame, for the output frame that filled it
// has become free. So either a packet can cross, or a router with a waiting input frame has the output frame beside
// it free, and the rules above move something.
//
// Dimension-order and minimal adaptive routing serve for comparison. They have no multiqueue and do not deroute. On a
// torus a packet enters a ring only where it leaves a free frame behind (bubble flow control); minimal adaptive has a
// second lane a channel, with that as its way of escape. If faults leave such a packet no way it is lost, and
// counted.
package chaos

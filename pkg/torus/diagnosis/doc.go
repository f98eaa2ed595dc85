// Package diagnosis tests the links of a node, and draws together what all nodes found (seed 003 §5.2.2).
//
// It is pure: it sends nothing and reads no clock. The shell puts probes into test frames and steps the machine with
// what comes back; Judge says what one node can know of one link, and Collate what follows from the findings of many.
//
// # The tests (seed 003 §5.2.2.1, Figure 12)
//
//	DNP      one hop: the neighbour's DNP half sends the probe back
//	Host     one hop: the neighbour's DNP half gives it to its host half by mailbox, and sends back what that returns
//	Through  two hops in one dimension: the neighbour's DNP half passes it on to the node behind it, whose DNP half
//	         sends it back the same way; the host half between them need not live (Figure 12(b))
//
//	      here          neighbour          behind
//	     ┌────┐         ┌────┐            ┌────┐
//	     │host│         │host│            │host│
//	     └─┬──┘         └▲─┬─┘            └────┘
//	       │             │ │ Host
//	     ┌─┴──┐  DNP    ┌┴─▼─┐            ┌────┐
//	     │DNP ├────────►│DNP ├───────────►│DNP │
//	     │    │◄────────┤    │◄───────────┤    │  Through
//	     └────┘         └────┘            └────┘
//
// The paper's router is our DNP half, its processing node our host half. Each test goes in several sizes and bit patterns,
// and is acknowledged by its own bytes. The number of probes is fixed and small, so that a test ends within a known time.
//
// # On-line and off-line
//
// The same tests run while the torus carries its usual load. The paper thought that impractical, since nobody could tell a
// late answer from a lost one (§5.2.2.2); here heartbeats bound what is late, relays hold at most 64 messages a node, and
// what came after the time is counted as late and never as proof. A diagnosis of a drained torus (pkg/torus/procedure) has
// nothing beside it that could be late at all.
//
// # What follows
//
// One node alone never tells a dead DNP half from a dead cable: nothing answers in both cases, and Judge says so. With the
// findings of both ends, and of the other neighbours, Collate can, often; what it cannot it leaves inconclusive. It names a
// part only when no other explanation is left: a healthy part that is named costs more than a dead one that is not.
package diagnosis

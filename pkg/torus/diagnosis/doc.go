// Package diagnosis tests the links of a node, and combines the findings of all nodes (seed 003 §5.2.2).
//
// It is pure: it sends nothing and reads no clock. The shell puts probes into test frames and steps the machine with
// the answers. Judge returns the verdict of one node on one link, and Collate the conclusion from the findings of
// many nodes.
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
// The paper's router is our DNP half, its processing node our host half. Each test goes in several sizes and bit
// patterns, and is acknowledged by its own bytes. The number of probes is fixed and small, so that a test ends within
// a known time.
//
// # On-line and off-line
//
// The same tests run while the torus carries its usual load. The paper thought that impractical, because no node
// could distinguish a late answer from a lost one (§5.2.2.2). Here heartbeats bound lateness, relays hold at most 64
// messages a node, and an answer after the deadline counts as late and never as proof. While a drained torus
// (pkg/torus/procedure) is diagnosed, no other traffic can delay an answer.
//
// # Conclusions
//
// One node alone never distinguishes a dead DNP half from a dead cable: both answer nothing, and Judge says so. With
// the findings of both ends, and of the other neighbours, Collate often can; otherwise its verdict is inconclusive.
// It names a part only when no other explanation is left: blaming a healthy part costs more than missing a dead one.
package diagnosis

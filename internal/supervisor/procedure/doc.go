// Package procedure is the supervisors' side of the fault management procedure (seed 003 §4.5, Figure 7, §5.2.1.3): whom the leader has
// begin it, when it asks again and whom, and what became of it. What the nodes do meanwhile is pkg/torus/procedure.
//
//	beginning ──somebody has entered a state, or is through──► under way ──the first is through, or the time is over──► ending
//	 │   ▲                                                                                                              │   ▲
//	 │   └── the starter refuses, or is silent for Timing.Begin: the next one                     those who have not said └───┘
//	 ▼                                                                                            so are asked again      │
//	failed: nobody began it                                                   all have said so, or were asked in vain: over ◄┘
//
// It is pure: it seals and sends nothing, and numbers no orders. Who gives it statuses has seen that they are of its order.
//
// A procedure ends at each node by that node's own time-outs, whatever becomes of the starter or of the leader. So the machine waits for
// nobody in particular: what the first who is through says is news enough to ask the others, and who says nothing is named.
//
// A leader that comes to lead while one is under way, or is over without a report, takes it up by asking (Resume).
//
// Procedures that nodes begin by themselves are nobody's order. Strays puts together what nodes say of these, and Starters counts how
// many each has begun.
package procedure

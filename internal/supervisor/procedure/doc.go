// Package procedure is the supervisors' side of the fault management procedure (seed 003 §4.5, Figure 7, §5.2.1.3). It
// chooses the starter, decides when to ask which node again, and determines the outcome. The nodes' side is
// pkg/torus/procedure.
//
//	beginning ──somebody has entered a state, or is through──► under way ──the first is through, or the time is over──► ending
//	 │   ▲                                                                                                              │   ▲
//	 │   └── the starter refuses, or is silent for Timing.Begin: the next one                     those who have not said └───┘
//	 ▼                                                                                            so are asked again      │
//	failed: nobody began it                                                   all have said so, or were asked in vain: over ◄┘
//
// The package is pure: it seals and sends nothing, and numbers no orders. The caller passes it only statuses of its own
// order.
//
// Each node ends a procedure by its own time-outs, even if the starter or the leader fails. So the machine does not
// depend on any particular node: after the first node's final status it asks the others, and it names the silent ones.
//
// A new leader may find a procedure in progress, or one that ended without a report. It takes the procedure up by asking
// the nodes (Resume).
//
// Nodes may also begin procedures by themselves, without an order. Strays assembles their reports from the nodes'
// statuses, and Starters counts how many each node has begun.
package procedure

// Package order is the one channel for everything that the leader wants of nodes: channel masks, peers, the torus configuration, mapping,
// diagnosis, procedures and actions.
//
//	leader                                                         node
//	wanted ──► Standing, Timer ──order, signed──► validate, fence ──► keep ──► apply
//	             ▲   │ no answer: send again                                     │
//	             └───┴──────────────── status, signed ◄──────────────────────────┘
//
// The leader repeats an order until the node has answered. The node takes it once, however often it arrives: the fences refuse an order
// that is older than the last one, a copy of an earlier order and an order for an earlier life of the node.
//
// Kinds come in two shapes. A standing order says what a node is to hold (masks, peers, plain kinds): Standing is its machine at the
// leader, Holder at the node. A run has the node do something once (mapping, diagnosis, procedures): Runs is its fence at the node. Every
// wait for an answer is a Timer.
//
// Each end has a Registry of its kinds, made where the end is put together. A kind that has no messages of its own travels in the
// messages Order and OrderStatus: see Plain.
//
// The package is pure. It sends nothing and signs nothing: what orders look like on the wire, and who may send them, is package
// servicenet's. Start reading at Registry and Standing.
package order

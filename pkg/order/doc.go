// Package order is the one channel for the leader's orders to nodes: channel masks, peers, the torus configuration,
// mapping, diagnosis, procedures and actions.
//
//	leader                                                         node
//	wanted ──► Standing, Timer ──order, signed──► validate, fence ──► keep ──► apply
//	             ▲   │ no answer: send again                                     │
//	             └───┴──────────────── status, signed ◄──────────────────────────┘
//
// The leader repeats an order until the node has answered. The node accepts it once, however often it arrives. The
// fences refuse an order that is older than the last one, a copy of an earlier order, and an order for an earlier life
// of the node.
//
// There are two shapes of kinds. A standing order sets a content that a node holds (masks, peers, plain kinds): its
// machine is Standing at the leader, and Holder at the node. A run makes the node act once (mapping, diagnosis,
// procedures): its fence at the node is Runs. Every wait for an answer is a Timer.
//
// Each end has a Registry of its kinds, filled by the code that assembles the end. A kind without messages of its own
// uses the messages Order and OrderStatus: see Plain.
//
// The package is pure. It sends nothing and signs nothing: package servicenet defines the wire format of orders and
// their permitted senders. Start reading at Registry and Standing.
package order

// Package halfcore is the pure part that both halves of a node share (hostcore and dnpcore build on it):
//
//   - ledger.go: a half's statements about components, collected for reports and digests
//   - health.go: what a half knows of recoveries and self-tests, prepared for digests
//   - selftest.go: the modules of the self-test, with their times and bounds
//   - recoveryrecord.go: the recovery daemon's knowledge of a half, as the halves receive it
//   - lateness.go: how late a half runs
//   - budget.go: the work that a half gives up to keep to its budget of processor time
//   - peersconfig.go: a half's initial knowledge of its peers, and the status that answers a peer order
//   - rule.go: the rules of the channel protocol that a neighbour can break
//   - outboxconfig.go: the outbox's settings that follow from the periods
//   - topo.go: the node's view of the torus around it
//   - relay.go: the message format of envelopes that halves forward for others
//
// It does not decide states, number reports or send them.
package halfcore

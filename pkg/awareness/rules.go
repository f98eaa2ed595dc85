package awareness

import (
	"slices"
)

// ruleName is the short name of a rule. docs/awareness.md has a paragraph on each.
type ruleName uint8

// The rules, from the weightiest verdict to mere absence.
const (
	ruleQuorum       ruleName = iota + 1 // a quorum of neighbours hears nothing, and no answer
	ruleSingle                           // the same with fewer or dependent witnesses
	ruleBothHalves                       // both halves failed one after the other
	ruleWatchdog                         // its other half finds it dead, and no answer
	ruleDescriptors                      // neighbours' descriptors say it is dead, and no answer
	ruleAnswers                          // accused, but it answers
	ruleSpeaks                           // the half itself reports
	ruleOwnWord                          // the newest word of the node's own halves
	ruleLastWord                         // the host's last statement before it died
	ruleDescribed                        // descriptors of neighbours, while the host is not heard
	ruleDescribedOne                     // the descriptor of one neighbour, while the host is not heard
	ruleNearEnd                          // the near end's view of the link
	ruleFarEnd                           // the far end's view of the link
	ruleDisputed                         // an accusation that the other end of the link contradicts
	rulePeerDead                         // the peer's death explains the link
	ruleRestarting                       // the peer's DNP half is being restarted, as announced
	ruleNodeDead                         // the node is dead: the state of its parts is unknown
	ruleDNPDead                          // its DNP is dead
	ruleHostDead                         // its host is dead
	ruleInferred                         // no witness: enclosed by the dead
	ruleUnreachable                      // no live path leads to it
	ruleUnheard                          // no evidence, or too old
	ruleRestored                         // as committed by the previous leader
	ruleRow                              // a whole row
	rulePlane                            // a whole plane
	ruleBundle                           // all links between two planes
	ruleBlock                            // a box of dead nodes
	ruleEnclosed                         // a block whose inside no witness sees
	ruleLabel                            // a whole failure domain
	rulePartition                        // a part of the torus without a path to it
	ruleRevoked                          // the node's certificates are revoked
	ruleCutOff                           // at a parent: its region is not heard
	ruleBus                              // one half hears nothing over the bus, but the other one answers
	ruleStopped                          // the node has stopped, as it announced
	ruleRelinked                         // the link leads to another node, and is not known to work yet
)

// RuleCutOff is the rule by which a parent of regions marks the nodes and group faults of a region that it does not
// hear. A machine itself never uses it.
const RuleCutOff = "cut-off"

// RuleRelinked is the rule of a link that leads to another node since a change of the topology, until it works.
const RuleRelinked = "relinked"

// RuleRevoked is the rule for nodes with revoked certificates and for the links to them.
const RuleRevoked = "revoked"

// RuleStopped is the rule for nodes that have announced a stop and for the links to them.
const RuleStopped = "stopped"

// RulePeerRestarting is the rule of a link that is sick because its peer's DNP half is being restarted.
const RulePeerRestarting = "peer-restarting"

var ruleNames = [...]string{"", "quorum", "single-witness", "both-halves", "watchdog", "descriptors", "answers", "speaks", "own-word",
	"last-word", "described", "described-by-one", "near-end", "far-end", "disputed", "peer-dead", RulePeerRestarting, "node-dead", "dnp-dead",
	"host-dead", "inferred",
	"unreachable", "unheard", "restored", "row", "plane", "bundle", "block", "enclosed", "label", "partition", RuleRevoked, RuleCutOff, "bus",
	RuleStopped, RuleRelinked}

// String returns the name, or "" for none.
func (r ruleName) String() string { return ruleNames[r] }

// ofNode reports whether it is the rule of a verdict on a whole node.
func (r ruleName) ofNode() bool {
	return r == ruleQuorum || r == ruleSingle || r == ruleBothHalves || r == ruleEnclosed
}

// parseRule returns the rule of that name; ruleRestored if the name is unknown.
func parseRule(s string) ruleName {
	if i := slices.Index(ruleNames[1:], s); i >= 0 {
		return ruleName(i + 1)
	}
	return ruleRestored
}

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
	ruleSpeaks                           // the half itself is heard
	ruleOwnWord                          // the newest word of the node's own halves
	ruleLastWord                         // what the host said last before it died
	ruleDescribed                        // descriptors of neighbours, and the host is not heard
	ruleDescribedOne                     // the descriptor of one neighbour, and the host is not heard
	ruleNearEnd                          // the near end's view of the link
	ruleFarEnd                           // the far end's view of the link
	ruleDisputed                         // an accusation that the other end of the link contradicts
	rulePeerDead                         // the peer's death explains the link
	ruleRestarting                       // the peer's DNP half is being restarted, as was announced
	ruleNodeDead                         // the node is dead: nothing is known of its parts
	ruleDNPDead                          // its DNP is dead
	ruleHostDead                         // its host is dead
	ruleInferred                         // no witness: enclosed by the dead
	ruleUnreachable                      // no living way leads there
	ruleUnheard                          // no evidence, or too old
	ruleRestored                         // as committed by the leader before
	ruleRow                              // a whole row
	rulePlane                            // a whole plane
	ruleBundle                           // all links between two planes
	ruleBlock                            // a box of dead nodes
	ruleEnclosed                         // a block whose inside nobody sees
	ruleLabel                            // a whole failure domain
	rulePartition                        // a part to which no way leads
	ruleRevoked                          // the node's certificates are revoked
	ruleCutOff                           // at a parent: its region is not heard
)

// RuleCutOff is what a parent of regions says of the nodes and group faults of a region that is not heard. No machine does.
const RuleCutOff = "cut-off"

// RuleRevoked is the rule for nodes with revoked certificates and for the links to them.
const RuleRevoked = "revoked"

// RulePeerRestarting is the rule of a link that is sick because its peer's DNP half is being restarted.
const RulePeerRestarting = "peer-restarting"

var ruleNames = [...]string{"", "quorum", "single-witness", "both-halves", "watchdog", "descriptors", "answers", "speaks", "own-word",
	"last-word", "described", "described-by-one", "near-end", "far-end", "disputed", "peer-dead", RulePeerRestarting, "node-dead", "dnp-dead", "host-dead", "inferred",
	"unreachable", "unheard", "restored", "row", "plane", "bundle", "block", "enclosed", "label", "partition", RuleRevoked, RuleCutOff}

// String returns the name, or "" for none.
func (r ruleName) String() string { return ruleNames[r] }

// ofNode says whether it is the rule of a verdict on a whole node.
func (r ruleName) ofNode() bool {
	return r == ruleQuorum || r == ruleSingle || r == ruleBothHalves || r == ruleEnclosed
}

// parseRule returns the rule of that name; ruleRestored for one that is not known here.
func parseRule(s string) ruleName {
	if i := slices.Index(ruleNames[1:], s); i >= 0 {
		return ruleName(i + 1)
	}
	return ruleRestored
}

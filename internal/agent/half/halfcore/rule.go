package halfcore

import "fmt"

// Rule is a rule that a neighbour has broken.
type Rule uint8

// The rules.
const (
	RuleAck       Rule = iota // it acknowledges messages that were never sent
	RuleOrder                 // it acknowledges frames that were never sent
	RuleStream                // it restarts its message numbers without having been restarted
	RuleHops                  // a message that made no hop, or more than allowed
	RuleOutside               // a message to a place outside the torus
	RuleBack                  // a flooded message that the neighbour sends back
	RuleRate                  // more messages than allowed: they are refused (register router 1)
	RuleExpress               // a broadcast, a barrier or data that makes no sense
	RuleMalformed             // a message, or its header, that does not decode

	Rules = iota // the number of rules
)

var ruleNames = [Rules]string{
	RuleAck: "ack", RuleOrder: "order", RuleStream: "stream", RuleHops: "hops", RuleOutside: "outside", RuleBack: "back", RuleRate: "rate",
	RuleExpress: "express", RuleMalformed: "malformed",
}

// String returns the rule's name, as in links.txt of a bundle.
func (r Rule) String() string {
	if r < Rules {
		return ruleNames[r]
	}
	return fmt.Sprintf("Rule(%d)", uint8(r))
}

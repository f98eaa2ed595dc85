package executor

import "github.com/lofamo/lofamo/pkg/response"

// outcomeNames are the names of outcomes in metrics, by outcome.
var outcomeNames = [...]string{
	response.Succeeded: "succeeded", response.Unchanged: "unchanged", response.Partly: "partly", response.NotKnown: "not_known",
	response.StaleToken: "stale_token",
}

// OutcomeName returns the value of the metric label "outcome".
func OutcomeName(o response.Outcome) string {
	if o == 0 || int(o) >= len(outcomeNames) {
		return "unknown"
	}
	return outcomeNames[o]
}

// OutcomeNames returns all values of that label, so that series can start at 0.
func OutcomeNames() []string { return append([]string(nil), outcomeNames[1:]...) }

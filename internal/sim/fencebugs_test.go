package sim

import (
	"strings"
	"testing"
)

// fenceBugs are defects of a daemon or a leader, each with the disturbance that its stories have beside a cut.
var fenceBugs = map[bug]disturbance{
	bugMargin: anyDisturbance, bugGossip: anyDisturbance, bugFed: anyDisturbance, bugOneWay: anyDisturbance, bugStatement: anyDisturbance,
	bugStop: anyDisturbance, bugForgotten: daemonDies, bugSettings: agentReplaced, bugPause: daemonPauses, bugOnce: daemonDiesLate,
}

// TestPlantedFenceBugsAreFound shows that TestSelfFencing can fail: with each of these defects, a step begins in one of the stories
// while its node still runs.
func TestPlantedFenceBugsAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of stories: make test plays them, without the race detector")
	}
	const most = 60
	for b, only := range fenceBugs {
		t.Run(string(b), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(most) {
				p := newFencePlan(seed+1, only)
				if p.bug = b; only != anyDisturbance {
					if _, err := newFencePlan(seed+1, only).runFences(); err != nil {
						t.Fatalf("without the defect: %s", p.Story(err))
					}
				}
				if _, err := p.runFences(); err != nil && strings.Contains(err.Error(), "is not down") {
					t.Logf("found: %s", p.Story(err))
					return
				}
			}
			t.Fatalf("not found in %d stories", most)
		})
	}
}

package sim

import (
	"sync"
	"sync/atomic"
	"testing"
)

// enough is the maximum number of stories to find a planted bug.
const enough = 300

// TestPlantedBugsAreFound shows that the checks work: for every defect planted in the cluster, one of the stories that
// favour its conditions must detect it.
func TestPlantedBugsAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of stories: make test plays them, without the race detector")
	}
	for b, stories := range map[bug]func(seed uint64) Plan{
		bugFence: NewPlan, bugInbox: NewPlan, bugGrace: NewPlan, bugEarlyAck: NewPlan, bugVotes: NewPlan, bugNoNews: NewPlan, bugRestore: NewPlan,
		bugReplay: ofLiars, bugAge: ofLiars, bugRelinked: NewMovingPlan,
		bugNoStop: NewStopPlan, bugHoldOff: NewStopPlan,
	} {
		t.Run(string(b), func(t *testing.T) {
			t.Parallel()
			at, found := hunt(b, stories)
			if found == nil {
				t.Fatalf("not found in %d stories", enough)
			}
			t.Logf("found: %s", at.Story(found))
		})
	}
}

// ofLiars makes stories with many trustworthy and untrustworthy nodes.
func ofLiars(seed uint64) Plan { return newPlan(seed, ofTrust, 20) }

// hunt plays stories until one fails, two at a time.
func hunt(b bug, stories func(uint64) Plan) (at Plan, found error) {
	var next atomic.Uint64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				seed := next.Add(1)
				mu.Lock()
				done := found != nil || seed > enough
				mu.Unlock()
				if done {
					return
				}
				p := stories(seed)
				p.bug = b
				if err := p.Run(); err != nil {
					mu.Lock()
					at, found = p, err
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return at, found
}

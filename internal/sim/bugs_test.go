package sim

import (
	"sync"
	"sync/atomic"
	"testing"
)

// enough is within how many stories a planted bug must be found.
const enough = 300

// TestPlantedBugsAreFound shows what the checks are worth: of every defect that is planted into the
// cluster one of the stories that have much of what it needs must tell.
func TestPlantedBugsAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of stories: make test plays them, without the race detector")
	}
	for b, stories := range map[bug]func(seed uint64) Plan{
		bugFence: NewPlan, bugInbox: NewPlan, bugGrace: NewPlan, bugEarlyAck: NewPlan, bugVotes: NewPlan, bugNoNews: NewPlan, bugRestore: NewPlan,
		bugReplay: ofLiars, bugAge: ofLiars,
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

// ofLiars makes stories that have much of what can be trusted or not.
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

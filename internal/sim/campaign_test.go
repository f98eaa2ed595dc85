package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	soakFor = flag.Duration("soak", 0, "play stories of random faults for so long, on all cores")
	theSeed = flag.Uint64("seed", 0, "play the story of this seed alone")
	seeds   = flag.Int("seeds", 0, "how many stories TestCampaign plays; 0: as many as a run of all tests has time for")
)

// TestCampaign plays stories of random faults: the same ones every time.
func TestCampaign(t *testing.T) {
	if *theSeed != 0 {
		play(t, *theSeed)
		return
	}
	n := *seeds
	switch {
	case n > 0:
	case raceEnabled || testing.Short():
		n = 40
	default:
		n = 400
	}
	for seed := uint64(1); seed <= uint64(n); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			play(t, seed)
		})
	}
}

// play plays one story, and tells of the shortest that fails like it.
func play(t *testing.T, seed uint64) {
	t.Helper()
	p := NewPlan(seed)
	if err := p.Run(); err != nil {
		short, err := p.Shrink(err)
		t.Errorf("%s\nagain: go test ./internal/sim -run TestCampaign -seed %d", short.Story(err), seed)
	}
}

// TestSoak plays other stories every time, for as long as it is told to; see make soak.
func TestSoak(t *testing.T) {
	if *soakFor == 0 {
		t.Skip("only with -soak")
	}
	first := uint64(time.Now().UnixNano())
	end := time.Now().Add(*soakFor)
	var next, failed atomic.Uint64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for time.Now().Before(end) && failed.Load() < 10 {
				seed := first + next.Add(1)
				p := NewPlan(seed)
				if err := p.Run(); err != nil {
					failed.Add(1)
					short, err := p.Shrink(err)
					t.Errorf("%s\nagain: go test ./internal/sim -run TestCampaign -seed %d", short.Story(err), seed)
				}
			}
		})
	}
	wg.Wait()
	fmt.Fprintf(os.Stdout, "%d stories from seed %d on, %d failed\n", next.Load(), first+1, failed.Load())
}

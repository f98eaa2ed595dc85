package sim

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var (
	soakFor = flag.Duration("soak", 0, "play stories of random faults for so long, on all cores")
	theSeed = flag.Uint64("seed", 0, "play the story of this seed alone")
	first   = flag.Uint64("first", 1, "seed of the first story of TestCampaign, TestStops, and the tests of joins, moves and returns")
	seeds   = flag.Int("seeds", 0, "how many stories TestCampaign and TestStops play; 0: as many as a run of all tests has time for")
)

// eachStory plays wanted stories, or n if wanted is 0, and fewer with -short.
func eachStory(t *testing.T, wanted, n int, play func(*testing.T, uint64)) {
	t.Helper()
	switch {
	case wanted > 0:
		n = wanted
	case testing.Short():
		n = 4
	}
	for seed := *first; seed < *first+uint64(n); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			play(t, seed)
		})
	}
}

// TestCampaign plays stories of random faults: the same ones every time.
func TestCampaign(t *testing.T) {
	if *theSeed != 0 {
		play(t, *theSeed)
		return
	}
	eachStory(t, *seeds, 200, play)
}

// play plays one story, and reports the shortest one with the same failure.
func play(t *testing.T, seed uint64) {
	t.Helper()
	p := NewPlan(seed)
	if err := p.Run(); err != nil {
		short, err := p.Shrink(err)
		t.Errorf("%s\nagain: go test ./internal/sim -run TestCampaign -seed %d", short.Story(err), seed)
	}
}

// TestShrinkKeepsFailure: Shrink does not replace a failure by another one.
func TestShrinkKeepsFailure(t *testing.T) {
	p := Plan{Dims: grid.Dims{X: 2, Y: 1, Z: 1}, Preset: config.PresetDefault, Interfaces: 1, Supervisors: 3,
		Acts: []string{"run 1ms", "map 0,0,0 node FAILED"}}
	other := errors.New("1.5s: what lives and can be reached is called FAILED: n0-0-0 node")
	if short, err := p.Shrink(other); !errors.Is(err, other) || len(short.Acts) != 2 {
		t.Errorf("%q fails with %v", short.Acts, err)
	}
	err := p.Run()
	if short, again := p.Shrink(err); err == nil || again.Error() == "" || !slices.Equal(short.Acts, p.Acts[1:]) {
		t.Errorf("%v is cut down to %q: %v", err, short.Acts, again)
	}
}

// TestReducedStoriesStayFixed plays reduced stories that once failed.
func TestReducedStoriesStayFixed(t *testing.T) {
	cube := Plan{Dims: grid.Dims{X: 3, Y: 3, Z: 3}, Interfaces: 2, Seed: 1795180362520630528, Preset: config.PresetDefault, Supervisors: 3}
	for name, story := range map[string]struct {
		Plan
		acts []string
		long bool // minutes with the race detector
	}{
		// The DNP of an inner node was FAILED, and was UNKNOWN when the nodes around it died.
		"a half that was dead before": {Plan: cube, long: true, acts: []string{
			"hang 1,1,1 dnp", "run 6326ms", "kill-fraction 0.3", "run 769ms", "cut-supervisor", "run 1029ms",
		}},
		// Cut down to this, a story failed for the one thing that was not mended at its end.
		"a sensor": {Plan: cube, acts: []string{"hang 1,1,1 dnp", "run 6326ms", "sensor 1,1,1 memory FAILED"}},
		// The DNP half had accused its host half before both were restarted. The last reports of its log arrived long after the host half was
		// back. The leader could not send a challenge, because it reached no node itself.
		"an accusation from before the restart": {
			Plan: Plan{Dims: grid.Dims{X: 2, Y: 1, Z: 1}, Interfaces: 2, Seed: 3503, Preset: config.PresetFast, Supervisors: 5, Stops: true,
				Synchronous: true},
			acts: []string{
				"supervisor-cut s3 from all", "run 1189ms", "run 689ms", "hang 0,0,0 host", "cut-service 0,0,0", "stop-agent 0,0,0", "run 1242ms",
				"kill 1,0,0 node", "run 2311ms", "start-agent 0,0,0", "run 2577ms", "start 1,0,0 node", "run 4363ms",
			},
		},
		// An announced stop changes a link at once, even if the link has just changed twice.
		"a stop after a restart": {Plan: NewStopPlan(6401), acts: []string{
			"kill 2,0,0 dnp", "run 231ms", "start 2,0,0 dnp", "run 289ms", "stop-agent 2,0,0", "run 500ms", "start-agent 2,0,0", "run 4000ms",
		}},
		// The DNP half of a dead row's node comes back alone. The row stands until the neighbours hear that half.
		"a DNP half that is back alone": {Plan: NewMovingPlan(508), acts: []string{
			"kill 0,1,0 node", "run 9000ms", "kill-fraction 0.5", "run 1148ms", "start 2,0,0 dnp", "run 9000ms",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && story.long {
				t.Skip("minutes with the race detector: make test plays it without")
			}
			p := story.Plan
			p.Acts = story.acts
			if err := p.Run(); err != nil {
				t.Error(p.Story(err))
			}
		})
	}
}

// TestSoak plays different stories every time, for a configured duration; see make soak.
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

package sim

import (
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

var (
	fencesSeed  = flag.Uint64("fences.seed", 0, "play the story of self-fencing nodes of this seed alone")
	fencesFirst = flag.Uint64("fences.first", 1, "seed of the first story of TestSelfFencing")
	fencesSeeds = flag.Int("fences.seeds", 0, "how many stories TestSelfFencing plays; 0: as many as a run of all tests has time for")
)

// TestSelfFencing: nodes are cut off, alone and together, and everything else fails meanwhile. When a step begins that rests on a node's
// fencing, the node is down. A node that is plainly cut off is fenced in time.
func TestSelfFencing(t *testing.T) {
	first, n := *fencesFirst, 40
	switch {
	case *fencesSeed != 0:
		first, n = *fencesSeed, 1
	case *fencesSeeds > 0:
		n = *fencesSeeds
	case testing.Short():
		n = 6
	}
	var mu sync.Mutex
	var held, steps, resets, cuts int
	var took, beyond []time.Duration // of plain cuts: from the cut to the step, and the part after contactWithin, two time-outs and margin
	var lasted time.Duration
	t.Cleanup(func() {
		t.Logf("%d of %d stories held, %s of virtual time: %d resets by a device, %d steps that rest on a fencing began", held, n,
			lasted.Round(time.Second), resets, steps)
		t.Logf("%d plain cuts with a change of the leader, and %d without: from the cut to the step %s, beyond the stated bound %s",
			cuts-len(took), len(took), spread(took), spread(beyond))
		if n >= 6 && (steps == 0 || resets == 0) {
			t.Error("no node was fenced: the stories show nothing")
		}
	})
	for seed := first; seed < first+uint64(n); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			p := NewFencePlan(seed)
			out, err := p.runFences()
			mu.Lock()
			lasted += out.lasted
			steps += len(out.fenced)
			resets += out.resets
			if err == nil {
				held++
			}
			plain, alone := p.plain()
			cuts += count(plain && err == nil)
			if k := len(out.fenced); err == nil && alone {
				after := out.fenced[k-1].after
				took, beyond = append(took, after), append(beyond, after-p.Fences.downAfter())
			}
			mu.Unlock()
			if err != nil {
				short := p
				if !plain {
					short, err = p.Shrink(err)
				}
				t.Errorf("%s\nagain: go test ./internal/sim -run TestSelfFencing -fences.seed %d", short.Story(err), seed)
			}
		})
	}
}

// TestLateCommitReplacesNoRecord: a commit of responses gets no answer, and its repetition succeeds. When the first one arrives at the
// store later, it must not replace newer records.
func TestLateCommitReplacesNoRecord(t *testing.T) {
	if _, err := NewFencePlan(1077).runFences(); err != nil {
		t.Error(err)
	}
}

// TestStandingGroupFaultIsNoNewVerdict: a group fault changes while one of its members is back, whose first report is still under way.
func TestStandingGroupFaultIsNoNewVerdict(t *testing.T) {
	for _, seed := range []uint64{2062, 2175} {
		if _, err := NewFencePlan(seed).runFences(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// spread describes durations.
func spread(d []time.Duration) string {
	if len(d) == 0 {
		return "none"
	}
	slices.Sort(d)
	return fmt.Sprintf("median %.1f s, most %.1f s", d[len(d)/2].Seconds(), d[len(d)-1].Seconds())
}

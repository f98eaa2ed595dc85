//go:build lofamo_failpoint

package half

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/failpoint"
)

// TestSealCoversWhatCampaignFlips: each flip that the campaign may make in a half's machine, found by a walk of its own.
func TestSealCoversWhatCampaignFlips(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the garbage collector would follow flipped pointers
	step := 1
	if testing.Short() {
		step = 23
	}
	for half, m := range machines(t) {
		s := newSeal(m)
		s.take()
		for _, refs := range []bool{false, true} {
			n, missed := 0, map[string]bool{}
			failpoint.Each(map[string]any{half: m}, refs, func(f failpoint.Flipped) {
				if n++; n%step > 0 || strings.HasSuffix(f.Path, ".sizeCache") || s.check() != "" { // each encoding overwrites sizeCache
					return
				}
				missed[f.Path] = true
			})
			for path := range missed {
				t.Errorf("the seal misses flips of %s", path)
			}
			if t.Logf("%s half, pointers and lengths %t: %d flips", half, refs, n); n < 50_000 {
				t.Errorf("%s half: only %d flips", half, n)
			}
		}
	}
}

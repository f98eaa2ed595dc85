//go:build lofamo_failpoint

package half

import (
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/lofamo/lofamo/internal/failpoint"
)

// TestSealCoversWhatCampaignFlips: each flip that the campaign may make in a half's machine, found by a walk of its own.
func TestSealCoversWhatCampaignFlips(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the garbage collector would follow flipped pointers
	const flips = 200
	r := rand.New(rand.NewPCG(1, 7))
	for half, m := range machines(t) {
		s := newSeal(m)
		s.take()
		for _, refs := range []bool{false, true} {
			places := 0
			for i := range flips {
				if i%20 == 0 {
					runtime.GC()
				}
				f, err := failpoint.Flip(map[string]any{half: m}, r.Uint64(), refs)
				if err != nil {
					t.Fatal(err)
				}
				bad := s.check()
				f.Undo()
				if places = f.Of; bad == "" {
					t.Errorf("a flip of bit %d of %s is not found", f.Bit, f.Path)
				}
			}
			t.Logf("%s half, pointers and lengths %t: %d flips, in %d places", half, refs, flips, places)
		}
	}
}

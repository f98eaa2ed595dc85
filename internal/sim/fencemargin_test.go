package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestShortFenceMarginCoversLostSupervisor: a node that is cut off regains contact, just before its reset, with a supervisor that is cut
// off with it. The leader notices that the supervisor is gone only when its connection times out. So with the shortest fenceMargin that
// a configuration may have, it must still wait for that.
func TestShortFenceMarginCoversLostSupervisor(t *testing.T) {
	for i := range 3 {
		p := Plan{Dims: grid.Dims{X: 4, Y: 1, Z: 1}, Preset: config.PresetDefault, Interfaces: 1, Supervisors: 3, Seed: uint64(i + 1)}
		p.Fences = &FencePlan{Fences: Fences{Drift: maxDrift, Reboot: 30 * time.Second}, Margin: time.Second, Executor: response.WebhookNotify}
		p.Fences.Timeout, p.Fences.ContactWithin = 4*time.Second, 5*time.Second
		p.Acts = []string{"run 6s", "isolate 1,0,0 all", "run 7s", fmt.Sprintf("isolate 1,0,0 with s%d", i), "run 40s"}
		if _, err := p.runFences(); err != nil {
			t.Errorf("beside s%d: %v", i, err)
		}
	}
}

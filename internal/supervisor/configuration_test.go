package supervisor_test

import (
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// The leader gives the torus configuration to a node, and to another one if the first does not confirm it. A new mask
// is in the next configuration.
func TestConfigurationIsGiven(t *testing.T) {
	c, _, leader := three(t, supervisortest.Options{Dims: "3x1x1"})
	newest := func(ok func(*lofamov1.TorusConfiguration) bool) func() bool {
		return func() bool {
			for _, a := range c.Agents {
				if got := a.Configuration(); got != nil && ok(got) {
					return true
				}
			}
			return false
		}
	}
	supervisortest.Eventually(t, "a node is given the configuration", newest(func(got *lofamov1.TorusConfiguration) bool {
		return got.GetNumber() > 0 && got.GetDims() == "3x1x1" && got.GetDelayUs() >= 100 && len(got.GetMasks()) == 0
	}))
	for _, id := range []fault.NodeID{"n0-0-0", "n1-0-0"} { // only the third can answer
		c.Agents[id].Kill(fault.HalfDNP)
	}
	link := []*lofamov1.LinkName{{Node: "n0-0-0", Direction: "X+"}}
	if _, err := c.Reconfigure(t, c.Configs[leader].GRPC).SetMask(t.Context(),
		&lofamov1.SetMaskRequest{Links: link, Masked: true, Reason: "flaky"}); err != nil {
		t.Fatal(err)
	}
	supervisortest.Eventually(t, "the one that answers is given the masks", func() bool {
		m := c.Agents["n2-0-0"].Configuration().GetMasks()
		return len(m) == 2 && m[0].GetRank() == 0 && m[0].GetMask() == 0x3e && m[1].GetRank() == 1 && m[1].GetMask() == 0x3d
	})
}

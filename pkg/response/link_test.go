package response_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestStepsOnOneLinkOnlyMaskIt plays a neighbour that mutes its end of a healthy node's link: the node measures the
// silence, and the neighbour confirms it. A mask of that link may run. No step that acts on the whole node may.
func TestStepsOnOneLinkOnlyMaskIt(t *testing.T) {
	for step, want := range map[string]bool{
		"node.mask-channel": true, "kubernetes.cordon": false, "power.reset, parameters: {method: redfish}": false,
	} {
		l := newLab(t, quick(), grid.Dims{X: 4, Y: 4, Z: 4}, parsed(t, fmt.Appendf(nil, `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: act}
spec:
  mode: enforce
  match: fault.component == "link/X+" && fault.state == "FAILED"
  steps:
  - {name: act, executor: %s}
`, step))...)
		var acted, singly bool
		l.on = func(out response.Output) {
			acted = acted || len(out.Effects) > 0
			for _, d := range out.Decisions {
				singly = singly || d.Reason == response.ReasonSingleWitness
			}
		}
		l.epochs["n0-0-0"] = 1
		l.lead()
		f := l.own("n0-0-0", fault.Link(grid.XPlus), fault.Failed)
		f.Evidence.Kind = fault.KindSilence
		f.Evidence.Witnesses = append(f.Evidence.Witnesses, "n1-0-0/host")
		l.set(f)
		l.until(l.now.Add(10 * time.Minute))
		if acted != want || singly == want {
			t.Errorf("%s on a link that one end mutes: ran %t, refused as single witness %t: want %t, %t", step, acted, singly, want, !want)
		}
	}
}

// TestSilenceToSupervisorsIsOneWitness: the supervisors together are one witness of a node's silence. A step that keeps new work away
// from the node needs a second witness.
func TestSilenceToSupervisorsIsOneWitness(t *testing.T) {
	for name, tc := range map[string]struct {
		witnesses []string
		acts      bool
	}{
		"the supervisors":     {[]string{"supervisor/s1"}, false},
		"several supervisors": {[]string{"supervisor/s1", "supervisor/s2"}, false},
		"two neighbours":      {[]string{"supervisor/s1", "n1-0-0/dnp", "n0-1-0/dnp"}, true},
	} {
		cfg := quick()
		cfg.StormDelay = 0
		l := newLab(t, cfg, grid.Dims{X: 2, Y: 2, Z: 2}, parsed(t, []byte(`
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: act}
spec:
  mode: enforce
  match: fault.component == "node" && fault.state == "UNKNOWN"
  steps:
  - {name: act, executor: kubernetes.cordon}
`))...)
		l.lead()
		f := l.own("n0-0-0", fault.ComponentNode, fault.Unknown)
		f.Cause, f.Evidence = fault.CauseNone, response.Evidence{At: l.now, Kind: fault.KindDigest, Witnesses: tc.witnesses}
		l.set(f)
		if acts := len(l.flying) > 0; acts != tc.acts {
			t.Errorf("%s: acts %t, want %t", name, acts, tc.acts)
		}
	}
}

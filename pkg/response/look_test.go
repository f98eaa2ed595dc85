package response_test

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// twoAges are two policies for one fault. The second one accepts only newer evidence than the first.
const twoAges = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: any}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  steps: [{name: cordon, executor: kubernetes.cordon}]
---
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: fresh}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  guards: {maxEvidenceAge: 2s}
  steps: [{name: taint, executor: kubernetes.taint, parameters: {key: k, value: v, effect: NoSchedule}}]
`

// TestRequestsForNewerEvidenceBackOff: the newest evidence of a fault is too old for policy fresh. It is new enough for policy any, which
// waits for another reason. The engine requests newer evidence at growing intervals, and records that policy fresh waits for it.
func TestRequestsForNewerEvidenceBackOff(t *testing.T) {
	cfg := quick()
	cfg.MaxPerDomain = 1
	l := newLab(t, cfg, grid.Dims{X: 4, Y: 4, Z: 4}, parsed(t, []byte(twoAges))...)
	l.lead()
	l.set(l.own("n0-0-1", fault.ComponentMemory, fault.Failed)) // takes the rack's only place
	l.land(response.Succeeded, "")
	l.land(response.Succeeded, "")
	f := l.own("n0-0-0", fault.ComponentMemory, fault.Failed)
	f.Evidence.At = l.now.Add(-5 * time.Second)
	looks, waits, begin := 0, false, l.now
	l.stale = true
	var old []response.Target
	l.on = func(out response.Output) {
		looks += len(out.Look)
		old = append(old, out.Look...)
		for _, d := range out.Decisions {
			waits = waits || d.Policy == "fresh" && d.Reason == response.ReasonEvidenceAge
		}
	}
	l.set(f)
	for l.now.Before(begin.Add(10*time.Second)) && looks < 10_000 {
		for len(old) > 0 && looks < 10_000 { // there is no newer evidence
			target := old[0]
			old = old[1:]
			l.step(response.Seen{Target: target, State: f.State, Evidence: f.Evidence})
		}
		if l.wake.IsZero() {
			break
		}
		l.until(l.wake)
	}
	if looks == 0 || looks > 30 {
		t.Errorf("%d requests within %s: want some, at most 30", looks, l.now.Sub(begin))
	}
	if !waits {
		t.Errorf("no decision that policy fresh waits for evidence")
	}
}

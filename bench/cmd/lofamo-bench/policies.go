package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"time"

	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// policies measures the cost of one change of one node to the engine of responses, in its only goroutine. All
// policies are for the changed component and its new state, so that each is evaluated to its last condition.
func policies(_ context.Context, o options) error {
	dims, count, stand, samples := grid.Dims{X: 50, Y: 50, Z: 40}, 100, 1000, 2000
	if o.short {
		dims, stand, samples = cube(10), 20, 50
	}
	o.out.f("\n### Policies on a change\n\n%d policies, %d nodes; from a change of one node's memory to FAILED until all policies "+
		"have been evaluated for the node, and the responses are decided, in ms, garbage collection included. Bound: 1 "+
		"ms.\n\n", count, dims.Nodes())
	o.out.f("| | n | median | p99 | max |\n|---|---|---|---|---|\n")
	for _, c := range []struct {
		what           string
		matching, open int
	}{
		{"no policy matches, no other fault", 0, 0},
		{"one policy matches, no other fault", 1, 0},
		{printed("one policy matches, %d other faults with a response each", stand), 1, stand},
	} {
		took, err := evaluate(dims, count, c.matching, c.open, samples, o.seed)
		if err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
		o.out.f("| %s | %d | %.3f | %.3f | %.3f |\n", c.what, len(took), ms(took.Median()), ms(took.P99()), ms(took.Max()))
	}
	return nil
}

// memoryPolicies are for failed memories all; the last condition is true in the first matching ones only.
func memoryPolicies(count, matching int) ([]*response.Policy, error) {
	var b strings.Builder
	for i := range count {
		last := printed(`fault.duration > duration("%dh")`, 1+i)
		if i < matching {
			last = `fault.duration >= duration("0s")`
		}
		_, _ = fmt.Fprintf(&b, `---
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: p%d}
spec:
  mode: enforce
  match: >-
    fault.component == "memory" && fault.state == "FAILED" && fault.recurrence < 100 && size(fault.groups) == 0
    && "rack" in node.labels && node.labels["rack"].startsWith("r") && !(node.id in ["a", "b"]) && %s
  steps:
  - {name: condition, executor: kubernetes.condition, parameters: {type: LofamoFault}, timeout: 30s, retries: 5}
  undo: {onRecovery: true, after: 0s}
`, i, last)
	}
	docs, err := policy.Parse([]byte(b.String()))
	return policy.Policies(docs), err
}

// evaluation is a leader's engine, whose executor carries out every request.
type evaluation struct {
	e     *response.Engine
	now   time.Time
	nodes []response.NodeInfo
	done  int // effects
}

func evaluate(dims grid.Dims, count, matching, open, samples int, seed uint64) (took measure.Latencies, err error) {
	pols, err := memoryPolicies(count, matching)
	if err != nil {
		return nil, err
	}
	cfg := response.Default()
	cfg.Grace, cfg.BreakerNodes, cfg.NotifyRate = 0, 1<<20, 1<<20
	ev := &evaluation{now: time.Unix(1_800_000_000, 0)}
	if ev.e, err = response.New(cfg); err != nil {
		return nil, err
	}
	led := response.Led{Token: 1}
	for rank := range dims.Nodes() {
		at := dims.At(rank)
		ev.nodes = append(ev.nodes, response.NodeInfo{ID: fault.DefaultNodeID(at), Coord: at,
			Labels: map[string]string{"rack": fmt.Sprintf("r%d", at.X)}})
	}
	for _, e := range []response.Event{
		response.TopologyChanged{Dims: dims, Nodes: ev.nodes},
		response.SupervisorsChanged{Supervisors: []response.SupervisorInfo{{ID: "s1", Alive: true}}},
		response.PoliciesChanged{Policies: pols}, led,
	} {
		if _, err := ev.step(e); err != nil {
			return nil, err
		}
	}
	ranks := rand.New(rand.NewPCG(seed, 8)).Perm(len(ev.nodes))
	for _, rank := range ranks[:open] {
		if _, err := ev.step(ev.memory(rank, fault.Failed)); err != nil {
			return nil, err
		}
	}
	runtime.GC() // so that set-up garbage is not collected meanwhile
	for i := range samples {
		rank := ranks[open+i%(len(ranks)-open)]
		d, err := ev.step(ev.memory(rank, fault.Failed))
		if err != nil {
			return nil, err
		}
		took = append(took, d)
		if _, err := ev.step(ev.memory(rank, fault.Normal)); err != nil {
			return nil, err
		}
	}
	if want := matching * (open + 2*samples); ev.done != want {
		return nil, fmt.Errorf("%d effects were requested: want %d, one for each fault, and one more for each that is gone", ev.done, want)
	}
	return took, nil
}

func (v *evaluation) memory(rank int, s fault.State) response.FaultChanged {
	v.now = v.now.Add(time.Millisecond)
	f := response.Fault{Node: v.nodes[rank].ID, Component: fault.ComponentMemory, State: s, Cause: fault.CauseNone, Since: v.now}
	if s != fault.Normal {
		f.Cause = fault.ComponentMemory.Cause()
		f.Evidence = response.Evidence{At: v.now, Kind: fault.KindSelf, Own: true, Witnesses: []string{string(f.Node) + "/host"}}
	}
	return response.FaultChanged{Fault: f}
}

// step returns the engine's time for one event, and answers its requests.
func (v *evaluation) step(ev response.Event) (time.Duration, error) {
	begin := time.Now()
	out := v.e.Step(v.now, ev)
	took := time.Since(begin)
	errs := []error{out.Err}
	for _, f := range out.Effects {
		v.done++
		_, err := v.step(response.Result{Attempt: f.Attempt, Outcome: response.Succeeded})
		errs = append(errs, err)
	}
	return took, errors.Join(errs...)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/internal/cluster"
)

const (
	// phaseWindow is the time over which the agents' cost is measured, with supervisors and without.
	phaseWindow = 20 * time.Second
	// phaseWithin bounds the wait for NORMAL after a restart.
	phaseWithin = 2 * time.Minute
)

// phaseRecord is the result of one phase on a running cluster.
type phaseRecord struct {
	Phase   string  `json:"phase"`
	With    float64 `json:"with,omitempty"`    // agents' cost with supervisors, % of a core
	Early   float64 `json:"early,omitempty"`   // agents' cost from the loss of the supervisors on; 0: not measured
	Without float64 `json:"without,omitempty"` // agents' cost in the window after that
	Seconds float64 `json:"seconds"`           // from the restart until all nodes were NORMAL
	Peak    float64 `json:"peak"`              // highest cost after the restart, % of a core
	Faults  int     `json:"faults"`
	Breaker string  `json:"breaker,omitempty"`
	Failure string  `json:"failure,omitempty"` // empty: the phase succeeded
}

func (p phaseRecord) String() string {
	out := p.Phase + ": "
	if p.Without > 0 {
		out += fmt.Sprintf("agents %.0f %% with supervisors, %.0f %% without at first, then %.0f %% (%.2f times); ", p.With, p.Early,
			p.Without, p.Without/p.With)
	}
	out += fmt.Sprintf("%.1f s until NORMAL, peak %.0f %%, %d faults, breaker %s", p.Seconds, p.Peak, p.Faults, p.Breaker)
	if p.Failure != "" {
		out += ", FAILED: " + p.Failure
	}
	return out
}

// phase stops a part of the cluster, unless lose is nil, and brings it back.
type phase struct {
	name string
	lose func(context.Context) error
	back func(context.Context) error
}

// phases stops and restarts parts of a running cluster, and measures each phase.
func (s *starter) phases(ctx context.Context, c *cluster.Cluster, m *measure.Meter) (out []phaseRecord) {
	each := func(do func(id string) error) func(context.Context) error {
		return func(context.Context) error {
			var errs []error
			for _, sup := range c.Info().Supervisors {
				errs = append(errs, do(sup.ID))
			}
			return errors.Join(errs...)
		}
	}
	for _, p := range []phase{
		{
			"all supervisors stopped (SIGSTOP), then continued",
			each(func(id string) error { return c.SignalSupervisor(id, unix.SIGSTOP) }),
			each(func(id string) error { return c.SignalSupervisor(id, unix.SIGCONT) }),
		},
		{
			"all supervisors killed, then started",
			each(func(id string) error { return c.KillSupervisor(ctx, id) }),
			each(c.StartSupervisor),
		},
		{"everything stopped, then started", func(context.Context) error { return s.down(c.Dir()) },
			func(ctx context.Context) error { return s.run(ctx, "up", "--detach", "--dir", c.Dir()) }},
		{"all agents restarted at once (`lofamo-agent restart`)", nil, func(ctx context.Context) error { return s.restartAgents(ctx, c) }},
	} {
		if ctx.Err() != nil {
			return out
		}
		out = append(out, s.phase(ctx, c, m, p))
	}
	return out
}

func (s *starter) phase(ctx context.Context, c *cluster.Cluster, m *measure.Meter, p phase) (r phaseRecord) {
	r.Phase = p.name
	before, err := healthSince(ctx, c, 0)
	if err != nil {
		r.Failure = err.Error()
		return r
	}
	if p.lose != nil {
		pause(ctx, steadyAfter) // lets the tests and the gossip of the previous phase end
		from := time.Now()
		pause(ctx, phaseWindow)
		r.With = percent(m.Mean(from, time.Now(), groupAgents))
		from = time.Now()
		if err := p.lose(ctx); err != nil {
			r.Failure = err.Error()
			return r
		}
		if len(c.Processes()) > 0 { // agents at least
			pause(ctx, phaseWindow)
			r.Early = percent(m.Mean(from, time.Now(), groupAgents))
			from = time.Now()
			pause(ctx, phaseWindow)
			r.Without = percent(m.Mean(from, time.Now(), groupAgents))
		}
	}
	begun := time.Now()
	bounded, cancel := context.WithTimeout(ctx, phaseWithin)
	defer cancel()
	err = p.back(bounded)
	if err == nil {
		c, err = cluster.Load(c.Dir()) // its processes may have changed
	}
	if err == nil {
		err = c.WaitNormal(bounded, nil)
	}
	r.Seconds = time.Since(begun).Seconds()
	pause(ctx, afterStart)
	r.Peak = percent(m.Peak(begun, time.Now(), peakWindow, groupSupervisors, groupAgents))
	after, asked := healthSince(ctx, c, before.revision)
	r.Faults, r.Breaker = after.faults, after.breaker
	if err != nil {
		r.Failure, _, _ = strings.Cut(err.Error(), "\n")
	} else {
		r.Failure = after.failure(asked)
	}
	return r
}

// restartAgents restarts both halves of all nodes at the same time, by `lofamo-agent restart`.
func (s *starter) restartAgents(ctx context.Context, c *cluster.Cluster) error {
	nodes := c.Info().Nodes
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "lofamo-agent"), "restart", "--config",
				filepath.Join(c.Dir(), "nodes", string(n.ID), "agent.yaml"))
			if out, err := cmd.CombinedOutput(); err != nil {
				errs[i] = fmt.Errorf("restart node %s: %w: %.300s", n.ID, err, out)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func printPhases(o options, all []startRecord) {
	var names []string
	by := map[string][]phaseRecord{}
	for _, r := range all {
		for _, p := range r.Live {
			if by[p.Phase] == nil {
				names = append(names, p.Phase)
			}
			by[p.Phase] = append(by[p.Phase], p)
		}
	}
	if len(names) == 0 {
		return
	}
	o.out.f("\nOn running clusters; the agents' cost is the mean of %s with supervisors, of %s from the loss of all of them on, and of the "+
		"next %s, which the ratio compares. The worst of n:\n\n", phaseWindow, phaseWindow, phaseWindow)
	o.out.f("| | n | agents with supervisors, %% of a core | without, at first | then | ratio | until all nodes are NORMAL, s | peak, %% of " +
		"a core | changes to SICK or FAILED | breaker |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, name := range names {
		var worst phaseRecord
		ratio, failed := 0.0, false
		for _, p := range by[name] {
			if p.Without > 0 && p.Without/p.With >= ratio {
				ratio, worst.With, worst.Early, worst.Without = p.Without/p.With, p.With, p.Early, p.Without
			}
			worst.Seconds, worst.Peak = max(worst.Seconds, p.Seconds), max(worst.Peak, p.Peak)
			worst.Faults = max(worst.Faults, p.Faults)
			if worst.Breaker == "" || worst.Breaker == "closed" {
				worst.Breaker = p.Breaker
			}
			failed = failed || p.Failure != ""
		}
		cost := "- | - | - | -"
		if ratio > 0 {
			cost = fmt.Sprintf("%.0f | %.0f | %.0f | %.2f", worst.With, worst.Early, worst.Without, ratio)
		}
		took := fmt.Sprintf("%.1f", worst.Seconds)
		if failed {
			took += " (failed)"
		}
		o.out.f("| %s | %d | %s | %s | %.0f | %d | %s |\n", name, len(by[name]), cost, took, worst.Peak, worst.Faults, worst.Breaker)
	}
}

func percent(cores float64) float64 { return 100 * cores }

func list(set map[string]bool) string {
	if len(set) == 0 {
		return "unknown"
	}
	return strings.Join(slices.Sorted(maps.Keys(set)), ", ")
}

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/lab"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// experiment is one kind of fault and the change that shows that the system is aware of this fault.
type experiment struct {
	fault     cluster.Fault
	component string
	to        lofamov1.State
	bound     time.Duration // 0: none is promised
	kill      bool          // one of the four with many samples
}

func experiments(p config.Periods) []experiment {
	const failed, sick = lofamov1.State_FAILED, lofamov1.State_SICK
	simple := func(k cluster.Kind) cluster.Fault { return cluster.Fault{Kind: k} }
	sensor := func(name string, v float64) cluster.Fault {
		return cluster.Fault{Kind: cluster.SensorValue, Sensor: name, Value: v}
	}
	cut := func(oneWay bool) cluster.Fault {
		return cluster.Fault{Kind: cluster.CutLink, Dir: grid.XPlus, OneWay: oneWay}
	}
	return []experiment{
		{simple(cluster.KillHost), "host", failed, p.HalfBound(), true},
		{simple(cluster.KillDNP), "dnp", failed, p.HalfBound(), true},
		{simple(cluster.KillNode), "node", failed, p.NodeBound(), true},
		{simple(cluster.HangNode), "node", failed, p.NodeBound(), true},
		{simple(cluster.HangHost), "host", failed, p.HalfBound(), false},
		{simple(cluster.HangDNP), "dnp", failed, p.HalfBound(), false},
		{simple(cluster.CutService), "service-network", failed, 0, false},
		{cut(false), "link/X+", failed, 0, false},
		{cut(true), "link/X+", failed, 0, false},
		{cluster.Fault{Kind: cluster.CorruptLink, Dir: grid.XPlus, Rate: 0.3}, "link/X+", sick, 0, false},
		{sensor("temperature", 110), "temperature", failed, 0, false},
		{sensor("voltage", 20), "voltage", failed, 0, false},
		{sensor("power", 5000), "power", failed, 0, false},
		{sensor("memory-ue", 5), "memory", failed, 0, false},
		{sensor("peripheral/0", 2), "peripheral/0", failed, 0, false},
		{sensor("carrier", 0), "service-network", failed, 0, false},
	}
}

// latencies runs all experiments and prints their table.
func latencies(ctx context.Context, o options, l *lab.Lab, p config.Periods) error {
	o.out.f("Awareness latency in ms: injection → watch event (committed), by one monotonic clock; *own*: `awarenessLatency`, summed from " +
		"ages.\n\n")
	o.out.f("| fault | n | median | p99 | max | bound | own median | own − clock, median | path |\n")
	o.out.f("|---|---|---|---|---|---|---|---|---|\n")
	rnd := rand.New(rand.NewPCG(o.seed, 0))
	for _, e := range experiments(p) {
		n := o.others
		if e.kill {
			n = o.kills
		}
		if n == 0 || !strings.Contains(e.fault.String(), o.only) {
			continue
		}
		r := &series{experiment: e}
		for i := range n {
			if err := r.sample(ctx, l, rnd); err != nil {
				return fmt.Errorf("%s, sample %d of %d: %w", e.fault, i+1, n, err)
			}
			o.progress.f("\r%-28s %d/%d ", e.fault, i+1, n)
		}
		o.progress.f("\n")
		r.print(o)
	}
	return nil
}

type series struct {
	experiment
	clock, own, diff measure.Latencies
	paths            map[string]int
}

// sample injects the fault once, into a node and at a phase chosen by rnd, times the change, and
// puts everything right again.
func (s *series) sample(ctx context.Context, l *lab.Lab, rnd *rand.Rand) error {
	nodes := l.Cluster.Info().Nodes
	node := nodes[rnd.IntN(len(nodes))]
	pause(ctx, time.Duration(rnd.Int64N(int64(200*time.Millisecond))))
	mark := l.Mark()
	at, err := l.Cluster.Inject(ctx, string(node.ID), s.fault)
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	seen, err := l.Wait(waiting, mark, lab.Becomes(string(node.ID), s.component, s.to))
	if err != nil {
		return fmt.Errorf("%s of %s: %w", s.component, node.ID, err)
	}
	s.add(time.Duration(seen.At-at), seen)
	mark = l.Mark()
	if err := l.Cluster.Undo(ctx, string(node.ID), s.fault); err != nil {
		return err
	}
	settling, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// A node is NORMAL while one of its links is SICK, and the next sample may be of the same link.
	if _, err := l.Wait(settling, mark, lab.Becomes(string(node.ID), s.component, lofamov1.State_NORMAL)); err != nil {
		return fmt.Errorf("%s of %s, after the end of the fault: %w", s.component, node.ID, err)
	}
	return l.Settle(settling)
}

func (s *series) add(clock time.Duration, seen lab.Seen) {
	s.clock = append(s.clock, clock)
	if d := seen.GetAwarenessLatency(); d != nil {
		s.own = append(s.own, d.AsDuration())
		s.diff = append(s.diff, d.AsDuration()-clock)
	}
	if s.paths == nil {
		s.paths = map[string]int{}
	}
	s.paths[seen.GetPath().String()]++
}

func (s *series) print(o options) {
	bound, p99 := "-", "-"
	if s.bound > 0 {
		bound = measure.Millis(s.bound)
	}
	if len(s.clock) >= 100 {
		p99 = measure.Millis(s.clock.P99())
	}
	var paths []string
	for _, p := range []string{"DIRECT", "GOSSIP", "TORUS", "PATH_UNSPECIFIED"} {
		if n := s.paths[p]; n > 0 {
			paths = append(paths, fmt.Sprintf("%s %d", p, n))
		}
	}
	o.out.f("| %s | %d | %s | %s | %s | %s | %s | %s | %s |\n", s.fault, len(s.clock), measure.Millis(s.clock.Median()), p99,
		measure.Millis(s.clock.Max()), bound, measure.Millis(s.own.Median()), measure.Millis(s.diff.Median()), strings.Join(paths, ", "))
}

// pause shifts the phase of the injection against the periods.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

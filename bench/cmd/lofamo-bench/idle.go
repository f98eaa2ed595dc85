package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/lab"
	"github.com/lofamo/lofamo/internal/testing/machine"
)

// conditions prints the conditions of the measurement.
func conditions(o options) {
	o.out.f("Program: commit `%s`.\n\n", machine.SourceCommit())
	o.out.f("Conditions: %s, %s; %s torus, 3 supervisors with embedded etcd, all on loopback of one machine; seed %d.\n",
		time.Now().UTC().Format(time.DateOnly), machine.Describe(), o.dims, o.seed)
}

// idle measures the cost of every node while nothing happens, and prints median and maximum over the nodes.
func idle(ctx context.Context, o options, l *lab.Lab) error {
	nodes := l.Cluster.Info().Nodes
	// Starting up is over when the first digests have been exchanged and certificates are cached.
	pause(ctx, min(5*time.Second, o.idle))
	before := make([]measure.Usage, len(nodes))
	pids := make([][]int, len(nodes))
	for i, n := range nodes {
		s, err := l.Cluster.Status(ctx, n)
		if err != nil {
			return err
		}
		pids[i] = []int{s.Host.PID, s.DNP.PID}
		if before[i], err = usage(pids[i]); err != nil {
			return err
		}
	}
	begun := time.Now()
	sent, err := traffic(ctx, l, nodes[0], o.idle)
	if err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	var cpu, resident []float64
	over := time.Since(begun)
	for i := range nodes {
		u, err := usage(pids[i])
		if err != nil {
			return err
		}
		cpu = append(cpu, 100*(u.CPU-before[i].CPU).Seconds()/over.Seconds())
		resident = append(resident, float64(u.Resident)/1e6)
	}
	o.out.f("Idle for %s: both halves of a node together use %.2f %% of one core (median of %d nodes, at most %.2f %%) and %.0f MB resident "+
		"(at most %.0f MB)",
		over.Round(time.Second), measure.Quantile(cpu, 0.5), len(nodes), slices.Max(cpu), measure.Quantile(resident, 0.5), slices.Max(resident))
	if err == nil {
		o.out.f("; one node sends %.1f kB/s over all its links, IP headers included", sent/1000)
	}
	o.out.f(".\n\n")
	return nil
}

func usage(pids []int) (sum measure.Usage, err error) {
	for _, pid := range pids {
		u, err := measure.Process(pid)
		if err != nil {
			return sum, err
		}
		sum.CPU += u.CPU
		sum.Resident += u.Resident
	}
	return sum, nil
}

// traffic measures the sending rate of one node's links, in bytes a second.
func traffic(ctx context.Context, l *lab.Lab, n cluster.NodeInfo, over time.Duration) (float64, error) {
	cfg, err := config.LoadAgent(filepath.Join(l.Cluster.Dir(), "nodes", string(n.ID), "agent.yaml"), nil)
	if err != nil {
		return 0, err
	}
	ports := map[uint16]bool{}
	for _, link := range cfg.Links {
		at, err := netip.ParseAddrPort(link.Local)
		if err != nil {
			return 0, err
		}
		ports[at.Port()] = true
	}
	counting, cancel := context.WithTimeout(ctx, over)
	defer cancel()
	begun := time.Now()
	sent, _, err := measure.Traffic(counting, ports)
	if err != nil {
		pause(ctx, over) // the other figures want their time all the same
	}
	return measure.Rate(sent, time.Since(begun)), err
}

// peers measures memberlist beside us, in the same run.
func peers(o options) error {
	if o.peers == 0 {
		return nil
	}
	var l measure.Latencies
	for i := range o.peers {
		d, err := measure.Memberlist(8, time.Minute)
		if err != nil {
			return fmt.Errorf("memberlist, sample %d: %w", i+1, err)
		}
		l = append(l, d)
		o.progress.f("\rmemberlist %d/%d ", i+1, o.peers)
	}
	o.progress.f("\n")
	o.out.f("\n## Beside it\n\nhashicorp/memberlist 0.7.0, LAN defaults, 8 members in one process, one stopped without farewell → dead at "+
		"all others: median %s ms, at most %s ms (%d samples).\n",
		measure.Millis(l.Median()), measure.Millis(l.Max()), len(l))
	return nil
}

// soakLoops is the number of busy loops that soak runs on each core.
const soakLoops = 8

// soak runs a cluster beside busy loops and fails if a healthy part is reported FAILED.
func soak(ctx context.Context, o options) (err error) {
	l, dir, err := start(ctx, o, o.presets[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(), os.RemoveAll(dir)) }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	busy, stop := context.WithCancel(ctx)
	defer stop()
	loops := soakLoops * runtime.NumCPU()
	for range loops {
		c := exec.CommandContext(busy, self, "busy-loop")
		if err := c.Start(); err != nil {
			return err
		}
		defer func() { stop(); _ = c.Wait() }()
	}
	conditions(o)
	mark := l.Mark()
	running, cancel := context.WithTimeout(ctx, o.soak)
	defer cancel()
	_, err = l.Wait(running, mark, func(s lab.Seen) bool {
		if s.GetTo() != lofamov1.State_NORMAL {
			o.progress.f("%s\n", s)
		}
		return false
	})
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return err
	}
	counts := map[string]int{}
	for _, s := range l.Since(mark) {
		if s.GetTo() != lofamov1.State_NORMAL {
			counts[s.GetComponent()+" "+s.GetTo().String()]++
		}
	}
	list, failed := []string{}, 0
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		list = append(list, fmt.Sprintf("%s %d times", what, counts[what]))
		if strings.HasSuffix(what, lofamov1.State_FAILED.String()) {
			failed += counts[what]
		}
	}
	if len(list) == 0 {
		list = []string{"none"}
	}
	o.out.f("%s at preset %s with %d busy loops: changes of healthy parts away from NORMAL: %s.\n", o.soak, o.presets[0], loops,
		strings.Join(list, ", "))
	if failed > 0 {
		return fmt.Errorf("something healthy was called FAILED %d times", failed)
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/lofamo/lofamo/bench/compare"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/internal/testing/machine"
	"golang.org/x/sync/errgroup"
)

// systemNames lists the systems in the order of the page.
func systemNames() []string {
	return []string{ourName, memberlistLAN, memberlistTuned, serfLAN, consulName, kubernetesName}
}

// known describes each system for the page; describe fills in versions.
func known() map[string]compare.System {
	lan := memberlist.DefaultLANConfig()
	quick := memberlist.DefaultLANConfig()
	tuned(quick)
	const own = "an event of the member's own process"
	gossips := "one a member; none beside"
	return map[string]compare.System{
		ourName: {Settings: "preset as noted below; real-time class for the halves, as packaged; restart always",
			Members:  "a daemon and two halves a member; 3 supervisors with embedded etcd beside",
			Observer: "a watch for each member at one of the supervisors: the node's component `node` is FAILED, committed"},
		memberlistLAN:   {Settings: "LAN defaults: " + gossipSettings(lan), Members: gossips, Observer: own},
		memberlistTuned: {Settings: gossipSettings(quick), Members: gossips, Observer: own},
		serfLAN:         {Settings: "defaults, with memberlist's LAN defaults", Members: gossips, Observer: own},
		consulName: {Settings: "defaults; agents in client mode", Members: fmt.Sprintf("an agent a member; %d servers beside", consulServers),
			Observer: "a blocking query for each member at its own agent: the node's `serfHealth` is critical"},
		kubernetesName: {Settings: fmt.Sprintf("defaults: leases of %d s renewed every %s, node-monitor-period 5 s, "+
			"node-monitor-grace-period 50 s", leaseSeconds, leaseRenewal),
			Members: "an emulated kubelet a member, which only renews its Lease: its CPU and memory are not a kubelet's; etcd, kube-apiserver " +
				"and the controller manager's node lifecycle controller beside, one each",
			Observer: "a watch for each member on all nodes: the condition Ready is not True"},
	}
}

// describe returns a system with its version, or an error for a system that cannot run here.
func describe(name string, o options) (s compare.System, err error) {
	s = known()[name]
	s.Name = name
	switch name {
	case ourName:
		s.Version = machine.SourceCommit()
		_, err = cluster.FindBinaries("")
	case serfLAN:
		s.Version = moduleVersion("github.com/hashicorp/serf") + " with memberlist " + moduleVersion("github.com/hashicorp/memberlist")
	case consulName:
		if o.consul == "" {
			return s, errors.New("no program: `make consul` builds it, and -consul or LOFAMO_CONSUL names it")
		}
		s.Version, err = consulVersion(o.consul)
	case kubernetesName:
		var dir string
		if dir, err = kubetest.Programs(); err != nil {
			return s, err
		}
		var b []byte
		if b, err = exec.Command(filepath.Join(dir, "kube-controller-manager"), "--version").Output(); errors.Is(err, fs.ErrNotExist) {
			return s, kubetest.ErrMissing
		}
		s.Version = strings.TrimPrefix(strings.TrimSpace(string(b)), "Kubernetes ")
	default:
		s.Version = moduleVersion("github.com/hashicorp/memberlist")
	}
	return s, err
}

func moduleVersion(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if d.Path == path {
				return d.Version
			}
		}
	}
	return "unknown"
}

// run carries out the cells of one piece. It writes the page and the record after every lane, so that an interrupted run has both.
func run(ctx context.Context, o options) error {
	if os.Geteuid() != 0 {
		return errors.New("not root: each cell needs new namespaces")
	}
	r := compare.Run{
		Short: o.short, Namespace: "a network, a process and a mount namespace for each cell; nftables drops packets",
		Pieces: []compare.Piece{{
			Commit: machine.SourceCommit(), Lanes: map[string]string{
				alone: "one system after the other", allOnce: "all systems side by side; with busy loops, one after the other",
				peersOnce: "the peers side by side, LO|FA|MO alone; with busy loops, one system after the other",
			}[o.lanes], Seed: o.seed, Begun: time.Now(), Machine: machine.Describe(), LoadFrom: machine.LoadAverages(), Beside: o.beside,
			Kills: o.kills, Limit: o.limit, Steady: o.steady,
		}},
	}
	var systems []string
	for _, name := range o.systems {
		s, err := describe(name, o)
		if err != nil {
			fmt.Fprintf(os.Stderr, "*** %s is left out: %v\n", name, err)
			r.LeftOut = append(r.LeftOut, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		r.Systems, systems = append(r.Systems, s), append(systems, name)
	}
	r, err := resume(o, r)
	if err != nil {
		return err
	}
	if err := cells(ctx, o, &r, systems); err != nil {
		return err
	}
	if o.page == "" {
		_, err := fmt.Print(r.Page())
		return err
	}
	return nil
}

// resume puts the cells of the record's earlier pieces before those of this one.
func resume(o options, now compare.Run) (compare.Run, error) {
	if o.record == "" || o.fresh {
		return now, nil
	}
	b, err := os.ReadFile(o.record)
	if errors.Is(err, fs.ErrNotExist) {
		return now, nil
	} else if err != nil {
		return now, fmt.Errorf("record of earlier runs: %w", err)
	}
	earlier, err := compare.Parse(b)
	if err != nil {
		return now, err
	}
	r, err := now.Continue(earlier)
	if err != nil {
		return now, fmt.Errorf("%w: -fresh", err)
	}
	slices.SortStableFunc(r.Systems, func(a, b compare.System) int {
		return slices.Index(systemNames(), a.Name) - slices.Index(systemNames(), b.Name)
	})
	return r, nil
}

// cells runs the cells in the order of the plan, until the run's time is over.
func cells(ctx context.Context, o options, r *compare.Run, systems []string) error {
	for _, at := range o.plan {
		wanted := slices.DeleteFunc(slices.Clone(systems), func(s string) bool { return o.missing && r.Has(s, at) })
		for _, lane := range lanes(o.lanes, at.Load, wanted) {
			if time.Since(r.Now().Begun) > o.whole {
				fmt.Fprintf(os.Stderr, "the run's time of %s is over: no cell from %s on\n", o.whole, at)
				return nil
			}
			stopped := together(ctx, o, r, lane, at)
			r.Now().Took, r.Now().LoadTo = time.Since(r.Now().Begun), machine.LoadAverages()
			if err := errors.Join(stopped, write(o, *r)); err != nil {
				return err
			}
		}
	}
	return nil
}

// lanes groups the systems that run side by side. Each cell has its own busy loops, so that cells with loops run alone.
func lanes(how string, load compare.Load, systems []string) (out [][]string) {
	if load.Loops > 0 {
		how = alone
	}
	var peers []string
	for _, s := range systems {
		if how == allOnce || how == peersOnce && s != ourName {
			peers = append(peers, s)
			continue
		}
		out = append(out, []string{s})
	}
	if len(peers) > 0 {
		out = append(out, peers)
	}
	return out
}

// together runs the cells of one lane side by side.
func together(ctx context.Context, o options, r *compare.Run, lane []string, at compare.Condition) error {
	var mu sync.Mutex
	var g errgroup.Group
	for _, name := range lane {
		g.Go(func() error {
			c, err := runCell(ctx, order{
				System: name, Members: at.Members, Load: at.Load, Kills: o.kills, Seed: o.seed, Limit: o.limit, Steady: o.steady, Budget: o.budget,
				Consul: o.consul,
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				c.Failure = err.Error()
			}
			fmt.Fprintf(os.Stderr, "%s %s, %s: %d kills, %d false deaths %s\n", time.Now().UTC().Format(time.TimeOnly), name, at,
				len(c.Kills), c.False, c.Failure)
			r.Add(c)
			return nil
		})
	}
	return g.Wait()
}

func write(o options, r compare.Run) error {
	if o.record != "" {
		b, err := r.Record()
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.record, b, 0o644); err != nil {
			return fmt.Errorf("record of the run: %w", err)
		}
	}
	if o.page == "" {
		return nil
	}
	if err := os.WriteFile(o.page, []byte(r.Page()), 0o644); err != nil {
		return fmt.Errorf("page of the run: %w", err)
	}
	return nil
}

// startKept starts a command from a thread that stays, because the death signal that the command asks for comes when its
// starting thread ends. The channel delivers the end.
func startKept(cmd *exec.Cmd) (<-chan error, error) {
	begun, ended := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		begun <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	return ended, <-begun
}

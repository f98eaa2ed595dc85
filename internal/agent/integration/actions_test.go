package integration

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/jobs"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/agent/daemon"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
)

// serveDoer makes acts for a node until the test ends, as its recovery daemon does.
func (n *testNet) serveDoer(c grid.Coord) {
	n.serveDoerOf(n.cfgs[c], fault.HalfHost, nil)
}

// serveDoerOf is serveDoer for the daemon of one half, with its way to restart that half.
func (n *testNet) serveDoerOf(cfg config.Agent, h fault.Half,
	restart func(context.Context, fault.Half, string, func(string) error) actions.Result,
) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	d := daemon.NewActionRunner(ctx, daemon.ActionRunnerConfig{Node: cfg.Node, StateDir: cfg.StateDir, Allowed: cfg.Responses,
		Sysfs: cfg.Sensors.Sysfs, Restart: restart, Log: slog.New(slog.DiscardHandler)})
	l, err := half.ListenUnix(ctx, filepath.Join(cfg.StateDir, actions.Socket(h)))
	if err != nil {
		n.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := half.Serve(ctx, l, d.Handler(h)); err != nil {
			n.t.Error(err)
		}
	})
	n.t.Cleanup(func() { cancel(); wg.Wait(); d.Wait() })
}

// act sends a node an order on a path until the node reports that the action has ended, and returns the final status.
func (n *testNet) act(to grid.Coord, via grid.Coord, path fault.Path, o *lofamov1.ActOrder) *lofamov1.ActStatus {
	n.t.Helper()
	o.Node, o.ReplyTo = string(n.cfgs[to].Node), n.super.net.LocalAddr().String()
	order := func(fits func(*lofamov1.ActStatus) bool) (st *lofamov1.ActStatus) {
		done := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { // repeat orders that are lost, or find no half running
			for t := time.NewTicker(20 * time.Millisecond); ; {
				n.super.send(netip.MustParseAddrPort(n.cfgs[via].Service.Listen), n.cfgs[to].Node, path,
					&lofamov1.Message{Body: &lofamov1.Message_ActOrder{ActOrder: o}})
				select {
				case <-done:
					t.Stop()
					return
				case <-t.C:
				}
			}
		})
		defer wg.Wait()
		defer close(done)
		n.super.awaitLocked("what became of an act", func() (said, bool) {
			st = n.super.acts[fmt.Sprint(o.GetNode(), o.GetResponse(), o.GetAttempt())]
			return said{}, st != nil && fits(st)
		})
		return st
	}
	o.Ask, o.TimeoutMs = true, 30_000
	ledger := order(func(st *lofamov1.ActStatus) bool { return st.GetLedger() != 0 }).GetLedger()
	o.Ask, o.Ledger = false, ledger
	return order(func(st *lofamov1.ActStatus) bool {
		return st.GetState() > lofamov1.ActState_ACT_UNDER_WAY
	})
}

// A node acts on a supervisor's order: sent directly; through a neighbour and the torus; and by its DNP half if its
// host half is dead. It acts once, and reports the same result for all orders.
func TestNodeActsOnceOnEveryPath(t *testing.T) {
	dir := t.TempDir()
	count := filepath.Join(dir, "count")
	program := filepath.Join(dir, "check")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho x >> "+count+"\necho all well\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, func(cfg *config.Agent) {
		unhurried(cfg)
		cfg.Responses.Checks = []config.ResponseCheck{{Name: "gpu", Command: []string{program}}}
	})
	n.startAll()
	n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Normal, fault.KindWatchdog)
	n.super.awaitState(host1, "n1-0-0", fault.ComponentDNP, fault.Normal, fault.KindWatchdog)
	n.serveDoer(at0)
	check := func(response string, via grid.Coord, path fault.Path, half lofamov1.Half) {
		t.Helper()
		st := n.act(at0, via, path, &lofamov1.ActOrder{
			Token: 5, Response: response, Attempt: 1, Kind: actions.KindCheck, Parameters: []*lofamov1.ActParameter{{Name: "script", Value: "gpu"}},
		})
		if st.GetState() != lofamov1.ActState_ACT_DONE || st.GetDetail() != "gpu: all well" || st.GetHalf() != half || st.GetNode() != "n0-0-0" {
			t.Errorf("%s: %v", response, st)
		}
	}
	check("r5-1", at0, fault.PathDirect, lofamov1.Half_HALF_HOST)
	check("r5-2", at1, fault.PathTorus, lofamov1.Half_HALF_HOST)
	n.halt(at0, fault.HalfHost)
	n.super.awaitState(dnp0, "n0-0-0", fault.ComponentHost, fault.Failed, fault.KindWatchdog)
	check("r5-3", at1, fault.PathTorus, lofamov1.Half_HALF_DNP)
	if b, err := os.ReadFile(count); err != nil || len(b) != 3*2 {
		t.Errorf("%q, %v: want three checks", b, err)
	}
}

// A supervisor's announcement reaches the jobs of all nodes and names once, though it is raised twice. Only a
// supervisor can announce.
func TestSupervisorsEurekaReachesJobsOnce(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 3, Y: 1, Z: 1}, func(cfg *config.Agent) {
		unhurried(cfg)
		cfg.Responses.Eureka = true
	})
	n.startAll()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	n.togetherAt(ctx, "begin")
	for rank := range n.dims.Nodes() {
		n.serveDoer(n.dims.At(rank))
	}
	heard := [...]<-chan *jobs.Eureka{n.heardAt(ctx, at0), n.heardAt(ctx, at1), n.heardAt(ctx, grid.Coord{X: 2})}
	for attempt, c := range []grid.Coord{at0, at1} {
		st := n.act(c, c, fault.PathDirect, &lofamov1.ActOrder{
			Token: 5, Response: "r5-1", Attempt: uint32(1 + attempt), Kind: actions.KindEureka, Target: "n2-0-0/memory",
			Parameters: []*lofamov1.ActParameter{{Name: "text", Value: "checkpoint now"}},
		})
		if st.GetState() != lofamov1.ActState_ACT_DONE {
			t.Fatalf("%v", st)
		}
	}
	var firsts []*jobs.Eureka
	for _, c := range heard {
		firsts = append(firsts, <-c)
	}
	// A node that received no order has learned that leader's term, and refuses an earlier one.
	at2 := grid.Coord{X: 2}
	st := n.act(at2, at2, fault.PathDirect, &lofamov1.ActOrder{
		Token: 4, Response: "r4-1", Attempt: 1, Kind: actions.KindEureka, Target: "n2-0-0/memory",
		Parameters: []*lofamov1.ActParameter{{Name: "text", Value: "stale"}},
	})
	if st.GetState() != lofamov1.ActState_ACT_STALE || st.GetToken() != 5 || st.GetFresh() == 0 {
		t.Errorf("%v", st)
	}
	if err := n.job(at0).Raise(ctx, "last", nil); err != nil {
		t.Fatal(err)
	}
	for i, c := range heard {
		first, last := firsts[i], <-c
		if first == nil || first.Supervisor != "sup-0" || first.Topic != "lofamo" || string(first.Body) != "checkpoint now" ||
			first.Target != "n2-0-0/memory" || first.Response != "r5-1" {
			t.Errorf("node %d: %+v", i, first)
		}
		if last == nil || last.Topic != "last" || last.Supervisor != "" {
			t.Errorf("node %d: then %+v", i, last)
		}
	}
}

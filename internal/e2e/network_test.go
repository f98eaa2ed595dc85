package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/netlab"
	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// network starts a cluster in network namespaces for one test and its subtests. When the test fails,
// its logs are kept.
func network(t *testing.T, dims string, supervisors, serviceNetworks int) *netlab.Lab {
	t.Helper()
	d, err := grid.ParseDims(dims)
	if err != nil {
		t.Fatal(err)
	}
	return startLab(t, cluster.Options{
		Dims: d, Supervisors: supervisors, ServiceInterfaces: serviceNetworks, BinDir: binaries, Periods: patient(),
	})
}

// startLab starts a cluster in network namespaces. Its directory is kept if the test fails.
func startLab(t *testing.T, o cluster.Options) *netlab.Lab {
	t.Helper()
	if missing := netlab.Missing(); missing != "" {
		requirements.Missing(t, "network namespaces: missing: %s", missing)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	l, err := netlab.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			return
		}
		dir, err := l.CloseAndKeep()
		t.Logf("the cluster's directory with its logs is kept: %s, %v", dir, err)
	})
	return l
}

// patient is for tests of networks, and for others that are not about how fast a half is missed: one that a busy
// machine keeps waiting is not missed. Such a test may run beside another one.
func patient() *config.PeriodsOverride {
	p, challenge := manyMisses(), config.Duration(250*time.Millisecond)
	p.ChallengeHalf, p.ChallengeNode = &challenge, &challenge
	return p
}

// manyMisses tolerates 16 misses: at preset relaxed a link is silent after 4.25 s and a half stale after 8.5 s, at default after
// 0.43 s and 0.85 s.
func manyMisses() *config.PeriodsOverride {
	reads, heartbeats := 16, 16
	return &config.PeriodsOverride{ReadMisses: &reads, LinkMisses: &heartbeats}
}

// wired is a trial on a cluster with a network of its own.
type wired struct {
	trial
	net *netlab.Lab
}

// tryWired runs a subtest on a settled cluster and heals its network afterwards.
func tryWired(t *testing.T, l *netlab.Lab, name string, do func(wired)) {
	t.Helper()
	try(t, l.Lab, name, func(tr trial) {
		defer func() {
			if err := l.HealNetwork(); err != nil {
				t.Error(err)
			}
		}()
		do(wired{tr, l})
	})
}

func (t wired) must(err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// healed heals the network and waits until the whole map is NORMAL again.
func (t wired) healed() {
	t.Helper()
	t.must(t.net.HealNetwork())
	t.settled()
}

func (t wired) traffic(node, iface string) netlab.Traffic {
	t.Helper()
	c, err := t.net.Traffic(node, iface)
	t.must(err)
	return c
}

// silent watches a node's service network from now on. The function that it returns checks that
// nothing has passed there since.
func (t wired) silent(node string) (check func()) {
	t.Helper()
	before := t.traffic(node, "svc0")
	return func() {
		t.Helper()
		since := t.traffic(node, "svc0").Since(before)
		if since.In.Passed != 0 || since.Out.Passed != 0 || since.Out.Lost == 0 {
			t.Errorf("service network of %s: %+v has passed, want nothing but tries", node, since)
		}
	}
}

// byTorus waits until a component of a node is FAILED and checks that the report came through the torus.
func (t wired) byTorus(node, component string) {
	t.Helper()
	if s := t.becomes(node, component, failed); s.GetPath() != torus {
		t.Errorf("%s of %s is known by %s, want TORUS: the direct way is cut", component, node, s.GetPath())
	}
}

// TestRealServiceNetworkCut cuts a node off a service network of real interfaces: its state remains known through the
// torus, while no packet passes its service interface.
func TestRealServiceNetworkCut(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		dims        string
		supervisors int
	}{{"2x1x1", 1}, {"2x2x2", 3}} {
		t.Run(tc.dims, func(t *testing.T) {
			l := network(t, tc.dims, tc.supervisors, 1)
			tryWired(t, l, "service network cut", func(t wired) {
				t.must(t.net.CutService("n1-0-0"))
				silent := t.silent("n1-0-0")
				links := t.traffic("n1-0-0", "tx-")
				t.byTorus("n1-0-0", "service-network")
				t.becomes("n1-0-0", "node", sick)
				silent()
				if c := t.traffic("n1-0-0", "tx-").Since(links); c.Out.Passed == 0 {
					t.Error("nothing went by the torus either")
				}
				t.is("n1-0-0", sick, lofamov1.Cause_SERVICE_NETWORK)
				t.healed()
				t.neverFailed()
				t.othersWereSpared("n1-0-0")
			})
		})
	}
}

// flappingCable: row 5. If it flaps more slowly than the hold-off, the map shows each loss and each return at both
// ends. If faster, it shows about one change per hold-off. Neither node is ever FAILED.
func (t wired) flappingCable(a, linkOfA, b, linkOfB string) {
	t.Helper()
	periods, err := t.Cluster.Periods()
	t.must(err)
	iface := "t" + strings.ToLower(strings.TrimPrefix(linkOfA, "link/"))
	changes := func(round trial, node, component string, to ...lofamov1.State) (n int) {
		for _, s := range t.Since(round.mark) {
			if s.GetNode() == node && s.GetComponent() == component && (len(to) == 0 || slices.Contains(to, s.GetTo())) {
				n++
			}
		}
		return n
	}
	ends := map[string]string{a: linkOfA, b: linkOfB}
	for node, link := range ends {
		t.mayFail(node, link)
	}

	const slowly = 2
	t.must(t.net.Flap(t.Context(), a, iface, 4*periods.LinkHoldOff, slowly))
	t.settled()
	for node, link := range ends {
		if n := changes(t.trial, node, link, failed); n != slowly {
			t.Errorf("the cable was lost %d times, and %s of %s FAILED %d times", slowly, link, node, n)
		}
	}

	fast := t.trial
	fast.mark = t.Mark()
	begin, period := time.Now(), periods.LinkHoldOff*3/4 // each half of it exceeds the silence limit
	t.must(t.net.Flap(t.Context(), a, iface, period, 6))
	t.settled()
	for node, link := range ends {
		// The first two come at once, and there may be one under way.
		most := 3 + int(time.Since(begin)/periods.LinkHoldOff)
		if n := changes(fast, node, link); n == 0 || n > most {
			t.Errorf("the cable was lost every %s for %s, and %s of %s changed %d times: want 1 to %d", period, 6*period, link, node, n, most)
		}
	}
	t.neverFailed()
	t.othersWereSpared(a, b)
}

// TestRealNetworkFaults tries network faults on a cluster of real interfaces.
func TestRealNetworkFaults(t *testing.T) {
	t.Parallel()
	l := network(t, "2x2x2", 3, 1)

	tryWired(t, l, "node and all its neighbours cut off the service network", func(t wired) {
		guilty := []string{"n0-0-0", "n1-0-0", "n0-1-0", "n0-0-1"}
		var silent []func()
		for _, n := range guilty {
			t.must(t.net.CutService(n))
			silent = append(silent, t.silent(n))
		}
		for _, n := range guilty {
			t.byTorus(n, "service-network")
		}
		// Reports now have only paths of two hops.
		t.inject("n0-0-0", simple(cluster.KillHost))
		t.byTorus("n0-0-0", "host")
		for _, check := range silent {
			check()
		}
		if err := t.Cluster.Heal(t.Context(), "n0-0-0"); err != nil {
			t.Fatal(err)
		}
		t.healed()
		t.neverFailed()
		t.othersWereSpared(guilty...)
	})

	for _, w := range []netlab.Way{netlab.Out, netlab.In} {
		tryWired(t, l, "service network cut one way: "+w.String(), func(t wired) {
			t.must(t.net.CutServiceOneWay("n0-1-1", w))
			// Sent messages may still arrive directly, though their sender does not learn that.
			if s := t.becomes("n0-1-1", "service-network", failed); w == netlab.Out && s.GetPath() != torus {
				t.Errorf("known by %s, want TORUS: the direct way out is cut", s.GetPath())
			}
			t.becomes("n0-1-1", "node", sick)
			t.healed()
			t.neverFailed()
			t.othersWereSpared("n0-1-1")
		})
	}

	tryWired(t, l, "carrier of the service network lost", func(t wired) {
		t.must(t.net.CarrierDown("n1-1-0", "svc0"))
		t.byTorus("n1-1-0", "service-network")
		t.healed()
		t.neverFailed()
		t.othersWereSpared("n1-1-0")
	})

	tryWired(t, l, "service interface flaps", func(t wired) {
		t.must(t.net.Flap(t.Context(), "n1-0-1", "svc0", 700*time.Millisecond, 8))
		t.mayFail("n1-0-1", "service-network")
		t.settled()
		t.quiet("n1-0-1") // what was lost may be missed only now
		t.neverFailed()
		t.othersWereSpared("n1-0-1")
	})

	tryWired(t, l, "a cable flaps", func(t wired) { t.flappingCable("n1-1-1", "link/X+", "n0-1-1", "link/X-") })

	tryWired(t, l, "carrier of a link lost", func(t wired) {
		t.must(t.net.CarrierDown("n0-0-0", "ty+"))
		t.becomes("n0-0-0", "link/Y+", failed)
		t.becomes("n0-1-0", "link/Y-", failed)
		t.healed()
		t.neverFailed()
		t.othersWereSpared("n0-0-0", "n0-1-0")
	})

	tryWired(t, l, "link cut one way", func(t wired) {
		t.must(t.net.CutLink("n0-0-0", grid.ZPlus, netlab.Out))
		t.becomes("n0-0-1", "link/Z-", failed)
		t.becomes("n0-0-0", "link/Z+", failed)
		t.healed()
		t.neverFailed()
		t.othersWereSpared("n0-0-0", "n0-0-1")
	})

	tryWired(t, l, "every second datagram lost and one of ten damaged on the service network", func(t wired) {
		before := t.traffic("n1-1-1", "svc0")
		t.must(t.net.Lose("n1-1-1", "svc0", netlab.Both, 50))
		t.must(t.net.Corrupt("n1-1-1", "svc0", netlab.Both, 10))
		t.mayFail("n1-1-1", "service-network") // one exchange of five succeeds: for a second, none may
		for range 2 {
			round := t.trial
			round.mark = t.Mark()
			round.inject("n1-1-1", sensor("temperature", 110))
			round.becomes("n1-1-1", "temperature", failed)
			round.inject("n1-1-1", sensor("temperature", 45))
			round.becomes("n1-1-1", "temperature", normal)
		}
		if c := t.traffic("n1-1-1", "svc0").Since(before); c.In.Lost+c.Out.Lost == 0 {
			t.Errorf("nothing was lost: %+v", c)
		}
		t.healed()
		t.neverFailed()
		t.othersWereSpared("n1-1-1")
	})
}

// TestRealServiceNetworks cuts one of a node's two service networks: the other carries its reports.
func TestRealServiceNetworks(t *testing.T) {
	t.Parallel()
	l := network(t, "2x1x1", 1, 2)
	tryWired(t, l, "the first of two cut", func(t wired) {
		t.must(t.net.Cut("n1-0-0", "svc0", netlab.Both))
		silent, other := t.silent("n1-0-0"), t.traffic("n1-0-0", "svc1")
		t.inject("n1-0-0", sensor("temperature", 110))
		if s := t.becomes("n1-0-0", "temperature", failed); s.GetPath() != direct {
			t.Errorf("known by %s, want DIRECT: one direct way is left", s.GetPath())
		}
		silent()
		if c := t.traffic("n1-0-0", "svc1").Since(other); c.Out.Passed == 0 {
			t.Errorf("nothing went by the second service network: %+v", c)
		}
		if err := t.Cluster.Heal(t.Context(), "n1-0-0"); err != nil {
			t.Fatal(err)
		}
		t.healed()
		t.neverFailed()
		t.othersWereSpared("n1-0-0")
	})
}

// TestKeptNetworkLogs checks that the files of a failed test are readable.
func TestKeptNetworkLogs(t *testing.T) {
	t.Parallel()
	l := network(t, "2x1x1", 1, 1)
	dir, err := l.CloseAndKeep()
	if err != nil {
		t.Fatal(err)
	}
	if logs, _ := filepath.Glob(filepath.Join(dir, "c", "nodes", "*", "host.log")); len(logs) != 2 {
		t.Errorf("kept logs of nodes: %v", logs)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

const (
	direct  = lofamov1.Path_DIRECT
	torus   = lofamov1.Path_TORUS
	anyPath = lofamov1.Path_PATH_UNSPECIFIED
)

// TestEveryFaultOfTableII runs the faults of seed 001 Table II on one cluster of real processes.
func TestEveryFaultOfTableII(t *testing.T) {
	t.Parallel()
	// Only recoveries wait for the hold-off: two seconds after nearly every fault here. Half a second is well above a
	// heartbeat's delay on a busy machine: with less, a link would flap.
	periods, soon := patient(), config.Duration(500*time.Millisecond)
	periods.LinkHoldOff = &soon
	l := clusterOf(t, "2x2x2", cluster.Options{Supervisors: 3, Periods: periods})

	try(t, l, "host half killed", func(t trial) {
		t.inject("1,0,1", simple(cluster.KillHost))
		s := t.becomes("n1-0-1", "host", failed)
		if s.GetPath() != torus || s.GetCause() != lofamov1.Cause_HOST {
			t.Errorf("known by %s, cause %s; want TORUS, HOST", s.GetPath(), s.GetCause())
		}
		if s.GetAwarenessLatency() == nil {
			t.Error("no awareness latency")
		}
		if s.GetPlatform() != lofamov1.Platform_SHARED_KERNEL || !strings.Contains(s.GetReason(), "the agent's host half died, not the host") {
			t.Errorf("platform %s, reason %q: want the agent's half on a shared kernel", s.GetPlatform(), s.GetReason())
		}
		t.becomes("n1-0-1", "node", sick)
		n := t.is("n1-0-1", sick, lofamov1.Cause_HOST)
		if n.GetPlatform() != lofamov1.Platform_SHARED_KERNEL {
			t.Errorf("platform %s in the map", n.GetPlatform())
		}
		t.hasEvidence(n, "host", "WATCHDOG", "n1-0-1/dnp", torus)
		t.heal("1,0,1")
		t.neverFailed()
		t.othersWereSpared("n1-0-1")
	})

	try(t, l, "DNP half killed", func(t trial) {
		t.inject("0,1,0", simple(cluster.KillDNP))
		s := t.becomes("n0-1-0", "dnp", failed)
		if s.GetCause() != lofamov1.Cause_DNP {
			t.Errorf("cause %s, want DNP", s.GetCause())
		}
		t.becomes("n0-1-0", "node", sick)
		n := t.is("n0-1-0", sick, lofamov1.Cause_DNP)
		t.hasEvidence(n, "dnp", "WATCHDOG", "n0-1-0/host", direct)
		t.heal("0,1,0")
		t.neverFailed()
		t.othersWereSpared("n0-1-0")
	})

	try(t, l, "both halves killed", func(t trial) {
		t.inject("1,1,1", simple(cluster.KillNode))
		s := t.becomes("n1-1-1", "node", failed)
		if s.GetCause() != lofamov1.Cause_NODE || s.GetSingleWitness() {
			t.Errorf("cause %s, single witness %t; want NODE by a quorum", s.GetCause(), s.GetSingleWitness())
		}
		n := t.is("n1-1-1", failed, lofamov1.Cause_NODE)
		for _, c := range []string{"host", "dnp"} {
			if got := t.component(n, c).GetState(); got != failed {
				t.Errorf("%s of a dead node is %s", c, got)
			}
		}
		t.hasEvidence(n, "host", "VOTES", "", anyPath)
		t.comesToHaveEvidence("n1-1-1", "dnp", "SILENCE", "n0-1-1/host", direct)
		t.heal("1,1,1")
		t.othersWereSpared("n1-1-1")
	})

	try(t, l, "host half stopped and continued", func(t trial) {
		t.inject("0,0,1", simple(cluster.HangHost))
		t.becomes("n0-0-1", "host", failed)
		t.heal("0,0,1")
		t.neverFailed()
		t.othersWereSpared("n0-0-1")
	})

	try(t, l, "DNP half stopped and continued", func(t trial) {
		t.inject("0,0,1", simple(cluster.HangDNP))
		t.becomes("n0-0-1", "dnp", failed)
		t.heal("0,0,1")
		t.neverFailed()
		t.othersWereSpared("n0-0-1") // on waking it must not accuse neighbours it did not hear
	})

	try(t, l, "service network cut", func(t trial) {
		t.inject("1,0,0", simple(cluster.CutService))
		s := t.becomes("n1-0-0", "service-network", failed)
		if s.GetPath() != torus {
			t.Errorf("known by %s, want TORUS: the direct way is cut", s.GetPath())
		}
		t.becomes("n1-0-0", "node", sick)
		t.is("n1-0-0", sick, lofamov1.Cause_SERVICE_NETWORK)
		t.heal("1,0,0")
		t.neverFailed()
		t.othersWereSpared("n1-0-0")
	})

	try(t, l, "host killed after its service network was cut", func(t trial) {
		t.inject("1,0,0", simple(cluster.CutService))
		t.becomes("n1-0-0", "service-network", failed)
		t.inject("1,0,0", simple(cluster.KillHost))
		if s := t.becomes("n1-0-0", "host", failed); s.GetPath() != torus {
			t.Errorf("known by %s, want TORUS", s.GetPath())
		}
		t.heal("1,0,0")
		t.neverFailed()
		t.othersWereSpared("n1-0-0")
	})

	try(t, l, "link cut", func(t trial) {
		t.inject("0,0,0", cluster.Fault{Kind: cluster.CutLink, Dir: grid.YPlus})
		t.becomes("n0-0-0", "link/Y+", failed)
		t.becomes("n0-1-0", "link/Y-", failed)
		t.hasEvidence(t.is("n0-0-0", normal, lofamov1.Cause_NONE), "link/Y+", "SILENCE", "", anyPath)
		t.hasEvidence(t.is("n0-1-0", normal, lofamov1.Cause_NONE), "link/Y-", "SILENCE", "", anyPath)
		t.heal("0,0,0")
		t.neverFailed()
		t.othersWereSpared("n0-0-0", "n0-1-0")
	})

	try(t, l, "link cut one way", func(t trial) {
		t.inject("0,0,0", cluster.Fault{Kind: cluster.CutLink, Dir: grid.ZPlus, OneWay: true})
		t.becomes("n0-0-1", "link/Z-", failed)
		t.becomes("n0-0-0", "link/Z+", failed)
		// Either end may have reported first; in the end both have.
		t.comesToHaveEvidence("n0-0-1", "link/Z-", "SILENCE", "n0-0-1/host", anyPath)
		t.comesToHaveEvidence("n0-0-0", "link/Z+", "HANDSHAKE", "n0-0-0/host", anyPath)
		t.heal("0,0,0")
		t.neverFailed()
		t.othersWereSpared("n0-0-0", "n0-0-1")
	})

	try(t, l, "link corrupts", func(t trial) {
		t.inject("0,1,1", cluster.Fault{Kind: cluster.CorruptLink, Dir: grid.XPlus, Rate: 0.3})
		t.becomes("n0-1-1", "link/X+", sick)
		t.hasEvidence(t.node("n0-1-1"), "link/X+", "ERROR_RATIO", "", anyPath)
		t.heal("0,1,1")
		t.neverFailed()
	})
}

// TestEverySensorCrossesItsThresholds drives every sensor of one node beyond its thresholds and back.
func TestEverySensorCrossesItsThresholds(t *testing.T) {
	t.Parallel()
	// The test waits for the next reading. Checks of peripherals stay as rare as usual: a check has to end before the
	// next one.
	often, periods := config.Duration(100*time.Millisecond), patient()
	periods.SensorPeriod = &often
	l := clusterOf(t, "2x1x1", cluster.Options{Supervisors: 1, Periods: periods})
	for _, tc := range []struct {
		sensor    string
		value     float64
		component string
		want      lofamov1.State
		cause     lofamov1.Cause
	}{
		{"temperature", 110, "temperature", failed, lofamov1.Cause_SENSOR},
		{"temperature", -20, "temperature", failed, lofamov1.Cause_SENSOR},
		{"voltage", 20, "voltage", failed, lofamov1.Cause_SENSOR},
		{"power", 5000, "power", failed, lofamov1.Cause_SENSOR},
		{"memory-ue", 5, "memory", failed, lofamov1.Cause_MEMORY},
		{"memory-ce", 100000, "memory", sick, lofamov1.Cause_MEMORY},
		{"peripheral/0", 1, "peripheral/0", sick, lofamov1.Cause_PERIPHERAL},
		{"peripheral/0", 2, "peripheral/0", failed, lofamov1.Cause_PERIPHERAL},
		{"peripheral/1", 2, "peripheral/1", failed, lofamov1.Cause_PERIPHERAL},
		{"carrier", 0, "service-network", failed, lofamov1.Cause_SERVICE_NETWORK},
	} {
		try(t, l, tc.sensor+" "+tc.want.String(), func(t trial) {
			t.inject("1,0,0", sensor(tc.sensor, tc.value))
			t.becomes("n1-0-0", tc.component, tc.want)
			t.becomes("n1-0-0", "node", sick)
			n := t.is("n1-0-0", sick, tc.cause)
			t.hasEvidence(n, tc.component, "SELF", "n1-0-0/host", anyPath)
			t.heal("1,0,0")
			t.neverFailed()
			t.othersWereSpared("n1-0-0")
		})
	}
}

// TestRegistersFromOutside writes register words as another device on the bus would, and checks both halves' reactions
// against seed 001 §IV-B.
func TestRegistersFromOutside(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "3x1x1", cluster.Options{Supervisors: 1, Periods: patient()})
	path := func(t trial, node string) string {
		n, err := t.Cluster.Node(node)
		if err != nil {
			t.Fatal(err)
		}
		return t.Cluster.RegisterFile(n)
	}
	try(t, l, "the DNP word says core sick: the host reports it", func(t trial) {
		word := watchdog.DNPWord{Valid: true, Core: watchdog.HealthSick}
		stop := poke(t, path(t, "n0-0-0"), watchdog.AddrDNPWatchdog, word.Encode())
		t.becomes("n0-0-0", "dnp-core", sick)
		stop()
		t.settled()
	})
	try(t, l, "the host word says memory broken: the DNP tells the neighbours", func(t trial) {
		word := watchdog.HostWord{Valid: true, Memory: watchdog.HealthBroken}
		stop := poke(t, path(t, "n1-0-0"), watchdog.AddrHostWatchdog, word.Encode())
		defer stop()
		waitRegister(t, path(t, "n2-0-0"), watchdog.AddrRemoteFaultDescriptor, func(v uint32) bool {
			d, err := watchdog.DecodeDescriptorWord(v)
			return err == nil && d.Neighbours[grid.XMinus.Index()].Memory
		})
	})
}

// poke holds a word at a value against its owner, which rewrites it all the time, until stopped.
func poke(t trial, path string, a watchdog.Addr, v uint32) (stop func()) {
	t.Helper()
	quit, done := make(chan struct{}), make(chan error, 1)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				done <- nil
				return
			case <-tick.C:
				if err := regfile.Poke(path, a, v); err != nil {
					done <- err
					return
				}
			}
		}
	}()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		close(quit)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// waitRegister waits until a register satisfies ok.
func waitRegister(t trial, path string, a watchdog.Addr, ok func(uint32) bool) {
	t.Helper()
	f, err := regfile.OpenReadOnly(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var last uint32
	for {
		if last, err = f.Load(a); err == nil && ok(last) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("register %#x of %s is %#x at last, %v", a, path, last, err)
		}
	}
}

// TestFaultsReachAdoptedHalves injects and heals a fault after a new recovery daemon has adopted the halves of a node.
func TestFaultsReachAdoptedHalves(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x1x1", cluster.Options{Supervisors: 1, Periods: patient()})
	try(t, l, "host half hung", func(t trial) {
		if err := t.Cluster.KillRun(t.Context(), "1,0,0"); err != nil {
			t.Fatal(err)
		}
		if err := t.Cluster.StartRun("1,0,0"); err != nil {
			t.Fatal(err)
		}
		eventually(t.T, "the new daemon to adopt the halves", func() bool {
			n, err := t.Cluster.Node("1,0,0")
			if err != nil {
				t.Fatal(err)
			}
			s, err := t.Cluster.Status(t.Context(), n)
			return err == nil && s.Host.Running && s.DNP.Running
		})
		t.inject("1,0,0", simple(cluster.HangHost))
		t.becomes("n1-0-0", "host", failed)
		t.heal("1,0,0")
		t.neverFailed()
		t.othersWereSpared("n1-0-0")
	})
}

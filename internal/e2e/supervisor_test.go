package e2e

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
)

// TestLeaderKilled kills the leading supervisor with signal 9: another one takes over, the map stays, the watch
// continues without a gap, and faults are detected as before.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	l := startCluster(t, "2x2x1", 3)
	try(t, l, "fault before, leader killed, fault after", func(t trial) {
		t.inject("1,0,0", sensor("temperature", 110))
		t.becomes("n1-0-0", "temperature", failed)

		killed, pid := "", 0
		eventually(t.T, "a leader", func() bool {
			resp, err := t.Client.ListSupervisors(t.Context())
			for _, s := range resp.GetSupervisors() {
				if s.GetLeader() {
					killed = s.GetId()
				}
			}
			return err == nil && killed != ""
		})
		for _, s := range t.Cluster.Info().Supervisors {
			if s.ID == killed {
				pid = s.PID
			}
		}
		if pid == 0 {
			t.Fatalf("no supervisor %s among %v", killed, t.Cluster.Info().Supervisors)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		t.inject("0,1,0", simple(cluster.KillHost))
		t.becomes("n0-1-0", "host", failed)
		if n := t.node("n1-0-0"); t.component(n, "temperature").GetState() != failed {
			t.Errorf("the new leader forgot: %v", n)
		}
		t.othersWereSpared("n1-0-0", "n0-1-0")
		last := uint64(0)
		for _, s := range t.Since(t.mark) {
			if s.GetRevision() < last {
				t.Errorf("revision %d after %d: %s", s.GetRevision(), last, s)
			}
			last = s.GetRevision()
		}
	})
}

// TestStrangersChangeNothing sends noise to every port of a node: all of it is refused, and no link turns SICK (a
// stranger could otherwise cause that).
func TestStrangersChangeNothing(t *testing.T) {
	l := startCluster(t, "2x1x1", 1)
	try(t, l, "noise", func(t trial) {
		cfg, err := config.LoadAgent(filepath.Join(t.Cluster.Dir(), "nodes", "n0-0-0", "agent.yaml"), nil)
		if err != nil {
			t.Fatal(err)
		}
		targets := []string{cfg.Service.Listen, t.Cluster.Info().Supervisors[0].Report}
		for _, link := range cfg.Links {
			targets = append(targets, link.Local)
		}
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		noise := make([]byte, 1400)
		for i := range noise {
			noise[i] = byte(i * 7)
		}
		for round := range 500 {
			for _, target := range targets {
				to, err := netip.ParseAddrPort(target)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := conn.WriteToUDPAddrPort(noise[:1+(round*37)%1400], to); err != nil {
					t.Fatal(err)
				}
			}
		}
		// A real fault afterwards shows that everybody still listens.
		t.inject("0,0,0", sensor("temperature", 110))
		t.becomes("n0-0-0", "temperature", failed)
		for _, s := range t.Since(t.mark) {
			if s.GetFrom() == lofamov1.State_UNKNOWN && s.GetTo() == lofamov1.State_NORMAL {
				continue // the first check of a peripheral, after the start
			}
			if s.GetKind() == lofamov1.EventKind_STARVATION_CHANGED {
				continue // caused by other programs on a busy machine
			}
			if s.GetNode() != "n0-0-0" || (s.GetComponent() != "temperature" && s.GetComponent() != "node") {
				t.Errorf("the noise did something: %s", s)
			}
		}
	})
}

// TestRestartedClusterKeepsMap stops a whole cluster and starts it again: the committed map and its history survive, the halves
// resume from their copies, in their boot epochs, and the sensors have the same states.
func TestRestartedClusterKeepsMap(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x1x1", cluster.Options{Supervisors: 1, Periods: patient()})
	before, err := l.Client.GetNode(t.Context(), "n0-0-0")
	if err != nil {
		t.Fatal(err)
	}
	seen := begin(t, l)
	seen.inject("1,0,0", sensor("temperature", 110))
	seen.becomes("n1-0-0", "temperature", failed)
	if err := l.Cluster.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Cluster.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	unwell, err := l.Cluster.WaitHeard(ctx, nil)
	if err != nil || len(unwell) != 1 || !strings.Contains(unwell[0], "n1-0-0 is SICK (SENSOR) [temperature FAILED]") {
		t.Errorf("after the start %q, %v", unwell, err)
	}
	deadline := time.After(patience)
	for {
		after, err := l.Client.GetNode(t.Context(), "n0-0-0")
		if err == nil && after.GetState() == normal && after.GetHostEpoch() == before.GetHostEpoch() &&
			after.GetHostHealth().GetRecovery().GetResumption() == lofamov1.Resumption_RESUMED {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("before %v, at last %v, %v", before, after, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

package e2e

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
)

const (
	// busyBudget is a few times the use of an idle half of a small torus at preset relaxed, in percent of a core, and less
	// than a busy half gets as an ordinary process on a busy machine.
	busyBudget = 1.5
	// rising bounds the way to level 3, which takes seconds on a machine with time for the halves.
	rising = 2 * time.Minute
	// easing bounds the way from level 3 back to level 0: three holds of 10 s, and more on a busy machine.
	easing = 3 * time.Minute
)

// keepBusy makes all halves answer requests at their injection sockets without a pause, until stop is called.
func keepBusy(t trial) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, n := range t.Cluster.Info().Nodes {
		for _, socket := range []string{half.HostInjectSock, half.DNPInjectSock} {
			path := filepath.Join(n.StateDir, socket)
			wg.Go(func() {
				tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					var d net.Dialer
					return d.DialContext(ctx, "unix", path)
				}}
				defer tr.CloseIdleConnections()
				for ctx.Err() == nil {
					req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://half/inject", http.NoBody)
					if err != nil {
						t.Error(err)
						return
					}
					if resp, err := (&http.Client{Transport: tr}).Do(req); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						_ = resp.Body.Close()
					}
				}
			})
		}
	}
	return func() { cancel(); wg.Wait() }
}

// budgetLevels returns the levels of all halves in the map.
func budgetLevels(t trial) (out []uint32) {
	for _, n := range t.Cluster.Info().Nodes {
		at := t.node(string(n.ID))
		out = append(out, at.GetHostHealth().GetProcessor().GetBudgetLevel(), at.GetDnpHealth().GetProcessor().GetBudgetLevel())
	}
	return out
}

// reaches waits until all halves are at a level.
func (t trial) reaches(level uint32, bound time.Duration) {
	t.Helper()
	deadline := time.Now().Add(bound)
	for {
		levels := budgetLevels(t)
		if !slices.ContainsFunc(levels, func(l uint32) bool { return l != level }) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("levels %v after %v: want %d everywhere", levels, bound, level)
		}
		pause(t, 200*time.Millisecond)
	}
}

// leads waits for a leader other than one, and returns it.
func (t trial) leads(other string) (leader string) {
	t.Helper()
	eventually(t.T, "another leader than "+other, func() bool {
		resp, err := t.Client.ListSupervisors(t.Context())
		if err != nil {
			return false
		}
		for _, s := range resp.GetSupervisors() {
			if s.GetLeader() && s.GetId() != other {
				leader = s.GetId()
			}
		}
		return leader != ""
	})
	return leader
}

// TestElectionBesideBusyHalves keeps all halves busy, in real time and as ordinary processes. They give up digests,
// probes and sensor readings, and report that in the map. Supervisors on the same machine elect a leader meanwhile, a
// real fault is found, and nothing that works is called FAILED. Without the load, the halves do all work again.
func TestElectionBesideBusyHalves(t *testing.T) {
	for _, scheduling := range []string{"auto", "default"} {
		t.Run(scheduling, func(t *testing.T) {
			l := clusterOf(t, "2x2x1", cluster.Options{
				Supervisors: 3, Preset: config.PresetRelaxed, Periods: patient(),
				Agent: func(a *config.Agent) { a.Processor.Budget = busyBudget },
				Command: func(_ string, argv []string) []string {
					if filepath.Base(argv[0]) != "lofamo-agent" {
						return argv
					}
					return append(argv, "--scheduling="+scheduling)
				},
			})
			tr := begin(t, l)
			tr.settled()
			stop := sync.OnceFunc(keepBusy(tr))
			defer stop()
			tr.reaches(3, rising)

			first := tr.leads("")
			if err := l.Cluster.KillSupervisor(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			second := tr.leads(first)
			t.Logf("%s leads %v after the end of %s", second, time.Since(begun).Round(time.Millisecond), first)
			if err := l.Cluster.StartSupervisor(first); err != nil {
				t.Fatal(err)
			}
			tr.inject("1,0,0", sensor("temperature", 110))
			tr.becomes("n1-0-0", "temperature", failed)
			tr.neverFailed()

			stop()
			tr.heal("1,0,0")
			if scheduling != "auto" {
				return // the way back is the same
			}
			tr.reaches(0, easing)
			tr.neverFailed()
			checkBudgetLog(tr)
		})
	}
}

// checkBudgetLog checks that a half logged each change of its level once: at least three up and as many down.
func checkBudgetLog(t trial) {
	t.Helper()
	for _, n := range t.Cluster.Info().Nodes {
		for _, half := range []string{"host", "dnp"} {
			b, err := os.ReadFile(t.Cluster.Log(n, half))
			if err != nil {
				t.Fatal(err)
			}
			text := string(b)
			up := strings.Count(text, `level=WARN msg="processor budget: level`)
			down := strings.Count(text, `level=INFO msg="processor budget: level`)
			if up < 3 || up != down {
				t.Errorf("%s half of %s: %d lines of a higher level, %d of a lower one: want as many, and at least 3", half, n.ID, up, down)
			}
		}
	}
}

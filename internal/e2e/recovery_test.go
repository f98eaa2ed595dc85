package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/agent/daemon"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/lab"
)

// TestRecoveriesAreSeen kills halves that their daemons restart at once, mostly too soon for a verdict FAILED: each
// recovery is a committed event, and shows in get node and in explain.
func TestRecoveriesAreSeen(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x2x1", cluster.Options{Supervisors: 1, Periods: patient(), Restart: "always",
		Agent: func(a *config.Agent) { a.Responses.RestartHalf = true }})
	t.Run("for a response", func(t *testing.T) { restartedForAResponse(t, l) })
	for _, tt := range []struct {
		half string
		kill cluster.Kind
	}{{"dnp", cluster.KillDNP}, {"host", cluster.KillHost}} {
		t.Run(tt.half, func(t *testing.T) {
			tr := begin(t, l)
			tr.settled()
			tr.inject("1,0,0", simple(tt.kill))
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			s, err := l.Wait(ctx, tr.mark, func(s lab.Seen) bool {
				return s.GetKind() == lofamov1.EventKind_RECOVERY_CHANGED && s.GetNode() == "n1-0-0" && s.GetComponent() == tt.half
			})
			if err != nil {
				t.Fatalf("no event of the recovery: %v", err)
			}
			const begins = "restarted (ended by signal 9): serving again after "
			if r := s.GetRecovery(); !strings.HasPrefix(s.GetReason(), begins) || r.GetRestarts() != 1 || r.GetServingUs() == 0 ||
				s.GetAwarenessLatency() == nil {
				t.Errorf("%q: want %q…; %v", s.GetReason(), begins, s.Event)
			}
			tr.settled()
			for _, s := range l.Since(tr.mark) {
				if tt.half == "dnp" && s.GetNode() == "n1-0-0" && s.GetComponent() == "temperature" {
					t.Errorf("a restart is taken for a sensor that is gone: %s", s)
				}
			}
			var h *lofamov1.HalfHealth
			defer func() {
				if t.Failed() {
					t.Logf("health: %v", h)
				}
			}()
			eventually(t, "the health of the restarted half", func() bool {
				n := tr.node("n1-0-0")
				if h = n.GetDnpHealth(); tt.half == "host" {
					h = n.GetHostHealth()
				}
				r := h.GetRecovery()
				return r.GetState() == lofamov1.RecoveryState_RUNNING && r.GetRestarts() == 1 && r.GetCause() == "ended by signal 9" &&
					!h.GetOld() && len(h.GetTests()) > 0
			})
			answered(t, "the explanation", func() (*lofamov1.ExplainResponse, error) { // a follower may answer without the leader
				x, err := l.Client.Explain(t.Context(), &lofamov1.ExplainRequest{Node: "n1-0-0", Component: tt.half})
				if err == nil && !strings.Contains(strings.Join(x.GetBecause(), "\n"), "once since the machine was booted") {
					err = fmt.Errorf("explained by %q: nothing of the restart", x.GetBecause())
				}
				return x, err
			})
		})
	}
}

// restartedForAResponse has the daemon of a node restart its halves, as the halves pass orders on: one after the other,
// never both at once. The daemon reports each once the new process has passed its self-test.
func restartedForAResponse(t *testing.T, l *lab.Lab) {
	tr := begin(t, l)
	tr.settled()
	n := l.Cluster.Info().Nodes[slices.IndexFunc(l.Cluster.Info().Nodes, func(n cluster.NodeInfo) bool { return n.ID == "n0-1-0" })]
	tell := func(o *actions.Order) actions.Status {
		t.Helper()
		s, err := half.TellAction(t.Context(), n.StateDir, o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	order := func(response, half string) *actions.Order {
		o := &actions.Order{
			Attempt: actions.Attempt{Response: response, Attempt: 1}, Token: 5, Kind: actions.KindRestartHalf,
			Parameters: map[string]string{"half": half}, TimeoutMS: 60_000, Ask: true,
		}
		o.Ledger, o.Ask = tell(o).Ledger, false
		return o
	}
	pids := func() (host, dnp int) {
		t.Helper()
		for _, h := range []struct {
			half fault.Half
			pid  *int
		}{{fault.HalfHost, &host}, {fault.HalfDNP, &dnp}} {
			r, err := daemon.ReadRecovery(n.StateDir, h.half)
			if err != nil || r == nil || r.Record.PID == 0 {
				t.Fatalf("%s half: %+v, %v", h.half, r, err)
			}
			*h.pid = r.Record.PID
		}
		return host, dnp
	}
	made := func(o *actions.Order) actions.Status {
		t.Helper()
		s := tell(o)
		for end := time.Now().Add(patience); s.State == actions.UnderWay && time.Now().Before(end); s = tell(o) {
			time.Sleep(10 * time.Millisecond)
		}
		return s
	}
	var host, dnp int
	var first *actions.Order
	refused := ""
	for n := 1; refused == ""; n += 2 {
		host, dnp = pids()
		id := fmt.Sprintf("r5-%d", n+1)
		first = order(fmt.Sprintf("r5-%d", n), "dnp")
		second := order(id, "host")
		if s := tell(first); s.State != actions.UnderWay {
			t.Fatalf("%+v", s)
		}
		s := tell(second)
		if s.State == actions.Unchanged && strings.Contains(s.Detail, "under way on this node") {
			refused = id
		} else if n > 9 || tell(first).State == actions.UnderWay {
			t.Fatalf("both at once: %+v", s)
		} else if s := made(second); s.State != actions.Done { // the first attempt was over already: this machine was busy
			t.Fatalf("%+v", s)
		}
	}
	if s := made(first); s.State != actions.Done || !strings.Contains(s.Detail, "has passed its self-test") {
		t.Errorf("%+v", s)
	}
	if h, d := pids(); h != host || d == dnp {
		t.Errorf("host half %d after %d, DNP half %d after %d: want the DNP half restarted alone", h, host, d, dnp)
	}
	host, dnp = pids()
	third := order(refused, "host") // a refused attempt does not count: the order may be repeated
	if s := made(third); s.State != actions.Done {
		t.Errorf("%+v", s)
	}
	if h, d := pids(); h == host || d != dnp {
		t.Errorf("host half %d after %d, DNP half %d after %d: want the host half restarted alone", h, host, d, dnp)
	}
	if s := made(first); s.State != actions.Done { // again: no new act
		t.Errorf("%+v", s)
	}
	if _, d := pids(); d != dnp {
		t.Error("the same attempt has restarted the DNP half twice")
	}
	tr.settled()
}

// TestGivingUpIsNamedAsReason lets a half end after every start, until its daemon gives it up: the map shows FAILED with
// that reason, which the living half reports, and the leader's metrics name the half. SIGHUP to the daemon starts it again.
func TestGivingUpIsNamedAsReason(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x2x1", cluster.Options{Supervisors: 1, Periods: patient(), Restart: "always"})
	for _, tt := range []struct {
		half string
		kill cluster.Kind
	}{{"dnp", cluster.KillDNP}, {"host", cluster.KillHost}} {
		t.Run(tt.half, func(t *testing.T) {
			tr := begin(t, l)
			tr.settled()
			i := slices.IndexFunc(l.Cluster.Info().Nodes, func(n cluster.NodeInfo) bool { return n.ID == "n1-0-0" })
			n := l.Cluster.Info().Nodes[i]
			// A directory in place of its mailbox keeps the half from starting.
			mailbox := filepath.Join(n.StateDir, tt.half+".mbox")
			if err := errors.Join(os.Remove(mailbox), os.Mkdir(mailbox, 0o700)); err != nil {
				t.Fatal(err)
			}
			tr.inject("1,0,0", simple(tt.kill))
			tr.becomes("n1-0-0", tt.half, failed)
			const why = "given up, next start after 1m0s: 5 restarts within 1m0s, the last ended with code 1"
			deadline := time.After(patience)
			for {
				c := tr.component(tr.node("n1-0-0"), tt.half)
				if c.GetState() == failed && slices.ContainsFunc(c.GetEvidence(), func(e *lofamov1.Evidence) bool { return e.GetDetail() == why }) {
					break
				}
				select {
				case <-deadline:
					t.Fatalf("nothing of %q in %v", why, c)
				case <-time.After(10 * time.Millisecond):
				}
			}
			told := func(state lofamov1.RecoveryState, words string) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if s, err := l.Wait(ctx, tr.mark, func(s lab.Seen) bool {
					return s.GetComponent() == tt.half &&
						s.GetRecovery().GetState() == state
				}); err != nil {
					t.Errorf("no event of %s: %v", state, err)
				} else if !strings.HasPrefix(s.GetReason(), words) {
					t.Errorf("%q: want %q…", s.GetReason(), words)
				}
			}
			told(lofamov1.RecoveryState_GIVEN_UP, "given up")
			series := fmt.Sprintf("lofamo_half_given_up{half=%q,node=\"n1-0-0\"} 1\n", tt.half)
			for !strings.Contains(served(t, l.Cluster.Info().Supervisors[0].HTTP), series) {
				select {
				case <-deadline:
					t.Fatalf("the leader does not export %s", series)
				case <-time.After(10 * time.Millisecond):
				}
			}
			if err := os.Remove(mailbox); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(n.RunPID, syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			told(lofamov1.RecoveryState_RUNNING, "started again after it was given up")
			tr.settled()
		})
	}
}

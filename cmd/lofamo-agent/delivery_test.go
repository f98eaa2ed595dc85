package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"

	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
)

// askStatus runs lofamo-agent status.
func askStatus(t *testing.T, file string, args ...string) (string, error) {
	t.Helper()
	out, err := agentCommand(t, append([]string{"status", "--config", file}, args...)...).CombinedOutput()
	return string(out), err
}

// awaitStatus runs lofamo-agent status until its output fits.
func awaitStatus(t *testing.T, file, what string, fits func(local.Status) bool) {
	t.Helper()
	await(t, what, 50*time.Millisecond, func() (any, bool) {
		var s local.Status
		out, err := askStatus(t, file, "-o", "json")
		return out, err == nil && json.Unmarshal([]byte(out), &s) == nil && fits(s)
	})
}

// The command reports that no half runs, then the state of the node's reports. For a node that reaches no supervisor
// it uses plain words.
func TestStatusCommandReportsMissingHalfAndReports(t *testing.T) {
	c := node(t)
	file := write(t, c, "")
	refusal(t, 1, []string{"host.status.sock", "the host half is not running"}, "status", "--config", file)
	startDaemon(t, c)
	awaitStatus(t, file, "a node without any supervisor", func(s local.Status) bool {
		return s.Node == "n0-0-0" && s.Host.PID > 0 && s.DNP.State == "ALIVE" && s.Delivery.GetIsolatedNs() > 0
	})
	out, err := askStatus(t, file)
	if err != nil || !strings.Contains(out, "CANNOT REACH ANYBODY") || !strings.Contains(out, "direct/service") {
		t.Errorf("%v\n%s", err, out)
	}
	info, err := os.Stat(filepath.Join(c.StateDir, local.StatusSocket))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v: want mode 0600", info, err)
	}
}

func TestStatusCommandRefusesInvalidArguments(t *testing.T) {
	file := write(t, node(t), "")
	refusal(t, 2, []string{"--output", "yaml", "table or json"}, "status", "--config", file, "-o", "yaml")
	refusal(t, 2, []string{"extra"}, "status", "--config", file, "extra")
	refusal(t, 2, []string{"no such file"}, "status", "--config", file+".absent")
}

// listener is a supervisor that acknowledges every report and records it.
type listener struct {
	mu   sync.Mutex
	came map[fault.ReportID]fault.Report
	each func(fault.Report) // called for each report; may be nil
	dnp  fault.State        // of the DNP half, from the last report
}

// await polls until a report has come.
func (l *listener) await(t *testing.T, what string, there func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		l.mu.Lock()
		ok := there()
		l.mu.Unlock()
		if ok {
			return
		}
	}
	t.Fatalf("not within %s: %s", bound, what)
}

func (l *listener) reports(fits func(fault.Report) bool) (out []fault.ReportID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, r := range l.came {
		if !r.Digest && fits(r) {
			out = append(out, id)
		}
	}
	return out
}

func listen(t *testing.T, c config.Agent) *listener {
	t.Helper()
	dir := filepath.Dir(c.TLS.CA)
	signer, err := pki.LoadSigner(filepath.Join(dir, "sup.pem"), filepath.Join(dir, "sup.key"))
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := pki.LoadVerifier(c.TLS.CA, c.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	s, err := direct.Listen(c.Supervisors[0].Report, direct.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{came: map[fault.ReportID]fault.Report{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- s.Run(ctx, func(from netip.AddrPort, b []byte) {
			a, err := servicenet.Unwrap(b, fault.PathDirect, verifier)
			if err != nil {
				return // a digest of a session that there is not
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, r := range a.List {
				l.came[r.ID] = r
				if l.each != nil {
					l.each(r)
				}
				for _, o := range r.Observations {
					if o.Component == fault.ComponentDNP {
						l.dnp = o.State
					}
				}
				if b, err := servicenet.Seal(&lofamov1.Message{Acks: servicenet.NewAcks(lofamov1.Ack_COMMITTED, r.ID)}, signer); err == nil {
					_ = s.Send(from, b)
				}
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("supervisor: %v", err)
		}
	})
	return l
}

// Reports that no supervisor has taken outlive kill -9 of the half, and come under their own ids.
func TestReportsOutliveKill(t *testing.T) {
	c := node(t)
	file := write(t, c, "")
	d := startDaemon(t, c, "--restart", "never")
	d.await("both halves run", func(host, dnp halfState) bool { return host.Running && dnp.Running })
	kill := func(half string) { d.post("/kill", fmt.Sprintf(`{"half":%q,"signal":"KILL"}`, half)) }
	awaitStatus(t, file, "the DNP half is seen", func(s local.Status) bool { return s.DNP.State == "ALIVE" })
	kill("dnp")
	first := uint64(0)
	awaitStatus(t, file, "no supervisor knows of its end", func(s local.Status) bool {
		first = s.Host.Epoch
		return s.DNP.State == "STALE" && s.Delivery.GetLogged() > 0 && s.Spool.Records == int(s.Delivery.GetLogged()) && s.Spool.Error == ""
	})
	kill("host")
	d.await("no half runs", func(host, dnp halfState) bool { return !host.Running && !dnp.Running })
	l := listen(t, c)
	d.post("/start", `{"half":"host"}`)
	awaitStatus(t, file, "all is delivered", func(s local.Status) bool {
		return s.Host.Epoch == first && s.Delivery.GetLogged() == 0 && s.Spool.Records == 0
	})
	died := l.reports(func(r fault.Report) bool {
		return uint64(r.ID.Epoch) == first && len(r.Observations) > 0 && r.Observations[0].Component == fault.ComponentDNP &&
			r.Observations[0].State == fault.Failed
	})
	if len(died) != 1 {
		t.Errorf("%d reports of the life before say that the DNP half died, want 1", len(died))
	}
}

// On a signal to stop, a half writes its pending reports to disk: none is left to the kernel alone.
func TestStopKeepsReports(t *testing.T) {
	t.Parallel()
	c := node(t)
	file := write(t, c, "")
	stop := func(p *exec.Cmd) {
		t.Helper()
		_ = p.Process.Signal(os.Interrupt)
		if err := p.Wait(); err != nil {
			t.Errorf("host half: %v", err)
		}
	}
	p := startHalf(t, file, "host")
	logged, first := 0, uint64(0)
	awaitStatus(t, file, "something waits", func(s local.Status) bool {
		logged, first = int(s.Delivery.GetLogged()), s.Host.Epoch
		return logged > 0
	})
	stop(p)
	p = startHalf(t, file, "host")
	awaitStatus(t, file, "it waits on", func(s local.Status) bool { return s.Host.Epoch == first && int(s.Delivery.GetLogged()) >= logged })
	stop(p)
}

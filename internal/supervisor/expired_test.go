package supervisor_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestRenewedReplicasOutliveCertificates: the connections between replicas end with the certificates that opened them. If the
// certificates were renewed before, the replicas connect again: the leader stays, no report is lost, and no line of the log is an
// error.
func TestRenewedReplicasOutliveCertificates(t *testing.T) {
	t.Parallel()
	ends := time.Now().Add(45 * time.Second).Truncate(time.Second)
	renewal := ends.Add(-15 * time.Second)
	o := supervisortest.Options{Configure: func(cfg *config.Supervisor) {
		file := cfg.TLS.Cert
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		supervisortest.EndAt(t, filepath.Dir(cfg.TLS.CA), file, ends)
		// At that time, even if the replicas still start: a slow machine must not be left with ended certificates.
		timer := time.AfterFunc(time.Until(renewal), func() {
			if err := durable.WriteFile(file, b, 0o600); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(func() { timer.Stop() })
	}}
	var out logLines
	c, sups, leader := threeWith(t, o, supervisor.PatientLease, func() *slog.Logger {
		return slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})) // the end of forwarding is of this level
	})
	report := func() {
		a := c.Agents["n0-1-0"]
		id, b := a.Report(t, fault.HalfHost, false, temperature(fault.Failed))
		a.Deliver(t, id, b, c.Configs[(leader+1)%3].Report)
	}
	report()
	if time.Now().After(renewal) {
		t.Log("this machine was slow: the replicas may have connected with renewed certificates")
		return
	}
	term, before := sups[leader].Term(), len(out.String())
	time.Sleep(time.Until(ends.Add(-2 * time.Second)))
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(ends.Add(5 * time.Second)) {
		report()
		<-tick.C
	}
	log := out.String()[before:]
	if !strings.Contains(log, `msg="forwarding ended"`) {
		t.Error("no follower lost its connection to the leader")
	}
	if now := sups[leader].Term(); now != term {
		t.Errorf("the leader's term is %d, and was %d", now, term)
	}
	for line := range strings.Lines(log) {
		if strings.Contains(line, "level=ERROR") {
			t.Errorf("an error: %s", line)
		}
	}
	if t.Failed() || testing.Verbose() {
		t.Log(log)
	}
}

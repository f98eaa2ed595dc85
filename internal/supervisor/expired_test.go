package supervisor_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestRenewedReplicasOutliveCertificates: the connections between replicas end with the certificates that opened them. If the
// certificates were renewed before, the replicas connect again: the leader stays, no report is lost, and no line of the log is an
// error.
func TestRenewedReplicasOutliveCertificates(t *testing.T) {
	t.Parallel()
	ends, renewed := time.Now().Add(45*time.Second), make(map[string][]byte)
	o := supervisortest.Options{Preset: config.PresetRelaxed, Configure: func(cfg *config.Supervisor) {
		b, err := os.ReadFile(cfg.TLS.Cert)
		if err != nil {
			t.Fatal(err)
		}
		renewed[cfg.TLS.Cert] = b
		supervisortest.EndAt(t, filepath.Dir(cfg.TLS.CA), cfg.TLS.Cert, ends)
	}}
	var out logLines
	c, sups, leader := threeLogging(t, o, func() *slog.Logger {
		return slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	report := func() {
		a := c.Agents["n0-1-0"]
		id, b := a.Report(t, fault.HalfHost, false, temperature(fault.Failed))
		a.Deliver(t, id, b, c.Configs[(leader+1)%3].Report)
	}
	report()
	for file, b := range renewed {
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if time.Now().After(ends) {
		return // this machine was slow: the certificates ended while the replicas started
	}
	term, before := sups[leader].Term(), len(out.String())
	for time.Now().Before(ends.Add(5 * time.Second)) {
		report()
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

package alertmanager

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/notify"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/response"
)

func to(name string) func(*executor.Job) {
	return func(j *executor.Job) { j.Parameters = map[string]string{"severity": "critical", "target": name} }
}

// TestAddedAlertmanagerGetsAlerts uses a real Alertmanager: a target that is added while the supervisor runs gets a test alert, a fault and
// its end, and nothing of other targets. The next supervisor maintains its alerts. A target that is replaced or removed is left alone.
func TestAddedAlertmanagerGetsAlerts(t *testing.T) {
	m := start(t, freeport.Addr(t).String())
	var standing atomic.Pointer[[]executor.Job]
	targets, err := NewTargets("pisa", nil, func(context.Context, ...response.Kind) ([]executor.Job, bool, error) {
		if s := standing.Load(); s != nil {
			return *s, true, nil
		}
		return nil, false, nil
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); targets.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	succeeds := func(j executor.Job) {
		t.Helper()
		if r := targets.Do(t.Context(), j); r.Outcome != response.Succeeded {
			t.Fatalf("%+v", r)
		}
	}
	r := targets.Do(t.Context(), jobOf("n1", 1, to("ops")))
	if r.Outcome != response.Unchanged || !strings.Contains(r.Detail, `target "ops"`) {
		t.Errorf("a missing target: %+v", r)
	}
	ops := notify.Target{Name: "ops", URL: "http://" + m.addr + "/api/v2/alerts", Format: notify.Alertmanager}
	targets.SetTargets([]notify.Target{ops, {Name: "chat", URL: "http://127.0.0.1:1/", Format: notify.Slack}})
	if err := targets.Test(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
	if a, ok := m.firing()[""]; !ok || a.Labels["alertname"] != "LofamoTest" || a.Labels["cluster"] != "pisa" {
		t.Errorf("alerts %+v: want the test's", m.firing())
	}
	succeeds(jobOf("n1", 2, to("ops")))
	if _, ok := m.firing()["n1"]; !ok {
		t.Error("the fault of n1 raises no alert")
	}
	succeeds(jobOf("n1", 3, to("ops"), undo))
	m.waitFor("the end of the alert", func() bool { _, ok := m.firing()["n1"]; return !ok })

	standing.Store(&[]executor.Job{jobOf("n2", 1, to("ops")), jobOf("n3", 1, to("other"))})
	ops.URL = "http://" + m.addr // another URL: another executor, which finds the standing alerts
	targets.SetTargets([]notify.Target{ops})
	m.waitFor("an alert that an earlier leader has raised", func() bool { _, ok := m.firing()["n2"]; return ok })
	if _, ok := m.firing()["n3"]; ok {
		t.Error("the target gets an alert of another target")
	}
	targets.SetTargets(nil)
	succeeds(jobOf("n2", 2, to("ops"), undo))
}

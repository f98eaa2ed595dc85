package supervisor_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/examples/remediator/receiver"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// outside is the systems that responses reach beyond the cluster: a receiver of webhooks that keeps the contract, and
// a receiver of alerts.
type outside struct {
	mu        sync.Mutex
	deeds     []string
	alerts    []time.Time // the end times sent
	incidents []string    // IDs in all requests
}

func (o *outside) remediate(_ context.Context, m receiver.Message) (string, string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deeds = append(o.deeds, m.Action+" "+m.Target.Node+"/"+m.Target.Component)
	o.incidents = append(o.incidents, m.Incident)
	return receiver.Done, ""
}

func (o *outside) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var all []struct {
		EndsAt      time.Time         `json:"endsAt"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.NewDecoder(r.Body).Decode(&all); err != nil || len(all) != 1 || all[0].Labels["node"] != "n0-0-0" ||
		r.URL.Path != "/api/v2/alerts" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.alerts = append(o.alerts, all[0].EndsAt)
	o.incidents = append(o.incidents, all[0].Annotations["incident"])
}

func (o *outside) said() (deeds []string, alerts []time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.deeds), slices.Clone(o.alerts)
}

// named returns the incidents that the webhooks and alerts named.
func (o *outside) named() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.incidents)
}

// TestWebhookAndAlertHappenOnce: a fault triggers a webhook and an alert, once. The next leader upholds the alert without being asked,
// and undoes both when the fault is gone. All of them name the fault's incident.
func TestWebhookAndAlertHappenOnce(t *testing.T) {
	t.Parallel()
	o := &outside{}
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	const text = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	if err := os.WriteFile(secret, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := receiver.ParseSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	r, err := receiver.New(filepath.Join(dir, "state"), [][]byte{key}, o.remediate, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	hook, alertmanager := httptest.NewServer(r), httptest.NewServer(o)
	t.Cleanup(hook.Close)
	t.Cleanup(alertmanager.Close)
	c, replicas, leader := three(t, supervisortest.Options{Configure: func(cfg *config.Supervisor) {
		cfg.Responses.Grace, cfg.Responses.StormDelay = 0, 0
		cfg.Responses.Executors.Webhooks = &config.Webhooks{Targets: []config.WebhookTarget{{
			Name: "repair", URL: hook.URL, Kinds: []string{"remediate"}, SecretFiles: []string{secret}, Addresses: []string{"127.0.0.0/8"},
			Plaintext: true,
		}}}
		cfg.Responses.Executors.Alertmanager = &config.Alertmanagers{URLs: []string{alertmanager.URL}}
	}})
	follower := (leader + 1) % 3
	s := storedPolicy(t, c.Configs[follower], `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: repair}
spec:
  mode: enforce
  match: fault.incident != "" && fault.component == "memory" && fault.state == "FAILED"
  steps:
  - {name: repair, executor: webhook.remediate, parameters: {target: repair}, timeout: 20s}
  - {name: alert, executor: alertmanager, parameters: {severity: critical}, timeout: 20s}
  undo: {onRecovery: true, after: 0s}
`)
	tell := func(st fault.State, to string) {
		a := c.Agents["n0-0-0"]
		id, b := a.Report(t, fault.HalfHost, false, fault.Observation{Component: fault.ComponentMemory, State: st, Kind: fault.KindSelf})
		a.Deliver(t, id, b, to)
	}
	tell(fault.Failed, c.Configs[leader].Report)
	// For a response that is not committed as done, the next leader would begin another attempt, which needs fresh
	// evidence.
	supervisortest.Eventually(t, "a response that is done", func() bool {
		got, err := s.OwnResponses(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(got.Records, func(rec response.Record) bool {
			r, ok := rec.(*response.Response)
			return ok && r.State == response.Done
		})
	})
	if _, alerts := o.said(); len(alerts) != 1 {
		t.Fatalf("%d alerts", len(alerts))
	}
	stop(t, replicas[leader])
	supervisortest.Eventually(t, "the next leader's word that the alert stands", func() bool { _, alerts := o.said(); return len(alerts) > 1 })
	tell(fault.Normal, c.Configs[follower].Report)
	supervisortest.Eventually(t, "both put back", func() bool { deeds, _ := o.said(); return len(deeds) > 1 })
	deeds, alerts := o.said()
	if want := []string{"do n0-0-0/memory", "undo n0-0-0/memory"}; !slices.Equal(deeds, want) {
		t.Errorf("%v: want %v", deeds, want)
	}
	for i, end := range alerts {
		if last := i == len(alerts)-1; end.After(time.Now()) == last {
			t.Errorf("alert %d of %d ends at %s", i, len(alerts), end)
		}
	}
	all := listed(t, c.Client(t, c.Configs[follower].GRPC), &lofamov1.ListIncidentsRequest{})
	if len(all) != 1 {
		t.Fatalf("incidents %v: want one", all)
	}
	for i, id := range o.named() {
		if id != all[0].GetId() {
			t.Errorf("request %d names incident %q: want %s", i, id, all[0].GetId())
		}
	}
}

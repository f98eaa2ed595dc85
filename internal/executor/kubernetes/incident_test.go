package kubernetes

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/lofamo/lofamo/internal/executor/executortest"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestIncidentIsOneEvent: the executor writes one event for each incident, however many nodes, parts and links fail with it. The API
// server here knows all nodes and accepts all events.
func TestIncidentIsOneEvent(t *testing.T) {
	var mu sync.Mutex
	var got []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
			_, _ = io.WriteString(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"`+path.Base(r.URL.Path)+`","resourceVersion":"1"}}`)
			return
		}
		b, err := io.ReadAll(r.Body)
		var ev corev1.Event
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/api/v1/namespaces/default/events" || json.Unmarshal(b, &ev) != nil {
			http.Error(w, "unexpected", http.StatusBadRequest)
			return
		}
		mu.Lock()
		got = append(got, ev.Annotations["lofamo.io/incident"])
		mu.Unlock()
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(b)
	}))
	defer s.Close()
	cfg := Config{}.Filled()
	c, err := newClient(cfg, &rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.http.CloseIdleConnections()
	e := &Executor{cfg: cfg, c: c, log: slog.New(slog.DiscardHandler), pacing: usual}
	executortest.PlayIncidents(t, e, response.KubernetesEvent, map[string]string{"reason": "LofamoFault"})
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(got)
	if want := []string{executortest.DeadNode, executortest.CutCable, executortest.DeadRack}; !slices.Equal(got, want) {
		t.Errorf("events of the incidents %q: want %q", got, want)
	}
}

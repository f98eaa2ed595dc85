package webhook

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/lofamo/lofamo/internal/executor/executortest"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestIncidentIsNotifiedOnce: a receiver gets one message for each incident, however many nodes, parts and links fail with it.
func TestIncidentIsNotifiedOnce(t *testing.T) {
	s := serve(t, outcome("done", ""))
	x := newExecutor(t, targetAt(t, s.URL))
	executortest.PlayIncidents(t, x, response.WebhookNotify, map[string]string{"target": "hook"})
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []string
	for _, m := range s.told {
		var body struct{ Incident string }
		if err := json.Unmarshal(m.body, &body); err != nil {
			t.Fatal(err)
		}
		got = append(got, body.Incident)
	}
	slices.Sort(got)
	if want := []string{executortest.DeadNode, executortest.CutCable, executortest.DeadRack}; !slices.Equal(got, want) {
		t.Errorf("messages about the incidents %q: want %q", got, want)
	}
}

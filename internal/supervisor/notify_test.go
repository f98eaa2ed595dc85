package supervisor_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// chat is a server that accepts messages as Slack does, at one path.
type chat struct {
	*httptest.Server

	mu    sync.Mutex
	texts []string // first lines
}

func newChat(t *testing.T) *chat {
	t.Helper()
	s := &chat{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct{ Text string }
		b, err := io.ReadAll(r.Body)
		if r.URL.Path != "/services/hunter2" || err != nil || json.Unmarshal(b, &m) != nil || m.Text == "" {
			http.Error(w, "no_service", http.StatusNotFound)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		line, _, _ := strings.Cut(m.Text, "\n")
		s.texts = append(s.texts, line)
	}))
	t.Cleanup(s.Close)
	return s
}

// await waits until the chat has a text, and returns how often.
func (s *chat) await(t *testing.T, text string) int {
	t.Helper()
	n := 0
	supervisortest.Eventually(t, "a message "+text, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		n = 0
		for _, x := range s.texts {
			if strings.HasPrefix(x, text) {
				n++
			}
		}
		return n > 0
	})
	return n
}

// soon is a policy that notifies of a memory at once, gives up after one attempt, and tells the end at once.
func soon(target string) string {
	return `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: soon}
spec:
  mode: enforce
  match: fault.incident != "" && fault.component == "memory" && fault.state == "FAILED"
  steps: [{name: tell, executor: webhook.notify, parameters: {target: ` + target + `}}]
  undo: {onRecovery: true, after: 0s}
`
}

// TestOneCommandGivesNotifications adds a Slack target to a real supervisor: it gets a test, and a message of a fault after the hold.
// Another target has the wrong URL: after its repair it gets a message of the standing fault, and of its end.
func TestOneCommandGivesNotifications(t *testing.T) {
	t.Parallel()
	chat, desk := newChat(t), newChat(t)
	c := supervisortest.New(t, supervisortest.Options{Configure: func(cfg *config.Supervisor) { cfg.Responses.Grace = 0 }})
	start(t, c.Configs[0])
	c.AwaitLeader(t, 0)
	operator := lofamov1.NewResponseServiceClient(c.Conn(t, pki.RoleOperator, c.Configs[0].GRPC))
	add := func(name, url string) {
		t.Helper()
		if _, err := operator.AddNotifyTarget(t.Context(), &lofamov1.AddNotifyTargetRequest{Name: name, Url: url,
			Format: lofamov1.NotifyFormat_NOTIFY_SLACK}); err != nil {
			t.Fatal(err)
		}
	}
	apply := func(document string) error {
		_, err := operator.ApplyPolicies(t.Context(), &lofamov1.ApplyPoliciesRequest{Documents: document})
		return err
	}
	if err := apply(soon("desk")); err == nil || !strings.Contains(err.Error(), "spec.steps[0].parameters.target: given desk") {
		t.Errorf("a policy with an unknown target: %v: want a refusal", err)
	}
	add("chat", chat.URL+"/services/hunter2")
	if _, err := operator.TestNotifyTarget(t.Context(), &lofamov1.TestNotifyTargetRequest{Name: "chat"}); err != nil {
		t.Fatal(err)
	}
	chat.await(t, "*TEST* cluster test")
	add("desk", desk.URL+"/services/wrong-hunter2")
	if _, err := operator.TestNotifyTarget(t.Context(), &lofamov1.TestNotifyTargetRequest{Name: "desk"}); err == nil ||
		!strings.Contains(err.Error(), "target desk: it answers with status 404") {
		t.Errorf("test of a wrong URL: %v: want a failure", err)
	}
	if _, err := operator.DeletePolicies(t.Context(), &lofamov1.DeletePoliciesRequest{Names: []string{"notify.desk",
		"notify-group.desk"}}); err != nil {
		t.Fatal(err)
	}
	if err := apply(soon("desk")); err != nil {
		t.Fatal(err)
	}
	tell := func(st fault.State) {
		a := c.Agents["n0-0-0"]
		id, b := a.Report(t, fault.HalfHost, false, fault.Observation{Component: fault.ComponentMemory, State: st, Kind: fault.KindSelf})
		a.Deliver(t, id, b, c.Configs[0].Report)
	}
	tell(fault.Failed)
	supervisortest.Eventually(t, "a failed notification", func() bool {
		list, err := operator.ListResponses(t.Context(), &lofamov1.ListResponsesRequest{Policy: "soon"})
		return err == nil && slices.ContainsFunc(list.GetResponses(), func(r *lofamov1.Response) bool {
			if strings.Contains(r.String(), "hunter2") {
				t.Errorf("a response shows the URL: %v", r)
			}
			return r.GetState() == lofamov1.ResponseState_RESPONSE_FAILED
		})
	})
	if n := chat.await(t, "*FAILED* memory of node n0-0-0"); n != 1 {
		t.Errorf("%d messages of one incident: want 1", n)
	}
	add("desk", desk.URL+"/services/hunter2")
	if n := desk.await(t, "*FAILED* memory of node n0-0-0"); n != 1 {
		t.Errorf("%d messages after the repair: want 1", n)
	}
	tell(fault.Normal)
	if n := desk.await(t, "*RECOVERED* memory of node n0-0-0"); n != 1 {
		t.Errorf("%d messages of the end: want 1", n)
	}
}

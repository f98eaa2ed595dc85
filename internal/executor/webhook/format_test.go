package webhook

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/notify"
	"github.com/lofamo/lofamo/internal/testing/golden"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

var deadlineField = regexp.MustCompile(`"deadline":"[^"]*"`)

// accept answers as Slack and Teams do.
func accept(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }

// added returns an executor with an added target on this machine.
func added(t *testing.T, s *scripted, f notify.Format, secret string) *Executor {
	t.Helper()
	x, err := New("pisa", nil)
	if err != nil {
		t.Fatal(err)
	}
	x.now = func() time.Time { return time.Unix(1_800_000_000, 0) }
	x.hurry = 100
	x.SetTargets([]notify.Target{{Name: "hook", URL: s.URL + "/T0/B0/hunter2", Format: f, Secret: secret}})
	return x
}

// hostile is a detail whose text would be a mention or a link.
func hostile(j *executor.Job) {
	j.Cluster, j.Incident = "pisa", "k3f9-7qm2xw4d"
	j.Fault.Detail = "<!channel> & [a](https://evil.example) *b*"
}

func ofRack(j *executor.Job) {
	j.Target = response.Target{Group: "label/rack=r7"}
	j.Members = []fault.NodeID{"n7-0-0", "n7-1-0", "n7-2-0"}
}

// TestFormatsMatchTheirFiles sends the notification of a fault, of a rack, of a recovery and of a test to a real server, in each format.
func TestFormatsMatchTheirFiles(t *testing.T) {
	golden.Files(t, "testdata/formats/*.json", func(t *testing.T, _ string) string {
		t.Helper()
		s := serve(t, accept)
		x := added(t, s, notify.Format(path.Base(t.Name())), "")
		for _, j := range []executor.Job{jobOf(response.WebhookNotify, 1, hostile), jobOf(response.WebhookNotify, 2, hostile, ofRack),
			jobOf(response.WebhookNotify, 3, hostile, undo)} {
			if got := x.Do(t.Context(), j); got.Outcome != response.Succeeded {
				t.Fatalf("%+v", got)
			}
		}
		if err := x.Test(t.Context(), x.target("hook").from); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		for _, m := range s.told {
			if v := m.header.Get(HeaderSignature); v != "" {
				t.Errorf("signature %s without a secret", v)
			}
			body := deadlineField.ReplaceAll(m.body, []byte(`"deadline":"…"`))
			if err := json.Indent(&out, body, "", "  "); err != nil {
				t.Fatal(err)
			}
			out.WriteString("\n")
		}
		return out.String()
	})
}

// TestSecretOfAddedTargetSigns: requests have a signature exactly if the target has a secret.
func TestSecretOfAddedTargetSigns(t *testing.T) {
	s := serve(t, accept)
	x := added(t, s, notify.Generic, secretText)
	if got := x.Do(t.Context(), jobOf(response.WebhookNotify, 1)); got.Outcome != response.Succeeded {
		t.Fatalf("%+v", got)
	}
	m := s.told[0]
	want := sign(secretOf(t, secretText), m.header.Get(HeaderID), time.Unix(1_800_000_000, 0), m.body)
	if m.header.Get(HeaderSignature) != want {
		t.Errorf("signature %q: want %q", m.header.Get(HeaderSignature), want)
	}
}

// TestFailureOfTargetShowsNoURL: neither a refused test nor a failed notification shows the URL, which is a credential.
func TestFailureOfTargetShowsNoURL(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no such hook hunter2", http.StatusNotFound)
	})
	x := added(t, s, notify.Slack, "")
	attempts := 0
	fails := func(want string) {
		t.Helper()
		attempts++
		err := x.Test(t.Context(), x.target("hook").from)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("test: %v: want %q, and no credential", err, want)
		}
		got := x.Do(t.Context(), jobOf(response.WebhookNotify, attempts, within(time.Second)))
		if got.Outcome != response.Unchanged || !strings.Contains(got.Detail, want) || strings.Contains(got.Detail, "hunter2") {
			t.Errorf("notification: %+v: want %q, and no credential", got, want)
		}
	}
	fails("status 404")
	s.Close()
	fails("connection refused")
}

// TestRemovedTargetEndsItsResponses: a notification to a missing target fails, and the message of its end is left out.
func TestRemovedTargetEndsItsResponses(t *testing.T) {
	s := serve(t, accept)
	x := added(t, s, notify.Slack, "")
	x.SetTargets(nil)
	if got := x.Do(t.Context(), jobOf(response.WebhookNotify, 1)); got.Outcome != response.Unchanged ||
		!strings.Contains(got.Detail, `there is no target "hook"`) {
		t.Errorf("%+v", got)
	}
	if got := x.Do(t.Context(), jobOf(response.WebhookNotify, 2, undo)); got.Outcome != response.Succeeded {
		t.Errorf("%+v", got)
	}
	if n := len(s.told); n != 0 {
		t.Errorf("%d messages: want none", n)
	}
}

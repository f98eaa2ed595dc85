package webhook

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/executortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

const (
	secretText = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	otherText  = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
)

func secretFile(t *testing.T, text string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(f, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

func secretOf(t *testing.T, text string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// targetAt returns a target on this machine that may be used for all kinds.
func targetAt(t *testing.T, url string) config.WebhookTarget {
	return config.WebhookTarget{
		Name: "hook", URL: url, Kinds: []string{"notify",
			"remediate"}, SecretFiles: []string{secretFile(t, secretText)}, Addresses: []string{"127.0.0.0/8"},
		Plaintext: strings.HasPrefix(url, "http:"),
	}
}

// newExecutor returns an executor whose pauses are a hundredth of the usual ones.
func newExecutor(t *testing.T, targets ...config.WebhookTarget) *Executor {
	t.Helper()
	x, err := New("test", &Config{Targets: targets})
	if err != nil {
		t.Fatal(err)
	}
	x.hurry = 100
	return x
}

func jobOf(kind response.Kind, attempt int, change ...func(*executor.Job)) executor.Job {
	j := executor.Job{
		Effect: response.Effect{
			Attempt: response.Attempt{Response: "r5-1", Step: 2, Attempt: attempt}, Kind: kind, Parameters: map[string]string{"target": "hook"},
			Target: response.Target{Node: "n1-0-0", Component: fault.ComponentHost}, Token: 5, IdempotencyKey: "r5-1/2", Timeout: time.Minute,
		},
		Cluster: "test", Policy: "p", Fault: executor.Fault{State: fault.Failed, Cause: fault.CauseHost, Since: time.Unix(1000, 0),
			Detail: "dead"},
	}
	for _, c := range change {
		c(&j)
	}
	return j
}

func recheck(j *executor.Job) { j.Recheck = true }

func undo(j *executor.Job) { j.Undo, j.IdempotencyKey = true, j.IdempotencyKey+"/undo" }

func within(d time.Duration) func(*executor.Job) { return func(j *executor.Job) { j.Timeout = d } }

func token(n uint64) func(*executor.Job) { return func(j *executor.Job) { j.Token = n } }

// told is a request as received.
type told struct {
	header http.Header
	body   []byte
}

// scripted answers requests in order and repeats the last answer.
type scripted struct {
	*httptest.Server
	mu      sync.Mutex
	answers []func(w http.ResponseWriter, r *http.Request)
	told    []told
}

func serve(t *testing.T, answers ...func(w http.ResponseWriter, r *http.Request)) *scripted {
	s := &scripted{answers: answers}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *scripted) serve(w http.ResponseWriter, r *http.Request) {
	b := make([]byte, 1<<20)
	n := 0
	for {
		k, err := r.Body.Read(b[n:])
		n += k
		if err != nil {
			break
		}
	}
	s.mu.Lock()
	s.told = append(s.told, told{r.Header.Clone(), b[:n]})
	answer := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	s.mu.Unlock()
	answer(w, r)
}

func (s *scripted) actions() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, m := range s.told {
		_, after, _ := strings.Cut(string(m.body), `"action":"`)
		action, _, _ := strings.Cut(after, `"`)
		out = append(out, action)
	}
	return strings.Join(out, " ")
}

func replies(status int, body string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

func outcome(o, more string) func(http.ResponseWriter, *http.Request) {
	return replies(http.StatusOK, `{"schema":"`+Schema+`","outcome":"`+o+`"`+more+`}`)
}

func TestUnknownTargetIsRefused(t *testing.T) {
	x := newExecutor(t, func() config.WebhookTarget {
		w := targetAt(t, "http://127.0.0.1:1/")
		w.Kinds = []string{"notify"}
		return w
	}())
	if got := x.Do(t.Context(), jobOf(response.WebhookRemediate, 1)); got.Outcome != response.Unchanged ||
		!strings.Contains(got.Detail, `no target "hook"`) {
		t.Errorf("a kind that the target is not for: %+v", got)
	}
	if got := x.Do(t.Context(), jobOf(response.WebhookRemediate, 2, recheck)); got.Outcome != response.NotKnown {
		t.Errorf("one before may have happened: %+v", got)
	}
	other := jobOf(response.WebhookNotify, 1)
	other.Parameters = map[string]string{"target": "another"}
	if got := x.Do(t.Context(), other); got.Outcome != response.Unchanged || !strings.Contains(got.Detail, `"another"`) {
		t.Errorf("a target that is not configured: %+v", got)
	}
}

func TestNewNamesUnusableFile(t *testing.T) {
	for want, change := range map[string]func(*config.WebhookTarget){
		"target hook: secret":                    func(w *config.WebhookTarget) { w.SecretFiles = []string{"/nonexistent"} },
		"want whsec_ and 24 to 64":               func(w *config.WebhookTarget) { w.SecretFiles = []string{secretFile(t, "whsec_c2hvcnQ=")} },
		"target hook: certificate authorities":   func(w *config.WebhookTarget) { w.TLS.CA = "/nonexistent" },
		"no PEM":                                 func(w *config.WebhookTarget) { w.TLS.CA = secretFile(t, "no PEM") },
		"target hook: client certificate":        func(w *config.WebhookTarget) { w.TLS.Cert, w.TLS.Key = "/nonexistent", "/nonexistent" },
		"targets[0].name: given nothing: want 1": func(w *config.WebhookTarget) { w.Name = "" },
	} {
		w := targetAt(t, "https://hooks.example/")
		w.Addresses = nil
		change(&w)
		if _, err := New("test", &Config{Targets: []config.WebhookTarget{w}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestOutcomeOfEachAnswer: each answer of a receiver and the resulting outcome.
func TestOutcomeOfEachAnswer(t *testing.T) {
	redirect := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}
	long := replies(http.StatusOK, `{"schema":"`+Schema+`","outcome":"done","detail":"`+strings.Repeat("x", 70<<10)+`"}`)
	done := outcome("done", "")
	for name, c := range map[string]struct {
		answers []func(http.ResponseWriter, *http.Request)
		job     executor.Job
		want    response.Outcome
		actions string
	}{
		"done": {[]func(http.ResponseWriter, *http.Request){outcome("done", `,"detail":"ok"`)},
			jobOf(response.WebhookRemediate, 1), response.Succeeded, "do"},
		"partly": {[]func(http.ResponseWriter, *http.Request){outcome("partly", "")}, jobOf(response.WebhookRemediate, 1),
			response.Partly, "do"},
		"unchanged": {[]func(http.ResponseWriter, *http.Request){outcome("unchanged", "")}, jobOf(response.WebhookRemediate, 1),
			response.Unchanged, "do"},
		"stale": {[]func(http.ResponseWriter, *http.Request){outcome("stale", "")}, jobOf(response.WebhookRemediate, 1),
			response.StaleToken, "do"},
		"unknown": {[]func(http.ResponseWriter, *http.Request){outcome("unknown", "")}, jobOf(response.WebhookRemediate, 1),
			response.NotKnown, "do"},
		"later, done": {[]func(http.ResponseWriter, *http.Request){outcome("later", `,"retryAfter":0.2`),
			replies(http.StatusTooManyRequests, ""), done}, jobOf(response.WebhookRemediate, 1), response.Succeeded, "do do do"},
		"accepted, done": {[]func(http.ResponseWriter, *http.Request){outcome("accepted", ""), outcome("accepted", `,"attempt":1`),
			done}, jobOf(response.WebhookRemediate, 1), response.Succeeded, "do status status"},
		"redirect": {[]func(http.ResponseWriter, *http.Request){redirect, done}, jobOf(response.WebhookRemediate, 1),
			response.Succeeded, "do status"},
		"garbage": {[]func(http.ResponseWriter, *http.Request){replies(http.StatusOK, "OK"),
			outcome("unchanged", `,"attempt":1`)}, jobOf(response.WebhookRemediate, 1), response.Unchanged, "do status"},
		"another schema": {[]func(http.ResponseWriter, *http.Request){replies(http.StatusOK, `{"schema":"x","outcome":"done"}`),
			outcome("none", ""), done}, jobOf(response.WebhookRemediate, 1), response.Succeeded, "do status do"},
		"too long": {[]func(http.ResponseWriter, *http.Request){long, outcome("unknown", `,"attempt":1`)},
			jobOf(response.WebhookRemediate, 1), response.NotKnown, "do status"},
		"a gateway's fault": {[]func(http.ResponseWriter, *http.Request){replies(http.StatusBadGateway, "<html>"), done},
			jobOf(response.WebhookRemediate, 1), response.Succeeded, "do status"},
		"refused": {[]func(http.ResponseWriter, *http.Request){replies(http.StatusUnauthorized, "no")},
			jobOf(response.WebhookRemediate, 1), response.Unchanged, "do"},
		"recheck": {[]func(http.ResponseWriter, *http.Request){done}, jobOf(response.WebhookRemediate, 2, recheck),
			response.Succeeded, "status"},
		"recheck, none": {[]func(http.ResponseWriter, *http.Request){outcome("none", ""), done},
			jobOf(response.WebhookNotify, 2, recheck), response.Succeeded, "status do"},
		"undo": {[]func(http.ResponseWriter, *http.Request){done}, jobOf(response.WebhookRemediate, 3, undo),
			response.Succeeded, "undo"},
		"undo, recheck": {[]func(http.ResponseWriter, *http.Request){outcome("none", ""), done},
			jobOf(response.WebhookRemediate, 3, undo, recheck), response.Succeeded, "status undo"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, c.answers...)
			got := newExecutor(t, targetAt(t, s.URL)).Do(t.Context(), c.job)
			if got.Outcome != c.want || s.actions() != c.actions {
				t.Errorf("%+v after %q: want outcome %d after %q", got, s.actions(), c.want, c.actions)
			}
			if !strings.HasPrefix(got.Detail, "hook") {
				t.Errorf("the detail names no target: %q", got.Detail)
			}
		})
	}
}

func TestWebhookKeepsExecutorContract(t *testing.T) {
	executortest.Run(t, executortest.Remembers, func(t *testing.T) executortest.Harness {
		s := serve(t, outcome("done", ""))
		return executortest.Harness{Executor: newExecutor(t, targetAt(t, s.URL)), Job: jobOf(response.WebhookNotify, 1),
			Acts: func() int { return len(strings.Fields(s.actions())) }}
	})
}

// TestStormUsesFewConnections: a storm of responses uses few connections, and an attempt that gets no turn in time sends nothing.
func TestStormUsesFewConnections(t *testing.T) {
	var now, most atomic.Int32
	gate := make(chan struct{})
	full := sync.OnceFunc(func() { close(gate) }) // until then all wait
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if n == atOnce {
			full()
		}
		<-gate
		outcome("done", "")(w, r)
	})
	x := newExecutor(t, targetAt(t, s.URL))
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			j := jobOf(response.WebhookNotify, 1, func(j *executor.Job) { j.Response = fmt.Sprint("r", i) })
			if got := x.Do(t.Context(), j); got.Outcome != response.Succeeded {
				t.Errorf("%+v", got)
			}
		})
	}
	all.Wait()
	if n := most.Load(); n != atOnce {
		t.Errorf("%d requests at once, want %d", n, atOnce)
	}
	for range atOnce {
		x.target("hook").slots <- struct{}{}
	}
	if got := x.Do(t.Context(), jobOf(response.WebhookNotify, 1, within(20*time.Millisecond))); got.Outcome != response.Unchanged ||
		!strings.Contains(got.Detail, "under way already") {
		t.Errorf("%+v", got)
	}
}

// TestStatusCountsWithoutContract: for a receiver without the contract the status counts, and the request is repeated.
func TestStatusCountsWithoutContract(t *testing.T) {
	s := serve(t, replies(http.StatusInternalServerError, ""), replies(http.StatusNoContent, ""))
	w := targetAt(t, s.URL)
	w.Kinds, w.Answers = []string{"notify"}, config.AnswersStatus
	x := newExecutor(t, w)
	if got := x.Do(t.Context(), jobOf(response.WebhookNotify, 1, recheck)); got.Outcome != response.Succeeded || s.actions() != "do do" {
		t.Errorf("%+v after %q", got, s.actions())
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

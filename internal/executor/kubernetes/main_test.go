package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// shared is the common environment of all tests. The first test that needs the API server starts it.
var shared struct {
	start  sync.Once
	err    error // the reason why there is no API server
	server *kubetest.Server
	token  string
	dir    string
	nodes  atomic.Int64
	asked  sync.Map // all requests of executors in all tests: "verb resource"
}

func TestMain(m *testing.M) {
	if dir := os.Getenv(asChild); dir != "" {
		os.Exit(child(dir))
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "lofamo-kube-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		shared.dir = dir
		code := m.Run()
		if shared.server == nil {
			return code
		}
		defer shared.server.Stop()
		if code == 0 {
			if err := errors.Join(rbacIsMinimal(), objectRightsAreMinimal()); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		return code
	}())
}

// begin starts the API server with the roles that the project ships.
func begin() error {
	s, err := kubetest.Start(shared.dir)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(manifest)
	if err == nil {
		err = s.Admin.Apply(b)
	}
	if err == nil {
		shared.token, err = s.Admin.TokenOf("lofamo", "lofamo-supervisor")
	}
	if err != nil {
		s.Stop()
		return err
	}
	shared.server = s
	return nil
}

// serviceToken returns the token of the supervisor's service account, under deploy/kubernetes/rbac.yaml.
func serviceToken(t testing.TB) string {
	t.Helper()
	cluster(t)
	return shared.token
}

const manifest = "../../../deploy/kubernetes/rbac.yaml"

// cluster returns the API server. Without one it skips the test.
func cluster(t testing.TB) *kubetest.Server {
	t.Helper()
	shared.start.Do(func() { shared.err = begin() })
	switch err := shared.err; {
	case errors.Is(err, kubetest.ErrMissing): // the test is skipped, or fails in CI
		requirements.Missing(t, "%v", err)
	case err != nil:
		t.Fatal(err)
	}
	return shared.server
}

// kubeconfig writes a kubeconfig for the supervisor's service account.
func kubeconfig(t testing.TB, addr, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster(t).Kubeconfig(path, addr, token); err != nil {
		t.Fatal(err)
	}
	return path
}

// newExecutor returns an executor like the supervisor's, with shorter waits. If wrap is not nil, it stands between the
// executor and the network.
func newExecutor(t testing.TB, cfg Config, wrap func(http.RoundTripper) http.RoundTripper) *Executor {
	t.Helper()
	s := cluster(t)
	if cfg.Kubeconfig == "" {
		cfg.Kubeconfig = kubeconfig(t, s.Addr, serviceToken(t))
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	cfg = cfg.Filled()
	rc, err := restConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	rc.Wrap(func(next http.RoundTripper) http.RoundTripper { return noting{next} })
	if wrap != nil {
		rc.Wrap(wrap)
	}
	c, err := newClient(cfg, rc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.http.CloseIdleConnections)
	e := &Executor{cfg: cfg, c: c, log: slog.New(slog.DiscardHandler), pacing: usual}
	e.pacing.failure, e.pacing.drain = 20*time.Millisecond, 200*time.Millisecond
	return e
}

// noting records the requests to the API server.
type noting struct{ next http.RoundTripper }

func (n noting) RoundTrip(r *http.Request) (*http.Response, error) {
	if parts := strings.Split(r.URL.Path, "/"); parts[1] != "apis" || len(parts) > 4 { // every account may read the lists of kinds
		shared.asked.Store(asked(r), true)
	}
	return n.next.RoundTrip(r)
}

// WrappedRoundTripper implements the interface that client-go looks for.
func (n noting) WrappedRoundTripper() http.RoundTripper { return n.next }

// asked returns a request in the form of RBAC rules.
func asked(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")[2:] // without api/v1
	if strings.HasPrefix(r.URL.Path, "/apis/") {
		parts = parts[1:]
	}
	if parts[0] == "namespaces" {
		parts = parts[2:]
	}
	resource, verb := parts[0], map[string]string{"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}[r.Method]
	switch {
	case len(parts) > 2:
		resource += "/" + parts[2]
	case len(parts) == 1 && r.URL.Query().Get("watch") == "true":
		verb = "watch"
	case len(parts) == 1 && r.Method == http.MethodGet:
		verb = "list"
	}
	return verb + " " + resource
}

// aNode creates a node that no other test uses. Like a kubelet's node it has more than a name, so that the API server
// tracks the owners of its fields from the beginning.
func aNode(t testing.TB) string {
	t.Helper()
	name := nodeName()
	createNode(t, name, `,"spec":{"providerID":"test://`+name+`"}`)
	return name
}

// nodeName returns a name that no other test uses.
func nodeName() string { return fmt.Sprintf("n%d", shared.nodes.Add(1)) }

// createNode creates a node. more is additional JSON, each member with a leading comma.
func createNode(t testing.TB, name, more string) {
	t.Helper()
	if err := postNode(cluster(t), name, more); err != nil {
		t.Fatal(err)
	}
}

// postNode is createNode for goroutines, which must not end a test.
func postNode(s *kubetest.Server, name, more string) error {
	_, err := s.Admin.Do(http.MethodPost, "/api/v1/nodes", "", []byte(`{"metadata":{"name":"`+name+`"}`+more+`}`))
	return err
}

// admin sends a request as an administrator.
func admin(t testing.TB, method, path, contentType, body string) []byte {
	t.Helper()
	b, err := cluster(t).Admin.Do(method, path, contentType, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// theNode reads a node.
func theNode(t testing.TB, name string) *corev1.Node {
	t.Helper()
	n := &corev1.Node{}
	if err := json.Unmarshal(admin(t, http.MethodGet, "/api/v1/nodes/"+name, "", ""), n); err != nil {
		t.Fatal(err)
	}
	return n
}

// patch changes a node as another field manager.
func patch(t testing.TB, name, body string) {
	t.Helper()
	admin(t, http.MethodPatch, "/api/v1/nodes/"+name+"?fieldManager=somebody", kubetest.MergePatch, body)
}

var serial atomic.Int64

// responseID returns an ID that no other test uses.
func responseID() string { return fmt.Sprintf("r7-%d", serial.Add(1)) }

// aJob returns the first attempt at a step.
func aJob(id, node string, kind response.Kind, parameters map[string]string) executor.Job {
	return executor.Job{
		Effect: response.Effect{
			Attempt: response.Attempt{Response: id, Step: 0, Attempt: 1}, Kind: kind, Parameters: parameters, Token: 7,
			Target: response.Target{Node: fault.NodeID(node),
				Component: fault.ComponentMemory}, IdempotencyKey: id + "/0", Timeout: 2 * time.Minute,
		},
		Cluster: "test", Policy: "policy",
		Fault: executor.Fault{State: fault.Sick, Cause: fault.CauseMemory, Since: time.Unix(1_700_000_000, 0),
			Detail: "12 corrected errors in a minute"},
	}
}

// again returns the next attempt, after one with an unknown outcome.
func again(j executor.Job) executor.Job {
	j.Attempt.Attempt++
	j.Recheck = true
	return j
}

// undo returns the next attempt, which undoes the step.
func undo(j executor.Job) executor.Job {
	j.Attempt.Attempt++
	j.Undo, j.Recheck = true, false
	j.IdempotencyKey += "/undo"
	return j
}

// under returns the job of a leader with that token.
func under(token uint64, j executor.Job) executor.Job {
	j.Token = token
	return j
}

// want fails the test unless the result has that outcome and its detail contains the text.
func want(t testing.TB, r executor.Result, o response.Outcome, text string) {
	t.Helper()
	if r.Outcome != o || !strings.Contains(r.Detail, text) {
		t.Fatalf("outcome %d (%s), want %d with %q", r.Outcome, r.Detail, o, text)
	}
}

// do makes an attempt that must succeed, and logs it as an operator sees it.
func do(t testing.TB, e *Executor, j executor.Job) {
	t.Helper()
	r := e.Do(context.Background(), j)
	verb := "do"
	if j.Undo {
		verb = "undo"
	}
	t.Logf("asked: %s %s at %s (token %d, attempt %d); done: %s", verb, j.Kind, j.Target, j.Token, j.Attempt.Attempt, r.Detail)
	want(t, r, response.Succeeded, "")
}

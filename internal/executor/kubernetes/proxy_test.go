package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// proxyPage is the answer of a proxy, a load balancer or an ingress that reaches no API server.
type proxyPage struct{ body, contentType string }

// proxyPages are such answers. The second one is also the API server's, for a path that it does not know.
var proxyPages = []proxyPage{
	{"default backend - 404", "text/plain; charset=utf-8"},
	{"404 page not found\n", "text/plain; charset=utf-8"},
	{"<html><h1>Not Found</h1></html>", "text/html"},
	{`{"message":"no Route matched with those values"}`, "application/json"},
	{"", ""},
}

func (p proxyPage) answer(code int) *http.Response {
	a := jsonAnswer(code, io.NopCloser(strings.NewReader(p.body)))
	a.Header.Set("Content-Type", p.contentType)
	return a
}

// answers is an API server, or a proxy, in a function.
type answers func(*http.Request) (*http.Response, error)

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

// CloseIdleConnections implements the interface that client-go looks for.
func (answers) CloseIdleConnections() {}

// clientOver returns a client of an API server in memory.
func clientOver(t testing.TB, server http.RoundTripper) *client {
	t.Helper()
	k := Config{}.Filled()
	k.QPS, k.Burst = objectsQPS, objectsBurst
	c, err := newClient(k, &rest.Config{Host: "http://memory", Transport: server})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestOnlyTheAPIServerSaysNotFound: a 404 of a proxy tells nothing about the object, and the next try may succeed.
func TestOnlyTheAPIServerSaysNotFound(t *testing.T) {
	read := func(p proxyPage) error {
		c := clientOver(t, answers(func(*http.Request) (*http.Response, error) { return p.answer(http.StatusNotFound), nil }))
		_, err := c.node(t.Context(), c.all, "n1")
		return err
	}
	for _, p := range proxyPages {
		if err := read(p); IsNotFound(err) || refused(err) || !passing(err) || !notDone(err) {
			t.Errorf("%q: not found %t, refused %t, passing %t, not done %t: want passing and not done alone", p.body, IsNotFound(err), refused(err),
				passing(err), notDone(err))
		}
	}
	err := read(proxyPage{`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"nodes \"n1\" not found",
		"reason":"NotFound","details":{"name":"n1","kind":"nodes"},"code":404}`, "application/json"})
	if !IsNotFound(err) || !refused(err) || passing(err) {
		t.Errorf("a Status: not found %t, refused %t, passing %t: want not found and refused", IsNotFound(err), refused(err), passing(err))
	}
}

// TestErrorOfAProxyMayHideAWrite: a proxy that answers 502 may have passed the write on.
func TestErrorOfAProxyMayHideAWrite(t *testing.T) {
	c := clientOver(t, answers(func(*http.Request) (*http.Response, error) { return proxyPages[0].answer(http.StatusBadGateway), nil }))
	if _, err := c.node(t.Context(), c.all, "n1"); passing(err) || notDone(err) {
		t.Errorf("passing %t, not done %t: want neither", passing(err), notDone(err))
	}
}

// TestPageOfAProxyIsNoDeletedNode: while a proxy answers 404, no undo is done, and no drain has ended.
func TestPageOfAProxyIsNoDeletedNode(t *testing.T) {
	ctx := executor.WithFence(t.Context(), func(context.Context) error { return nil })
	for _, p := range proxyPages {
		e := &Executor{cfg: Config{}.Filled(), log: slog.New(slog.DiscardHandler), pacing: usual}
		e.c = clientOver(t, answers(func(*http.Request) (*http.Response, error) { return p.answer(http.StatusNotFound), nil }))
		remediation := map[string]string{"apiVersion": "a.example/v1", "kind": "ATemplate", "namespace": "a", "name": "a"}
		for _, j := range []executor.Job{
			aJob(responseID(), "n1", response.KubernetesCordon, nil),
			aJob(responseID(), "n1", response.KubernetesRemediate, remediation),
		} {
			j = undo(j)
			j.Timeout = 300 * time.Millisecond
			if r := e.Do(ctx, j); r.Outcome != response.Unchanged {
				t.Errorf("%q: undo of %s: outcome %d, %s: want that nothing has changed", p.body, j.Kind, r.Outcome, r.Detail)
			}
		}
		d := &draining{e: e, j: aJob(responseID(), "n1", response.KubernetesDrain, nil), node: "n1"}
		if done := new(ended); errors.As(d.stands(ctx), done) {
			t.Errorf("%q: the drain has ended", p.body)
		}
		if _, err := e.removeKeptFrom(ctx, "n1"); err == nil {
			t.Errorf("%q: the node has no kept conditions any more", p.body)
		}
	}
}

// TestUndoOfUninstalledRemediatorIsDone: somebody has uninstalled a remediator, and its objects went with its kinds. The API server answers
// with a page as a proxy does, so the undo checks that the kind is gone.
func TestUndoOfUninstalledRemediatorIsDone(t *testing.T) {
	r := installed(t, remediators[1][0], remediators[1][1])
	account := shipped(t, "uninstalling", "rbac", "rbac-node-label", "rbac-remediation")
	for _, label := range []string{"", "example.org/uninstalled"} {
		cfg := Config{NodeLabel: label, Kubeconfig: kubeconfig(t, cluster(t).Addr, account)}
		var hidden atomic.Bool
		e := newExecutor(t, cfg, func(next http.RoundTripper) http.RoundTripper {
			return wrapped(next, func(req *http.Request) (*http.Response, error) {
				if hidden.Load() && strings.HasPrefix(req.URL.Path, r.path(r.kind)) {
					return proxyPages[1].answer(http.StatusNotFound), nil
				}
				return next.RoundTrip(req)
			})
		})
		e.c.timeout = time.Second // which the undo waits if there is no object
		e.pacing.drain = 20 * time.Millisecond
		node := aNode(t)
		if label != "" {
			patch(t, node, `{"metadata":{"labels":{"example.org/uninstalled":"`+node+`"}}}`)
		}
		j := aJob(responseID(), node, response.KubernetesRemediate, r.parameters())
		result := begun(t.Context(), t, e, j)
		eventually(t, func() bool { _, ok := r.object(node); return ok }, "the object is there")
		r.says(node, "False", "True")
		want(t, result(), response.Succeeded, "has succeeded")
		hidden.Store(true)
		short := undo(j)
		short.Timeout = 3 * time.Second // longer than the undo waits
		want(t, e.Do(t.Context(), short), response.Unchanged, "could not find the requested resource")
		if _, there := r.object(node); !there || len(marks(theNode(t, node))) == 0 {
			t.Errorf("object %t, marks %v while a proxy hides the object: want both", there, marks(theNode(t, node)))
		}
		hidden.Store(false)
		r.uninstall()
		do(t, e, undo(undo(j)))
		if len(marks(theNode(t, node))) != 0 {
			t.Errorf("marks %v: want none", marks(theNode(t, node)))
		}
		want(t, e.Do(t.Context(), aJob(responseID(), node, response.KubernetesRemediate, r.parameters())), response.Unchanged, "template "+r.kind)
		r = installed(t, remediators[1][0], remediators[1][1])
	}
}

// uninstall removes the kinds of a remediator.
func (r remediator) uninstall() {
	r.t.Helper()
	for _, kind := range []string{r.kind, r.kind + "Template"} {
		r.do(http.MethodDelete, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+plural(kind)+"."+r.group, "", "")
		eventually(r.t, func() bool {
			_, err := cluster(r.t).Admin.Do(http.MethodGet, r.path(kind), "", nil)
			return err != nil
		}, "the kind "+kind+" is gone")
	}
}

// strangeAnswers are answers with code 200 that a proxy gives instead of the API server's.
var strangeAnswers = []any{
	map[string]any{}, map[string]any{"status": "ok"}, []any{}, nil,
	map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"},
	map[string]any{"kind": "PodList", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": "7"}, "items": []any{}},
	map[string]any{"kind": "Pod", "apiVersion": "v1", "metadata": map[string]any{"name": "n1", "resourceVersion": "7"}},
}

// TestStrangeAnswerWithdrawsNoPolicy: an answer with code 200 that is no list of FaultPolicy objects withdraws no policy.
func TestStrangeAnswerWithdrawsNoPolicy(t *testing.T) {
	list := map[string]any{"kind": "FaultPolicyList", "apiVersion": objectsVersion, "items": []any{}} // without a version
	for _, body := range append(slices.Clone(strangeAnswers), list) {
		s := &memoryPolicies{answer: func(context.Context, string) int { return http.StatusOK }}
		p, store := policiesInMemory(t, s, 3, io.Discard), &policyStore{}
		p.keep = store.keep
		p.r.c = clientOver(t, answers(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet {
				return jsonAnswer(http.StatusOK, asBody(body)), nil
			}
			return s.RoundTrip(r)
		}))
		_, err := p.r.list(t.Context()) // as after the end of a watch
		p.pass(t.Context(), time.Now())
		p.settleBusy(t.Context())
		if names, complete, _ := store.last(); names != "p-000 p-001 p-002" || !complete || err == nil {
			t.Errorf("answer %v, error %v: policies %q, complete %t: want all three and an error", body, err, names, complete)
		}
	}
}

// TestStrangeAnswerIsNoObject: an answer with code 200 that is no object of the kind does not get into the copy, from a write or a watch.
func TestStrangeAnswerIsNoObject(t *testing.T) {
	for _, body := range strangeAnswers {
		r := newResource(clientOver(t, answers(func(*http.Request) (*http.Response, error) {
			return jsonAnswer(http.StatusOK, asBody(body)), nil
		})), "a", "faults", "Fault", "", 10, quiet)
		if _, err := r.apply(t.Context(), "a", "", map[string]any{}); err == nil {
			t.Errorf("answer %v to a write: want an error", body)
		}
		event, err := io.ReadAll(asBody(map[string]any{"type": "ADDED", "object": body}))
		if err != nil {
			t.Fatal(err)
		}
		readEvents(bytes.NewReader(event), "Fault", r.watched)
		if all, _, _ := r.all(); len(all) != 0 {
			t.Errorf("answer %v: the copy has %v: want nothing", body, all)
		}
	}
}

// TestStrangeAnswerUndoesNothing: answers with code 200 that are no node, no list of nodes and no remediation end no undo.
func TestStrangeAnswerUndoesNothing(t *testing.T) {
	ctx := executor.WithFence(t.Context(), func(context.Context) error { return nil })
	remediation := map[string]string{"apiVersion": "a.example/v1", "kind": "ATemplate", "namespace": "a", "name": "a"}
	node := labelledNode("n1", "n1", "KernelDeadlock")
	node.TypeMeta = metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}
	for _, body := range strangeAnswers {
		for _, label := range []string{"", "machine"} {
			e := &Executor{cfg: Config{NodeLabel: label}.Filled(), log: slog.New(slog.DiscardHandler), pacing: usual}
			attempt := func(kind response.Kind, parameters map[string]string) {
				t.Helper()
				j := undo(aJob(responseID(), "n1", kind, parameters))
				j.Timeout = 300 * time.Millisecond
				if r := e.Do(ctx, j); r.Outcome != response.Unchanged {
					t.Errorf("answer %v, label %q: undo of %s: outcome %d, %s: want that nothing has changed", body, label, kind, r.Outcome, r.Detail)
				}
			}
			strange := func(*http.Request) (*http.Response, error) { return jsonAnswer(http.StatusOK, asBody(body)), nil }
			e.c = clientOver(t, answers(strange))
			attempt(response.KubernetesCordon, nil)
			page := func([]corev1.Node, bool, bool) { t.Errorf("answer %v is a list", body) }
			if _, err := e.c.listNodes(t.Context(), e.c.all, "", page); err == nil {
				t.Errorf("answer %v to a list of nodes: want an error", body)
			}
			e.c = clientOver(t, answers(func(r *http.Request) (*http.Response, error) {
				switch {
				case r.URL.Path == "/api/v1/nodes":
					return jsonAnswer(http.StatusOK, asBody(corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"},
						ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Node{node}})), nil
				case strings.HasPrefix(r.URL.Path, "/api/v1/nodes/"):
					return jsonAnswer(http.StatusOK, asBody(node)), nil
				}
				return strange(r)
			}))
			e.c.timeout, e.c.sure = 50*time.Millisecond, 50*time.Millisecond // which the undo waits if there is no object
			attempt(response.KubernetesRemediate, remediation)
		}
		d := &remediating{e: &Executor{c: clientOver(t, answers(func(*http.Request) (*http.Response, error) {
			return jsonAnswer(http.StatusOK, asBody(body)), nil
		}))}, j: aJob(responseID(), "n1", response.KubernetesRemediate, remediation)}
		if spec, err := d.template(ctx); err == nil {
			t.Errorf("answer %v: the template has the spec %s", body, spec)
		}
	}
}

package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lofamo/lofamo/internal/testing/deadline"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestUndoOfDeletedNodeIsDone: with nodeLabel, a leader that has never seen the node's name in Kubernetes finds that the node was deleted,
// and has nothing to undo. It says so in its log and in the result.
func TestUndoOfDeletedNodeIsDone(t *testing.T) {
	ctx := context.Background()
	account := shipped(t, "deleting", "rbac", "rbac-node-label")
	cfg := Config{NodeLabel: "example.org/deleted", Kubeconfig: kubeconfig(t, cluster(t).Addr, account)}
	e := newExecutor(t, cfg, nil)
	for _, a := range acts() {
		name := "deleted-" + strings.ReplaceAll(string(a.kind), ".", "-")
		path := "/api/v1/nodes/" + name
		admin(t, http.MethodPost, "/api/v1/nodes", "", `{"metadata":{"name":"`+name+`","labels":{"example.org/deleted":"D_1"}}}`)
		j := a.job(responseID(), "D_1")
		do(t, e, j)
		patch(t, name, `{"metadata":{"labels":{"example.org/deleted":null}}}`)
		want(t, newExecutor(t, cfg, nil).Do(ctx, undo(j)), response.Unchanged, name+" has the mark of this step, and not the label")
		admin(t, http.MethodDelete, path, "", "")
		var log bytes.Buffer
		next := newExecutor(t, cfg, nil)
		next.log = slog.New(slog.NewTextHandler(&log, nil))
		want(t, next.Do(ctx, undo(undo(j))), response.Succeeded, "no such node in Kubernetes: nothing is left to put back")
		if !strings.Contains(log.String(), "undo of a deleted node") || !strings.Contains(log.String(), j.Response) {
			t.Errorf("%s: log %q: want a line of the deleted node", a.kind, log.String())
		}
	}
}

// TestUndoFailsWhileAnotherNodeHasTheMark: with nodeLabel, somebody moves the label to another node before the undo. The change stays on
// the first node, so the undo fails, names both nodes and changes none of them. It succeeds once the label is back. If the first node was
// deleted meanwhile, nothing is left to undo.
func TestUndoFailsWhileAnotherNodeHasTheMark(t *testing.T) {
	account := shipped(t, "moving", "rbac", "rbac-node-label")
	cfg := Config{NodeLabel: "example.org/moved", Kubeconfig: kubeconfig(t, cluster(t).Addr, account)}
	e := newExecutor(t, cfg, nil)
	for i, a := range acts() {
		id := fmt.Sprintf("D_m%d", i)
		label := func(node, value string) {
			patch(t, node, `{"metadata":{"labels":{"example.org/moved":`+value+`}}}`)
		}
		first, second := aNode(t), aNode(t)
		label(first, `"`+id+`"`)
		j := a.job(responseID(), id)
		do(t, e, j)
		label(first, "null")
		label(second, `"`+id+`"`)
		before := []*corev1.Node{theNode(t, first), theNode(t, second)}
		for _, x := range []*Executor{e, newExecutor(t, cfg, nil)} {
			want(t, x.Do(t.Context(), undo(j)), response.Unchanged, second+" has the label, and "+first+" has the mark of this step")
		}
		for _, n := range before {
			if after := theNode(t, n.Name); after.ResourceVersion != n.ResourceVersion {
				t.Errorf("%s: node %s was written:\n%s", a.kind, n.Name, state(after))
			}
		}
		if i%2 == 0 {
			label(second, "null")
			label(first, `"`+id+`"`)
			do(t, e, undo(undo(j)))
			if all := marks(theNode(t, first)); len(all) > 0 {
				t.Errorf("%s: marks %v stay", a.kind, all)
			}
			continue
		}
		admin(t, http.MethodDelete, "/api/v1/nodes/"+first, "", "")
		want(t, e.Do(t.Context(), undo(undo(j))), response.Succeeded, "nothing of this step stands")
	}
}

// TestUndoOfRemediationOfDeletedNode: with nodeLabel, the undo removes the object of the remediation even if the node was deleted, because
// a remediator may delete it. A leader that has never seen the node finds the object by the step that created it. The undo removes it only
// after a successful lookup has found no node with the mark of the step. It also does so if another node has the label now.
func TestUndoOfRemediationOfDeletedNode(t *testing.T) {
	account := shipped(t, "remediating-deleted", "rbac", "rbac-node-label", "rbac-remediation")
	cfg := Config{NodeLabel: "example.org/remediated", Kubeconfig: kubeconfig(t, cluster(t).Addr, account)}
	e := newExecutor(t, cfg, nil)
	for i, replaced := range []bool{false, true} {
		r := installed(t, remediators[i][0], remediators[i][1])
		eventually(t, func() bool {
			_, err := e.c.labelled(t.Context(), e.c.all, cfg.NodeLabel, "D_2")
			_, err2 := (&remediating{e: e, j: aJob("r0", "none", response.KubernetesRemediate, r.parameters()), node: "none"}).read(t.Context())
			return err == nil && err2 == nil
		}, "nodes and remediations may be read")
		id := fmt.Sprintf("D_%d", 2+i)
		name, other := aNode(t), aNode(t)
		patch(t, name, `{"metadata":{"labels":{"example.org/remediated":"`+id+`"}}}`)
		j := aJob(responseID(), id, response.KubernetesRemediate, r.parameters())
		result := begun(t.Context(), t, e, j)
		eventually(t, func() bool { _, ok := r.object(name); return ok }, "the object is there")
		r.says(name, "False", "True")
		want(t, result(), response.Succeeded, "has succeeded")
		r.do(http.MethodPost, r.path(r.kind), "", fmt.Sprintf( // of another response
			`{"apiVersion":"%s/v1alpha1","kind":%q,"metadata":{"name":%q,"annotations":{%q:"r0-1/0"}}}`, r.group, r.kind, other, remediationKey))
		stands := func(why string) {
			t.Helper()
			if _, there := r.object(name); !there {
				t.Fatalf("the object is gone %s", why)
			}
		}
		patch(t, name, `{"metadata":{"labels":{"example.org/remediated":null}}}`)
		want(t, newExecutor(t, cfg, nil).Do(t.Context(), undo(j)), response.Unchanged, name+" has the mark of this step, and not the label")
		stands("although its node has the mark")
		patch(t, other, `{"metadata":{"labels":{"example.org/remediated":"`+id+`"}}}`)
		want(t, newExecutor(t, cfg, nil).Do(t.Context(), undo(j)), response.Unchanged, name+" has the mark of this step")
		stands("although its node has the mark, and not the label")
		patch(t, other, `{"metadata":{"labels":{"example.org/remediated":null}}}`)
		admin(t, http.MethodDelete, "/api/v1/nodes/"+name, "", "")
		for _, fails := range []string{"/api/v1/nodes", r.path(r.kind)} {
			var failed atomic.Int32
			failing := newExecutor(t, cfg, func(next http.RoundTripper) http.RoundTripper {
				return failingLists{next, fails, http.StatusInternalServerError, &failed}
			})
			ctx := deadline.When(t, func() bool { return failed.Load() > 1 })
			want(t, failing.Do(ctx, undo(j)), response.Unchanged, "the database is gone")
			stands("after a failed lookup")
		}
		if replaced {
			patch(t, other, `{"metadata":{"labels":{"example.org/remediated":"`+id+`"}}}`)
		}
		var log bytes.Buffer
		next := newExecutor(t, cfg, nil)
		next.log = slog.New(slog.NewTextHandler(&log, nil))
		next.c.timeout = time.Second // which the undo waits if there is no object
		result = begun(t.Context(), t, next, undo(undo(j)))
		if replaced {
			want(t, result(), response.Succeeded, "its remediation has ended")
		} else {
			want(t, result(), response.Succeeded, "no such node in Kubernetes: nothing is left to put back")
			if !strings.Contains(log.String(), "undo of a deleted node") {
				t.Errorf("log %q: want a line of the deleted node", log.String())
			}
		}
		if _, there := r.object(name); there {
			t.Errorf("replaced %t: the object of the deleted node has stayed", replaced)
		}
		if _, there := r.object(other); !there || len(marks(theNode(t, other))) != 0 {
			t.Errorf("replaced %t: the object of another response: there %t; marks %v", replaced, there, marks(theNode(t, other)))
		}
		do(t, next, undo(undo(undo(j)))) // once more
		if !replaced {
			continue
		}
		// A role of an earlier version may not list them; or the remediator has left with all its objects.
		for _, code := range []int{http.StatusForbidden, http.StatusNotFound} {
			failing := newExecutor(t, cfg, func(next http.RoundTripper) http.RoundTripper {
				return failingLists{next, r.path(r.kind), code, new(atomic.Int32)}
			})
			failing.c.timeout = time.Second
			do(t, failing, undo(undo(undo(j))))
		}
	}
}

// failingLists fails the lists of one path, and passes on the lookups of nodes by label.
type failingLists struct {
	next http.RoundTripper
	path string
	code int
	done *atomic.Int32 // counts them
}

func (f failingLists) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet && r.URL.Path == f.path && !r.URL.Query().Has("labelSelector") {
		f.done.Add(1)
		reason := map[int]string{http.StatusForbidden: "Forbidden", http.StatusNotFound: "NotFound"}[f.code]
		return jsonAnswer(f.code, asBody(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure",
			"reason": reason, "code": f.code, "message": "the database is gone"})), nil
	}
	return f.next.RoundTrip(r)
}

// WrappedRoundTripper implements the interface that client-go looks for.
func (f failingLists) WrappedRoundTripper() http.RoundTripper { return f.next }

// TestMarkOfAnotherNodeDoesNotCount: a node that is created from a copy of a deleted one has the same name and annotations. The marks in
// these annotations belong to the deleted node. So they are no claims on the new node, and an undo does not change it.
func TestMarkOfAnotherNodeDoesNotCount(t *testing.T) {
	e := newExecutor(t, Config{}, nil)
	for _, a := range acts()[1:5] { // a created node has no conditions
		name := aNode(t)
		j := a.job(responseID(), name)
		do(t, e, j)
		n := theNode(t, name)
		copied := &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: n.Annotations, Labels: n.Labels}, Spec: n.Spec}
		admin(t, http.MethodDelete, "/api/v1/nodes/"+name, "", "")
		body := new(bytes.Buffer)
		_, _ = body.ReadFrom(asBody(copied))
		admin(t, http.MethodPost, "/api/v1/nodes", "", body.String())
		before := theNode(t, name)
		want(t, e.Do(context.Background(), undo(j)), response.Succeeded, "the mark of this step is of a deleted node")
		if after := theNode(t, name); after.ResourceVersion != before.ResourceVersion {
			t.Errorf("%s: the other node was written:\n%s", a.kind, state(after))
		}
	}
	// Marks of earlier versions have no UID.
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "u2", Annotations: map[string]string{
		markKey("r1", 0): `{"kind":"kubernetes.cordon"}`, markKey("r2", 0): `{"kind":"kubernetes.cordon","uid":"u1"}`,
		markKey("r3", 0): mark{Kind: response.KubernetesCordon, UID: types.UID("u2"), At: time.Unix(1, 0)}.encode(),
	}}}
	if all := marks(n); len(all) != 2 || all[markKey("r2", 0)].text != "" {
		t.Errorf("marks %v: want those of r1 and r3", all)
	}
}

// TestPassingRefusalIsRetried: an attempt tries again after a 401, as at the change of a token, and after a 410, as at a list whose pages
// take too long.
func TestPassingRefusalIsRetried(t *testing.T) {
	account := shipped(t, "deleting", "rbac", "rbac-node-label")
	for code, reason := range map[int]metav1.StatusReason{
		http.StatusUnauthorized: metav1.StatusReasonUnauthorized, http.StatusGone: metav1.StatusReasonExpired,
	} {
		for _, method := range []string{http.MethodGet, http.MethodPatch} {
			if code == http.StatusGone && method == http.MethodPatch {
				continue // only lists and watches
			}
			once := &failingOnce{method: method, code: code, reason: reason}
			cfg := Config{NodeLabel: "example.org/passing", Kubeconfig: kubeconfig(t, cluster(t).Addr, account)}
			e := newExecutor(t, cfg, func(next http.RoundTripper) http.RoundTripper {
				once.next = next
				return once
			})
			name := aNode(t)
			patch(t, name, `{"metadata":{"labels":{"example.org/passing":"`+name+`"}}}`)
			do(t, e, aJob(responseID(), name, response.KubernetesCordon, nil))
			if !once.done.Load() {
				t.Errorf("no request of %s", method)
			}
		}
	}
}

// failingOnce answers the first request of a method with a status, and passes on all others.
type failingOnce struct {
	next   http.RoundTripper
	method string
	code   int
	reason metav1.StatusReason
	done   atomic.Bool
}

func (f *failingOnce) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == f.method && f.done.CompareAndSwap(false, true) {
		return jsonAnswer(f.code, asBody(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure",
			Code: int32(f.code), Reason: f.reason, Message: "not now"})), nil
	}
	return f.next.RoundTrip(r)
}

// WrappedRoundTripper implements the interface that client-go looks for.
func (f *failingOnce) WrappedRoundTripper() http.RoundTripper { return f.next }

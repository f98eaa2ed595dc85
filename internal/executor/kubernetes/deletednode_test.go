package kubernetes

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lofamo/lofamo/pkg/response"
)

// TestUndoOfDeletedNodeIsDone: with nodeLabel, a leader that has never seen the node's name in Kubernetes finds that the node was deleted,
// and has nothing to undo. It says so in its log and in the result.
func TestUndoOfDeletedNodeIsDone(t *testing.T) {
	ctx := context.Background()
	account := shipped(t, "deleting", "rbac", "rbac-node-label")
	cfg := Config{NodeLabel: "example.org/deleted", Kubeconfig: kubeconfig(t, cluster(t).Addr, account)}
	e := newExecutor(t, cfg, nil)
	eventually(t, func() bool { _, err := e.c.labelled(ctx, e.c.all, cfg.NodeLabel, "D_1"); return err == nil }, "nodes may be listed")
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

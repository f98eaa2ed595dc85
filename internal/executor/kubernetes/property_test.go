package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestUndoRemovesOwnStateOnly: responses do and undo on a node in any order, while another client changes the same node
// by server-side apply. When all responses are undone, the node is as if the other client had been alone.
func TestUndoRemovesOwnStateOnly(t *testing.T) {
	t.Parallel()
	e := newExecutor(t, Config{}, nil)
	rapid.Check(t, func(rt *rapid.T) {
		ours, theirs := aNode(t), aNode(t)
		var standing []executor.Job
		for i := range rapid.IntRange(1, 10).Draw(rt, "steps") {
			switch what := rapid.IntRange(0, 9).Draw(rt, fmt.Sprint("what", i)); {
			case what < 5:
				a := acts()[rapid.IntRange(0, 4).Draw(rt, "act")]
				j := a.job(responseID(), ours)
				if r := e.Do(context.Background(), j); r.Outcome == response.Succeeded {
					standing = append(standing, j)
				}
			case what < 7 && len(standing) > 0:
				at := rapid.IntRange(0, len(standing)-1).Draw(rt, "undone")
				mustUndo(rt, e, standing[at])
				standing = slices.Delete(standing, at, at+1)
			case what < 8:
				taint := rapid.SampledFrom([]string{"", "sick", "theirs"}).Draw(rt, "taint")
				for _, name := range []string{ours, theirs} {
					theirTaint(t, name, taint)
				}
			default:
				cordon, label := rapid.Bool().Draw(rt, "cordon"), rapid.SampledFrom([]string{"", "sick", "theirs"}).Draw(rt, "label")
				for _, name := range []string{ours, theirs} {
					theirApply(t, name, cordon, label)
				}
			}
		}
		for _, j := range standing {
			mustUndo(rt, e, j)
		}
		if got, want := state(theNode(t, ours)), state(theNode(t, theirs)); got != want {
			rt.Errorf("left is\n%s\nwant\n%s", got, want)
		}
	})
}

func mustUndo(t *rapid.T, e *Executor, j executor.Job) {
	if r := e.Do(context.Background(), undo(j)); r.Outcome != response.Succeeded {
		t.Fatalf("undo of %s: %+v", j.Kind, r)
	}
}

// theirApply is an apply by another manager.
func theirApply(t testing.TB, name string, cordon bool, label string) {
	t.Helper()
	body := map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name}}
	if label != "" {
		body["metadata"].(map[string]any)["labels"] = map[string]string{"lofamo.io/memory": label}
	}
	if cordon {
		body["spec"] = map[string]any{"unschedulable": true}
	}
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	admin(t, http.MethodPatch, "/api/v1/nodes/"+name+"?fieldManager=theirs&force=true", kubetest.Apply, string(b))
}

// theirTaint sets another client's taint with our key and effect, or removes it if value is empty. It replaces our
// taint.
func theirTaint(t testing.TB, name, value string) {
	t.Helper()
	n := theNode(t, name)
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(x corev1.Taint) bool {
		return x.Key == "lofamo.io/memory" && x.Effect == corev1.TaintEffectNoSchedule
	})
	if value != "" {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "lofamo.io/memory", Value: value, Effect: corev1.TaintEffectNoSchedule})
	}
	b, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": n.Spec.Taints}})
	if err != nil {
		t.Fatal(err)
	}
	patch(t, name, string(b))
}

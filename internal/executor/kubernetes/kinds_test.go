package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/executortest"
	"github.com/lofamo/lofamo/internal/testing/deadline"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// act is a kind with parameters and its effect on a node.
type act struct {
	kind       response.Kind
	parameters map[string]string
	shows      string // its line in the text of state
}

// acts returns the kinds that change a node and can be undone.
func acts() []act {
	return []act{
		{response.KubernetesCondition, map[string]string{"type": "LofamoFault"}, "condition LofamoFault=True MemorySick"},
		{response.KubernetesLabel, map[string]string{"key": "lofamo.io/memory", "value": "sick"}, "label lofamo.io/memory=sick"},
		{response.KubernetesCordon, nil, "unschedulable"},
		{response.KubernetesTaint, map[string]string{"key": "lofamo.io/memory", "value": "sick", "effect": "NoSchedule"},
			"taint lofamo.io/memory=sick:NoSchedule"},
		{response.KubernetesEvict, map[string]string{"key": "lofamo.io/memory"}, "taint lofamo.io/memory:NoExecute"},
		{response.KubernetesDrain, nil, "unschedulable"},
	}
}

func TestKubernetesKeepsExecutorContract(t *testing.T) {
	for _, a := range acts() {
		t.Run(string(a.kind), func(t *testing.T) {
			executortest.Run(t, executortest.Fenced|executortest.Remembers, func(t *testing.T) executortest.Harness {
				name := aNode(t)
				before := state(theNode(t, name))
				return executortest.Harness{Executor: newExecutor(t, Config{}, nil), Job: a.job(responseID(), name),
					Acts: func() int {
						if state(theNode(t, name)) != before {
							return 1
						}
						return 0
					}}
			})
		})
	}
}

func (a act) job(id, node string) executor.Job { return aJob(id, node, a.kind, a.parameters) }

// state returns everything on a node that anybody may have changed, except our token and attempt, and conditions that our undo has made
// False.
func state(n *corev1.Node) string {
	var out []string
	if n.Spec.Unschedulable {
		out = append(out, "unschedulable")
	}
	for k, v := range n.Labels {
		out = append(out, "label "+k+"="+v)
	}
	for k, v := range n.Annotations {
		if k != tokenKey && k != attemptKey {
			out = append(out, "annotation "+k+"="+v)
		}
	}
	for _, t := range n.Spec.Taints {
		out = append(out, "taint "+t.ToString())
	}
	for _, c := range n.Status.Conditions {
		if c.Status == corev1.ConditionFalse && c.Reason == undoneReason {
			continue
		}
		out = append(out, fmt.Sprintf("condition %s=%s %s", c.Type, c.Status, c.Reason))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// TestEveryKindActsAndUndoes: every kind has its effect and sets its mark. A repetition changes nothing. An undo leaves nothing behind,
// and a second undo changes nothing.
func TestEveryKindActsAndUndoes(t *testing.T) {
	e := newExecutor(t, Config{}, nil)
	for _, a := range acts() {
		t.Run(string(a.kind), func(t *testing.T) {
			t.Parallel()
			name := aNode(t)
			before := state(theNode(t, name))
			j := a.job(responseID(), name)
			do(t, e, j)
			n := theNode(t, name)
			if got := state(n); !strings.Contains(got, a.shows) {
				t.Fatalf("want %s:\n%s", a.shows, got)
			}
			var m mark
			if err := json.Unmarshal([]byte(n.Annotations[markKey(j.Response, 0)]), &m); err != nil || m.Kind != a.kind ||
				m.Policy != "policy" {
				t.Errorf("mark %+v: %v", m, err)
			}
			if n.Annotations[tokenKey] != "7" || n.Annotations[attemptKey] != j.Response+"/0/1" {
				t.Errorf("stamp %v", n.Annotations)
			}
			want(t, e.Do(context.Background(), j), response.NotKnown, "attempt 1 has been seen")
			j = again(j)
			do(t, e, j)
			if diff := cmp.Diff(state(n), state(theNode(t, name))); diff != "" {
				t.Errorf("done again:\n%s", diff)
			}
			for range 2 {
				j = undo(j)
				do(t, e, j)
				if diff := cmp.Diff(before, state(theNode(t, name))); diff != "" {
					t.Fatalf("put back:\n%s", diff)
				}
			}
		})
	}
}

// TestRetriedStepCreatesOneEvent: retries of a step create one event, and kubectl describe would find it.
func TestRetriedStepCreatesOneEvent(t *testing.T) {
	e, name := newExecutor(t, Config{}, nil), aNode(t)
	j := aJob(responseID(), name, response.KubernetesEvent, map[string]string{"reason": "LofamoFault"})
	j.Incident = "k3f9-7qm2xw4d"
	do(t, e, j)
	do(t, e, again(j))
	var list corev1.EventList
	if err := json.Unmarshal(admin(t, http.MethodGet, "/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid="+name, "",
		""), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 {
		t.Fatalf("%d events", len(list.Items))
	}
	ev := list.Items[0]
	const text = "/memory SICK, cause MEMORY, since 2023-11-14T22:13:20Z: 12 corrected errors in a minute (policy policy, response "
	if ev.Reason != "LofamoFault" || ev.Type != "Warning" || ev.InvolvedObject.Name != name || !strings.Contains(ev.Message, text) ||
		ev.Source.Component != "lofamo" {
		t.Errorf("%+v", ev)
	}
	if ev.Annotations["lofamo.io/incident"] != j.Incident || !strings.HasSuffix(ev.Message, ", incident k3f9-7qm2xw4d)") {
		t.Errorf("an event of incident %s has the annotations %v and the message %q", j.Incident, ev.Annotations, ev.Message)
	}
	if a := theNode(t, name).Annotations; len(a) > 0 {
		t.Errorf("an event writes to the node: %v", a)
	}
}

// TestGroupFaultCreatesOneEvent: a group fault makes one event on its first member, also if another member comes first at a retry.
func TestGroupFaultCreatesOneEvent(t *testing.T) {
	e, first, second := newExecutor(t, Config{}, nil), aNode(t), aNode(t)
	j := aJob(responseID(), first, response.KubernetesEvent, nil)
	j.Target, j.Members = response.Target{Group: "label/rack=" + first}, []fault.NodeID{fault.NodeID(first), fault.NodeID(second)}
	do(t, e, j)
	retry := again(j)
	retry.Members = []fault.NodeID{fault.NodeID(second), fault.NodeID(first)}
	do(t, e, retry)
	var list corev1.EventList
	if err := json.Unmarshal(admin(t, http.MethodGet, "/api/v1/namespaces/default/events?fieldSelector=reason=GroupSick", "", ""),
		&list); err != nil {
		t.Fatal(err)
	}
	list.Items = slices.DeleteFunc(list.Items, func(ev corev1.Event) bool { return !strings.Contains(ev.Message, "rack="+first) })
	if len(list.Items) != 1 || list.Items[0].InvolvedObject.Name != first ||
		!strings.HasPrefix(list.Items[0].Message, "group label/rack="+first+" of 2 nodes SICK") ||
		strings.Contains(list.Items[0].Message, "incident") || len(list.Items[0].Annotations) > 0 {
		t.Errorf("events of a group: %+v: want one, on %s", list.Items, first)
	}
	j = aJob(responseID(), first, response.KubernetesEvent, nil)
	j.Target, j.Members = response.Target{Group: "label/rack=gone"}, nil
	if r := e.Do(t.Context(), j); r.Outcome != response.Unchanged {
		t.Errorf("a group without members: %v %s", r.Outcome, r.Detail)
	}
}

// TestUnknownNodeIsNotCreated: a node that Kubernetes does not know is neither changed nor created.
func TestUnknownNodeIsNotCreated(t *testing.T) {
	e := newExecutor(t, Config{}, nil)
	for name, says := range map[string]string{"nowhere": "no such node in Kubernetes",
		"Not_A_Name": "no node of Kubernetes is known to be it"} {
		for _, a := range append(acts(), act{kind: response.KubernetesEvent, parameters: map[string]string{"reason": "X"}}) {
			j := a.job(responseID(), name)
			want(t, e.Do(context.Background(), j), response.Unchanged, says)
			if a.kind != response.KubernetesEvent && name == "nowhere" {
				want(t, e.Do(context.Background(), undo(j)), response.Succeeded, "nothing is left to put back")
			}
		}
		if _, err := cluster(t).Admin.Do(http.MethodGet, "/api/v1/nodes/"+name, "", nil); err == nil {
			t.Errorf("%s was created", name)
		}
	}
}

// TestNodesAreFoundByTemplateOrLabel: nodes are found by a name template or by a label, even after a replacement.
func TestNodesAreFoundByTemplateOrLabel(t *testing.T) {
	ctx := context.Background()
	s := cluster(t)
	createNode(t, "host-n1-0-0.example.org", "")
	e := newExecutor(t, Config{NodeName: "host-{node}.example.org"}, nil)
	do(t, e, aJob(responseID(), "n1-0-0", response.KubernetesCordon, nil))
	if !theNode(t, "host-n1-0-0.example.org").Spec.Unschedulable {
		t.Error("not cordoned")
	}

	cfg := Config{NodeLabel: "example.org/lofamo"}
	createLabelled := func(name, value string) {
		admin(t, http.MethodPost, "/api/v1/nodes", "", `{"metadata":{"name":"`+name+`","labels":{"example.org/lofamo":"`+value+`"}}}`)
	}
	createLabelled("one", "N_1")
	e = newExecutor(t, cfg, nil)
	want(t, e.Do(ctx, aJob(responseID(), "N_1", response.KubernetesCordon, nil)), response.Unchanged, "cannot list resource")
	b, err := os.ReadFile(strings.Replace(manifest, "rbac", "rbac-node-label", 1))
	if err == nil {
		err = s.Admin.Apply(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	do(t, e, aJob(responseID(), "N_1", response.KubernetesCordon, nil))
	if !theNode(t, "one").Spec.Unschedulable {
		t.Error("not cordoned")
	}
	admin(t, http.MethodDelete, "/api/v1/nodes/one", "", "")
	createLabelled("two", "N_1")
	do(t, e, aJob(responseID(), "N_1", response.KubernetesCordon, nil))
	if !theNode(t, "two").Spec.Unschedulable {
		t.Error("not cordoned")
	}
	j := aJob(responseID(), "N_1", response.KubernetesCordon, nil)
	do(t, e, j)
	createLabelled("three", "N_1")
	before := theNode(t, "two").ResourceVersion
	for _, x := range []*Executor{e, newExecutor(t, cfg, nil)} { // e has acted on the node before
		want(t, x.Do(ctx, undo(j)), response.Unchanged, "three and two have it")
		want(t, x.Do(ctx, aJob(responseID(), "N_1", response.KubernetesCordon, nil)), response.Unchanged, "three and two have it")
	}
	if theNode(t, "two").ResourceVersion != before || theNode(t, "three").Spec.Unschedulable {
		t.Error("a node with an ambiguous label was written")
	}
	want(t, e.Do(ctx, aJob(responseID(), "N_2", response.KubernetesCordon, nil)), response.Unchanged,
		"no node of Kubernetes is known to be it")
}

// TestSecondLabelAfterUnansweredWriteIsNotKnown: a write gets no answer, and then a second node has the label. The attempt cannot read the
// first node's state, so its result does not say that nothing has changed.
func TestSecondLabelAfterUnansweredWriteIsNotKnown(t *testing.T) {
	account := shipped(t, "second", "rbac", "rbac-node-label")
	cfg := Config{NodeLabel: "example.org/second", Kubeconfig: kubeconfig(t, cluster(t).Addr, account)}
	name, other := aNode(t), aNode(t)
	patch(t, name, `{"metadata":{"labels":{"example.org/second":"S_1"}}}`)
	var written atomic.Bool
	var lists atomic.Int32
	e := newExecutor(t, cfg, func(next http.RoundTripper) http.RoundTripper {
		return wrapped(next, func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodPatch {
				if written.Load() {
					lists.Add(1)
				}
				return next.RoundTrip(r)
			}
			res, err := next.RoundTrip(r)
			if err == nil {
				err = errors.Join(res.Body.Close(), errors.New("the connection is gone"))
			}
			patch(t, other, `{"metadata":{"labels":{"example.org/second":"S_1"}}}`)
			written.Store(true)
			return nil, err
		})
	})
	ctx := deadline.When(t, func() bool { return lists.Load() > 1 })
	want(t, e.Do(ctx, aJob(responseID(), "S_1", response.KubernetesCordon, nil)), response.NotKnown, "have it: want one node with it")
	if !theNode(t, name).Spec.Unschedulable {
		t.Error("not cordoned: the test needs a write without an answer")
	}
}

// TestUndoUnderUnknownNameIsNotDone: an unknown name does not mean that the node is gone, as the effects may still be there.
// Nothing is left to put back only if the node with the known name is gone.
func TestUndoUnderUnknownNameIsNotDone(t *testing.T) {
	ctx, s := context.Background(), cluster(t)
	b, err := os.ReadFile(strings.Replace(manifest, "rbac", "rbac-node-label", 1))
	if err == nil {
		err = s.Admin.Apply(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	e := newExecutor(t, Config{NodeLabel: "example.org/undo"}, nil)
	admin(t, http.MethodPost, "/api/v1/nodes", "", `{"metadata":{"name":"labelled","labels":{"example.org/undo":"L_1"}}}`)
	j := aJob(responseID(), "L_1", response.KubernetesCordon, nil)
	do(t, e, j)
	patch(t, "labelled", `{"metadata":{"labels":{"example.org/undo":null}}}`)
	another := newExecutor(t, Config{NodeLabel: "example.org/undo"}, nil)
	for _, x := range []*Executor{e, another} {
		want(t, x.Do(ctx, undo(j)), response.Unchanged, "no node of Kubernetes is known to be it: want one that has it")
	}
	patch(t, "labelled", `{"metadata":{"labels":{"example.org/undo":"L_1"}}}`)
	do(t, another, again(undo(j)))
	if got := state(theNode(t, "labelled")); got != "label example.org/undo=L_1" {
		t.Error(got)
	}
	j = aJob(responseID(), "L_1", response.KubernetesCordon, nil)
	do(t, e, j)
	admin(t, http.MethodDelete, "/api/v1/nodes/labelled", "", "")
	want(t, e.Do(ctx, undo(j)), response.Succeeded, "nothing is left to put back")

	name := aNode(t)
	j = aJob(responseID(), name, response.KubernetesCordon, nil)
	do(t, newExecutor(t, Config{}, nil), j)
	j.Target.Node = "N_3"
	want(t, newExecutor(t, Config{}, nil).Do(ctx, undo(j)), response.Unchanged, "its names are of a-z")
	j.Target.Node = fault.NodeID(name)
	admin(t, http.MethodDelete, "/api/v1/nodes/"+name, "", "")
	want(t, newExecutor(t, Config{}, nil).Do(ctx, undo(j)), response.Succeeded, "nothing is left to put back")
}

// TestRefusedActionChangesNothing: an action that the API server or the parameters do not allow fails with a reason and changes nothing.
func TestRefusedActionChangesNothing(t *testing.T) {
	e, name := newExecutor(t, Config{}, nil), aNode(t)
	before := theNode(t, name).ResourceVersion
	for _, c := range []struct {
		act
		says string
	}{
		{act{kind: response.KubernetesCondition, parameters: map[string]string{"type": "Ready"}}, "they are the kubelet's"},
		{act{kind: response.KubernetesLabel, parameters: map[string]string{"key": "not a key", "value": "x"}}, "Invalid value"},
		{act{kind: response.KubernetesTaint, parameters: map[string]string{"key": "k", "effect": "Whatever"}}, "Whatever"},
		{act{kind: response.KubernetesDrain, parameters: map[string]string{"gracePeriod": "soon"}}, "parameter gracePeriod"},
		{act{kind: response.SlurmDrain}, "want one that writes to a node"},
	} {
		want(t, e.Do(context.Background(), c.job(responseID(), name)), response.Unchanged, c.says)
	}
	group := aJob(responseID(), "", response.KubernetesCordon, nil)
	group.Target = response.Target{Group: "g1"}
	want(t, e.Do(context.Background(), group), response.Unchanged, "want the fault of a node")
	if theNode(t, name).ResourceVersion != before {
		t.Error("the node was written")
	}
	patch(t, name, `{"metadata":{"annotations":{"lofamo.io/token":"high"}}}`)
	want(t, e.Do(context.Background(), aJob(responseID(), name, response.KubernetesCordon, nil)), response.Unchanged,
		`annotation lofamo.io/token: given "high"`)

	stranger, err := cluster(t).Admin.TokenOf("default", "nobody")
	if err == nil {
		t.Fatalf("a token for nobody: %q", stranger)
	}
	e = newExecutor(t, Config{Kubeconfig: kubeconfig(t, cluster(t).Addr, "wrong")}, nil)
	unknown := aJob(responseID(), name, response.KubernetesCordon, nil)
	unknown.Timeout = 2 * time.Second // meanwhile it tries again: a token may be new
	want(t, e.Do(context.Background(), unknown), response.Unchanged, "nauthor")
}

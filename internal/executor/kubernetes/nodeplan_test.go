package kubernetes

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// The package above tests the other plans against a real API server, which knows the owners of fields.

func job(kind response.Kind) executor.Job {
	return executor.Job{
		Effect: response.Effect{Attempt: response.Attempt{Response: "r7-1", Step: 2, Attempt: 3}, Kind: kind, Token: 7,
			Target: response.Target{Node: "n", Component: fault.ComponentHost}, Parameters: map[string]string{}},
		Fault: executor.Fault{State: fault.Failed, Cause: fault.CauseHost, Since: time.Unix(0, 0)},
	}
}

// TestNodePlanRefusesHigherToken: every function that reads the node refuses a higher token and an invalid one.
func TestNodePlanRefusesHigherToken(t *testing.T) {
	for given, want := range map[string]response.Outcome{"6": 0, "7": 0, "8": response.StaleToken, "": response.Unchanged,
		"-1": response.Unchanged, "18446744073709551616": response.Unchanged} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{tokenKey: given, markKey("r7-1", 2): "{}"}},
			Spec: corev1.NodeSpec{Unschedulable: true}}
		if r, _ := fencedNode(n, 7); r.Outcome != want {
			t.Errorf("token %q: %+v", given, r)
		}
		if r, ok := markStands(n, job(response.KubernetesDrain)); r.Outcome != want || ok != (want == 0) {
			t.Errorf("token %q: stands %t, %+v", given, ok, r)
		}
		if p := nextPlan(n, job(response.KubernetesCordon), nil, time.Unix(0, 0)); (p.Write == nil) != (want != 0) || want != 0 &&
			p.Result.Outcome != want {
			t.Errorf("token %q: %+v", given, p)
		}
	}
	if r, ok := markStands(&corev1.Node{}, job(response.KubernetesDrain)); ok || r.Outcome != response.Partly {
		t.Errorf("without a mark: %+v", r)
	}
}

// TestEveryWriteIsConditional: each write names the object and the version that was read, the token and the attempt,
// and no field of others.
func TestEveryWriteIsConditional(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "12", Labels: map[string]string{"theirs": "x"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True"}}}}
	for _, kind := range []response.Kind{response.KubernetesCondition, response.KubernetesLabel, response.KubernetesCordon,
		response.KubernetesDrain,
		response.KubernetesTaint, response.KubernetesEvict} {
		for _, undo := range []bool{false, true} {
			j := job(kind)
			j.Undo = undo
			p := nextPlan(n, j, nil, time.Unix(1, 500))
			if p.Write == nil || p.Result.Outcome != response.Succeeded {
				t.Fatalf("%s: %+v", kind, p)
			}
			var b corev1.Node
			if err := json.Unmarshal(p.Write.Body, &b); err != nil {
				t.Fatal(err)
			}
			if b.Name != "n" || b.UID != "u" || b.ResourceVersion != "12" || b.Annotations[tokenKey] != "7" ||
				b.Annotations[attemptKey] != "r7-1/2/3" {
				t.Errorf("%s: %s", kind, p.Write.Body)
			}
			if strings.Contains(string(p.Write.Body), "theirs") || strings.Contains(string(p.Write.Body), "Ready") {
				t.Errorf("%s: names what is not ours: %s", kind, p.Write.Body)
			}
			if _, marked := b.Annotations["lofamo.io/did-r7-1.2"]; marked != !undo {
				if v := b.Annotations["lofamo.io/did-r7-1.2"]; !undo || v != "" { // null removes it
					t.Errorf("%s, undo %t: mark %q", kind, undo, v)
				}
			}
		}
	}
}

// TestOwnedFieldsAreReadFromManagedFields: ownedBy reads our applies in the managed fields and ignores all other entries.
func TestOwnedFieldsAreReadFromManagedFields(t *testing.T) {
	entry := func(manager string, op metav1.ManagedFieldsOperationType, sub, fields string) metav1.ManagedFieldsEntry {
		f := metav1.NewFieldsV1(fields)
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: op, Subresource: sub, FieldsV1: f}
	}
	const main = `{"f:metadata":{"f:labels":{".":{},"f:a/b":{}}},"f:spec":{"f:unschedulable":{}}}`
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
		entry("kubectl", "Apply", "", `{"f:metadata":{"f:labels":{"f:theirs":{}}}}`),
		entry(fieldManager, "Update", "", `{"f:metadata":{"f:labels":{"f:update":{}}}}`),
		entry(fieldManager, "Apply", "", main),
		entry(fieldManager, "Apply", "other", `{"f:metadata":{"f:labels":{"f:other":{}}}}`),
		entry(fieldManager, "Apply", "status",
			`{"f:status":{"f:conditions":{".":{},"k:{\"type\":\"A\"}":{".":{},"f:status":{}},"k:{\"type\":\"B\"}":{"f:message":{}},`+
				`"k:what":{"f:status":{}}}}}`),
		entry(fieldManager, "Apply", "", `[]`),
		{Manager: fieldManager, Operation: "Apply"},
	}}}
	o := ownedBy(n)
	if len(o.labels) != 1 || !o.labels["a/b"] || !o.unschedulable || len(o.conditions) != 2 || !o.condition("A") || o.condition("B") ||
		!o.conditions["B"]["message"] {
		t.Errorf("%+v", o)
	}
}

// TestEveryConditionReasonIsValid: every component and state gives a reason that Kubernetes accepts.
func TestEveryConditionReasonIsValid(t *testing.T) {
	j := job(response.KubernetesCondition)
	for _, c := range fault.Components() {
		j.Target.Component = c
		r := conditionReason(j)
		if r == "" || strings.ToUpper(r[:1]) != r[:1] || strings.ContainsAny(r, "/-+ ") || !strings.HasSuffix(r, "Failed") {
			t.Errorf("%s: %q", c, r)
		}
	}
	j.Target.Component = fault.Link(grid.Directions()[0])
	if r := conditionReason(j); r != "LinkFailed" {
		t.Error(r)
	}
	j.Parameters["reason"] = "Mine"
	if r := conditionReason(j); r != "Mine" {
		t.Error(r)
	}
}

func TestLongConditionTextIsCut(t *testing.T) {
	j := job(response.KubernetesCondition)
	if got := conditionText(j); got != "n/host FAILED, cause HOST, since 1970-01-01T00:00:00Z" {
		t.Error(got)
	}
	j.Fault.Detail = strings.Repeat("ä", maxText) + "\xff"
	if got := conditionText(j); len(got) > maxText || len(got) < maxText-4 || !utf8.ValidString(got) || !strings.HasSuffix(got, "…") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

// FuzzMarks: for any annotations and managed fields of a node, Next returns a plan or a refusal, and keeps entries that
// it cannot read.
func FuzzMarks(f *testing.F) {
	f.Add(`{"kind":"kubernetes.cordon"}`, `{"f:spec":{"f:unschedulable":{}}}`, uint8(0))
	f.Add(`{"kind":"kubernetes.condition","type":"A","reason":"B","message":"C"}`,
		`{"f:status":{"f:conditions":{"k:{\"type\":\"A\"}":{"f:status":{}}}}}`, uint8(1))
	f.Add(`[]`, `{`, uint8(5))
	f.Fuzz(func(t *testing.T, mark, fields string, which uint8) {
		kinds := []response.Kind{response.KubernetesCordon, response.KubernetesCondition, response.KubernetesLabel,
			response.KubernetesDrain, response.KubernetesTaint, response.KubernetesEvict}
		j := job(kinds[int(which>>1)%len(kinds)])
		j.Undo = which&1 == 1
		fv := metav1.NewFieldsV1(fields)
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n",
			Annotations: map[string]string{"lofamo.io/did-other.0": mark, markKey("r7-1", 2): mark},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: fieldManager, Operation: "Apply", FieldsV1: fv},
				{Manager: fieldManager, Operation: "Apply", Subresource: "status", FieldsV1: fv}}}}
		for typ, by := range settersOf(n) {
			if by != fieldManager { // every entry is ours
				t.Fatalf("condition %q is of %q", typ, by)
			}
		}
		p := nextPlan(n, j, nil, time.Unix(1, 0))
		if p.Write == nil {
			if p.Result.Outcome != response.Unchanged || p.Result.Detail == "" {
				t.Fatalf("no write: %+v", p.Result)
			}
			return
		}
		if !json.Valid(p.Write.Body) {
			t.Fatalf("%s", p.Write.Body)
		}
	})
}

// TestMarkCountsOnlyWithItsEffect: a marked step counts as done only while its effect is present as requested. A drain
// checks that by itself.
func TestMarkCountsOnlyWithItsEffect(t *testing.T) {
	bare := func() *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{markKey("r7-1", 2): "{}"}}}
	}
	p := map[string]string{"key": "k", "value": "v", "effect": "NoSchedule", "type": "T"}
	for kind, other := range map[response.Kind]func(n *corev1.Node, value string){
		response.KubernetesLabel: func(n *corev1.Node, value string) { n.Labels = map[string]string{"k": value} },
		response.KubernetesTaint: func(n *corev1.Node, value string) {
			n.Spec.Taints = []corev1.Taint{{Key: "k", Value: value, Effect: corev1.TaintEffectNoSchedule}}
		},
		response.KubernetesCondition: func(n *corev1.Node, value string) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: "T",
				Status: map[string]corev1.ConditionStatus{"v": corev1.ConditionTrue, "": corev1.ConditionFalse}[value]}}
		},
		response.KubernetesCordon: func(n *corev1.Node, value string) { n.Spec.Unschedulable = value != "" },
	} {
		j := job(kind)
		j.Parameters = p
		gone, changed, there := bare(), bare(), bare()
		other(changed, "")
		other(there, "v")
		for name, n := range map[string]*corev1.Node{"gone": gone, "changed": changed} {
			if got := nextPlan(n, j, nil, time.Unix(0, 0)); got.Write != nil || got.Result.Outcome != response.Unchanged ||
				!strings.Contains(got.Result.Detail, markKey("r7-1", 2)) {
				t.Errorf("%s, %s: %+v", kind, name, got)
			}
		}
		if got := nextPlan(there, j, nil, time.Unix(0, 0)); got.Write == nil || got.Result.Outcome != response.Succeeded {
			t.Errorf("%s, there: %+v", kind, got)
		}
		j.Undo = true
		if got := nextPlan(gone, j, nil, time.Unix(0, 0)); got.Write == nil || got.Result.Outcome != response.Succeeded {
			t.Errorf("%s, put back where it is gone: %+v", kind, got)
		}
	}
	if got := nextPlan(bare(), job(response.KubernetesDrain), nil, time.Unix(0, 0)); got.Write == nil ||
		got.Result.Outcome != response.Succeeded {
		t.Errorf("drain: %+v", got)
	}
}

package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// detect sets a condition as node-problem-detector does.
func detect(t *testing.T, node, typ, status, message string) {
	t.Helper()
	now := time.Now().UTC().Format(time.RFC3339)
	admin(t, http.MethodPatch, "/api/v1/nodes/"+node+"/status?fieldManager=node-problem-detector", "application/strategic-merge-patch+json",
		fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"reason":"Test","message":%q,"lastHeartbeatTime":%q,
			"lastTransitionTime":%q}]}}`, typ, status, message, now, now))
}

// TestConditionsOfOthersAreEvidence: the leader learns of conditions that other programs set, change and remove, with their
// owner. Its own conditions do not count, and after the term nothing is known.
func TestConditionsOfOthersAreEvidence(t *testing.T) {
	e := keeperExecutor(t, config.KubernetesConditions{Enabled: true})
	e.cfg.Evidence = true
	a, b := aNode(t), aNode(t)
	detect(t, a, "KernelDeadlock", "True", "task blocked")
	detect(t, a, "DiskBroken", "Perhaps", "") // which the API server accepts
	m := &mapped{states: map[fault.NodeID]NodeState{}}
	m.set(ready, a, b)
	var mu sync.Mutex
	known, seen := false, map[fault.NodeID][]response.OutsideCondition{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Keep(ctx, m.get, func(ev response.OutsideChanged) {
			mu.Lock()
			defer mu.Unlock()
			if known = !ev.Unknown; ev.All || ev.Unknown {
				seen = map[fault.NodeID][]response.OutsideCondition{}
			}
			maps.Copy(seen, ev.Nodes)
		})
	}()
	defer func() { cancel(); <-done }()
	status := func(node string) string {
		mu.Lock()
		defer mu.Unlock()
		var out []string
		for _, c := range seen[fault.NodeID(node)] {
			out = append(out, c.Type+"="+c.Status)
		}
		return strings.Join(out, " ")
	}
	becomes := func(node, want string) {
		t.Helper()
		eventually(t, func() bool { return status(node) == want }, fmt.Sprintf("%s has %q", node, want))
	}
	becomes(a, "KernelDeadlock=True")
	stands(t, a, LinksReady, "True", "LinksNormal") // ours
	do(t, e, aJob(responseID(), b, response.KubernetesCondition, map[string]string{"type": "LofamoFault"}))
	detect(t, b, "XIDError", "True", strings.Repeat("x", 1000))
	becomes(b, "XIDError=True")
	detect(t, a, "KernelDeadlock", "False", "")
	becomes(a, "KernelDeadlock=False")
	all, ok := e.Outside(fault.NodeID(b))
	if !ok || len(all) != 1 || all[0].By != "node-problem-detector" || all[0].Reason != "Test" || len(all[0].Message) != maxOutsideText ||
		all[0].Beat.IsZero() {
		t.Errorf("%t %+v", ok, all)
	}
	admin(t, http.MethodDelete, "/api/v1/nodes/"+a, "", "")
	becomes(a, "")
	admin(t, http.MethodPatch, "/api/v1/nodes/"+b+"/status", kubetest.MergePatch, `{"status":{"conditions":[]}}`)
	becomes(b, "")
	cancel()
	<-done
	if _, ok := e.Outside(fault.NodeID(b)); ok || known {
		t.Errorf("after the term conditions are known: %t, %t", ok, known)
	}
}

// TestOutsideConditionsAreBounded: of any node only so much is kept. Conditions with an invalid status, which the API server accepts, take
// no place from others.
func TestOutsideConditionsAreBounded(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
		{Subresource: "status", FieldsV1: metav1.NewFieldsV1(`not JSON`)}, {Subresource: "status"},
	}}}
	for i := range 1000 {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(fmt.Sprintf("C%04d%s", 999-i, strings.Repeat("x", 330*(i%2)))), Reason: strings.Repeat("r", 1000),
			Message: strings.Repeat("m", 100_000), Status: corev1.ConditionTrue,
		})
	}
	for i, status := range []string{strings.Repeat("x", 1<<20), "", "true", "Yes"} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeConditionType(fmt.Sprint("A", i)),
			Status: corev1.ConditionStatus(status)})
	}
	all := outsideOf(n, func(string) bool { return false })
	if len(all) != maxOutside || all[0].Type != "C0001" {
		t.Fatalf("%d conditions, the first %.20s", len(all), all[0].Type)
	}
	for _, o := range all {
		if len(o.Type) > maxOutsideType || len(o.Reason) > maxOutsideReason || len(o.Message) > maxOutsideText {
			t.Errorf("%.20s: %d, %d, %d bytes", o.Type, len(o.Type), len(o.Reason), len(o.Message))
		}
	}
	for _, c := range keptOf(n, "").conditions {
		if size := len(c.Type) + len(c.Status) + len(c.Reason) + len(c.Message); size > 4*maxKeptText {
			t.Errorf("%.20s: %d bytes are kept", c.Type, size)
		}
	}
}

// TestExplanationsNameOutsideProblems: a note says who reports what for how long, and whether it still counts. Good conditions and
// the kubelet's are left out, and so is everything beyond a bound.
func TestExplanationsNameOutsideProblems(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	of := func(typ, status, by string, beat time.Duration) Outside {
		return Outside{OutsideCondition: response.OutsideCondition{Type: typ, Status: status, Since: now.Add(-time.Hour), Beat: now.Add(-beat)},
			Reason: "R", Message: "a\nb", By: by}
	}
	got := outsideNotes([]Outside{
		of("KernelDeadlock", "True", "node-problem-detector", 12*time.Second), of("StorageReady", "False", "eks", 20*time.Minute),
		of("ReadonlyFilesystem", "False", "node-problem-detector", 0), of("NetworkingReady", "True", "eks", 0),
		of("DiskPressure", "True", "kubelet", 0), {OutsideCondition: response.OutsideCondition{Type: "XID", Status: "True"}},
	}, nil, now)
	want := []string{
		"outside evidence, not a verdict: condition KernelDeadlock, set by node-problem-detector, is True for 1h0m0s: R: a b (heartbeat 12s ago)",
		"outside evidence, not a verdict: condition StorageReady, set by eks, is False for 1h0m0s: R: a b " +
			"(last heartbeat 20m0s ago: it does not count)",
		"outside evidence, not a verdict: condition XID, set by an unknown program, is True (without a heartbeat: it does not count)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	many := outsideNotes(slices.Repeat([]Outside{of("A", "True", "b", 0)}, 20), nil, now)
	if len(many) != maxNotes+1 || many[maxNotes] != "12 further conditions of other programs" {
		t.Errorf("%q", many)
	}
}

// TestConditionsThatAreGoodWhenTrueAreNoProblem: etcd's members on k3s and RKE2 servers have EtcdIsVoter True for ever. A True
// KernelDeadlock stays a problem, and the configuration wins over the custom.
func TestConditionsThatAreGoodWhenTrueAreNoProblem(t *testing.T) {
	good := map[string]string{"FabricAttached": "True", "RebootReady": "False"}
	for typ, healthy := range map[string]string{
		"EtcdIsVoter": "True", "StorageReady": "True", "AcceleratedHardwareReady": "True", "example.org/Healthy": "True", "GPUAvailable": "True",
		"gpu-ready": "True", "NICLinkUp": "True", "Ready": "True", "FabricAttached": "True",
		"KernelDeadlock": "False", "NetworkUnavailable": "False", "NodeNotReady": "False", "Unhealthy": "False", "KubeletUnhealthy": "False",
		"ReadonlyFilesystem": "False", "example.org/GpuXidError": "False", "RebootReady": "False", "Already": "False", "X": "False",
	} {
		for _, status := range []string{"True", "False"} {
			o := Outside{OutsideCondition: response.OutsideCondition{Type: typ, Status: status}}
			if got, want := o.problem(good), status != healthy; got != want {
				t.Errorf("%s %s: problem %v, want %v", typ, status, got, want)
			}
		}
	}
	now := time.Unix(1_700_000_000, 0)
	notes := outsideNotes([]Outside{{OutsideCondition: response.OutsideCondition{Type: "EtcdIsVoter", Status: "True", Beat: now},
		Reason: "MemberNotLearner", By: "k3s"}, {OutsideCondition: response.OutsideCondition{Type: "KernelDeadlock", Status: "True",
		Beat: now}}}, nil, now)
	if len(notes) != 1 || !strings.Contains(notes[0], "KernelDeadlock") {
		t.Errorf("notes %q: want KernelDeadlock alone", notes)
	}
}

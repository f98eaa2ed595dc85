package kubernetes

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// status changes the status of a node as another field manager.
func status(t testing.TB, name, body string) {
	t.Helper()
	if err := patchStatus(cluster(t), name, body); err != nil {
		t.Fatal(err)
	}
}

// patchStatus is status for goroutines, which must not end a test.
func patchStatus(s *kubetest.Server, name, body string) error {
	_, err := s.Admin.Do(http.MethodPatch, "/api/v1/nodes/"+name+"/status?fieldManager=somebody",
		"application/strategic-merge-patch+json", []byte(body))
	return err
}

// TestEarlierStateOfNodeIsKept: an existing state stays unchanged during our action and after it. We do not overwrite a
// contradicting one.
func TestEarlierStateOfNodeIsKept(t *testing.T) {
	e := newExecutor(t, Config{}, nil)
	for _, c := range []struct {
		act
		before string // a patch
		says   string
		refuse bool
	}{
		{acts()[1], `{"metadata":{"labels":{"lofamo.io/memory":"sick"}}}`, "was \"sick\" already", false},
		{acts()[1], `{"metadata":{"labels":{"lofamo.io/memory":"good"}}}`, `label lofamo.io/memory is "good" already`, true},
		{acts()[2], `{"spec":{"unschedulable":true}}`, "somebody else had cordoned it", false},
		{acts()[3], `{"spec":{"taints":[{"key":"lofamo.io/memory","value":"sick","effect":"NoSchedule"},{"key":"other","effect":"NoExecute"}]}}`,
			"it had the taint", false},
		{acts()[3], `{"spec":{"taints":[{"key":"lofamo.io/memory","value":"good","effect":"NoSchedule"}]}}`, `it has "good" already`, true},
		{acts()[5], `{"spec":{"unschedulable":true}}`, "drained of 0 pods", false},
	} {
		name := aNode(t)
		patch(t, name, c.before)
		before := state(theNode(t, name))
		j := c.job(responseID(), name)
		if c.refuse {
			want(t, e.Do(context.Background(), j), response.Unchanged, c.says)
		} else {
			want(t, e.Do(context.Background(), j), response.Succeeded, c.says)
		}
		if got := withoutMarks(theNode(t, name)); got != before {
			t.Errorf("%s: as we stand:\n%s", c.kind, cmp.Diff(before, got))
		}
		do(t, e, undo(j))
		if diff := cmp.Diff(before, state(theNode(t, name))); diff != "" {
			t.Errorf("%s:\n%s", c.kind, diff)
		}
	}
	name := aNode(t)
	status(t, name, `{"status":{"conditions":[{"type":"LofamoFault","status":"False","reason":"Theirs"}]}}`)
	j := acts()[0].job(responseID(), name)
	want(t, e.Do(context.Background(), j), response.Unchanged, "condition LofamoFault is somebody else's")
	do(t, e, undo(j))
	if got := state(theNode(t, name)); got != "condition LofamoFault=False Theirs" {
		t.Error(got)
	}
}

// TestStateChangedByOthersIsKept: we neither undo nor restore a state that others have changed since, whatever else happens
// on the node.
func TestStateChangedByOthersIsKept(t *testing.T) {
	e := newExecutor(t, Config{}, nil)
	taint := func(rest string) string {
		return `{"spec":{"taints":[{"key":"lofamo.io/memory","effect":"NoSchedule"` + rest + `}]}}`
	}
	for _, c := range []struct {
		act
		since []string // patches
		left  string
		says  string
	}{
		{acts()[1], []string{`{"metadata":{"labels":{"lofamo.io/memory":"theirs"}}}`}, "label lofamo.io/memory=theirs", "somebody else's by now"},
		{acts()[1], []string{`{"metadata":{"labels":{"lofamo.io/memory":null}}}`}, "", "somebody else's by now"},
		{acts()[1], []string{`{"metadata":{"labels":{"lofamo.io/memory":null}}}`, `{"metadata":{"labels":{"lofamo.io/memory":"sick"}}}`},
			"label lofamo.io/memory=sick", "somebody else's by now"},
		{acts()[2], []string{`{"spec":{"unschedulable":null}}`}, "", "somebody has uncordoned it"},
		{acts()[2], []string{`{"spec":{"unschedulable":false}}`, `{"spec":{"unschedulable":true}}`}, "unschedulable",
			"somebody else has cordoned it"},
		{acts()[3], []string{taint(`,"value":"theirs"`)}, "taint lofamo.io/memory=theirs:NoSchedule", "or changed it"},
		{acts()[3], []string{`{"spec":{"taints":null}}`}, "", "somebody has taken the taint away"},
		{acts()[3], []string{taint(`,"value":"sick"`)}, "taint lofamo.io/memory=sick:NoSchedule", "or changed it"},
	} {
		name := aNode(t)
		j := c.job(responseID(), name)
		do(t, e, j)
		for _, p := range c.since {
			patch(t, name, p)
		}
		other := aJob(responseID(), name, response.KubernetesLabel, map[string]string{"key": "another", "value": "x"})
		do(t, e, other)
		if outcome, says := response.Succeeded, "an earlier attempt had done it"; c.left == c.shows {
			want(t, e.Do(context.Background(), again(j)), outcome, says)
		} else {
			want(t, e.Do(context.Background(), again(j)), response.Unchanged, "which an earlier attempt had set")
		}
		if got := withoutMarks(theNode(t, name)); strings.TrimSpace(strings.ReplaceAll(got, "label another=x", "")) != c.left {
			t.Errorf("%s %v: as we stand: %q, want %q", c.kind, c.since, got, c.left)
		}
		want(t, e.Do(context.Background(), undo(again(j))), response.Succeeded, c.says)
		do(t, e, undo(other))
		if got := state(theNode(t, name)); got != c.left {
			t.Errorf("%s %v: %q, want %q", c.kind, c.since, got, c.left)
		}
	}
	name := aNode(t)
	j := acts()[0].job(responseID(), name)
	do(t, e, j)
	status(t, name, `{"status":{"conditions":[{"type":"LofamoFault","status":"False","reason":"Theirs"}]}}`)
	theirs := theNode(t, name).Status.Conditions
	other := aJob(responseID(), name, response.KubernetesCondition, map[string]string{"type": "Another"})
	do(t, e, other)
	want(t, e.Do(context.Background(), undo(j)), response.Succeeded, "somebody else has changed condition LofamoFault")
	do(t, e, undo(other))
	if diff := cmp.Diff(theirs, theNode(t, name).Status.Conditions[:1]); diff != "" { // behind it ours, which is False now
		t.Error(diff)
	}
}

// TestSharedStateStaysUntilLastUndo: if two responses want the same state of a node, it stays until the last one is undone, in any
// order.
func TestSharedStateStaysUntilLastUndo(t *testing.T) {
	e := newExecutor(t, Config{}, nil)
	for _, a := range acts() {
		for first := range 2 {
			name := aNode(t)
			jobs := [2]struct{ j, undo func() }{}
			for i := range jobs {
				j := a.job(responseID(), name)
				jobs[i].j, jobs[i].undo = func() { do(t, e, j) }, func() { do(t, e, undo(j)) }
			}
			jobs[0].j()
			jobs[1].j()
			jobs[first].undo()
			if got := withoutMarks(theNode(t, name)); got != a.shows {
				t.Errorf("%s: while one stands: %q", a.kind, got)
			}
			jobs[1-first].undo()
			if got := state(theNode(t, name)); got != "" {
				t.Errorf("%s: %q", a.kind, got)
			}
		}
	}
}

// TestConditionSumsUpAllResponses: a shared condition lists the fault of each response, has the reason of the most severe one,
// and keeps its first transition time.
func TestConditionSumsUpAllResponses(t *testing.T) {
	e, name := newExecutor(t, Config{}, nil), aNode(t)
	one := acts()[0].job(responseID(), name)
	two := acts()[0].job(responseID(), name)
	two.Target.Component, two.Fault.State, two.Fault.Detail = fault.ComponentHost, fault.Failed, ""
	do(t, e, one)
	since := theNode(t, name).Status.Conditions[0].LastTransitionTime
	do(t, e, two)
	c := theNode(t, name).Status.Conditions[0]
	if c.Reason != "HostFailed" || !strings.Contains(c.Message, "/host FAILED") || !strings.Contains(c.Message, "/memory SICK") ||
		!c.LastTransitionTime.Equal(&since) {
		t.Errorf("%+v", c)
	}
	do(t, e, undo(two))
	if c = theNode(t, name).Status.Conditions[0]; c.Reason != "MemorySick" || strings.Contains(c.Message, "host") {
		t.Errorf("%+v", c)
	}
	do(t, e, undo(one))
	if c = theNode(t, name).Status.Conditions[0]; c.Status != corev1.ConditionFalse || c.Reason != "Undone" || c.Message == "" {
		t.Errorf("after the last undo: %+v: want False", c)
	}
	do(t, e, acts()[0].job(responseID(), name))
	if c = theNode(t, name).Status.Conditions[0]; c.Status != corev1.ConditionTrue || c.Reason != "MemorySick" {
		t.Errorf("after another fault: %+v: want True", c)
	}
}

// TestContradictingLabelIsRefused: of two responses with contradicting labels, the second is refused.
func TestContradictingLabelIsRefused(t *testing.T) {
	e, name := newExecutor(t, Config{}, nil), aNode(t)
	do(t, e, acts()[1].job(responseID(), name))
	j := aJob(responseID(), name, response.KubernetesLabel, map[string]string{"key": "lofamo.io/memory", "value": "good"})
	want(t, e.Do(context.Background(), j), response.Unchanged, `is "sick" already`)
}

// TestMarksAreTakenAway: if somebody removes a mark, its effect becomes theirs.
func TestMarksAreTakenAway(t *testing.T) {
	e, name := newExecutor(t, Config{}, nil), aNode(t)
	j := acts()[2].job(responseID(), name)
	do(t, e, j)
	patch(t, name, `{"metadata":{"annotations":{"`+markKey(j.Response, 0)+`":null}}}`)
	want(t, e.Do(context.Background(), undo(j)), response.Succeeded, "nothing of this step stands")
	if got := state(theNode(t, name)); got != "unschedulable" {
		t.Error(got)
	}
	// An unreadable mark stays unchanged.
	name = aNode(t)
	patch(t, name, `{"metadata":{"annotations":{"lofamo.io/did-r1-1.0":"what?"}}}`)
	j = acts()[2].job(responseID(), name)
	do(t, e, j)
	do(t, e, undo(j))
	if got := state(theNode(t, name)); got != "annotation lofamo.io/did-r1-1.0=what?" {
		t.Error(got)
	}
}

// TestFieldWithSecondOwnerStays: a field with a second owner stays when we remove our ownership.
func TestFieldWithSecondOwnerStays(t *testing.T) {
	e, name := newExecutor(t, Config{}, nil), aNode(t)
	jobs := []executor.Job{acts()[1].job(responseID(), name), acts()[2].job(responseID(), name)}
	for _, j := range jobs {
		do(t, e, j)
	}
	admin(t, http.MethodPatch, "/api/v1/nodes/"+name+"?fieldManager=theirs", kubetest.Apply,
		`{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+name+`","labels":{"lofamo.io/memory":"sick"}},"spec":{"unschedulable":true}}`)
	for _, j := range jobs {
		do(t, e, undo(j))
	}
	if got := state(theNode(t, name)); got != "label lofamo.io/memory=sick\nunschedulable" {
		t.Error(got)
	}
}

// TestUndoSparesFieldsWithoutOwner: on a node created with only a name, or whose managed fields were removed, the API server records
// no owners before the first apply, and afterwards only those of the apply. Our undo must not remove the fields without
// an owner.
func TestUndoSparesFieldsWithoutOwner(t *testing.T) {
	e := newExecutor(t, Config{}, nil)
	all := []act{acts()[0], acts()[1], acts()[2]}
	for first := range all {
		name := nodeName()
		createNode(t, name, "")
		theirTaint(t, name, "sick")
		patch(t, name, `{"metadata":{"labels":{"theirs":"x"}}}`)
		status(t, name, `{"status":{"capacity":{"cpu":"4"},"nodeInfo":{"machineID":"m"}}}`)
		before := theNode(t, name)
		if len(before.ManagedFields) > 0 {
			t.Fatalf("its fields have owners: %v", before.ManagedFields)
		}
		var jobs []executor.Job
		for i := range all {
			jobs = append(jobs, all[(first+i)%len(all)].job(responseID(), name))
			do(t, e, jobs[i])
		}
		for _, j := range jobs {
			do(t, e, undo(j))
		}
		after := theNode(t, name)
		if diff := cmp.Diff(state(before), state(after)); diff != "" {
			t.Errorf("%s first:\n%s", all[first].kind, diff)
		}
		if after.Status.NodeInfo.MachineID != "m" || after.Status.Capacity.Cpu().Value() != 4 {
			t.Errorf("%s first: the status was taken away: %+v", all[first].kind, after.Status)
		}
	}
}

// withoutMarks returns the state of a node without our annotations.
func withoutMarks(n *corev1.Node) string {
	var out []string
	for line := range strings.SplitSeq(state(n), "\n") {
		if line != "" && !strings.HasPrefix(line, "annotation "+markPrefix) {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

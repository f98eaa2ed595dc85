package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/pkg/response"
)

// remediator is a remediator of medik8s in a test: its kinds, a template, and the protocol by which it answers.
type remediator struct {
	t           *testing.T
	group, kind string
}

const remediatorSpace = "remediators"

func (r remediator) parameters() map[string]string {
	return map[string]string{"apiVersion": r.group + "/v1alpha1", "kind": r.kind + "Template", "namespace": remediatorSpace, "name": "best"}
}

func (r remediator) path(kind string) string {
	return "/apis/" + r.group + "/v1alpha1/namespaces/" + remediatorSpace + "/" + strings.ToLower(kind) + "s"
}

// do sends a request as the remediator. An object that exists already is no failure.
func (r remediator) do(method, path, contentType, body string) []byte {
	r.t.Helper()
	b, err := cluster(r.t).Admin.Do(method, path, contentType, []byte(body))
	var status *kubetest.StatusError
	if err != nil && (!errors.As(err, &status) || status.Code != http.StatusConflict) {
		r.t.Fatal(err)
	}
	return b
}

// installed returns a remediator whose kinds the API server serves.
func installed(t *testing.T, group, kind string) remediator {
	t.Helper()
	r := remediator{t, group, kind}
	r.do(http.MethodPost, "/api/v1/namespaces", "", `{"metadata":{"name":"`+remediatorSpace+`"}}`)
	for _, k := range []string{kind, kind + "Template"} {
		plural := strings.ToLower(k) + "s"
		r.do(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", fmt.Sprintf(`{
			"metadata":{"name":"%s.%s"},"spec":{"group":%q,"scope":"Namespaced","names":{"plural":%q,"singular":%q,"kind":%q,"listKind":"%sList"},
			"versions":[{"name":"v1alpha1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object",
			"properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
			"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}]}}`,
			plural, group, group, plural, strings.ToLower(k), k, k))
	}
	template := fmt.Sprintf(`{"apiVersion":"%s/v1alpha1","kind":"%sTemplate","metadata":{"name":"best"},
		"spec":{"template":{"spec":{"remediationStrategy":"Automatic"}}}}`, group, kind)
	eventually(t, func() bool {
		_, err := cluster(t).Admin.Do(http.MethodPost, r.path(kind+"Template"), "", []byte(template))
		var status *kubetest.StatusError
		return err == nil || errors.As(err, &status) && status.Code == http.StatusConflict
	}, "the template is there")
	eventually(t, func() bool {
		_, err := cluster(t).Admin.Do(http.MethodGet, r.path(kind), "", nil)
		return err == nil
	}, "remediations are served")
	return r
}

// object returns the remediation of a node; false if there is none.
func (r remediator) object(node string) (o struct {
	Metadata struct {
		Annotations map[string]string
		Finalizers  []string
	}
	Spec map[string]string
}, ok bool) {
	b, err := cluster(r.t).Admin.Do(http.MethodGet, r.path(r.kind)+"/"+node, "", nil)
	if err != nil {
		return o, false
	}
	if err := json.Unmarshal(b, &o); err != nil {
		r.t.Error(err)
	}
	return o, true
}

// says sets the conditions of the remediation of a node.
func (r remediator) says(node, processing, succeeded string) {
	r.t.Helper()
	condition := func(typ, status string) string {
		return fmt.Sprintf(`{"type":%q,"status":%q,"reason":"Test","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}`, typ, status)
	}
	r.do(http.MethodPatch, r.path(r.kind)+"/"+node+"/status", kubetest.MergePatch,
		`{"status":{"conditions":[`+condition("Processing", processing)+","+condition("Succeeded", succeeded)+`]}}`)
}

// remediatingExecutor returns an executor with the shipped rights for remediations, and the number of its successful reads of
// remediations.
func remediatingExecutor(t *testing.T) (*Executor, *atomic.Int64) {
	t.Helper()
	s, reads := cluster(t), &atomic.Int64{}
	cfg := Config{Kubeconfig: kubeconfig(t, s.Addr, shipped(t, "remediating", "rbac", "rbac-remediation"))}
	e := newExecutor(t, cfg, func(next http.RoundTripper) http.RoundTripper { return countingReads{next, reads} })
	e.pacing.drain = 20 * time.Millisecond
	return e, reads
}

// countingReads counts reads of remediations that find one.
type countingReads struct {
	next  http.RoundTripper
	reads *atomic.Int64
}

func (c countingReads) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := c.next.RoundTrip(r)
	if err == nil && r.Method == http.MethodGet && res.StatusCode == http.StatusOK && strings.Contains(r.URL.Path, "remediations/") {
		c.reads.Add(1)
	}
	return res, err
}

// WrappedRoundTripper implements the interface that client-go looks for.
func (c countingReads) WrappedRoundTripper() http.RoundTripper { return c.next }

// begun starts an attempt. The returned function waits for its result.
func begun(ctx context.Context, t *testing.T, e *Executor, j executor.Job) func() executor.Result {
	t.Helper()
	done := make(chan executor.Result, 1)
	go func() { done <- e.Do(ctx, j) }()
	return func() executor.Result {
		t.Helper()
		select {
		case r := <-done:
			return r
		case <-time.After(time.Minute):
			t.Fatal("the attempt does not end")
			return executor.Result{}
		}
	}
}

var remediators = [][2]string{
	{"self-node-remediation.medik8s.io", "SelfNodeRemediation"},
	{"fence-agents-remediation.medik8s.io", "FenceAgentsRemediation"},
}

// TestRemediationIsHandedOver: the step creates the object from the template and ends when the remediator has succeeded. A new
// leader continues with the same object. The undo removes it, and waits for the remediator's finalizer.
func TestRemediationIsHandedOver(t *testing.T) {
	for _, of := range remediators {
		r := installed(t, of[0], of[1])
		e, reads := remediatingExecutor(t)
		eventually(t, func() bool {
			_, err := (&remediating{e: e, j: aJob("r0", "none", response.KubernetesRemediate, r.parameters()), node: "none"}).read(t.Context())
			return err == nil
		}, "remediations may be read")
		node := aNode(t)
		j := aJob(responseID(), node, response.KubernetesRemediate, r.parameters())
		ctx, cancel := context.WithCancel(t.Context())
		result := begun(ctx, t, e, j)
		eventually(t, func() bool { _, ok := r.object(node); return ok }, "the object is there")
		eventually(t, func() bool { return reads.Load() > 0 }, "the executor follows the object")
		cancel()
		want(t, result(), response.Partly, "has not ended in time")
		o, ok := r.object(node)
		if !ok || o.Spec["remediationStrategy"] != "Automatic" || o.Metadata.Annotations[remediationKey] != j.Response+"/0" {
			t.Fatalf("%t %+v", ok, o)
		}
		r.do(http.MethodPatch, r.path(r.kind)+"/"+node, kubetest.MergePatch, `{"metadata":{"finalizers":["example.org/test"]}}`)
		e, _ = remediatingExecutor(t) // of a new leader
		j = under(8, again(j))
		result = begun(t.Context(), t, e, j)
		r.says(node, "True", "Unknown")
		r.says(node, "False", "True")
		want(t, result(), response.Succeeded, "has succeeded")
		other := aJob(responseID(), node, response.KubernetesRemediate, r.parameters())
		want(t, e.Do(t.Context(), under(8, other)), response.Unchanged, "belongs to another program or response")
		result = begun(t.Context(), t, e, undo(j))
		eventually(t, func() bool {
			b := r.do(http.MethodGet, r.path(r.kind)+"/"+node, "", "")
			return strings.Contains(string(b), "deletionTimestamp")
		}, "the object is being removed")
		r.do(http.MethodPatch, r.path(r.kind)+"/"+node, kubetest.MergePatch, `{"metadata":{"finalizers":null}}`)
		want(t, result(), response.Succeeded, "its remediation has ended")
		if _, there := r.object(node); there || len(marks(theNode(t, node))) != 0 {
			t.Errorf("object %t, marks %v: want neither", there, marks(theNode(t, node)))
		}
		do(t, e, undo(again(undo(j)))) // once more
	}
}

// TestOneRemediationOfANode: while a response is open, no other remediation of its node begins, of any kind. An object of
// another program is never touched.
func TestOneRemediationOfANode(t *testing.T) {
	a, b := installed(t, remediators[0][0], remediators[0][1]), installed(t, remediators[1][0], remediators[1][1])
	e, _ := remediatingExecutor(t)
	node, theirs := aNode(t), aNode(t)
	j := aJob(responseID(), node, response.KubernetesRemediate, a.parameters())
	result := begun(t.Context(), t, e, j)
	eventually(t, func() bool { _, ok := a.object(node); return ok }, "the object is there")
	want(t, e.Do(t.Context(), aJob(responseID(), node, response.KubernetesRemediate, b.parameters())), response.Unchanged, "one at a time")
	if _, there := b.object(node); there {
		t.Error("two remediations of one node")
	}
	a.says(node, "False", "False")
	want(t, result(), response.Partly, "has failed: Test")
	b.do(http.MethodPost, b.path(b.kind), "",
		fmt.Sprintf(`{"apiVersion":"%s/v1alpha1","kind":%q,"metadata":{"name":%q}}`, b.group, b.kind, theirs))
	foreign := aJob(responseID(), theirs, response.KubernetesRemediate, b.parameters())
	want(t, e.Do(t.Context(), foreign), response.Unchanged, "belongs to another program or response")
	do(t, e, undo(foreign))
	if _, there := b.object(theirs); !there || len(marks(theNode(t, theirs))) != 0 {
		t.Errorf("another program's remediation: there %t; marks %v", there, marks(theNode(t, theirs)))
	}
	// Somebody removes the object: it is not created again, and the undo has nothing to remove.
	a.do(http.MethodDelete, a.path(a.kind)+"/"+node, "", "")
	want(t, e.Do(t.Context(), again(j)), response.Unchanged, "is not created again")
	e.c.timeout = time.Second // which the undo waits
	do(t, e, undo(again(j)))
}

// TestRemediationOfAnotherIsNotFollowed: somebody removes the object, and another program creates one for the node at once. Its success is
// not that of the step.
func TestRemediationOfAnotherIsNotFollowed(t *testing.T) {
	r := installed(t, remediators[0][0], remediators[0][1])
	e, reads := remediatingExecutor(t)
	e.pacing.drain = 2 * time.Second
	node := aNode(t)
	j := aJob(responseID(), node, response.KubernetesRemediate, r.parameters())
	result := begun(t.Context(), t, e, j)
	eventually(t, func() bool { _, ok := r.object(node); return ok }, "the object is there")
	eventually(t, func() bool { return reads.Load() > 0 }, "the executor follows the object")
	r.do(http.MethodDelete, r.path(r.kind)+"/"+node, "", "")
	r.do(http.MethodPost, r.path(r.kind), "",
		fmt.Sprintf(`{"apiVersion":"%s/v1alpha1","kind":%q,"metadata":{"name":%q}}`, r.group, r.kind, node))
	r.says(node, "False", "True")
	want(t, result(), response.Partly, "was removed before its end")
}

// TestRemediationWithoutItsNeeds: without a template, a kind or a right the step fails at once and says why. A stale leader
// creates nothing.
func TestRemediationWithoutItsNeeds(t *testing.T) {
	r := installed(t, remediators[0][0], remediators[0][1])
	e, _ := remediatingExecutor(t)
	changed := func(key, value string) map[string]string {
		p := r.parameters()
		p[key] = value
		return p
	}
	for text, p := range map[string]map[string]string{
		"template SelfNodeRemediationTemplate remediators/none": changed("name", "none"),
		"cannot get resource": changed("apiVersion", "other.medik8s.io/v1alpha1"),
	} {
		node := aNode(t)
		want(t, e.Do(t.Context(), aJob(responseID(), node, response.KubernetesRemediate, p)), response.Unchanged, text)
		if _, there := r.object(node); there || len(marks(theNode(t, node))) != 0 {
			t.Errorf("%s: object %t, marks %v: want neither", text, there, marks(theNode(t, node)))
		}
	}
	node := aNode(t)
	stale := executor.WithFence(t.Context(), func(context.Context) error { return executor.ErrStale })
	want(t, e.Do(stale, aJob(responseID(), node, response.KubernetesRemediate, r.parameters())), response.StaleToken, "")
	if _, there := r.object(node); there || len(marks(theNode(t, node))) != 0 {
		t.Error("a stale leader has written")
	}
	gone := aJob(responseID(), "nowhere", response.KubernetesRemediate, r.parameters())
	want(t, e.Do(t.Context(), gone), response.Unchanged, "no such node")
	e.c.timeout = time.Second // which the undo waits
	do(t, e, undo(gone))
}

// answering answers requests that create remediations, instead of the API server. It sets asked to the time that they name.
type answering struct {
	next   http.RoundTripper
	asked  *atomic.Value
	answer func(*http.Request) (*http.Response, error)
}

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "remediations") {
		a.asked.Store(r.URL.Query().Get("timeout"))
		return a.answer(r)
	}
	return a.next.RoundTrip(r)
}

// WrappedRoundTripper implements the interface that client-go looks for.
func (a answering) WrappedRoundTripper() http.RoundTripper { return a.next }

// TestUndoWaitsForALateRemediation: the object of a request with an unknown outcome appears after the undo has begun. The undo
// removes it, and the mark stands until then. It also does so if the node was deleted.
func TestUndoWaitsForALateRemediation(t *testing.T) {
	r := installed(t, remediators[0][0], remediators[0][1])
	var asked atomic.Value
	account := shipped(t, "remediating", "rbac", "rbac-remediation")
	cfg := Config{Kubeconfig: kubeconfig(t, cluster(t).Addr, account), RequestTimeout: config.Duration(time.Minute)}
	e := newExecutor(t, cfg, func(next http.RoundTripper) http.RoundTripper {
		return answering{next, &asked, func(*http.Request) (*http.Response, error) { return nil, errors.New("no answer") }}
	})
	node := aNode(t)
	j := aJob(responseID(), node, response.KubernetesRemediate, r.parameters())
	ctx, cancel := context.WithCancel(t.Context())
	result := begun(ctx, t, e, j)
	eventually(t, func() bool { return asked.Load() != nil }, "a request for the object")
	cancel()
	want(t, result(), response.NotKnown, "")
	if asked.Load() != "1m0s" {
		t.Errorf("the request names the time %q: want 1m", asked.Load())
	}
	result = begun(t.Context(), t, e, undo(j))
	key := markKey(j.Response, j.Step)
	eventually(t, func() bool { _, ok := e.absent.Load(key); return ok }, "the undo finds no object")
	if _, marked := marks(theNode(t, node))[key]; !marked {
		t.Error("the mark has gone before the time of the request")
	}
	late := fmt.Sprintf(`{"apiVersion":"%s/v1alpha1","kind":%q,"metadata":{"name":%q,"annotations":{%q:%q}}}`, r.group, r.kind, node,
		remediationKey, j.Response+"/0")
	r.do(http.MethodPost, r.path(r.kind), "", late)
	want(t, result(), response.Succeeded, "its remediation has ended")
	if _, there := r.object(node); there || len(marks(theNode(t, node))) != 0 {
		t.Errorf("object %t, marks %v: want neither", there, marks(theNode(t, node)))
	}

	// The same if the node was deleted meanwhile.
	admin(t, http.MethodDelete, "/api/v1/nodes/"+node, "", "")
	e.c.timeout = 5 * time.Second // which the undo waits: even on a busy machine the object appears sooner
	result = begun(t.Context(), t, e, undo(undo(j)))
	eventually(t, func() bool { _, ok := e.absent.Load(key); return ok }, "the undo finds no object of the deleted node")
	r.do(http.MethodPost, r.path(r.kind), "", late)
	want(t, result(), response.Succeeded, "nothing is left to put back")
	if _, there := r.object(node); there {
		t.Error("the object of a deleted node has appeared, and stays")
	}
	e.absent.Range(func(key, _ any) bool { t.Errorf("the executor still knows %s", key); return true })
}

// TestRefusedRemediationLeavesNoMark: if the API server refuses the object, the node is as before.
func TestRefusedRemediationLeavesNoMark(t *testing.T) {
	r := installed(t, remediators[0][0], remediators[0][1])
	var asked atomic.Value
	account := shipped(t, "remediating", "rbac", "rbac-remediation")
	e := newExecutor(t, Config{Kubeconfig: kubeconfig(t, cluster(t).Addr, account)}, func(next http.RoundTripper) http.RoundTripper {
		return answering{next, &asked, func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(strings.NewReader(
					`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"a webhook says no","code":403}`))}, nil
		}}
	})
	node := aNode(t)
	want(t, e.Do(t.Context(), aJob(responseID(), node, response.KubernetesRemediate, r.parameters())), response.Unchanged, "a webhook says no")
	if len(marks(theNode(t, node))) != 0 {
		t.Errorf("marks %v: want none", marks(theNode(t, node)))
	}
}

// TestRemediationThatWasNotAcceptedIsTriedAgain: while the API server accepts no request for the object, an attempt that ends leaves no
// mark, so the next attempt creates the object. After a loss of the lead the mark stays, since it is the successor's.
func TestRemediationThatWasNotAcceptedIsTriedAgain(t *testing.T) {
	r := installed(t, remediators[0][0], remediators[0][1])
	account := shipped(t, "remediating", "rbac", "rbac-remediation")
	if most := response.Default().ResultTime; usual.unmark >= most {
		t.Errorf("a result may come %s after its attempt's time: want less than %s, after which the engine no longer waits", usual.unmark, most)
	}
	for name, c := range map[string]struct {
		cause error // of the attempt's end, after a refusal
		kept  bool  // the mark stays
	}{
		"timeout":     {cause: context.DeadlineExceeded},
		"not wanted":  {cause: executor.ErrStopped},
		"lost leader": {cause: context.Canceled, kept: true},
	} {
		var asked atomic.Value
		var busy, tries atomic.Int64
		ctx, cancel := context.WithCancelCause(t.Context())
		e := newExecutor(t, Config{Kubeconfig: kubeconfig(t, cluster(t).Addr, account)}, func(next http.RoundTripper) http.RoundTripper {
			return answering{next, &asked, func(req *http.Request) (*http.Response, error) {
				if busy.Load() == 0 {
					return next.RoundTrip(req)
				}
				tries.Add(1)
				cancel(c.cause)
				return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Content-Type": {"application/json"}},
					Body: io.NopCloser(strings.NewReader(
						`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429}`))}, nil
			}}
		})
		e.pacing.drain, e.pacing.unmark = 20*time.Millisecond, time.Minute
		node := aNode(t)
		j := aJob(responseID(), node, response.KubernetesRemediate, r.parameters())
		j.Timeout = 2 * time.Minute
		busy.Store(1)
		outcome, text := response.Unchanged, ""
		if c.kept {
			outcome, text = response.Partly, "stays on the node"
		}
		want(t, e.Do(ctx, j), outcome, text)
		if n := len(marks(theNode(t, node))); n > 0 != c.kept {
			t.Fatalf("%s: %d marks after %d refused requests", name, n, tries.Load())
		}
		if c.kept {
			continue
		}
		busy.Store(0)
		j = again(j)
		result := begun(t.Context(), t, e, j)
		eventually(t, func() bool { _, ok := r.object(node); return ok }, name+": the object is there")
		r.says(node, "False", "True")
		want(t, result(), response.Succeeded, "has succeeded")
	}
}

// FuzzRemediations: what remediators and people write into their objects makes no attempt panic, and the object that is created
// is valid JSON. The same holds for lists of kinds.
func FuzzRemediations(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"a/v1","kind":"B","metadata":{"name":"n"},
		"status":{"conditions":[{"type":"Succeeded","status":"True","reason":"R","message":"M"}]}}`))
	f.Add([]byte(`{"apiVersion":"a/v1","kind":"BTemplate","metadata":{"name":"t"},"spec":{"template":{"spec":{"a":[1]}}}}`))
	f.Add([]byte(`{"apiVersion":"a/v1","kind":"BList","metadata":{"resourceVersion":"1","continue":"c"},
		"items":[{"metadata":{"name":"n"}},null]}`))
	f.Add([]byte(`{"kind":"APIGroupList","groups":[{"versions":[{"groupVersion":"a/v1"}]}]}`))
	f.Add([]byte(`{"kind":"APIResourceList","groupVersion":"a/v1","resources":[{"name":"bs"}]}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = groupsHave(b, "a/v1")
		_, _ = resourcesHave(b, "a/v1", "bs")
		page, _ := remediationsOf(b, "a/v1", "B")
		if object, err := remediationOf(b, "a/v1", "B"); err == nil {
			page.Items = append(page.Items, *object)
		}
		for _, o := range page.Items {
			if _, why := o.condition(remediationSucceeded); len(why) > maxText {
				t.Errorf("%d bytes", len(why))
			}
		}
		if spec, err := specOf(b, "a/v1", "BTemplate"); err == nil && !json.Valid(spec) {
			t.Errorf("spec %q", spec)
		}
	})
}

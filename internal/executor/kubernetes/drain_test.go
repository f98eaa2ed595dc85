package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/pkg/response"
)

// createPod creates a pod on a node, by default one of a replica set. meta and spec add to its JSON.
func createPod(t testing.TB, node, meta, spec string) string {
	t.Helper()
	name := fmt.Sprintf("p%d", serial.Add(1))
	if meta == "" {
		meta = owner("ReplicaSet", true)
	}
	admin(t, http.MethodPost, "/api/v1/namespaces/default/pods", "",
		`{"metadata":{"name":"`+name+`",`+meta+`},"spec":{"nodeName":"`+node+`","containers":[{"name":"c","image":"i"}]`+spec+`}}`)
	return name
}

// createReady creates a running, ready pod. Disruption budgets ignore all others.
func createReady(t testing.TB, node, app string) string {
	t.Helper()
	name := createPod(t, node, strings.Replace(owner("ReplicaSet", true), `"app":"a"`, `"app":"`+app+`"`, 1), "")
	admin(t, http.MethodPatch, "/api/v1/namespaces/default/pods/"+name+"/status", kubetest.MergePatch,
		`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`)
	return name
}

func owner(kind string, controller bool) string {
	return fmt.Sprintf(`"labels":{"app":"a"},"ownerReferences":[{"apiVersion":"apps/v1","kind":%q,"name":"o","uid":"u","controller":%t}]`,
		kind, controller)
}

// podsOf returns the names of the pods on a node.
func podsOf(t testing.TB, node string) []string {
	t.Helper()
	var list corev1.PodList
	if err := json.Unmarshal(admin(t, http.MethodGet, "/api/v1/pods?fieldSelector=spec.nodeName="+node, "", ""), &list); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range list.Items {
		out = append(out, p.Name)
	}
	slices.Sort(out)
	return out
}

// kubelet stands in for a node's kubelet: it ends terminating pods at once. It returns when its watch is open. done
// waits for its end, after ctx.
func kubelet(t testing.TB, ctx context.Context, node string) (done func()) {
	t.Helper()
	s := cluster(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		err := s.Admin.Watch(ctx, "/api/v1/pods?watch=true&fieldSelector=spec.nodeName="+node, func(kind string, o json.RawMessage) bool {
			var p corev1.Pod
			if err := json.Unmarshal(o, &p); err != nil || kind == "DELETED" || p.DeletionTimestamp == nil {
				return true
			}
			_, _ = s.Admin.Do(http.MethodDelete, "/api/v1/namespaces/"+p.Namespace+"/pods/"+p.Name+"?gracePeriodSeconds=0", "", nil)
			return true
		})
		if err != nil && ctx.Err() == nil {
			t.Errorf("stand-in of the kubelet: %v", err)
		}
	})
	return wg.Wait
}

// TestDrainEvictsPods: a drain evicts all pods except those that tolerate everything, mirror pods, and those that have ended.
func TestDrainEvictsPods(t *testing.T) {
	e, name := newExecutor(t, Config{}, nil), aNode(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer kubelet(t, ctx, name)()
	defer cancel()
	for range 3 {
		createPod(t, name, "", "")
	}
	stay := []string{createPod(t, name, owner("DaemonSet", true), ""),
		createPod(t, name, `"annotations":{"kubernetes.io/config.mirror":"x"}`, "")}
	ended := createPod(t, name, owner("Job", true), "")
	admin(t, http.MethodPatch, "/api/v1/namespaces/default/pods/"+ended+"/status", kubetest.MergePatch, `{"status":{"phase":"Succeeded"}}`)
	stay = append(stay, ended)
	slices.Sort(stay)
	elsewhere := aNode(t)
	createPod(t, elsewhere, "", "")

	j := acts()[5].job(responseID(), name)
	want(t, e.Do(ctx, j), response.Succeeded, "drained of 3 pods")
	if got := podsOf(t, name); !slices.Equal(got, stay) {
		t.Errorf("left are %v, want %v", got, stay)
	}
	if len(podsOf(t, elsewhere)) != 1 {
		t.Error("a pod of another node was evicted")
	}
	if !theNode(t, name).Spec.Unschedulable {
		t.Error("not cordoned")
	}
	do(t, e, undo(j))
	if got := state(theNode(t, name)); got != "" {
		t.Error(got)
	}
}

// TestDrainLosesDataOnlyIfAllowed: a drain gives up pods without a controller, and data on the node, only if the policy allows
// it. Otherwise it does not even cordon the node.
func TestDrainLosesDataOnlyIfAllowed(t *testing.T) {
	e, name := newExecutor(t, Config{}, nil), aNode(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer kubelet(t, ctx, name)()
	defer cancel()
	alone := createPod(t, name, owner("ReplicaSet", false), "")
	data := createPod(t, name, "", `,"volumes":[{"name":"d","emptyDir":{}}]`)
	for _, c := range []struct {
		parameters map[string]string
		says       string
	}{
		{nil, "default/" + alone + " has no controller that would start it elsewhere (force: true ends it); default/" + data +
			" has data in an emptyDir"},
		{map[string]string{"force": "true"}, "default/" + data + " has data in an emptyDir (deleteEmptyDirData: true gives them up)"},
		{map[string]string{"deleteEmptyDirData": "true"}, "default/" + alone + " has no controller"},
	} {
		want(t, e.Do(ctx, aJob(responseID(), name, response.KubernetesDrain, c.parameters)), response.Unchanged, c.says)
		if got := state(theNode(t, name)); got != "" {
			t.Errorf("changed: %s", got)
		}
	}
	j := aJob(responseID(), name, response.KubernetesDrain,
		map[string]string{"force": "true", "deleteEmptyDirData": "true", "gracePeriod": "1500ms"})
	want(t, e.Do(ctx, j), response.Succeeded, "drained of 2 pods")
}

// budget creates a disruption budget for the pods with that label value. allow sets the number of allowed disruptions,
// as the controller would.
func budget(t testing.TB, app string) (allow func(n int)) {
	t.Helper()
	name := "b-" + app
	admin(t, http.MethodPost, "/apis/policy/v1/namespaces/default/poddisruptionbudgets", "",
		`{"metadata":{"name":"`+name+`"},"spec":{"minAvailable":1,"selector":{"matchLabels":{"app":"`+app+`"}}}}`)
	allow = func(n int) {
		admin(t, http.MethodPatch, "/apis/policy/v1/namespaces/default/poddisruptionbudgets/"+name+"/status", kubetest.MergePatch, fmt.Sprintf(
			`{"status":{"observedGeneration":1,"disruptionsAllowed":%d,"currentHealthy":%d,"desiredHealthy":1,"expectedPods":1,`+
				`"disruptedPods":null}}`, n, n+1))
	}
	allow(0)
	return allow
}

// TestDrainWaitsForDisruptionBudget: a drain waits for a disruption budget until its time is over, and then lists the remaining pods
// with reasons. The node stays cordoned. The next attempt continues when the budget allows it; a cancelled attempt
// uncordons the node.
func TestDrainWaitsForDisruptionBudget(t *testing.T) {
	for _, cancelled := range []bool{false, true} {
		var refusals atomic.Int32
		e, name := newExecutor(t, Config{}, func(next http.RoundTripper) http.RoundTripper {
			return wrapped(next, func(r *http.Request) (*http.Response, error) {
				res, err := next.RoundTrip(r)
				if err == nil && res.StatusCode == http.StatusTooManyRequests {
					refusals.Add(1)
				}
				return res, err
			})
		}), aNode(t)
		ctx, cancel := context.WithCancel(context.Background())
		defer kubelet(t, ctx, name)()
		defer cancel()
		app := "app-" + name
		held := createReady(t, name, app)
		createPod(t, name, "", "")
		allow := budget(t, app)
		j := acts()[5].job(responseID(), name)
		j.Timeout = 2 * time.Minute
		attempt, over := context.WithCancel(ctx)
		result := make(chan executor.Result, 1)
		go func() { result <- e.Do(attempt, j) }()
		eventually(t, func() bool { return slices.Equal(podsOf(t, name), []string{held}) }, "the other pod to end")
		seen := refusals.Load()
		eventually(t, func() bool { return refusals.Load() >= seen+2 }, "a round of evictions after that")
		over()
		r := <-result
		t.Logf("asked: drain; refused: %s", r.Detail)
		want(t, r, response.Partly, "1 pods evicted, 1 left when its time was over: default/"+held)
		if !strings.Contains(r.Detail, "disruption budget") || !theNode(t, name).Spec.Unschedulable ||
			!slices.Equal(podsOf(t, name), []string{held}) {
			t.Errorf("%s; left are %v", r.Detail, podsOf(t, name))
		}
		if cancelled {
			do(t, e, undo(j))
			if got := state(theNode(t, name)); got != "" || len(podsOf(t, name)) != 1 {
				t.Errorf("%s; %v", got, podsOf(t, name))
			}
			continue
		}
		j = again(j)
		go func() { result <- e.Do(ctx, j) }()
		allow(1)
		want(t, <-result, response.Succeeded, "drained of 1 pods")
	}
}

// TestDrainEndsWithEarlierRefusal: the end of the attempt cuts a request off. The result still says why the pods remained.
func TestDrainEndsWithEarlierRefusal(t *testing.T) {
	late := &silentAfterFirst{}
	e, name := newExecutor(t, Config{}, func(next http.RoundTripper) http.RoundTripper { late.next = next; return late }), aNode(t)
	held := createReady(t, name, "late-"+name)
	budget(t, "late-"+name)
	j := acts()[5].job(responseID(), name)
	j.Timeout = 2 * time.Minute
	ctx, over := context.WithCancel(context.Background())
	result := make(chan executor.Result, 1)
	go func() { result <- e.Do(ctx, j) }()
	eventually(t, func() bool { return late.evictions.Load() > 1 }, "a second eviction")
	over()
	r := <-result
	want(t, r, response.Partly, "1 left when its time was over: default/"+held)
	if n := late.evictions.Load(); n < 2 || !strings.Contains(r.Detail, "disruption budget") {
		t.Errorf("%d evictions requested; %s: want the refusal of the first", n, r.Detail)
	}
}

// silentAfterFirst passes the first eviction on. Later ones get no answer.
type silentAfterFirst struct {
	next      http.RoundTripper
	evictions atomic.Int32
}

func (s *silentAfterFirst) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/eviction") && s.evictions.Add(1) > 1 {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return s.next.RoundTrip(r)
}

// TestDrainStopsOnCancelOrUncordon: a drain stops when it is cancelled, when somebody uncordons the node, and when its mark is
// gone. It reports its progress.
func TestDrainStopsOnCancelOrUncordon(t *testing.T) {
	for says, stop := range map[string]func(cancel func(), name string, j executor.Job){
		"left when its time was over": func(cancel func(), _ string, _ executor.Job) { cancel() },
		"somebody has uncordoned it":  func(_ func(), name string, _ executor.Job) { patch(t, name, `{"spec":{"unschedulable":null}}`) },
		"its mark of this step was removed": func(_ func(), name string, j executor.Job) {
			patch(t, name, `{"metadata":{"annotations":{"lofamo.io/did-`+j.Response+`.0":null}}}`)
		},
	} {
		name := aNode(t)
		app := "stop-" + name
		createReady(t, name, app)
		budget(t, app)
		refused := make(chan struct{})
		var once sync.Once
		e := newExecutor(t, Config{}, func(next http.RoundTripper) http.RoundTripper {
			return wrapped(next, func(r *http.Request) (*http.Response, error) {
				res, err := next.RoundTrip(r)
				if strings.HasSuffix(r.URL.Path, "/eviction") {
					once.Do(func() { close(refused) })
				}
				return res, err
			})
		})
		ctx, cancel := context.WithCancel(context.Background())
		j := acts()[5].job(responseID(), name)
		result := make(chan executor.Result)
		go func() { result <- e.Do(ctx, j) }()
		<-refused
		stop(cancel, name, j)
		want(t, <-result, response.Partly, says)
		cancel()
		if len(podsOf(t, name)) != 1 {
			t.Errorf("%s: evicted all the same", says)
		}
	}
}

// TestNewPodOfSameNameIsNotEvicted: the drain evicts the pod that it has seen, not a new one with the same name.
func TestNewPodOfSameNameIsNotEvicted(t *testing.T) {
	name, elsewhere := aNode(t), aNode(t)
	pod := createPod(t, name, "", "")
	path := "/api/v1/namespaces/default/pods"
	var once sync.Once
	e := newExecutor(t, Config{}, func(next http.RoundTripper) http.RoundTripper {
		return wrapped(next, func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/eviction") {
				once.Do(func() {
					admin(t, http.MethodDelete, path+"/"+pod+"?gracePeriodSeconds=0", "", "")
					admin(t, http.MethodPost, path, "", `{"metadata":{"name":"`+pod+`",`+owner("StatefulSet",
						true)+`},"spec":{"nodeName":"`+elsewhere+`","containers":[{"name":"c","image":"i"}]}}`)
				})
			}
			return next.RoundTrip(r)
		})
	})
	want(t, e.Do(context.Background(), acts()[5].job(responseID(), name)), response.Succeeded, "drained of 0 pods")
	var p corev1.Pod
	if err := json.Unmarshal(admin(t, http.MethodGet, path+"/"+pod, "", ""), &p); err != nil || p.DeletionTimestamp != nil {
		t.Errorf("the other pod was evicted: %v", err)
	}
}

// TestForbiddenEvictionBlocksNoOther: a pod whose eviction is forbidden, for example by an admission webhook, does not block the
// others. The attempt requests its eviction once and names it at the end; the next attempt requests it again.
func TestForbiddenEvictionBlocksNoOther(t *testing.T) {
	name := aNode(t)
	var pods []string
	for range 3 {
		pods = append(pods, createPod(t, name, "", ""))
	}
	var forbidden, asked atomic.Int32
	forbidden.Store(1)
	e := newExecutor(t, Config{}, func(next http.RoundTripper) http.RoundTripper {
		return wrapped(next, func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/eviction") && strings.Contains(r.URL.Path, "/"+pods[0]+"/") {
				if asked.Add(1); forbidden.Load() > 0 {
					return &http.Response{
						StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
						Body: io.NopCloser(strings.NewReader(
							`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"admission webhook denied the request","reason":"Forbidden",` +
								`"code":403}`)),
					}, nil
				}
			}
			return next.RoundTrip(r)
		})
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer kubelet(t, ctx, name)()
	defer cancel()
	j := acts()[5].job(responseID(), name)
	want(t, e.Do(ctx, j), response.Partly, "cordoned, 2 pods evicted, 1 left: default/"+pods[0]+": admission webhook denied the request")
	if left := podsOf(t, name); !slices.Equal(left, pods[:1]) || asked.Load() != 1 {
		t.Errorf("left are %v, and its eviction was asked for %d times", left, asked.Load())
	}
	forbidden.Store(0)
	want(t, e.Do(ctx, again(j)), response.Succeeded, "drained of 1 pods")
}

// TestDrainedAndDeleted: a node that an autoscaler deletes once it is empty counts as drained.
func TestDrainedAndDeleted(t *testing.T) {
	name := aNode(t)
	pod := createPod(t, name, "", "")
	e := newExecutor(t, Config{}, func(next http.RoundTripper) http.RoundTripper {
		return wrapped(next, func(r *http.Request) (*http.Response, error) {
			res, err := next.RoundTrip(r)
			if strings.HasSuffix(r.URL.Path, "/eviction") {
				admin(t, http.MethodDelete, "/api/v1/namespaces/default/pods/"+pod+"?gracePeriodSeconds=0", "", "")
				admin(t, http.MethodDelete, "/api/v1/nodes/"+name, "", "")
			}
			return res, err
		})
	})
	want(t, e.Do(context.Background(), acts()[5].job(responseID(), name)), response.Succeeded,
		"drained of 1 pods, and somebody has deleted it since")
}

// TestSlowPodDelaysNoOther: one eviction gets no answer, as from a webhook that hangs. The others still proceed.
func TestSlowPodDelaysNoOther(t *testing.T) {
	name := aNode(t)
	var pods []string
	for range 3 {
		pods = append(pods, createPod(t, name, "", ""))
	}
	var others atomic.Int32
	e := newExecutor(t, Config{}, func(next http.RoundTripper) http.RoundTripper {
		return wrapped(next, func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/eviction") {
				if strings.Contains(r.URL.Path, "/"+pods[0]+"/") && others.Load() < 2 {
					return nil, context.DeadlineExceeded
				}
				others.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer kubelet(t, ctx, name)()
	defer cancel()
	want(t, e.Do(ctx, acts()[5].job(responseID(), name)), response.Succeeded, "drained of 3 pods")
}

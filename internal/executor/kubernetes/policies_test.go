package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
)

// policyStore stands for the supervisor: it accepts objects whose mode is not enforce.
type policyStore struct {
	mu       sync.Mutex
	passes   []time.Time
	names    []string // of the last pass
	complete bool
	large    bool // one object was too large
	fired    time.Time
}

func (s *policyStore) keep(_ context.Context, objects []FaultPolicy, complete bool) (map[string]PolicyStanding, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passes, s.names, s.complete, s.large = append(s.passes, time.Now()), nil, complete, false
	out := map[string]PolicyStanding{}
	for _, o := range objects {
		s.names, s.large = append(s.names, o.Name), s.large || o.Large
		st := PolicyStanding{Accepted: true, Reason: "InForce", Message: "in force", Mode: "observe-only", Version: 3, Fired: s.fired}
		if strings.Contains(string(o.Spec), "enforce") {
			st.Accepted, st.Reason, st.Message = false, "Invalid", strings.Repeat("ä", 4000)
		}
		out[o.Name] = st
	}
	return out, false, nil
}

func (s *policyStore) last() (names string, complete bool, passes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.names, " "), s.complete, len(s.passes)
}

// followPolicies runs a follower until the returned function is called.
func followPolicies(t *testing.T, ns string, keep KeepPolicies) (stop func()) {
	t.Helper()
	p := newPolicies(config.KubernetesObjects{Namespace: ns, Policies: true}.Filled(), objectsClient(t, cluster(t).Addr), keep, quiet)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// acceptedOf renders the status of an object: its condition, generation, mode and version.
func acceptedOf(t *testing.T, ns, name string) string {
	t.Helper()
	o := listObjects(t, ns, "faultpolicies")[name]
	st := policyStatusOf(o.Status)
	if len(st.Conditions) != 1 {
		return ""
	}
	c := st.Conditions[0]
	return fmt.Sprintf("%s %s %d/%d %s %d", c.Status, c.Reason, st.ObservedGeneration, o.Metadata.Generation, st.Mode, st.Version)
}

// TestFaultPoliciesAreFollowed: objects reach the supervisor, and their status shows the result. Another leader writes nothing that stands.
func TestFaultPoliciesAreFollowed(t *testing.T) {
	ns, s := objectsNamespace(t), &policyStore{}
	stop := followPolicies(t, ns, s.keep)
	for _, name := range []string{"a", "b"} {
		if err := createPolicy(t, ns, name, policySpec("kubernetes.cordon", ""), false); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "both to be accepted", func() bool {
		return acceptedOf(t, ns, "a") == "True InForce 1/1 observe-only 3" && acceptedOf(t, ns, "b") == "True InForce 1/1 observe-only 3"
	})
	path := objectsPath(ns, "faultpolicies") + "/a"
	admin(t, http.MethodPatch, path, kubetest.MergePatch, `{"spec":{"mode":"enforce"}}`)
	await(t, "a refusal of the next generation", func() bool { return acceptedOf(t, ns, "a") == "False Invalid 2/2 observe-only 3" })
	// Conditions of others stay, and an edit of ours is put right.
	admin(t, http.MethodPatch, path+"/status", kubetest.MergePatch, `{"status":{"version":9,"conditions":[{"type":"Mine","status":"True",
		"reason":"Mine","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`)
	await(t, "the edit to be put right", func() bool { return acceptedOf(t, ns, "a") == "False Invalid 2/2 observe-only 3" })
	if o := listObjects(t, ns, "faultpolicies")["a"]; !strings.Contains(string(o.Status), `"Mine"`) {
		t.Errorf("the condition of others is gone: %s", o.Status)
	}
	stop()
	before, next := listObjects(t, ns, "faultpolicies"), &policyStore{}
	stop = followPolicies(t, ns, next.keep)
	await(t, "a pass of the next leader", func() bool { _, _, n := next.last(); return n > 0 })
	admin(t, http.MethodDelete, path, "", "")
	await(t, "the deleted object to be gone", func() bool { names, complete, _ := next.last(); return names == "b" && complete })
	stop()
	for name, o := range listObjects(t, ns, "faultpolicies") {
		if o.Metadata.ResourceVersion != before[name].Metadata.ResourceVersion {
			t.Errorf("%s: an unchanged status was written", name)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, at := range s.passes[1:] {
		if pause := at.Sub(s.passes[i]); pause < policiesEvery {
			t.Errorf("pass %d came %s after the one before: want %s at least", i+1, pause, policiesEvery)
		}
	}
}

// TestUnreachableServerLeavesPolicies: while the API server hangs, passes see the objects as last read. A term ends at once. A new
// leader does nothing before it has read the objects.
func TestUnreachableServerLeavesPolicies(t *testing.T) {
	ns, s := objectsNamespace(t), &policyStore{}
	stop := followPolicies(t, ns, s.keep)
	if err := createPolicy(t, ns, "a", policySpec("kubernetes.cordon", ""), false); err != nil {
		t.Fatal(err)
	}
	await(t, "the object", func() bool { return acceptedOf(t, ns, "a") != "" })
	server := cluster(t)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Continue() }) // all tests share the server
	_, _, passes := s.last()
	s.mu.Lock()
	s.fired = time.Now()
	s.mu.Unlock()
	await(t, "a pass while the server hangs", func() bool { _, _, n := s.last(); return n > passes })
	names, complete, after := s.last()
	begin := time.Now()
	stop()
	took := time.Since(begin)
	fresh := &policyStore{}
	stop = followPolicies(t, ns, fresh.keep)
	time.Sleep(3 * time.Second)
	_, _, none := fresh.last()
	if err := server.Continue(); err != nil {
		t.Fatal(err)
	}
	if names != "a" || !complete || after == passes {
		t.Errorf("%q, complete %v, %d passes before and %d now: want a pass with the object", names, complete, passes, after)
	}
	if took > 20*time.Second {
		t.Errorf("the follower ended after %s: want at once", took)
	}
	if none != 0 {
		t.Errorf("%d passes of a leader that has read nothing", none)
	}
	await(t, "the object again", func() bool { names, _, _ := fresh.last(); return names == "a" })
	stop()
}

// TestPoliciesAreBounded: with more objects than the copy holds, no list is complete, so that no policy is withdrawn.
func TestPoliciesAreBounded(t *testing.T) {
	ns, s := objectsNamespace(t), &policyStore{}
	for _, name := range []string{"a", "b", "c"} {
		if err := createPolicy(t, ns, name, policySpec("kubernetes.cordon", ""), false); err != nil {
			t.Fatal(err)
		}
	}
	p := newPolicies(config.KubernetesObjects{Namespace: ns}, objectsClient(t, cluster(t).Addr), s.keep, slog.New(slog.DiscardHandler))
	p.r.most = 2
	if _, err := p.r.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.pass(t.Context(), time.Now())
	if names, complete, _ := s.last(); names != "a b" || complete || !strings.Contains(reasons(p.failing), "more than 250") {
		t.Errorf("%q, complete %v, said %q", names, complete, reasons(p.failing))
	}
	big, err := readObject([]byte(`{"apiVersion":"`+objectsVersion+`","kind":"FaultPolicy","metadata":{"name":"a"},"spec":{"match":"`+
		strings.Repeat("x", maxObjectPart)+`"}}`), "FaultPolicy")
	if err != nil {
		t.Fatal(err)
	}
	p.r.mu.Lock() // a worker may still write a status
	p.r.objects, p.r.over = map[string]object{"a": big}, false
	p.r.mu.Unlock()
	p.pass(t.Context(), time.Now())
	if !s.large {
		t.Error("the supervisor does not learn that an object is too large")
	}
}

// TestStatusOfAnotherObjectIsRefused: a status for a deleted object does not reach the object that has its name now, and brings back none.
func TestStatusOfAnotherObjectIsRefused(t *testing.T) {
	ns := objectsNamespace(t)
	if err := createPolicy(t, ns, "a", policySpec("kubernetes.cordon", ""), false); err != nil {
		t.Fatal(err)
	}
	p := newPolicies(config.KubernetesObjects{Namespace: ns}, objectsClient(t, cluster(t).Addr), nil, quiet)
	if _, err := p.r.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	have, _, _ := p.r.all()
	admin(t, http.MethodDelete, objectsPath(ns, "faultpolicies")+"/a", "", "")
	status := wantedStatus(have["a"], FaultPolicyStatus{}, PolicyStanding{Accepted: true, Reason: "InForce"}, time.Now())
	if _, err := p.r.applyStatus(t.Context(), have["a"], status); err == nil {
		t.Error("the status of a deleted object was written")
	}
	if err := createPolicy(t, ns, "a", policySpec("kubernetes.cordon", ""), false); err != nil {
		t.Fatal(err)
	}
	if _, err := p.r.applyStatus(t.Context(), have["a"], status); err == nil {
		t.Error("the status of an earlier object was written")
	}
	if got := acceptedOf(t, ns, "a"); got != "" {
		t.Errorf("status %q: want none", got)
	}
	p.r.remove(have["a"])
	fresh := listObjects(t, ns, "faultpolicies")["a"]
	if _, err := p.r.applyStatus(t.Context(), fresh, status); err != nil {
		t.Error(err)
	}
	if l, _, _ := p.r.all(); len(l) != 0 {
		t.Errorf("the answer to a status put %v into the copy", l)
	}
}

// TestPolicyStatusChangesWithItsCondition: the time of the condition is that of its last change, and lastFired never goes back, unless it
// is in the future.
func TestPolicyStatusChangesWithItsCondition(t *testing.T) {
	var o object
	o.Metadata.Generation = 4
	at := func(s int64) time.Time { return time.Unix(s, 500) }
	first := wantedStatus(o, FaultPolicyStatus{}, PolicyStanding{Accepted: true, Reason: "InForce", Fired: at(50)}, at(100))
	same := wantedStatus(o, first, PolicyStanding{Accepted: true, Reason: "InForce", Fired: at(40)}, at(200))
	other := wantedStatus(o, same, PolicyStanding{Reason: "Invalid", Fired: at(60)}, at(300))
	forged := other
	forged.LastFired = metav1.NewTime(at(4000))
	forged = wantedStatus(o, forged, PolicyStanding{Reason: "Invalid", Fired: at(60)}, at(400))
	for _, tc := range []struct {
		st           FaultPolicyStatus
		status       metav1.ConditionStatus
		since, fired int64
	}{{first, "True", 100, 50}, {same, "True", 100, 50}, {other, "False", 300, 60}, {forged, "False", 300, 60}} {
		if c := tc.st.Conditions[0]; c.Status != tc.status || c.LastTransitionTime.Unix() != tc.since || c.ObservedGeneration != 4 ||
			tc.st.LastFired.Unix() != tc.fired || tc.st.ObservedGeneration != 4 {
			t.Errorf("%+v", tc.st)
		}
	}
}

// TestErrorOfTheStoreIsRetried: an error of the supervisor's store changes no status.
func TestErrorOfTheStoreIsRetried(t *testing.T) {
	ns := objectsNamespace(t)
	if err := createPolicy(t, ns, "a", policySpec("kubernetes.cordon", ""), false); err != nil {
		t.Fatal(err)
	}
	failed := func(context.Context, []FaultPolicy, bool) (map[string]PolicyStanding, bool, error) {
		return nil, true, errors.New("no quorum")
	}
	p := newPolicies(config.KubernetesObjects{Namespace: ns}, objectsClient(t, cluster(t).Addr), failed, quiet)
	if more := p.pass(t.Context(), time.Now()); more {
		t.Error("a pass without a list wants another one at once")
	}
	if _, err := p.r.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	if more := p.pass(t.Context(), time.Now()); !more || reasons(p.failing) != "no quorum" {
		t.Errorf("more %v, said %q", more, reasons(p.failing))
	}
	if got := acceptedOf(t, ns, "a"); got != "" {
		t.Errorf("status %q: want none", got)
	}
}

package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
)

// incidents are the source of a keeper.
type incidents struct {
	mu      sync.Mutex
	list    []Fault
	changed chan struct{}
}

func (s *incidents) set(list ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list = list; s.changed != nil {
		close(s.changed)
	}
	s.changed = make(chan struct{})
}

func (s *incidents) source() ([]Fault, <-chan struct{}, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list, s.changed, s.changed != nil
}

var someTime = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

func aFault(name string) Fault {
	return Fault{Name: name, Grave: 2, Status: FaultStatus{
		State: "OPEN", Severity: "CRITICAL", Component: "node", Node: "n1", Fault: "FAILED", Cause: "NODE", Since: someTime,
		Summary:      "node n1 is FAILED",
		Consequences: 3, Evidence: []string{"SILENCE of n2/dnp: FAILED"}, Witnesses: []string{"n2/dnp"},
		Conditions: []metav1.Condition{{Type: FaultActive, Status: "True", Reason: "Open", LastTransitionTime: someTime}},
	}}
}

// keepFaults runs a keeper until the returned function is called.
func keepFaults(t *testing.T, cfg config.KubernetesObjects, c *client, src *incidents) (stop func()) {
	t.Helper()
	cfg = cfg.Filled()
	f := newFaults(cfg, c, "test", src.source, quiet)
	f.unknown = 0
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Run(ctx)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

func statusOf(t *testing.T, o object) FaultStatus {
	t.Helper()
	var st FaultStatus
	if len(o.Status) > 0 {
		if err := json.Unmarshal(o.Status, &st); err != nil {
			t.Fatal(err)
		}
	}
	return st
}

// TestFaultObjectsFollowIncidents: objects appear, change and go with their incidents. Edits of people are put right, their own
// additions stay, and another leader continues without a write.
func TestFaultObjectsFollowIncidents(t *testing.T) {
	ns := objectsNamespace(t)
	src, cfg := &incidents{}, config.KubernetesObjects{Namespace: ns, Faults: true}
	c := objectsClient(t, cluster(t).Addr)
	stop := keepFaults(t, cfg, c, src)
	src.set(aFault("k-a"), aFault("k-b"))
	await(t, "two objects", func() bool {
		l := listObjects(t, ns, "faults")
		return len(l) == 2 && statusOf(t, l["k-a"]).Summary != "" && statusOf(t, l["k-b"]).Summary != ""
	})
	table := string(admin(t, http.MethodGet, objectsPath(ns, "faults"), "", ""))
	if !strings.Contains(table, `"lofamo.io/node":"n1"`) {
		t.Errorf("no label of the node in %s", table)
	}

	// A person edits the status and the labels, adds a label, and creates an object without an incident.
	path := objectsPath(ns, "faults") + "/k-a"
	admin(t, http.MethodPatch, path+"/status?fieldManager=somebody", kubetest.MergePatch,
		`{"status":{"summary":"all is well","cause":"SENSOR"}}`)
	admin(t, http.MethodPatch, path+"?fieldManager=somebody", kubetest.MergePatch,
		`{"metadata":{"labels":{"lofamo.io/node":"n7","mine":"yes"}}}`)
	admin(t, http.MethodPost, objectsPath(ns, "faults"), "", `{"apiVersion":"`+objectsVersion+`","kind":"Fault","metadata":{"name":"false",
		"labels":{"lofamo.io/cluster":"test"}},"spec":{"cluster":"test","incident":"false"}}`)
	admin(t, http.MethodDelete, objectsPath(ns, "faults")+"/k-b", "", "")
	if _, err := cluster(t).Admin.Do(http.MethodPatch, path, kubetest.MergePatch, []byte(`{"spec":{"incident":"k-b"}}`)); err == nil ||
		!strings.Contains(err.Error(), "one incident for ever") {
		t.Errorf("the identity can be changed: %v", err)
	}
	await(t, "the edits to be put right", func() bool {
		l := listObjects(t, ns, "faults")
		a := l["k-a"]
		st := statusOf(t, a)
		return len(l) == 2 && st.Summary == "node n1 is FAILED" && st.Cause == "NODE" && a.Metadata.Labels["lofamo.io/node"] == "n1" &&
			a.Metadata.Labels["mine"] == "yes" && statusOf(t, l["k-b"]).Summary != ""
	})

	// Another leader begins: it changes no current object, removes old objects, and adds new ones.
	stop()
	before := listObjects(t, ns, "faults")["k-a"].Metadata.ResourceVersion
	closed := aFault("k-c")
	closed.Closed = time.Now()
	closed.Status.State = "CLOSED"
	src.set(aFault("k-a"), closed)
	keepFaults(t, cfg, c, src)
	await(t, "the next leader's objects", func() bool {
		l := listObjects(t, ns, "faults")
		_, b := l["k-b"]
		return len(l) == 2 && !b && statusOf(t, l["k-c"]).State == "CLOSED"
	})
	if after := listObjects(t, ns, "faults")["k-a"].Metadata.ResourceVersion; after != before {
		t.Errorf("version %s before, %s after: an unchanged object was written", before, after)
	}
	closed.Closed = time.Now().Add(-time.Hour)
	src.set(aFault("k-a"), closed)
	await(t, "the closed incident's object to go", func() bool { return len(listObjects(t, ns, "faults")) == 1 })
}

// TestFaultObjectsAreBounded: of many incidents the gravest and oldest have objects, and one object counts the others.
func TestFaultObjectsAreBounded(t *testing.T) {
	ns := objectsNamespace(t)
	src := &incidents{}
	var all []Fault
	for i := range 40 {
		in := aFault(fmt.Sprintf("k-%02d", i))
		in.Grave = 1
		in.Status.Since = metav1.NewTime(someTime.Add(time.Duration(i) * time.Second))
		in.Status.Summary = strings.Repeat("ä", 4000)
		for range 40 {
			in.Status.Evidence = append(in.Status.Evidence, strings.Repeat("x", 4000))
		}
		all = append(all, in)
	}
	all[39].Grave = 2
	src.set(all...)
	keepFaults(t, config.KubernetesObjects{Namespace: ns, Faults: true, MaxFaults: 5}, objectsClient(t, cluster(t).Addr), src)
	await(t, "six objects", func() bool {
		l := listObjects(t, ns, "faults")
		rest := 0
		for _, o := range l {
			rest += statusOf(t, o).NotListed
		}
		return len(l) == 6 && rest == 35 && statusOf(t, l["k-39"]).Summary != "" && statusOf(t, l["k-03"]).Summary != ""
	})
	src.set(all[:5]...)
	await(t, "five objects", func() bool {
		l := listObjects(t, ns, "faults")
		_, there := l["k-39"]
		return len(l) == 5 && !there
	})
}

// TestFaultKeeperEndsWhileTheServerHangs: a term ends at once although the API server answers nothing, and later the objects
// are right.
func TestFaultKeeperEndsWhileTheServerHangs(t *testing.T) {
	ns := objectsNamespace(t)
	src, cfg := &incidents{}, config.KubernetesObjects{Namespace: ns, Faults: true}
	c := objectsClient(t, cluster(t).Addr)
	stop := keepFaults(t, cfg, c, src)
	src.set(aFault("k-a"))
	await(t, "an object", func() bool { return len(listObjects(t, ns, "faults")) == 1 })
	s := cluster(t)
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Continue() }) // so that other tests run if this one fails
	src.set(aFault("k-a"), aFault("k-b"))
	time.Sleep(200 * time.Millisecond)
	begin := time.Now()
	stop()
	took := time.Since(begin)
	stop = keepFaults(t, cfg, c, src)
	time.Sleep(200 * time.Millisecond)
	if err := s.Continue(); err != nil {
		t.Fatal(err)
	}
	if took > c.timeout/2 {
		t.Errorf("the keeper ended after %s: want at once", took)
	}
	await(t, "two objects", func() bool { return len(listObjects(t, ns, "faults")) == 2 })
	stop()
}

// TestFaultKeeperReadsNoMoreThanItKeeps: the copy of somebody else's objects is bounded.
func TestFaultKeeperReadsNoMoreThanItKeeps(t *testing.T) {
	ns := objectsNamespace(t)
	for i := range 60 {
		admin(t, http.MethodPost, objectsPath(ns, "faults"), "", fmt.Sprintf(`{"apiVersion":%q,"kind":"Fault","metadata":{"name":"x-%d",
			"labels":{"lofamo.io/cluster":"test"},"annotations":{"much":%q}},"spec":{"cluster":"test","incident":"x","unknown":"field"}}`,
			objectsVersion, i, strings.Repeat("y", 100_000)))
	}
	r := newResource(objectsClient(t, cluster(t).Addr), ns, "faults", "Fault", "", 40, quiet)
	if _, err := r.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l, over, synced := r.all(); len(l) != 40 || !over || !synced {
		t.Errorf("%d objects, more %v, read %v: want 40 and more", len(l), over, synced)
	}
	// The keeper removes all objects, over some lists.
	src := &incidents{}
	src.set()
	keepFaults(t, config.KubernetesObjects{Namespace: ns, Faults: true}, objectsClient(t, cluster(t).Addr), src)
	await(t, "no object", func() bool { return len(listObjects(t, ns, "faults")) == 0 })
}

// FuzzObjects: no answer of an API server ends the process, and nothing larger than the bound is kept.
func FuzzObjects(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"lofamo.io/v1alpha1","kind":"Fault","metadata":{"name":"a","uid":"u","resourceVersion":"7"},
		"spec":{"cluster":"c","incident":"a"},"status":{"state":"OPEN"}}`))
	f.Add([]byte(`{"apiVersion":"lofamo.io/v1alpha1","kind":"FaultList","metadata":{"resourceVersion":"1","continue":"x"},
		"items":[{"apiVersion":"lofamo.io/v1alpha1","kind":"Fault","metadata":{"name":"a","labels":{"a":"b"}}},{}]}`))
	f.Add([]byte(`{"type":"ADDED","object":{"apiVersion":"lofamo.io/v1alpha1","kind":"Fault","metadata":{"name":"a"}}}{"type":"ERROR"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(o object) {
			if len(o.Spec) > maxObjectPart || len(o.Status) > maxObjectPart {
				t.Errorf("kept %d and %d bytes", len(o.Spec), len(o.Status))
			}
			sameJSON(o.Spec, FaultSpec{})
			sameStatus(o.Status, FaultStatus{})
			policyStatusOf(o.Status)
		}
		if o, err := readObject(b, "Fault"); err == nil {
			check(o)
		}
		_, items, _ := readPage(b, "Fault")
		for _, o := range items {
			check(o)
		}
		readEvents(bytes.NewReader(b), "Fault", func(_ string, o object) bool { check(o); return true })
	})
}

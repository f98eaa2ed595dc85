package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lofamo/lofamo/internal/config"
)

// objectServer is an API server that has only objects of one kind.
type objectServer struct {
	mu      sync.Mutex
	names   []string
	down    bool
	lists   int                   // all requests for a list
	writes  []string              // "PATCH name", "DELETE name"
	events  chan string           // for the watch
	patched func(name string) int // returns the code of the answer; nil: always 200
}

func (f *objectServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Has("watch") {
		f.watch(w, r)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")[5:] // apis/GROUP/VERSION/namespaces/NAMESPACE
	kind := map[string]string{"faults": "Fault", "faultpolicies": "FaultPolicy"}[parts[0]]
	parts = parts[1:]
	switch {
	case len(parts) == 0:
		f.lists++
		if f.down {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		var items []json.RawMessage
		for _, name := range f.names {
			items = append(items, json.RawMessage(testObject(kind, name, 1)))
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": objectsVersion, "kind": kind + "List",
			"metadata": metav1.ListMeta{ResourceVersion: "1"}, "items": items})
	default:
		f.writes = append(f.writes, r.Method+" "+parts[0])
		code := http.StatusOK
		if f.patched != nil {
			code = f.patched(parts[0])
		}
		w.WriteHeader(code)
		if code == http.StatusOK {
			_, _ = w.Write([]byte(testObject(kind, parts[0], 1)))
		}
	}
}

// watch sends the events until the client goes.
func (f *objectServer) watch(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	for {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case ev := <-f.events:
			_, _ = w.Write([]byte(ev))
		}
	}
}

// set changes the server, and returns the number of lists before.
func (f *objectServer) set(down bool, names ...string) (lists int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down, f.names = down, names
	return f.lists
}

func (f *objectServer) seen() (lists int, writes []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists, slices.Clone(f.writes)
}

// testObject renders an object that belongs to the cluster "torus".
func testObject(kind, name string, generation int) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"uid":"u%s","resourceVersion":"%d","generation":%d,
		"labels":{%q:"torus"}},"spec":{}}`, objectsVersion, kind, name, name, generation, generation, clusterLabel)
}

// serveObjects starts the server, and returns a configuration for it.
func serveObjects(t *testing.T, f *objectServer) config.KubernetesObjects {
	t.Helper()
	f.events = make(chan string)
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a}}],
clusters: [{name: a, cluster: {server: "` + server.URL + `"}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.KubernetesObjects{Namespace: "fabric", Kubeconfig: path}
}

// term runs a follower until the returned function is called.
func term(t *testing.T, run func(context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// TestSecondTermUsesNoPoliciesOfTheFirst: a replica that leads again waits for a new list. Others led meanwhile.
func TestSecondTermUsesNoPoliciesOfTheFirst(t *testing.T) {
	f, s := &objectServer{names: []string{"a"}}, &policyStore{}
	p, err := NewPolicies(serveObjects(t, f), s.keep, quiet)
	if err != nil {
		t.Fatal(err)
	}
	stop := term(t, p.Run)
	await(t, "a pass of the first term", func() bool { names, _, _ := s.last(); return names == "a" })
	stop()
	_, _, before := s.last()
	lists := f.set(true)
	term(t, p.Run)
	await(t, "two lists that fail", func() bool { n, _ := f.seen(); return n >= lists+2 })
	if names, _, n := s.last(); n != before {
		t.Errorf("the second term took %q before it had read anything", names)
	}
	f.set(false, "b")
	await(t, "a pass with the new list", func() bool { names, complete, n := s.last(); return n > before && names == "b" && complete })
}

// TestSecondTermUsesNoFaultsOfTheFirst is the same for Faults, which a term deletes.
func TestSecondTermUsesNoFaultsOfTheFirst(t *testing.T) {
	f := &objectServer{names: []string{"a"}}
	var mu sync.Mutex
	ready := false
	changed := make(chan struct{})
	k, err := NewFaults(serveObjects(t, f), "torus", func() ([]Fault, <-chan struct{}, bool) {
		mu.Lock()
		defer mu.Unlock()
		return nil, changed, ready
	}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	k.unknown = 0
	stop := term(t, k.Run)
	await(t, "a list", func() bool { l, _, synced := k.r.all(); return synced && len(l) == 1 })
	stop()
	lists := f.set(true)
	mu.Lock()
	ready = true
	mu.Unlock()
	term(t, k.Run)
	await(t, "two lists that fail", func() bool { n, _ := f.seen(); return n >= lists+2 })
	if _, writes := f.seen(); len(writes) != 0 {
		t.Errorf("%v: the second term acts on objects of the first", writes)
	}
	f.set(false, "b")
	await(t, "the object of the new list to be deleted", func() bool {
		_, writes := f.seen()
		return len(writes) > 0 && !slices.Contains(writes, "DELETE a") && slices.Contains(writes, "DELETE b")
	})
}

// TestDeletionEndsAnExcess: when an object of too many is deleted, the leader lists again at once, so that deletions have an effect.
func TestDeletionEndsAnExcess(t *testing.T) {
	for _, gone := range []string{"a", "c"} { // one that the copy holds, and one beyond
		f, s := &objectServer{names: []string{"a", "b", "c"}}, &policyStore{}
		p, err := NewPolicies(serveObjects(t, f), s.keep, quiet)
		if err != nil {
			t.Fatal(err)
		}
		p.r.most = 2
		stop := term(t, p.Run)
		await(t, "a pass with too many objects", func() bool { names, complete, _ := s.last(); return names == "a b" && !complete })
		rest := slices.DeleteFunc([]string{"a", "b", "c"}, func(name string) bool { return name == gone })
		f.set(false, rest...)
		f.events <- `{"type":"DELETED","object":` + testObject("FaultPolicy", gone, 1) + `}`
		await(t, "a complete list without "+gone, func() bool {
			names, complete, _ := s.last()
			return complete && names == strings.Join(rest, " ")
		})
		stop()
	}
}

// TestFailedStatusStopsNoOther: a write of a status that fails stops no other one. A conflict is no failure: the watch brings the change.
func TestFailedStatusStopsNoOther(t *testing.T) {
	for _, tc := range []struct {
		name   string
		answer func(r *resource, name string) int
		said   bool
	}{
		{"all written", func(*resource, string) int { return http.StatusOK }, false},
		{"conflict", func(*resource, string) int { return http.StatusConflict }, false},
		{"refusal", func(*resource, string) int { return http.StatusUnprocessableEntity }, true},
		{"server out of order", func(*resource, string) int { return http.StatusServiceUnavailable }, true},
		{"object deleted", func(r *resource, name string) int {
			if name == "a" {
				r.remove(object{Metadata: objectMeta{Name: "c", UID: "uc"}})
			}
			return http.StatusOK
		}, false},
		{"status changed", func(r *resource, _ string) int {
			o := object{Metadata: objectMeta{Name: "c", UID: types.UID("uc"), Generation: 1, ResourceVersion: "2"}}
			r.put(o, false)
			return http.StatusOK
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, s := &objectServer{names: []string{"a", "b", "c"}}, &policyStore{}
			p, err := NewPolicies(serveObjects(t, f), s.keep, quiet)
			if err != nil {
				t.Fatal(err)
			}
			f.patched = func(name string) int { return tc.answer(p.r, name) }
			if _, err := p.r.list(t.Context()); err != nil {
				t.Fatal(err)
			}
			more := p.pass(t.Context(), time.Now())
			p.settleBusy(t.Context())
			if _, writes := f.seen(); len(writes) != 3 || more || len(p.failing.of) > 0 != tc.said {
				t.Errorf("%v, more %v, failing %v: want 3 writes, and no pass at once", writes, more, p.failing.of)
			}
		})
	}
}

// TestDeniedStatusStopsNoOther: if the API server keeps denying the status of one object, the others get theirs.
func TestDeniedStatusStopsNoOther(t *testing.T) {
	for _, denied := range []string{"a", "b", "c"} {
		f, s := &objectServer{names: []string{"a", "b", "c"}}, &policyStore{}
		p, err := NewPolicies(serveObjects(t, f), s.keep, quiet)
		if err != nil {
			t.Fatal(err)
		}
		f.patched = func(name string) int {
			if name == denied {
				return http.StatusForbidden
			}
			return http.StatusOK
		}
		if _, err := p.r.list(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if more := p.pass(t.Context(), time.Now()); more {
				t.Errorf("%s denied: want no pass at once", denied)
			}
			p.settleBusy(t.Context())
		}
		if reasons(p.failing) == "" {
			t.Errorf("%s denied: want an error", denied)
		}
		_, writes := f.seen()
		for _, name := range f.names {
			if !slices.Contains(writes, "PATCH "+name) {
				t.Errorf("%s denied: writes %v: want one of %s", denied, writes, name)
			}
		}
	}
}

// TestDenialOfAllStatusIsLoggedOnce: if the API server denies the status of each object, the first pass tries each, they pause, and the log
// has one line.
func TestDenialOfAllStatusIsLoggedOnce(t *testing.T) {
	f, s := &objectServer{names: []string{"policy-1", "policy-2", "policy-3"}}, &policyStore{}
	var log bytes.Buffer
	p, err := NewPolicies(serveObjects(t, f), s.keep, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	f.patched = func(string) int { return http.StatusForbidden }
	if _, err := p.r.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		p.pass(t.Context(), time.Now())
		p.settleBusy(t.Context())
	}
	if _, writes := f.seen(); len(writes) != 3 || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("writes %v, log %q: want one write of each object, and one line", writes, log.String())
	}
}

// TestForeignLabelsAreNotKept: the bound of the copy holds for objects with many labels.
func TestForeignLabelsAreNotKept(t *testing.T) {
	labels := map[string]string{clusterLabel: "torus", nodeLabel: "n1"}
	for i := range 1000 {
		labels[fmt.Sprintf("example.com/%d", i)] = "x"
	}
	b, err := json.Marshal(map[string]any{"apiVersion": objectsVersion, "kind": "Fault",
		"metadata": map[string]any{"name": "a", "labels": labels}})
	if err != nil {
		t.Fatal(err)
	}
	o, err := readObject(b, "Fault")
	if l := o.Metadata.Labels; err != nil || len(l) != 2 || l[clusterLabel] != "torus" || l[nodeLabel] != "n1" {
		t.Errorf("%d labels, %v: want the two that are used", len(l), err)
	}
}

package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/lofamo/lofamo/internal/config"
)

// memoryFaults is an API server of Fault objects in memory, for tests in a bubble. Its watch is silent: the keeper knows its own writes.
type memoryFaults struct {
	answer func(ctx context.Context, name string) int // the code of the answer to a write; 0: none

	unknown []string // fields of the status that an earlier definition lacks
	strips  bool     // a webhook removes the label of the node

	mu      sync.Mutex
	version int
	objects map[string]map[string]any
	writes  map[string]int
}

// CloseIdleConnections implements the interface that client-go looks for.
func (*memoryFaults) CloseIdleConnections() {}

func (m *memoryFaults) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("watch") == "true" {
		body, _ := io.Pipe()
		context.AfterFunc(r.Context(), func() { _ = body.Close() })
		return jsonAnswer(http.StatusOK, body), nil
	}
	if r.Method == http.MethodGet {
		m.mu.Lock()
		defer m.mu.Unlock()
		return jsonAnswer(http.StatusOK, asBody(map[string]any{"apiVersion": objectsVersion, "kind": "FaultList",
			"metadata": map[string]any{"resourceVersion": fmt.Sprint(m.version)}, "items": slices.Collect(maps.Values(m.objects))})), nil
	}
	name, status := path.Base(r.URL.Path), false
	if name == "status" {
		name, status = path.Base(path.Dir(r.URL.Path)), true
	}
	m.mu.Lock()
	m.writes[name]++
	m.mu.Unlock()
	switch code := m.answer(r.Context(), name); code {
	case http.StatusOK:
	case 0:
		return nil, context.Cause(r.Context())
	default:
		return jsonAnswer(code, asBody(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
			"message": fmt.Sprintf("faults %q: no", name)})), nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Method == http.MethodDelete {
		delete(m.objects, name)
		return jsonAnswer(http.StatusOK, asBody(map[string]any{})), nil
	}
	var given map[string]any
	if err := json.NewDecoder(r.Body).Decode(&given); err != nil {
		return nil, err
	}
	o := m.objects[name]
	if o == nil {
		o = map[string]any{"apiVersion": objectsVersion, "kind": "Fault"}
		m.objects[name] = o
	}
	before := fmt.Sprint(o["spec"], o["status"])
	if !status {
		labels, _ := given["metadata"].(map[string]any)["labels"].(map[string]any)
		if m.strips {
			delete(labels, nodeLabel)
		}
		o["metadata"], o["spec"] = map[string]any{"name": name, "uid": "u-" + name, "labels": labels,
			"resourceVersion": o["version"]}, given["spec"]
	} else {
		st := given["status"].(map[string]any)
		for _, field := range m.unknown {
			delete(st, field)
		}
		o["status"] = st
	}
	if fmt.Sprint(o["spec"], o["status"]) != before {
		m.version++
		o["version"] = fmt.Sprint(m.version)
		o["metadata"].(map[string]any)["resourceVersion"] = o["version"]
	}
	return jsonAnswer(http.StatusOK, asBody(o)), nil
}

// stateOf returns the state in the status of an object; "" without one.
func (m *memoryFaults) stateOf(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	st, _ := m.objects[name]["status"].(map[string]any)
	state, _ := st["state"].(string)
	return state
}

// all returns whether all objects have the state.
func (m *memoryFaults) all(list []Fault, state string) func() bool {
	return func() bool {
		return !slices.ContainsFunc(list, func(in Fault) bool { return m.stateOf(in.Name) != state })
	}
}

// faultsInMemory returns a keeper that has read the objects of a server in memory: there are none.
func faultsInMemory(t *testing.T, s *memoryFaults, src *incidents, log io.Writer) *Faults {
	t.Helper()
	s.objects, s.writes = map[string]map[string]any{}, map[string]int{}
	k := Config{}.Filled()
	k.QPS, k.Burst = objectsQPS, objectsBurst
	c, err := newClient(k, &rest.Config{Host: "http://memory", Transport: s})
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.KubernetesObjects{Namespace: "a", Faults: true}.Filled()
	f := newFaults(cfg, c, "test", src.source, slog.New(slog.NewTextHandler(log, nil)))
	f.r.synced = true
	return f
}

// runFaults runs a keeper until the returned function is called.
func runFaults(t *testing.T, f *Faults) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	return sync.OnceFunc(func() { cancel(); <-done })
}

// faultsNamed returns n faults with the prefix in their names.
func faultsNamed(prefix string, n int) (out []Fault) {
	for i := range n {
		out = append(out, aFault(fmt.Sprintf("%s-%03d", prefix, i)))
	}
	return out
}

// TestDeadServerGetsFewRequests: a server without answers gets a bounded number of requests at a time, also if objects must go, and each
// object once a minute in the end. All objects follow when it answers again.
func TestDeadServerGetsFewRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dead atomic.Bool
		var open, most, all atomic.Int64
		s := &memoryFaults{answer: func(ctx context.Context, _ string) int {
			if !dead.Load() {
				return http.StatusOK
			}
			all.Add(1)
			most.Store(max(most.Load(), open.Add(1)))
			defer open.Add(-1)
			<-ctx.Done()
			return 0
		}}
		src := &incidents{}
		f := faultsInMemory(t, s, src, io.Discard)
		stop := runFaults(t, f)
		defer stop()
		src.set(faultsNamed("old", 4)...)
		time.Sleep(time.Minute)
		dead.Store(true)
		list := faultsNamed("new", 20)
		src.set(list...)
		time.Sleep(10 * time.Minute)
		if n := all.Load(); most.Load() > workersMost || n < 24*9 || n > 24*14 {
			t.Errorf("%d requests, %d at a time: want each object once a minute and a few more, %d at a time", n, most.Load(), workersMost)
		}
		dead.Store(false)
		if took := takes(time.Hour, s.all(list, "OPEN")); took > retryMost+15*time.Second {
			t.Errorf("all objects stand after %s", took)
		}
		time.Sleep(time.Minute)
		stop()
		if len(s.objects) != 20 || len(f.failing.of) != 0 || len(f.busy) != 0 {
			t.Errorf("%d objects, failing %v, busy %v: want all 20, and no failure", len(s.objects), f.failing.of, f.busy)
		}
	})
}

// TestFaultsThatAlwaysFailStarveNoOther: objects whose writes always fail delay no others for long. The log has one line.
func TestFaultsThatAlwaysFailStarveNoOther(t *testing.T) {
	for code, within := range map[int]time.Duration{0: 2 * time.Minute, http.StatusInternalServerError: 15 * time.Second,
		http.StatusForbidden: 15 * time.Second} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, src := &memoryFaults{answer: func(ctx context.Context, name string) int {
					if strings.HasPrefix(name, "k-") {
						return http.StatusOK
					}
					if code == 0 {
						<-ctx.Done()
					}
					return code
				}}, &incidents{}
				var log bytes.Buffer
				f := faultsInMemory(t, s, src, &log)
				stop := runFaults(t, f)
				defer stop()
				good, bad := faultsNamed("k", 50), faultsNamed("bad", 20)
				src.set(slices.Concat(bad, good)...)
				if took := takes(time.Hour, s.all(good, "OPEN")); took > within {
					t.Errorf("all other objects stand after %s: want %s", took, within)
				}
				time.Sleep(10 * time.Minute)
				for i, state := range []string{"RECOVERING", "OPEN", "RECOVERING", "OPEN"} {
					for i := range good {
						good[i].Status.State = state
					}
					added := aFault(fmt.Sprintf("k-new-%d", i))
					src.set(slices.Concat(bad, good, []Fault{added})...)
					took := takes(time.Hour, s.all([]Fault{added}, "OPEN"))
					if most := 2*f.r.c.timeout + time.Second; took > most {
						t.Errorf("change %d: the new object stands after %s: want %s", i, took, most)
					}
					if took += takes(time.Hour, s.all(good, state)); took > 20*time.Second {
						t.Errorf("change %d: all objects have followed after %s: want 20s", i, took)
					}
					time.Sleep(61 * time.Second)
				}
				stop()
				if n := strings.Count(log.String(), "\n"); n != 1 {
					t.Errorf("%d lines in the log: want one for one reason:\n%.1000s", n, log.String())
				}
			})
		})
	}
}

// TestStormOfChangesDelaysNoNewObject: many objects that change or go at once delay the object of a new incident by seconds only. Objects
// that change again and again delay no other for long.
func TestStormOfChangesDelaysNoNewObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, src := &memoryFaults{answer: func(context.Context, string) int { return http.StatusOK }}, &incidents{}
		f := faultsInMemory(t, s, src, io.Discard)
		stop := runFaults(t, f)
		defer stop()
		list := faultsNamed("k", 150)
		src.set(list...)
		takes(time.Hour, s.all(list, "OPEN"))
		for i := range 5 {
			time.Sleep(time.Minute)
			list = slices.Clone(list)
			for i := range list {
				list[i].Status.State = []string{"OPEN", "RECOVERING"}[i%2]
				list[i].Status.Consequences++
			}
			changed := list
			if i == 4 {
				changed = nil // their objects go
			}
			src.set(changed...)
			time.Sleep(time.Second)
			added := aFault(fmt.Sprintf("k-new-%d", i))
			src.set(append(slices.Clone(changed), added)...)
			if took := takes(time.Hour, s.all([]Fault{added}, "OPEN")); took > 5*time.Second {
				t.Errorf("storm %d: the new object stands after %s: want 5s", i, took)
			}
		}
		src.set(list...)
		time.Sleep(time.Minute)
		s.mu.Lock()
		clear(s.writes)
		s.mu.Unlock()
		for range 120 { // nearly all change each second
			list = slices.Clone(list)
			for i := range list {
				if rand.N(10) > 0 {
					list[i].Status.Consequences++
				}
			}
			src.set(list...)
			time.Sleep(time.Second)
		}
		stop()
		for _, in := range list {
			if s.writes[in.Name] < 3 {
				t.Errorf("%s: %d writes in two minutes: want three", in.Name, s.writes[in.Name])
			}
		}
	})
}

// TestLateAnswerBringsBackNoObject: a late answer to our write must not put an object back into the copy after somebody deleted it.
// Otherwise the keeper would not create it again.
func TestLateAnswerBringsBackNoObject(t *testing.T) {
	version := func(v, name string) object {
		return object{Metadata: objectMeta{Name: name, UID: types.UID("u-" + name), ResourceVersion: v}}
	}
	for name, tc := range map[string]struct {
		meanwhile func(r *resource) // while the answer is on its way
		want      bool
	}{
		"nothing":      {func(*resource) {}, true},
		"deleted":      {func(r *resource) { r.watched("DELETED", version("12", "k-a")) }, false},
		"other change": {func(r *resource) { r.watched("MODIFIED", version("10", "k-b")) }, true},
		"own event":    {func(r *resource) { r.watched("ADDED", version("11", "k-a")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &memoryFaults{version: 10}
			f := faultsInMemory(t, s, &incidents{}, io.Discard)
			s.answer = func(context.Context, string) int { tc.meanwhile(f.r); return http.StatusOK }
			o := map[string]any{"metadata": map[string]any{"name": "k-a"}, "spec": FaultSpec{Cluster: "test", Incident: "k-a"}}
			if _, err := f.r.apply(t.Context(), "k-a", "", o); err != nil {
				t.Fatal(err)
			}
			if _, is := f.r.objects["k-a"]; is != tc.want {
				t.Errorf("in the copy: %t, want %t", is, tc.want)
			}
		})
	}
}

// TestEarlierDefinitionGetsEachStatusOnce: an API server that drops a field of the status, because it has an earlier definition, gets each
// status once. A change of the incident or of the object brings the next write.
func TestEarlierDefinitionGetsEachStatusOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &memoryFaults{answer: func(context.Context, string) int { return http.StatusOK }, unknown: []string{"consequences"}}
		src := &incidents{}
		f := faultsInMemory(t, s, src, io.Discard)
		stop := runFaults(t, f)
		defer stop()
		writes := func() int {
			time.Sleep(10 * time.Minute)
			s.mu.Lock()
			defer s.mu.Unlock()
			n := s.writes["k-001"]
			clear(s.writes)
			return n
		}
		list := faultsNamed("k", 5)
		src.set(list...)
		if n := writes(); n != 2 {
			t.Errorf("%d writes of a new object: want two", n)
		}
		list = slices.Clone(list)
		list[1].Status.Cause = "SENSOR"
		src.set(list...)
		if n := writes(); n != 1 {
			t.Errorf("%d writes of a changed status: want one", n)
		}
		f.r.watched("MODIFIED", object{Metadata: objectMeta{Name: "k-001", UID: "u-k-001", ResourceVersion: "100",
			Labels: map[string]string{clusterLabel: "test", nodeLabel: "n1"}}, Spec: []byte(`{"cluster":"test","incident":"k-001"}`)})
		if n := writes(); n == 0 {
			t.Error("no write of an object that somebody has changed")
		}
	})
}

// TestStrippedLabelIsWrittenOnce: a webhook removes the label of the node from each object. A leader writes the label once, even if it has
// to write nothing else, as after a change of the leader.
func TestStrippedLabelIsWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, src := &memoryFaults{answer: func(context.Context, string) int { return http.StatusOK }, strips: true}, &incidents{}
		src.set(aFault("k"))
		first := faultsInMemory(t, s, src, io.Discard)
		for term, leader := range []*Faults{first,
			newFaults(config.KubernetesObjects{Namespace: "a", Faults: true}.Filled(), first.r.c, "test", src.source, quiet)} {
			stop := runFaults(t, leader)
			time.Sleep(10 * time.Minute)
			stop()
			if n := s.writes["k"]; n != 2-term {
				t.Errorf("term %d: %d writes in ten minutes: want %d", term+1, n, 2-term)
			}
			clear(s.writes)
		}
	})
}

// TestHangingObjectsDelayNoNewOne: while the writes of 150 objects always hang, the object of a new incident is written within seconds,
// just after they have appeared as well as later.
func TestHangingObjectsDelayNoNewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, src := &memoryFaults{answer: func(ctx context.Context, name string) int {
			if strings.HasPrefix(name, "k-") {
				return http.StatusOK
			}
			<-ctx.Done()
			return 0
		}}, &incidents{}
		var log bytes.Buffer
		f := faultsInMemory(t, s, src, &log)
		stop := runFaults(t, f)
		defer stop()
		list := faultsNamed("bad", 150)
		src.set(list...)
		for i := range 10 {
			time.Sleep(time.Duration(2+i*i) * time.Second)
			added := faultsNamed(fmt.Sprintf("k-%d", i), 3)
			list = slices.Concat(list, added)
			src.set(list...)
			if took := takes(time.Hour, s.all(added, "OPEN")); took > 8*time.Second {
				t.Errorf("new objects %d stand after %s: want 8s", i, took)
			}
		}
		list = slices.Clone(list)
		for i := range list {
			list[i].Status.State = "RECOVERING"
		}
		time.Sleep(10 * time.Minute)
		src.set(list...)
		if took := takes(time.Hour, s.all(list[150:], "RECOVERING")); took > 8*time.Second {
			t.Errorf("the other objects have followed a change after %s: want 8s", took)
		}
		stop()
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("%d lines in the log: want one for one reason:\n%.1000s", n, log.String())
		}
	})
}

// TestHangingObjectsLeaveWorkersToNewOnes: while a few writes hang, or many that have hung before, the object of a new incident is written
// at once.
func TestHangingObjectsLeaveWorkersToNewOnes(t *testing.T) {
	for hanging, later := range map[int]time.Duration{workersMost / 2: 0, 20: 2 * time.Minute} {
		t.Run(fmt.Sprint(hanging), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, src := &memoryFaults{answer: func(ctx context.Context, name string) int {
					if strings.HasPrefix(name, "k-") {
						return http.StatusOK
					}
					<-ctx.Done()
					return 0
				}}, &incidents{}
				defer runFaults(t, faultsInMemory(t, s, src, io.Discard))()
				list := faultsNamed("bad", hanging)
				src.set(list...)
				time.Sleep(later)
				for i := range 20 {
					time.Sleep(1300 * time.Millisecond)
					added := aFault(fmt.Sprintf("k-%02d", i))
					list = append(slices.Clone(list), added)
					src.set(list...)
					if took := takes(time.Hour, s.all([]Fault{added}, "OPEN")); took > time.Second {
						t.Errorf("new object %d stands after %s: want 1s", i, took)
					}
				}
			})
		})
	}
}

// TestFailedObjectIsTriedAgainAfterItsPause: nothing else has to happen at the end of a pause.
func TestFailedObjectIsTriedAgainAfterItsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := make(chan time.Time, 100)
		s, src := &memoryFaults{answer: func(context.Context, string) int {
			tries <- time.Now()
			return http.StatusInternalServerError
		}}, &incidents{}
		defer runFaults(t, faultsInMemory(t, s, src, io.Discard))()
		src.set(aFault("a"))
		want := retryFirst
		for last := <-tries; want < 3*retryMost; want *= 2 {
			next := <-tries
			if after, least := next.Sub(last), min(want, retryMost); after < least || after > least+time.Second {
				t.Errorf("the next try came after %s: want %s", after, least)
			}
			last = next
		}
	})
}

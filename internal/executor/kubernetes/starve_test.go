package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
)

// memoryNodes is an API server of nodes in memory, for tests in a bubble. It applies writes of the keeper.
type memoryNodes struct {
	answer func(ctx context.Context, node string) int // the code of the answer to a write; 0: none

	mu      sync.Mutex
	version int
	nodes   map[string]*corev1.Node
	reads   map[string]int // of single nodes
	watch   *io.PipeWriter
}

func (m *memoryNodes) RoundTrip(r *http.Request) (*http.Response, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case r.Method == http.MethodPatch:
		return m.patch(r)
	case r.URL.Query().Get("watch") == "true":
		body, watch := io.Pipe()
		m.watch = watch
		over, cancel := context.WithTimeout(r.Context(), watchSpan)
		context.AfterFunc(over, func() { cancel(); _ = watch.Close() })
		return jsonAnswer(http.StatusOK, body), nil
	}
	if n := m.nodes[path.Base(r.URL.Path)]; n != nil {
		m.reads[n.Name]++
		return jsonAnswer(http.StatusOK, asBody(n)), nil
	}
	l := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
	l.ResourceVersion = strconv.Itoa(m.version)
	for _, name := range slices.Sorted(maps.Keys(m.nodes)) {
		l.Items = append(l.Items, *m.nodes[name])
	}
	return jsonAnswer(http.StatusOK, asBody(l)), nil
}

// patch applies a write of the keeper. The caller holds mu.
func (m *memoryNodes) patch(r *http.Request) (*http.Response, error) {
	name := path.Base(path.Dir(r.URL.Path)) // of …/nodes/NAME/status
	m.mu.Unlock()
	code := m.answer(r.Context(), name)
	m.mu.Lock()
	if code == 0 {
		return nil, context.Cause(r.Context())
	}
	if code != http.StatusOK {
		return jsonAnswer(code, asBody(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Message: fmt.Sprintf("nodes %q: no", name), Code: int32(code)})), nil
	}
	var given corev1.Node
	if err := json.NewDecoder(r.Body).Decode(&given); err != nil {
		return nil, err
	}
	n := m.nodes[name].DeepCopy()
	n.Status.Conditions = given.Status.Conditions
	fields := map[string]any{}
	for _, c := range n.Status.Conditions {
		fields[fmt.Sprintf(`k:{"type":%q}`, c.Type)] = map[string]any{".": map[string]any{}, "f:status": map[string]any{}}
	}
	raw, _ := json.Marshal(map[string]any{"f:status": map[string]any{"f:conditions": fields}})
	n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: keeperManager, Operation: metav1.ManagedFieldsOperationApply,
		Subresource: "status", FieldsV1: metav1.NewFieldsV1(string(raw))}}
	m.version++
	n.ResourceVersion = strconv.Itoa(m.version)
	m.nodes[name] = n
	if m.watch != nil {
		event, _ := json.Marshal(map[string]any{"type": "MODIFIED", "object": n})
		_, _ = m.watch.Write(append(event, '\n'))
	}
	return jsonAnswer(http.StatusOK, asBody(n)), nil
}

// CloseIdleConnections implements the interface that client-go looks for.
func (*memoryNodes) CloseIdleConnections() {}

func asBody(v any) io.ReadCloser {
	b, _ := json.Marshal(v)
	return io.NopCloser(strings.NewReader(string(b)))
}

func jsonAnswer(code int, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: body, ContentLength: -1}
}

func (m *memoryNodes) condition(node, typ string) corev1.NodeCondition {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, _ := find(m.nodes[node].Status.Conditions, typ)
	return c
}

// keepInMemory starts a keeper of bad0, bad1, … and good0, good1, …: writes to the bad ones are answered with the code; 0: not at all.
// The returned function ends the keeper.
func keepInMemory(t *testing.T, m *mapped, bad, good, code int, log io.Writer) (s *memoryNodes, stop func()) {
	t.Helper()
	s, e := inMemory(t, m, bad, good, code, log)
	return s, keepIn(t, e, m)
}

// keepIn starts a keeper, and returns what ends it.
func keepIn(t *testing.T, e *Executor, m *mapped) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(executor.WithFence(t.Context(), func(context.Context) error { return nil }))
	done := make(chan struct{})
	go func() { defer close(done); e.Keep(ctx, m.get, nil) }()
	return func() { cancel(); <-done }
}

// inMemory returns the server and the executor of keepInMemory.
func inMemory(t *testing.T, m *mapped, bad, good, code int, log io.Writer) (s *memoryNodes, e *Executor) {
	t.Helper()
	s = &memoryNodes{nodes: map[string]*corev1.Node{}, reads: map[string]int{}, answer: func(ctx context.Context, node string) int {
		switch {
		case strings.HasPrefix(node, "good"):
			return http.StatusOK
		case code == 0:
			<-ctx.Done()
		}
		return code
	}}
	for prefix, n := range map[string]int{"bad": bad, "good": good} {
		for i := range n {
			name := fmt.Sprint(prefix, i)
			s.nodes[name] = &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
				ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "0"}}
			if prefix == "good" { // the bad ones are the first to be written
				s.nodes[name].Status.Conditions = []corev1.NodeCondition{{Type: LinksReady, Status: corev1.ConditionUnknown,
					LastHeartbeatTime: metav1.NewTime(time.Now().Add(-time.Hour))}}
			}
			m.set(ready, name)
		}
	}
	cfg := Config{Conditions: &config.KubernetesConditions{Enabled: true}}.Filled()
	c, err := newClient(cfg, &rest.Config{Host: "http://memory", Transport: s})
	if err != nil {
		t.Fatal(err)
	}
	return s, &Executor{cfg: cfg, c: c, log: slog.New(slog.NewTextHandler(log, nil))}
}

// takes returns the time until something holds, at most the given one.
func takes(most time.Duration, holds func() bool) time.Duration {
	for begin := time.Now(); ; time.Sleep(time.Second) {
		synctest.Wait()
		if took := time.Since(begin); holds() || took >= most {
			return took
		}
	}
}

// TestNodesThatAlwaysFailStarveNoOther: conditions of other nodes appear, follow the map within seconds, and keep fresh heartbeats while
// the writes of some nodes fail for ever, as with a webhook for these nodes that does not work.
func TestNodesThatAlwaysFailStarveNoOther(t *testing.T) {
	for _, tc := range []struct {
		failing, others int
		code            int // 0: no answer
		within          time.Duration
	}{
		{2, 30, http.StatusInternalServerError, 5 * time.Second},
		{4, 30, http.StatusInternalServerError, 5 * time.Second},
		{4, 30, 0, 15 * time.Second},
		{40, 60, http.StatusInternalServerError, 5 * time.Second},
		{1, 30, http.StatusTooManyRequests, 5 * time.Second},
		{40, 60, http.StatusTooManyRequests, 5 * time.Second},
	} {
		t.Run(fmt.Sprintf("%d of %d with %d", tc.failing, tc.failing+tc.others, tc.code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, most := &mapped{states: map[fault.NodeID]NodeState{}}, 20*time.Minute
				var log bytes.Buffer
				s, stop := keepInMemory(t, m, tc.failing, tc.others, tc.code, &log)
				defer stop()
				others := func(holds func(c corev1.NodeCondition) bool) bool {
					for i := range tc.others {
						if !holds(s.condition(fmt.Sprint("good", i), LinksReady)) {
							return false
						}
					}
					return true
				}
				stand := func() bool { return others(func(c corev1.NodeCondition) bool { return c.Reason == ready.Reason }) }
				if took := takes(most, stand); took > 5*time.Minute {
					t.Errorf("all other nodes have conditions after %s: want 5m", took)
				}
				time.Sleep(most)
				for i, state := range []NodeState{notReady, ready, notReady, ready, notReady} {
					m.set(state, "good7")
					took := takes(most, func() bool { return s.condition("good7", LinksReady).Reason == state.Reason })
					if took > tc.within {
						t.Errorf("change %d: the condition has followed the map after %s: want %s", i, took, tc.within)
					}
					time.Sleep(67 * time.Second)
				}
				if !others(func(c corev1.NodeCondition) bool { return time.Since(c.LastHeartbeatTime.Time) < 6*time.Minute }) {
					t.Error("some heartbeats of other nodes are old")
				}
				stop()
				if n := strings.Count(log.String(), "\n"); n != 1 {
					t.Errorf("%d lines in the log: want one for one reason:\n%.1000s", n, log.String())
				}
			})
		})
	}
}

// TestConditionsGoOnceFromEachNode: while the conditions of one node cannot be removed, the others are not read again and again.
func TestConditionsGoOnceFromEachNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mapped{states: map[fault.NodeID]NodeState{}}
		code := http.StatusOK
		s, e := inMemory(t, m, 1, 5, http.StatusOK, io.Discard)
		s.answer = func(_ context.Context, node string) int {
			if node == "bad0" {
				return code
			}
			return http.StatusOK
		}
		stop := keepIn(t, e, m)
		stand := func() bool {
			return s.condition("bad0", LinksReady).Type != "" && s.condition("good4", LinksReady).Reason != ""
		}
		if took := takes(time.Hour, stand); took == time.Hour {
			t.Fatal("there are no conditions")
		}
		stop()
		code, e.cfg.Conditions = http.StatusForbidden, &config.KubernetesConditions{}
		stop = keepIn(t, e, m)
		time.Sleep(time.Hour)
		stop()
		if c := s.condition("good4", LinksReady); c.Type != "" || s.reads["good4"] != 1 || s.reads["bad0"] < 50 {
			t.Errorf("condition %+v, reads %v: want none, one read of each good node, and some of the other", c, s.reads)
		}
	})
}

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
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/lofamo/lofamo/internal/config"
)

// memoryPolicies is an API server of FaultPolicy objects in memory, for tests in a bubble. Its watch is silent.
type memoryPolicies struct {
	answer func(ctx context.Context, name string) int // the code of the answer to a write of a status; 0: none

	mu      sync.Mutex
	objects map[string]map[string]any
	writes  map[string]int
}

// CloseIdleConnections implements the interface that client-go looks for.
func (*memoryPolicies) CloseIdleConnections() {}

func (m *memoryPolicies) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet && r.URL.Query().Get("watch") == "" {
		m.mu.Lock()
		defer m.mu.Unlock()
		return jsonAnswer(http.StatusOK, asBody(map[string]any{"apiVersion": objectsVersion, "kind": "FaultPolicyList",
			"metadata": map[string]any{"resourceVersion": "2"}, "items": slices.Collect(maps.Values(m.objects))})), nil
	}
	if r.Method == http.MethodGet {
		body, _ := io.Pipe()
		context.AfterFunc(r.Context(), func() { _ = body.Close() })
		return jsonAnswer(http.StatusOK, body), nil
	}
	name := path.Base(path.Dir(r.URL.Path)) // of …/faultpolicies/NAME/status
	m.mu.Lock()
	m.writes[name]++
	m.mu.Unlock()
	switch code := m.answer(r.Context(), name); code {
	case http.StatusOK:
	case 0:
		return nil, context.Cause(r.Context())
	default:
		return jsonAnswer(code, asBody(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
			"message": fmt.Sprintf("faultpolicies %q: denied with %d", name, code)})), nil
	}
	var given map[string]any
	if err := json.NewDecoder(r.Body).Decode(&given); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[name]["status"] = given["status"]
	m.objects[name]["metadata"].(map[string]any)["resourceVersion"] = "2"
	return jsonAnswer(http.StatusOK, asBody(m.objects[name])), nil
}

// without returns the names of objects without a status.
func (m *memoryPolicies) without() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for name := range m.objects {
		if m.objects[name]["status"] == nil {
			out = append(out, name)
		}
	}
	return strings.Join(out, " ")
}

// aPolicyObject returns a FaultPolicy as the API server stores it.
func aPolicyObject(name, version string) map[string]any {
	return map[string]any{"apiVersion": objectsVersion, "kind": "FaultPolicy",
		"metadata": map[string]any{"name": name, "uid": "u-" + name, "resourceVersion": version}}
}

// policiesInMemory returns a follower that has read n objects: p-000, p-001, and so on.
func policiesInMemory(t *testing.T, s *memoryPolicies, n int, log io.Writer) *Policies {
	t.Helper()
	k := Config{}.Filled()
	k.QPS, k.Burst = objectsQPS, objectsBurst
	c, err := newClient(k, &rest.Config{Host: "http://memory", Transport: s})
	if err != nil {
		t.Fatal(err)
	}
	s.objects, s.writes = map[string]map[string]any{}, map[string]int{}
	p := newPolicies(config.KubernetesObjects{Namespace: "a"}, c, (&policyStore{}).keep, slog.New(slog.NewTextHandler(log, nil)))
	p.r.synced = true
	for i := range n {
		name := fmt.Sprintf("p-%03d", i)
		s.objects[name] = aPolicyObject(name, "1")
		p.r.objects[name] = object{Metadata: objectMeta{Name: name, UID: types.UID("u-" + name), ResourceVersion: "1"}}
	}
	return p
}

// settleBusy waits for all changes, and takes their results.
func (w *workers) settleBusy(ctx context.Context) {
	for len(w.busy) > 0 {
		w.settle(ctx, <-w.results)
	}
}

// runPolicies runs a follower until the returned function is called.
func runPolicies(t *testing.T, p *Policies) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	return sync.OnceFunc(func() { cancel(); <-done })
}

// TestDeniedStatusesAreReportedTogether: all objects that the API server does not refuse get a status, and the log has the refusals
// together, once. The refused ones are tried again later.
func TestDeniedStatusesAreReportedTogether(t *testing.T) {
	codes := map[string]int{"p-001": http.StatusForbidden, "p-004": http.StatusInternalServerError, "p-006": http.StatusTooManyRequests,
		"p-007": http.StatusForbidden}
	synctest.Test(t, func(t *testing.T) {
		s := &memoryPolicies{answer: func(_ context.Context, name string) int {
			if code, denied := codes[name]; denied {
				return code
			}
			return http.StatusOK
		}}
		var log bytes.Buffer
		p := policiesInMemory(t, s, 10, &log)
		for more := true; more; p.settleBusy(t.Context()) {
			more = p.pass(t.Context(), time.Now())
		}
		if got := s.without(); len(strings.Fields(got)) != len(codes) {
			t.Errorf("without a status are %s: want the four that are denied", got)
		}
		for range 60 {
			time.Sleep(policiesLook)
			p.pass(t.Context(), time.Now())
			p.settleBusy(t.Context())
		}
		said := log.String()
		if strings.Count(said, "\n") != 1 || !strings.Contains(said, "denied with 403") || !strings.Contains(said, "denied with 500") ||
			!strings.Contains(said, "denied with 429") {
			t.Errorf("want one line with all three reasons:\n%s", said)
		}
		if n := s.writes["p-001"]; n < 9 || n > 20 {
			t.Errorf("%d tries in ten minutes: want one a minute, and a few at first", n)
		}
		codes = nil
		time.Sleep(retryMost)
		p.pass(t.Context(), time.Now())
		p.settleBusy(t.Context())
		if got := s.without(); got != "" {
			t.Errorf("without a status are %s: want none", got)
		}
	})
}

// TestHangingStatusesDelayNoOther: statuses whose writes get no answer delay the others by seconds only. They delay no pass, because a pass
// also withdraws policies.
func TestHangingStatusesDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &memoryPolicies{answer: func(ctx context.Context, name string) int {
			if name < "p-005" {
				<-ctx.Done()
				return 0
			}
			return http.StatusOK
		}}
		p := policiesInMemory(t, s, 100, io.Discard)
		begin := time.Now()
		if p.pass(t.Context(), begin); time.Since(begin) > 0 {
			t.Errorf("a pass has taken %s", time.Since(begin))
		}
		defer runPolicies(t, p)()
		if took := takes(time.Hour, func() bool { return len(strings.Fields(s.without())) == 5 }); took > time.Minute {
			t.Errorf("all others have a status after %s: want a minute", took)
		}
	})
}

// TestHangingStatusDelaysNoOther: a status whose write gets no answer delays neither the status of another object nor the next pass.
func TestHangingStatusDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &memoryPolicies{answer: func(ctx context.Context, name string) int {
			if name == "p-000" {
				<-ctx.Done()
				return 0
			}
			return http.StatusOK
		}}
		p := policiesInMemory(t, s, 2, io.Discard)
		defer runPolicies(t, p)()
		if took := takes(time.Minute, func() bool { return s.without() == "p-000" }); took > 2*policiesEvery {
			t.Errorf("the other object has a status after %s", took)
		}
		s.mu.Lock()
		s.objects["p-002"] = aPolicyObject("p-002", "3")
		s.mu.Unlock()
		p.r.watched("ADDED", object{Metadata: objectMeta{Name: "p-002", UID: "u-p-002", ResourceVersion: "3"}})
		if took := takes(time.Minute, func() bool { return s.without() == "p-000" }); took > 2*policiesEvery {
			t.Errorf("a new object has a status after %s", took)
		}
	})
}

// TestDeniedStatusIsTriedAgainAfterItsPause: nothing else has to happen at the end of a pause.
func TestDeniedStatusIsTriedAgainAfterItsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := make(chan time.Time, 100)
		s := &memoryPolicies{answer: func(context.Context, string) int {
			tries <- time.Now()
			return http.StatusForbidden
		}}
		p := policiesInMemory(t, s, 1, io.Discard)
		defer runPolicies(t, p)()
		want := retryFirst
		for last := <-tries; want < 3*retryMost; want *= 2 {
			next := <-tries
			if after, least := next.Sub(last), min(want, retryMost); after < least || after > least+2*policiesEvery {
				t.Errorf("the next try came after %s: want %s", after, least)
			}
			last = next
		}
	})
}

// sharedStatus is an API server in whose statuses somebody else owns lastFired, so a write that leaves the field out does not remove it.
// It may also drop conditions.
type sharedStatus struct {
	*memoryPolicies

	drops bool
}

func (s sharedStatus) RoundTrip(r *http.Request) (*http.Response, error) {
	name := path.Base(path.Dir(r.URL.Path)) // of …/faultpolicies/NAME/status
	if r.Method != http.MethodPatch {
		return s.memoryPolicies.RoundTrip(r)
	}
	s.mu.Lock()
	before, _ := s.objects[name]["status"].(map[string]any)
	s.mu.Unlock()
	res, err := s.memoryPolicies.RoundTrip(r)
	if err != nil || res.StatusCode != http.StatusOK {
		return res, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	after := s.objects[name]["status"].(map[string]any)
	if _, given := after["lastFired"]; !given && before["lastFired"] != nil {
		after["lastFired"] = before["lastFired"]
	}
	if s.drops {
		delete(after, "conditions")
	}
	return jsonAnswer(http.StatusOK, asBody(s.objects[name])), nil
}

// TestForeignStatusIsWrittenOnce: somebody else has set the time of the last response to one in the future, which the leader cannot remove,
// or takes the condition away. The leader writes each status once.
func TestForeignStatusIsWrittenOnce(t *testing.T) {
	for _, drops := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := sharedStatus{&memoryPolicies{answer: func(context.Context, string) int { return http.StatusOK }}, drops}
			p := policiesInMemory(t, s.memoryPolicies, 1, io.Discard)
			p.r.c = clientOver(t, s)
			s.objects["p-000"]["status"] = map[string]any{"lastFired": time.Now().Add(24 * time.Hour).UTC().Format(time.RFC3339)}
			stop := runPolicies(t, p)
			defer stop()
			time.Sleep(10 * time.Minute)
			stop()
			if n := s.writes["p-000"]; n != 1 {
				t.Errorf("conditions dropped %t: %d writes in ten minutes: want one", drops, n)
			}
		})
	}
}

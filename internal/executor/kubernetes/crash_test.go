package kubernetes

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// crashing ends an attempt at one of its requests as if its process were killed: before the request leaves, or after
// the API server has carried it out and before the executor sees the answer. An executor keeps no state besides the
// effects of its requests, so these are all the crash points that differ.
type crashing struct {
	next http.RoundTripper
	mu   sync.Mutex
	left int // requests until the crash; negative: no crash
	late bool
	seen int
}

// killed is the panic value that stands for the death of the process.
type killed struct{}

func (c *crashing) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.seen++
	crash := c.left == 0
	c.left--
	c.mu.Unlock()
	if !crash {
		return c.next.RoundTrip(r)
	}
	if c.late {
		if res, err := c.next.RoundTrip(r); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
	}
	panic(killed{})
}

// attempt makes an attempt that crashes at the given request, and reports whether it crashed.
func attempt(t *testing.T, j executor.Job, left int, late bool) (was bool) {
	t.Helper()
	var c *crashing
	e := newExecutor(t, Config{}, func(next http.RoundTripper) http.RoundTripper {
		c = &crashing{next: next, left: left, late: late}
		return c
	})
	defer func() {
		switch p := recover().(type) {
		case nil:
		case killed:
			was = true
		default:
			panic(p)
		}
	}()
	want(t, e.Do(context.Background(), j), response.Succeeded, "")
	return false
}

// TestCrashAtAnyRequestCompletesOnce: an executor is killed before or after any of its requests. The next leader's
// attempt completes the action once, and undoing it restores the earlier state.
func TestCrashAtAnyRequestCompletesOnce(t *testing.T) {
	cluster(t) // without one every part would be skipped, and nothing counted
	crashes := 0
	var mu sync.Mutex
	t.Run("all", func(t *testing.T) {
		for _, a := range acts() {
			t.Run(string(a.kind), func(t *testing.T) {
				t.Parallel()
				for left := 0; ; left++ {
					n := 0
					for _, late := range []bool{false, true} {
						n += crashOnce(t, a, left, late)
					}
					mu.Lock()
					crashes += n
					mu.Unlock()
					if n == 0 {
						break
					}
				}
			})
		}
	})
	t.Logf("%d crashes", crashes)
	if crashes < 40 {
		t.Errorf("%d crashes: the test crashes too little", crashes)
	}
}

// crashOnce makes doing and undoing crash and returns the number of crashes.
func crashOnce(t *testing.T, a act, left int, late bool) int {
	name, n := aNode(t), 0
	if a.kind == response.KubernetesDrain {
		createPod(t, name, "", "")
		ctx, cancel := context.WithCancel(context.Background())
		defer kubelet(t, ctx, name)()
		defer cancel()
	}
	before := state(theNode(t, name))
	j := a.job(responseID(), name)
	if attempt(t, j, left, late) {
		n++
		j = again(under(j.Token+1, j))
		attempt(t, j, -1, false)
	}
	node := theNode(t, name)
	if got := withoutMarks(node); got != a.shows {
		t.Errorf("%s at request %d, late %t: %q", a.kind, left, late, got)
	}
	if a.kind == response.KubernetesDrain && len(podsOf(t, name)) > 0 {
		t.Errorf("%s at request %d, late %t: pods are left", a.kind, left, late)
	}
	j = undo(j)
	if attempt(t, j, left, late) {
		n++
		j = again(under(j.Token+1, j))
		attempt(t, j, -1, false)
	}
	if diff := cmp.Diff(before, state(theNode(t, name))); diff != "" {
		t.Errorf("%s at request %d, late %t: put back:\n%s", a.kind, left, late, diff)
	}
	return n
}

// TestOldLeaderIsRefusedAtEveryKind: after a leader change, the old leader is refused at every kind, do and undo, and changes nothing.
func TestOldLeaderIsRefusedAtEveryKind(t *testing.T) {
	for _, a := range acts() {
		name := aNode(t)
		old, young := newExecutor(t, Config{}, nil), newExecutor(t, Config{}, nil)
		j := a.job(responseID(), name)
		do(t, old, j)
		// The new leader only checks and finds the action done, yet the node is fenced.
		do(t, young, again(under(8, j)))
		before := theNode(t, name)
		for _, stale := range []executor.Job{again(again(j)), undo(again(again(j))), a.job(responseID(), name)} {
			r := old.Do(context.Background(), stale)
			t.Logf("asked: %s (token %d); refused: %s", stale.Kind, stale.Token, r.Detail)
			want(t, r, response.StaleToken, "token 7: 8 has been seen")
		}
		if now := theNode(t, name); now.ResourceVersion != before.ResourceVersion {
			t.Errorf("%s: changed by a stale token:\n%s", a.kind, cmp.Diff(state(before), state(now)))
		}
		do(t, young, undo(again(under(8, j))))
	}
	name := aNode(t)
	e := newExecutor(t, Config{}, nil)
	do(t, newExecutor(t, Config{}, nil), under(8, acts()[2].job(responseID(), name)))
	want(t, e.Do(context.Background(), aJob(responseID(), name, response.KubernetesEvent, map[string]string{"reason": "X"})),
		response.StaleToken, "8 has been seen")
}

// TestDelayedWriteTakesNoEffect: a delayed write of an attempt does not take effect after a later attempt has ended, even if
// the later one had nothing to do.
func TestDelayedWriteTakesNoEffect(t *testing.T) {
	cluster(t)
	for _, a := range acts() {
		t.Run(string(a.kind), func(t *testing.T) {
			t.Parallel()
			name := aNode(t)
			held := &holding{arrived: make(chan struct{}), letGo: make(chan struct{}), passed: make(chan error, 1)}
			e := newExecutor(t, Config{}, func(next http.RoundTripper) http.RoundTripper { held.next = next; return held })
			j := a.job(responseID(), name)
			ctx, cancel := context.WithCancel(context.Background())
			result := make(chan executor.Result, 1)
			go func() { result <- e.Do(ctx, j) }()
			<-held.arrived
			cancel()
			want(t, <-result, response.NotKnown, "")
			do(t, newExecutor(t, Config{}, nil), undo(j))
			close(held.letGo)
			if err := <-held.passed; err == nil {
				t.Error("the late write has been carried out")
			}
			if got := state(theNode(t, name)); got != "" {
				t.Errorf("after it was put back: %q", got)
			}
		})
	}
}

// holding delays the first write, even after its sender is gone.
type holding struct {
	next    http.RoundTripper
	once    sync.Once
	arrived chan struct{}
	letGo   chan struct{}
	passed  chan error // the API server's answer to it
}

func (h *holding) RoundTrip(r *http.Request) (*http.Response, error) {
	held := false
	if r.Method == http.MethodPatch {
		h.once.Do(func() { held = true })
	}
	if !held {
		return h.next.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	close(h.arrived)
	go func() {
		<-h.letGo
		late := r.Clone(context.Background())
		late.Body = io.NopCloser(strings.NewReader(string(body)))
		res, err := h.next.RoundTrip(late)
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode >= 300 {
				err = fmt.Errorf("status %d", res.StatusCode)
			}
		}
		h.passed <- err
	}()
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestDrainOfStaleLeader: the API server cannot refuse an eviction for its token. A leader stops just before an
// eviction and continues when there is another leader. It then evicts that pod and no other. It does not report the
// drain as done even if that pod was the last.
func TestDrainOfStaleLeader(t *testing.T) {
	for _, pods := range []int{1, 4} {
		drainOfAStaleLeader(t, pods)
	}
}

func drainOfAStaleLeader(t *testing.T, pods int) {
	t.Helper()
	name := aNode(t)
	for range pods {
		createPod(t, name, "", "")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer kubelet(t, ctx, name)()
	defer cancel()
	stopped, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	e := newExecutor(t, Config{}, func(next http.RoundTripper) http.RoundTripper {
		return wrapped(next, func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/eviction") {
				once.Do(func() { close(stopped); <-goOn })
			}
			return next.RoundTrip(r)
		})
	})
	j := acts()[5].job(responseID(), name)
	result := make(chan executor.Result, 1)
	go func() { result <- e.Do(ctx, j) }()
	<-stopped
	do(t, newExecutor(t, Config{}, nil), undo(under(8, j)))
	close(goOn)
	want(t, <-result, response.StaleToken, "8 has been seen")
	gone := func() bool { return len(podsOf(t, name)) == pods-1 }
	eventually(t, gone, "one pod is gone")
	if got := state(theNode(t, name)); got != "" {
		t.Error(got)
	}
}

// wrapper puts f in place of a round tripper, which client-go can still find beneath it to close its connections.
type wrapper struct {
	http.RoundTripper
	f func(*http.Request) (*http.Response, error)
}

func wrapped(next http.RoundTripper, f func(*http.Request) (*http.Response, error)) http.RoundTripper {
	return wrapper{next, f}
}

func (w wrapper) RoundTrip(r *http.Request) (*http.Response, error) { return w.f(r) }

// WrappedRoundTripper implements the interface that client-go looks for.
func (w wrapper) WrappedRoundTripper() http.RoundTripper { return w.RoundTripper }

// eventually waits until so returns true.
func eventually(t testing.TB, so func() bool, what string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !so(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// TestFenceIsCheckedBeforeEachChange: the executor checks the fence once right before each changing request, and never
// before a read. Between that check and the API server's answer, a request of a former leader can still take effect on
// a node unchanged since it was read. The test measures this window.
func TestFenceIsCheckedBeforeEachChange(t *testing.T) {
	looks, changes := 0, 0
	var looked time.Time
	var window []time.Duration
	e := newExecutor(t, Config{}, func(next http.RoundTripper) http.RoundTripper {
		return wrapped(next, func(r *http.Request) (*http.Response, error) {
			res, err := next.RoundTrip(r)
			if r.Method != http.MethodGet {
				changes++
				window = append(window, time.Since(looked))
			}
			return res, err
		})
	})
	e.c.sure = time.Minute // a brief stall of the machine must not cause a second check
	lost := false
	ctx := executor.WithFence(context.Background(), func(context.Context) error {
		looks++
		looked = time.Now()
		if lost {
			return fmt.Errorf("%w: token 8", executor.ErrStale)
		}
		return nil
	})
	name := aNode(t)
	for range 50 {
		for _, a := range acts()[:3] {
			j := a.job(responseID(), name)
			want(t, e.Do(ctx, j), response.Succeeded, "")
			want(t, e.Do(ctx, undo(j)), response.Succeeded, "")
		}
	}
	if looks != changes || changes < 300 { // more if a request was retried
		t.Errorf("%d looks before %d changes, want one each, and at least 300", looks, changes)
	}
	made := changes
	slices.Sort(window)
	t.Logf("from the word of the store to the answer of the API server: %s in the median, %s at p99", window[len(window)/2],
		window[len(window)*99/100])

	lost = true
	before := theNode(t, name).ResourceVersion
	for _, a := range append(acts(), act{kind: response.KubernetesEvent, parameters: map[string]string{"reason": "X"}}) {
		want(t, e.Do(ctx, a.job(responseID(), name)), response.StaleToken, "another leader is elected: token 8")
	}
	if after := theNode(t, name).ResourceVersion; after != before || changes != made {
		t.Errorf("changed under a stale token: version %s, before %s, %d changes", after, before, changes)
	}

	// A process that was stopped after the check repeats it, because the answer may have changed.
	e.c.sure = time.Nanosecond
	asked := 0
	ctx = executor.WithFence(context.Background(), func(context.Context) error {
		if asked++; asked == 3 {
			return executor.ErrStale
		}
		return nil
	})
	want(t, e.Do(ctx, acts()[0].job(responseID(), name)), response.StaleToken, "")
	if changes != made {
		t.Errorf("%d changes on words that were too old", changes-made)
	}
}

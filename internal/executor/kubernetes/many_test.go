package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// fleet creates many nodes in parallel.
func fleet(t testing.TB, prefix string, n int) []string {
	t.Helper()
	s := cluster(t)
	names, round := make([]string, n), serial.Add(1)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d-%d", prefix, round, i)
	}
	inParallel(names, 16, func(name string) {
		if err := postNode(s, name, ""); err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	return names
}

// inParallel calls f for each element from width goroutines and returns when all of them have ended. f must not end the
// test with t.Fatal or t.Skip. If f ends its goroutine anyway, inParallel still returns, with elements left over.
func inParallel[T any](all []T, width int, f func(T)) {
	work := make(chan T, len(all)) // no send blocks on workers that have ended
	for _, x := range all {
		work <- x
	}
	close(work)
	var wg sync.WaitGroup
	for range width {
		wg.Go(func() {
			for x := range work {
				f(x)
			}
		})
	}
	wg.Wait()
}

func TestInParallelReturnsWhenWorkersEnd(t *testing.T) {
	var calls atomic.Int64
	inParallel(make([]struct{}, 100), 4, func(struct{}) {
		calls.Add(1)
		runtime.Goexit()
	})
	if calls.Load() != 4 {
		t.Errorf("%d calls, want one of each of 4 workers", calls.Load())
	}
}

// TestManyFailuresKeepConfiguredRate: 500 of 2,000 nodes fail at once, while another client writes to all nodes. At the end every
// condition and every event is there, no other node is touched, and the configured rate was kept.
func TestManyFailuresKeepConfiguredRate(t *testing.T) {
	const nodes, faults = 2000, 500
	names := fleet(t, "many", nodes)
	var asked, conflicts atomic.Int64
	server := cluster(t)
	cfg := Config{QPS: 1000, Burst: 200}
	e := newExecutor(t, cfg, func(next http.RoundTripper) http.RoundTripper {
		return wrapped(next, func(r *http.Request) (*http.Response, error) {
			res, err := next.RoundTrip(r)
			if asked.Add(1); err == nil && res.StatusCode == http.StatusConflict {
				conflicts.Add(1)
			}
			return res, err
		})
	})
	ctx, cancel := context.WithCancel(context.Background())
	var kubelets sync.WaitGroup
	kubelets.Go(func() { // they write their status, like real ones
		for i := 0; ctx.Err() == nil; i++ {
			if err := patchStatus(server, names[i%faults],
				fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","message":"%d"}]}}`, i)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var mu sync.Mutex
	var took []time.Duration
	begin := time.Now()
	var wg sync.WaitGroup
	for i, name := range names[:faults] {
		wg.Go(func() {
			j := acts()[0].job(fmt.Sprintf("r7-many-%d", i), name)
			j.Timeout = 5 * time.Minute
			if r := e.Do(ctx, j); r.Outcome != response.Succeeded {
				t.Errorf("%s: %+v", name, r)
			}
			mu.Lock()
			took = append(took, time.Since(begin))
			mu.Unlock()
		})
	}
	wg.Wait()
	all := time.Since(begin)
	cancel()
	kubelets.Wait()
	slices.Sort(took)
	t.Logf("%d conditions among %d nodes: p50 %s, all %s; %d requests, %d conflicts", faults, nodes, took[len(took)/2], all,
		asked.Load(), conflicts.Load())
	if most := float64(cfg.Burst) + float64(cfg.QPS)*all.Seconds() + 1; float64(asked.Load()) > most {
		t.Errorf("%d requests in %s, want at most %.0f", asked.Load(), all, most)
	}
	have := map[string]int{}
	for _, n := range listNodes(t) {
		for _, c := range n.Status.Conditions {
			if c.Type == "LofamoFault" {
				have[n.Name]++
			}
		}
	}
	for i, name := range names {
		if want := map[bool]int{true: 1}[i < faults]; have[name] != want {
			t.Fatalf("%s has %d conditions, want %d", name, have[name], want)
		}
	}
}

func listNodes(t testing.TB) []corev1.Node {
	t.Helper()
	var list corev1.NodeList
	if err := json.Unmarshal(admin(t, http.MethodGet, "/api/v1/nodes", "", ""), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// TestRequestsKeepConfiguredRate: requests keep to the configured rate. Events have a separate limit and delay no other request.
func TestRequestsKeepConfiguredRate(t *testing.T) {
	names := fleet(t, "rate", 15)
	cfg := Config{QPS: 50, Burst: 5}
	e := newExecutor(t, cfg, nil)
	begin := time.Now()
	inParallel(names, len(names), func(name string) {
		if r := e.Do(context.Background(), acts()[2].job(responseID(), name)); r.Outcome != response.Succeeded {
			t.Errorf("%s: %+v", name, r)
		}
	})
	least := time.Duration(2*len(names)-cfg.Burst-1) * time.Second / time.Duration(cfg.QPS)
	if took := time.Since(begin); took < least {
		t.Errorf("%d requests took %s, want %s at least", 2*len(names), took, least)
	}
	e = newExecutor(t, Config{QPS: 1, Burst: 4}, nil)
	e.c.events.SetLimit(rate.Every(time.Hour)) // no refill before the test looks
	do(t, e, aJob(responseID(), names[0], response.KubernetesEvent, map[string]string{"reason": "X"}))
	if all, events := e.c.all.Tokens(), e.c.events.Tokens(); all != 4 || events >= 4 {
		t.Errorf("an event has taken %.1f of its own, and %.1f of what others need", 4-events, 4-all)
	}
}

// TestConcurrentStepsKeepEachOthersWork: responses that act on one node concurrently do not undo each other's work.
func TestConcurrentStepsKeepEachOthersWork(t *testing.T) {
	e, name := newExecutor(t, Config{}, nil), aNode(t)
	var jobs []executor.Job
	for i := range 24 {
		a := acts()[i%5]
		j := a.job(responseID(), name)
		if a.kind == response.KubernetesLabel {
			j.Parameters = map[string]string{"key": fmt.Sprintf("l%d", i), "value": "x"}
		}
		jobs = append(jobs, j)
	}
	inParallel(jobs, len(jobs), func(j executor.Job) {
		if r := e.Do(context.Background(), j); r.Outcome != response.Succeeded {
			t.Errorf("%s: %+v", j.Kind, r)
		}
	})
	n := theNode(t, name)
	if !n.Spec.Unschedulable || len(n.Labels) != 5 || len(n.Spec.Taints) != 2 || len(n.Status.Conditions) != 1 {
		t.Errorf("%s", state(n))
	}
	inParallel(jobs, len(jobs), func(j executor.Job) {
		if r := e.Do(context.Background(), undo(j)); r.Outcome != response.Succeeded {
			t.Errorf("%s: %+v", j.Kind, r)
		}
	})
	if got := state(theNode(t, name)); got != "" {
		t.Error(got)
	}
}

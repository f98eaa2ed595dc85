package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/kubernetes"
	"github.com/lofamo/lofamo/internal/kubetest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// kubernetesActs measures what the executor of Kubernetes takes, at a real API server on a real etcd: from its call to the moment at which a watcher
// of the API server has the effect.
func kubernetesActs(ctx context.Context, o options) (err error) {
	nodes, single := 2000, 300
	if o.short {
		nodes, single = 100, 10
	}
	dir, err := os.MkdirTemp("", "lofamo-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	k, err := newKubeBench(dir, nodes)
	if errors.Is(err, kubetest.ErrMissing) && os.Getenv("CI") == "" {
		o.out.f("\n### Kubernetes\n\nNot measured: %v\n", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer k.server.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := k.watch(ctx); err != nil {
		return err
	}
	o.out.f("\n### Kubernetes\n\nA kube-apiserver and its etcd on this machine, with %d nodes, and a watcher of all of them. Times are from the call of the executor to the watcher.\n\n", nodes)
	o.out.f("| act | samples | median, ms | p99, ms |\n|---|---|---|---|\n")
	for _, a := range []struct {
		kind       response.Kind
		parameters map[string]string
	}{{response.KubernetesCondition, map[string]string{"type": "LofamoFault"}}, {response.KubernetesCordon, nil}} {
		var took measure.Latencies
		for i := range single {
			begin := time.Now()
			at, err := k.act(ctx, k.job(fmt.Sprintf("r1-%s-%d", a.kind[len("kubernetes."):], i), k.nodes[i], a.kind, a.parameters))
			if err != nil {
				return err
			}
			took = append(took, at.Sub(begin))
			pause(ctx, 10*time.Millisecond)
		}
		o.out.f("| %s, one at a time | %d | %s | %s |\n", a.kind, single, measure.Millis(took.Median()), measure.Millis(took.P99()))
	}
	return k.storm(ctx, o, min(1000, nodes/2))
}

// kubeBench is an API server with nodes, and an executor.
type kubeBench struct {
	server *kubetest.Server
	e      *kubernetes.Executor
	nodes  []string

	mu   sync.Mutex
	wait map[string]chan time.Time // by node: when its mark was seen, by the response that is waited for
}

func newKubeBench(dir string, nodes int) (*kubeBench, error) {
	s, err := kubetest.Start(dir)
	if err != nil {
		return nil, err
	}
	k := &kubeBench{server: s, wait: map[string]chan time.Time{}}
	if err := k.prepare(dir, nodes); err != nil {
		s.Stop()
		return nil, err
	}
	return k, nil
}

// prepare creates the nodes, and an executor that acts as the supervisors do, under the roles that are shipped and the usual limits.
func (k *kubeBench) prepare(dir string, nodes int) error {
	roles, err := os.ReadFile("../deploy/kubernetes/rbac.yaml")
	if err != nil {
		return err
	}
	if err := k.server.Admin.Apply(roles); err != nil {
		return err
	}
	token, err := k.server.Admin.TokenOf("lofamo", "lofamo-supervisor")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "kubeconfig")
	if err := k.server.Kubeconfig(path, k.server.Addr, token); err != nil {
		return err
	}
	if k.e, err = kubernetes.New(kubernetes.Config{Kubeconfig: path}, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		if _, err := k.server.Admin.Do(http.MethodPost, "/api/v1/nodes", "", []byte(`{"metadata":{"name":"`+name+`"}}`)); err != nil {
			return err
		}
		k.nodes = append(k.nodes, name)
	}
	return nil
}

// watch looks at all nodes, from now on.
func (k *kubeBench) watch(ctx context.Context) error {
	b, err := k.server.Admin.Do(http.MethodGet, "/api/v1/nodes?limit=1", "", nil)
	if err != nil {
		return err
	}
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	go func() {
		_ = k.server.Admin.Watch(ctx, "/api/v1/nodes?watch=true&resourceVersion="+list.Metadata.ResourceVersion, func(_ string, o json.RawMessage) bool {
			at := time.Now()
			var n struct {
				Metadata struct {
					Name        string            `json:"name"`
					Annotations map[string]string `json:"annotations"`
				} `json:"metadata"`
			}
			if json.Unmarshal(o, &n) != nil {
				return false // whoever waits says that nothing came
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			key := n.Metadata.Name + " " + n.Metadata.Annotations["lofamo.io/attempt"]
			if c := k.wait[key]; c != nil {
				c <- at
				delete(k.wait, key)
			}
			return true
		})
	}()
	return nil
}

// act carries out one job, and returns when the watcher had its effect.
func (k *kubeBench) act(ctx context.Context, j executor.Job) (time.Time, error) {
	seen := make(chan time.Time, 1)
	k.mu.Lock()
	k.wait[fmt.Sprintf("%s %s/0/1", j.Target.Node, j.Response)] = seen
	k.mu.Unlock()
	if r := k.e.Do(ctx, j); r.Outcome != response.Succeeded {
		return time.Time{}, fmt.Errorf("%s at %s: %s", j.Kind, j.Target, r.Detail)
	}
	select {
	case at := <-seen:
		return at, nil
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	case <-time.After(20 * time.Second):
		return time.Time{}, fmt.Errorf("%s at %s: the watcher has not seen it", j.Kind, j.Target)
	}
}

func (k *kubeBench) job(id, node string, kind response.Kind, parameters map[string]string) executor.Job {
	return executor.Job{
		Effect: response.Effect{
			Attempt: response.Attempt{Response: id, Attempt: 1}, Kind: kind, Parameters: parameters, Token: 1, IdempotencyKey: id + "/0", Timeout: time.Minute,
			Target: response.Target{Node: fault.NodeID(node), Component: fault.ComponentNode},
		},
		Cluster: "bench", Policy: "bench", Fault: executor.Fault{State: fault.Failed, Cause: fault.CauseNode, Since: time.Now(), Detail: "4 of 6 neighbours hear nothing"},
	}
}

// storm has so many nodes fail at once: a condition and an event each, within the limits that the executor has by default.
func (k *kubeBench) storm(ctx context.Context, o options, n int) error {
	var mu sync.Mutex
	var took measure.Latencies
	var errs []error
	var wg sync.WaitGroup
	begin := time.Now()
	for i, node := range k.nodes[len(k.nodes)-n:] {
		wg.Go(func() {
			id := fmt.Sprintf("r1-storm-%d", i)
			at, err := k.act(ctx, k.job(id, node, response.KubernetesCondition, map[string]string{"type": "LofamoFault"}))
			if err == nil {
				e := k.job(id, node, response.KubernetesEvent, map[string]string{"reason": "LofamoFault"})
				e.Step, e.IdempotencyKey = 1, id+"/1"
				if r := k.e.Do(ctx, e); r.Outcome != response.Succeeded {
					err = errors.New(r.Detail)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			took, errs = append(took, at.Sub(begin)), append(errs, err)
		})
	}
	wg.Wait()
	all := time.Since(begin)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	o.out.f("\n%d nodes failed at once: their conditions were set after %.1f s in the median, %.1f s for the last; with an event for each, after %.1f s. The executor keeps to its usual limits meanwhile.\n",
		n, took.Median().Seconds(), took.Max().Seconds(), all.Seconds())
	return nil
}

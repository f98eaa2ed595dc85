package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/kubernetes"
	"github.com/lofamo/lofamo/internal/kubetest"
	"github.com/lofamo/lofamo/internal/lab"
	"github.com/lofamo/lofamo/internal/localcluster"
	"github.com/lofamo/lofamo/internal/pki"
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
	if err := k.storm(ctx, o, min(1000, nodes/2)); err != nil {
		return err
	}
	return k.faults(ctx, o)
}

// kubeBench is an API server with nodes, and an executor.
type kubeBench struct {
	server     *kubetest.Server
	kubeconfig string // of the supervisors
	e          *kubernetes.Executor
	nodes      []string

	mu   sync.Mutex
	wait map[string]chan time.Time // when it was seen, by node and attempt, or by node and "faulty" or "clear"
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
	k.kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := k.server.Kubeconfig(k.kubeconfig, k.server.Addr, token); err != nil {
		return err
	}
	if k.e, err = kubernetes.New(kubernetes.Config{Kubeconfig: k.kubeconfig}, slog.New(slog.DiscardHandler)); err != nil {
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
			var n corev1.Node
			if json.Unmarshal(o, &n) != nil {
				return false // whoever waits says that nothing came
			}
			is := "clear"
			if slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == "LofamoFault" }) {
				is = "faulty"
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			for _, what := range []string{n.Annotations["lofamo.io/attempt"], is} {
				if c := k.wait[n.Name+" "+what]; c != nil {
					c <- at
					delete(k.wait, n.Name+" "+what)
				}
			}
			return true
		})
	}()
	return nil
}

// expect waits from now on for what the watcher sees of a node.
func (k *kubeBench) expect(node, what string) func(context.Context) (time.Time, error) {
	seen := make(chan time.Time, 1)
	k.mu.Lock()
	k.wait[node+" "+what] = seen
	k.mu.Unlock()
	return func(ctx context.Context) (time.Time, error) {
		select {
		case at := <-seen:
			return at, nil
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		case <-time.After(30 * time.Second):
			return time.Time{}, fmt.Errorf("node %s: the watcher has not seen it: %s", node, what)
		}
	}
}

// act carries out one job, and returns when the watcher had its effect.
func (k *kubeBench) act(ctx context.Context, j executor.Job) (time.Time, error) {
	seen := k.expect(string(j.Target.Node), j.Response+"/0/1")
	if r := k.e.Do(ctx, j); r.Outcome != response.Succeeded {
		return time.Time{}, fmt.Errorf("%s at %s: %s", j.Kind, j.Target, r.Detail)
	}
	return seen(ctx)
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

// kubePolicy sets a condition for the fault that is injected.
const kubePolicy = `apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: bench}
spec:
  mode: enforce
  match: fault.component == "temperature" && fault.state == "FAILED"
  steps:
  - {name: condition, executor: kubernetes.condition, parameters: {type: LofamoFault}, timeout: 30s, retries: 3}
  undo: {onRecovery: true, after: 0s}
`

// faults has a whole cluster respond: from the moment at which a watcher of the supervisors has the committed change to that at which a watcher of the
// API server has the condition.
func (k *kubeBench) faults(ctx context.Context, o options) (err error) {
	samples := 100
	if o.short {
		samples = 3
	}
	dir, err := os.MkdirTemp("", "lofamo-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	holdOff := config.Duration(200 * time.Millisecond)
	l, err := lab.Start(starting, localcluster.Options{
		Dir: filepath.Join(dir, "cluster"), Dims: o.dims, LogLevel: "warn", Periods: &config.PeriodsOverride{LinkHoldOff: &holdOff}, Supervisor: func(c *config.Supervisor) {
			c.Responses.Grace = 0
			c.Responses.Executors.Kubernetes = &config.KubernetesConfig{Kubeconfig: k.kubeconfig}
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	for _, n := range l.Cluster.Info().Nodes {
		if _, err := k.server.Admin.Do(http.MethodPost, "/api/v1/nodes", "", []byte(`{"metadata":{"name":"`+string(n.ID)+`"}}`)); err != nil {
			return err
		}
	}
	operator, err := l.Cluster.ClientAs(pki.RoleOperator)
	if err != nil {
		return err
	}
	_, err = operator.ApplyPolicies(ctx, &lofamov1.ApplyPoliciesRequest{Documents: kubePolicy})
	if err := errors.Join(err, operator.Close()); err != nil {
		return err
	}
	var took measure.Latencies
	rnd := rand.New(rand.NewPCG(o.seed, 6))
	for i := range samples + 1 {
		d, err := k.fault(ctx, l, rnd)
		if err != nil {
			return err
		}
		if i > 0 { // the first comes as soon as the policy does: replicas may not have it yet, and nobody is connected
			took = append(took, d)
		}
	}
	o.out.f("\nFrom a fault that is committed (a watcher of the supervisors has the change) to its condition (a watcher of the API server has it), on a %s torus with 3 supervisors beside the API server on this machine, %d faults one after the other: %s ms in the median, %s ms at p99.\n",
		o.dims, samples, measure.Millis(took.Median()), measure.Millis(took.P99()))
	return nil
}

// fault injects one, waits until its condition is set, heals it, and waits until the condition is taken away.
func (k *kubeBench) fault(ctx context.Context, l *lab.Lab, rnd *rand.Rand) (time.Duration, error) {
	nodes := l.Cluster.Info().Nodes
	node := string(nodes[rnd.IntN(len(nodes))].ID)
	f := localcluster.Fault{Kind: localcluster.SensorValue, Sensor: "temperature", Value: 110}
	mark, faulty := l.Mark(), k.expect(node, "faulty")
	if _, err := l.Cluster.Inject(ctx, node, f); err != nil {
		return 0, err
	}
	waiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	seen, err := l.Wait(waiting, mark, lab.Becomes(node, "temperature", lofamov1.State_FAILED))
	if err != nil {
		return 0, err
	}
	at, err := faulty(waiting)
	if err != nil {
		return 0, err
	}
	// The two clocks tick alike; this is how far apart they are.
	offset := localcluster.Monotonic() - time.Now().UnixNano()
	d := time.Duration(at.UnixNano() + offset - seen.At)
	healed := k.expect(node, "clear")
	if err := l.Cluster.Undo(ctx, node, f); err != nil {
		return 0, err
	}
	_, err = healed(waiting)
	return d, err
}

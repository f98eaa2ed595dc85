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
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/fleet"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/kubernetes"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// kubernetesActs measures the time from a committed fault to its effect at a real API server on a real etcd. Real
// supervisors receive the fault as agents report it, and act under the shipped roles.
func kubernetesActs(ctx context.Context, o options) (err error) {
	plan := kubePlan{side: 16, alone: 1000, warm: 20, storm: 1000}
	if o.short {
		plan = kubePlan{side: 4, alone: 20, warm: 1, storm: 8}
	}
	dir, err := os.MkdirTemp("", "lofamo-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	k, err := newKubeBench(dir)
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
	return withFleet(ctx, fleet.Config{
		Dims: cube(plan.side), Replicas: 3, Preset: config.PresetDefault, Periods: seldom(loadDigests), Seed: o.seed, Adjust: k.adjust,
	}, func(f *fleet.Fleet) (err error) {
		k.fleet = f
		steady := f.Steady(ctx)
		defer func() {
			_, failed := steady.Stop()
			err = errors.Join(err, failed)
		}()
		if err := k.begin(ctx, plan); err != nil {
			return err
		}
		return k.measure(ctx, o, plan)
	})
}

// kubePlan sets the numbers of samples.
type kubePlan struct {
	side  int // of the torus
	alone int // faults one after the other
	warm  int // of these, not counted: connections are made, and replicas may not have the policy yet
	storm int // faults at once
}

// kubeBench is an API server, supervisors that act on it, and the watches on both.
type kubeBench struct {
	server     *kubetest.Server
	supervisor *kubetest.Client // with the rights of the supervisors
	kubeconfig string           // of the supervisors
	e          *kubernetes.Executor
	fleet      *fleet.Fleet
	kube       *sightings // "NODE faulty" and "NODE clear", "NODE attempt ATTEMPT", "NODE event"
	faults     *sightings // "NODE COMPONENT STATE", as committed
}

func newKubeBench(dir string) (*kubeBench, error) {
	s, err := kubetest.Start(dir)
	if err != nil {
		return nil, err
	}
	k := &kubeBench{server: s, kube: newSightings(), faults: newSightings()}
	if err := k.prepare(dir); err != nil {
		s.Stop()
		return nil, err
	}
	return k, nil
}

// prepare makes an executor and a client that act as the supervisors do, under the roles that are shipped and the
// usual limits.
func (k *kubeBench) prepare(dir string) error {
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
	if k.supervisor, err = k.server.Client(k.server.Addr, token); err != nil {
		return err
	}
	k.e, err = kubernetes.New(kubernetes.Config{Kubeconfig: k.kubeconfig}, nil, slog.New(slog.DiscardHandler))
	return err
}

// adjust has a supervisor act on the API server, without grace and with the breaker lifted; all other limits are the
// usual ones.
func (k *kubeBench) adjust(c *config.Supervisor) {
	c.Responses.Grace = 0
	c.Responses.BreakerNodes = 1 << 20
	c.Responses.Executors.Kubernetes = &config.KubernetesConfig{Kubeconfig: k.kubeconfig}
}

// kubePolicy is the shipped policy, enforced, and for two faults only: memory faults, which nodes report themselves,
// and faults of whole nodes, which their neighbours report.
const kubePolicy = `apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: bench}
spec:
  mode: enforce
  match: fault.component in ["node", "memory"] && fault.state == "FAILED"
  steps:
  - {name: condition, executor: kubernetes.condition, parameters: {type: LofamoFault}, timeout: 30s, retries: 5}
  - {name: event, executor: kubernetes.event, parameters: {reason: LofamoFault}, timeout: 30s, retries: 2}
  undo: {onRecovery: true, after: 0s}
`

// begin creates all nodes, watches both sides, and puts the policy in force.
func (k *kubeBench) begin(ctx context.Context, plan kubePlan) error {
	names := []string{bareNode}
	for i := range plan.alone {
		names = append(names, aloneNode(i))
	}
	for _, n := range k.fleet.Nodes() {
		names = append(names, string(n.ID()))
	}
	var g errgroup.Group
	g.SetLimit(8)
	for _, name := range names {
		g.Go(func() error {
			_, err := k.server.Admin.Do(http.MethodPost, "/api/v1/nodes", "", []byte(`{"metadata":{"name":"`+name+`"}}`))
			return err
		})
	}
	if err := errors.Join(g.Wait(), k.fleet.Normal(ctx)); err != nil {
		return err
	}
	if _, err := k.fleet.Client().ApplyPolicies(ctx, &lofamov1.ApplyPoliciesRequest{Documents: kubePolicy}); err != nil {
		return err
	}
	return k.watch(ctx)
}

// watch looks at the map of the supervisors, and at all nodes and events of the API server, from now on.
func (k *kubeBench) watch(ctx context.Context) error {
	now, err := k.fleet.Client().ListEvents(ctx, &lofamov1.ListEventsRequest{Limit: 1})
	if err != nil {
		return err
	}
	go func() {
		k.faults.ended(k.fleet.Client().Watch(ctx, client.WatchOptions{After: now.GetRevision()}, func(r *lofamov1.WatchResponse) error {
			at := time.Now()
			for _, ev := range r.GetEvents() {
				k.faults.saw(ev.GetNode()+" "+ev.GetComponent()+" "+ev.GetTo().String(), at)
			}
			return nil
		}))
	}()
	err = k.watchKube(ctx, "/api/v1/nodes", func(at time.Time, o json.RawMessage) error {
		var n corev1.Node
		if err := json.Unmarshal(o, &n); err != nil {
			return err
		}
		is := " clear"
		if slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == "LofamoFault" && c.Status == corev1.ConditionTrue
		}) {
			is = " faulty"
		}
		k.kube.saw(n.Name+is, at)
		k.kube.saw(n.Name+" attempt "+n.Annotations["lofamo.io/attempt"], at)
		return nil
	})
	if err != nil {
		return err
	}
	return k.watchKube(ctx, "/api/v1/events", func(at time.Time, o json.RawMessage) error {
		var e corev1.Event
		if err := json.Unmarshal(o, &e); err != nil {
			return err
		}
		k.kube.saw(e.InvolvedObject.Name+" event", at)
		return nil
	})
}

func (k *kubeBench) watchKube(ctx context.Context, path string, each func(time.Time, json.RawMessage) error) error {
	b, err := k.server.Admin.Do(http.MethodGet, path+"?limit=1", "", nil)
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
		var bad error
		err := k.server.Admin.Watch(ctx, path+"?watch=true&resourceVersion="+list.Metadata.ResourceVersion,
			func(_ string, o json.RawMessage) bool {
				bad = each(time.Now(), o)
				return bad == nil
			})
		k.kube.ended(errors.Join(err, bad))
	}()
	return nil
}

func (k *kubeBench) measure(ctx context.Context, o options, plan kubePlan) error {
	limits := kubernetes.Config{}.Filled()
	o.out.f("\n### Responses in Kubernetes\n\nA kube-apiserver and its etcd on this machine, with %d nodes, written to with the roles that "+
		"are shipped; three supervisors (processes, embedded etcd) with a torus of %s, whose nodes are emulated here and send their digests "+
		"every %s; a policy with a condition and an event, as the shipped one, without grace. The executor keeps to its usual limits: %d "+
		"requests a second, %d after a pause, events apart.\n",
		len(k.fleet.Nodes())+plan.alone+1, k.fleet.Dims(), loadDigests, limits.QPS, limits.Burst)
	if err := k.alone(ctx, o, plan); err != nil {
		return err
	}
	o.out.f("\nMany at once, with the breaker lifted. Times in s, from the moment at which a watcher of the supervisors has the first of " +
		"the faults; *own*: for each fault from its own such moment.\n\n")
	o.out.f("| faults | committed: median | the last | begun: median | conditions: median | p99 | the last | own, median | own, last | " +
		"events: the last | processor, supervisors |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	return errors.Join(k.storm(ctx, o, plan), k.deaths(ctx, o, plan))
}

// act carries out one job by an executor here, and returns when a watcher had its effect.
func (k *kubeBench) act(ctx context.Context, j executor.Job) (time.Time, error) {
	seen := k.kube.of(fmt.Sprintf("%s attempt %s/%d/%d", j.Target.Node, j.Response, j.Step, j.Attempt.Attempt))
	if r := k.e.Do(ctx, j); r.Outcome != response.Succeeded {
		return time.Time{}, fmt.Errorf("%s at %s: %s", j.Kind, j.Target, r.Detail)
	}
	return seen(ctx)
}

// job is one that no supervisor knows of.
func job(id, node string, kind response.Kind, parameters map[string]string) executor.Job {
	return executor.Job{
		Effect: response.Effect{
			Attempt: response.Attempt{Response: id, Attempt: 1}, Kind: kind, Parameters: parameters, Token: 1, IdempotencyKey: id + "/0",
			Timeout: time.Minute,
			Target:  response.Target{Node: fault.NodeID(node), Component: fault.ComponentNode},
		},
		Cluster: "bench", Policy: "bench", Fault: executor.Fault{State: fault.Failed, Cause: fault.CauseNode, Since: time.Now(),
			Detail: "4 of 6 neighbours hear nothing"},
	}
}

// row prints quantiles in ms.
func row(o options, what string, took measure.Latencies) {
	o.out.f("| %s | %d | %s | %s | %s |\n", what, len(took), measure.Millis(took.Median()), measure.Millis(took.P99()),
		measure.Millis(took.Max()))
}

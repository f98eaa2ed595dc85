package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/fleet"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// bareNode is the node of bare requests, and aloneNode those of the executor without supervisors.
const bareNode = "bare"

func aloneNode(i int) string { return fmt.Sprintf("alone-%d", i) }

// kubeWait bounds the wait for one fault, and stormWait for many.
const (
	kubeWait  = 30 * time.Second
	stormWait = 3 * time.Minute
)

// alone measures one operation at a time: faults through the supervisors, by turns with the steps that they consist
// of.
func (k *kubeBench) alone(ctx context.Context, o options, plan kubePlan) (err error) {
	etcd, err := k.store(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	rnd := rand.New(rand.NewPCG(o.seed, 6))
	ranks := rnd.Perm(len(k.fleet.Nodes()))
	var told, committed, healed, bare, stored, condition, cordon measure.Latencies
	for i := range plan.warm + plan.alone {
		node := k.fleet.Nodes()[ranks[i%len(ranks)]]
		f, err := k.fault(ctx, node, fault.Failed, "faulty")
		if err != nil {
			return err
		}
		pause(ctx, apart(rnd))
		h, err := k.fault(ctx, node, fault.Normal, "clear")
		if err != nil {
			return err
		}
		pause(ctx, apart(rnd))
		if i < plan.warm {
			if _, err := k.bare(ctx, i); err != nil {
				return err
			}
			continue
		}
		told, committed, healed = append(told, f.effect.Sub(f.told)), append(committed, f.effect.Sub(f.committed)), append(healed,
			h.effect.Sub(h.committed))
		for _, m := range []struct {
			into *measure.Latencies
			do   func() (time.Duration, error)
		}{
			{&bare, func() (time.Duration, error) { return k.bare(ctx, i) }},
			{&stored, func() (time.Duration, error) { return store(ctx, etcd, i) }},
			{&condition, func() (time.Duration, error) { return k.direct(ctx, i-plan.warm, response.KubernetesCondition) }},
			{&cordon, func() (time.Duration, error) { return k.direct(ctx, i-plan.warm, response.KubernetesCordon) }},
		} {
			took, err := m.do()
			if err != nil {
				return err
			}
			*m.into = append(*m.into, took)
			pause(ctx, apart(rnd))
		}
		o.progress.f("\r%d of %d   ", i+1-plan.warm, plan.alone)
	}
	o.out.f("\nOne at a time, all rows by turns, 5 to 15 ms apart, in ms. A fault is committed when a watcher of the supervisors has it, " +
		"and its effect is there when a watcher of the API server has it.\n\n")
	o.out.f("| from, to | n | median | p99 | max |\n|---|---|---|---|---|\n")
	row(o, "fault committed → condition set", committed)
	row(o, "fault reported by its node → condition set", told)
	row(o, "recovery committed → condition False", healed)
	row(o, "bound: a bare PATCH of a node's status → seen", bare)
	row(o, "bound: a write to the supervisors' etcd, three members → answered", stored)
	row(o, "the executor alone, called → condition seen", condition)
	row(o, "the executor alone, called → cordon seen", cordon)
	return nil
}

// apart returns the pause between an effect and the next act: evenly spread, so that it does not synchronise with any
// ticker.
func apart(rnd *rand.Rand) time.Duration {
	return 5*time.Millisecond + time.Duration(rnd.Int64N(int64(10*time.Millisecond)))
}

// moments of one fault.
type moments struct{ told, committed, effect time.Time }

// fault makes a node report that its memory turned into a state, and waits for the effect.
func (k *kubeBench) fault(ctx context.Context, n *fleet.Node, s fault.State, effect string) (m moments, err error) {
	ctx, cancel := context.WithTimeout(ctx, kubeWait)
	defer cancel()
	b, err := n.State(fault.ComponentMemory, s)
	if err != nil {
		return m, err
	}
	committed, seen := k.faults.of(memory(n, s)), k.kube.of(string(n.ID())+" "+effect)
	m.told = time.Now()
	if err := k.fleet.Deliver(ctx, []*fleet.Batch{b}, 1, nil); err != nil {
		return m, err
	}
	if m.committed, err = committed(ctx); err == nil {
		m.effect, err = seen(ctx)
	}
	return m, err
}

func memory(n *fleet.Node, s fault.State) string {
	return fmt.Sprintf("%s %s %s", n.ID(), fault.ComponentMemory, s)
}

// bare changes a condition by one request that looks at nothing.
func (k *kubeBench) bare(ctx context.Context, i int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeWait)
	defer cancel()
	is, list := "faulty", `{"type":"LofamoFault","status":"True","reason":"Bench","message":"4 of 6 neighbours hear nothing"}`
	if i%2 == 1 {
		is, list = "clear", ""
	}
	seen := k.kube.of(bareNode + " " + is)
	begin := time.Now()
	if _, err := k.supervisor.Do(http.MethodPatch, "/api/v1/nodes/"+bareNode+"/status", kubetest.MergePatch,
		[]byte(`{"status":{"conditions":[`+list+`]}}`)); err != nil {
		return 0, err
	}
	at, err := seen(ctx)
	return at.Sub(begin), err
}

// direct has the executor of this process act on a node of its own.
func (k *kubeBench) direct(ctx context.Context, i int, kind response.Kind) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeWait)
	defer cancel()
	var parameters map[string]string
	if kind == response.KubernetesCondition {
		parameters = map[string]string{"type": "LofamoFault"}
	}
	begin := time.Now()
	at, err := k.act(ctx, job(fmt.Sprintf("r1-%s-%d", kind[len("kubernetes."):], i), aloneNode(i), kind, parameters))
	return at.Sub(begin), err
}

// store is a client of the store of the replica that leads.
func (k *kubeBench) store(ctx context.Context) (*clientv3.Client, error) {
	leader, err := k.fleet.Leader(ctx)
	if err != nil {
		return nil, err
	}
	url, conf, err := k.fleet.Etcd(leader)
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{Endpoints: []string{url}, TLS: conf, DialTimeout: kubeWait, Context: ctx})
}

// store writes a value as large as the record of a response.
func store(ctx context.Context, c *clientv3.Client, i int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeWait)
	defer cancel()
	begin := time.Now()
	_, err := c.Put(ctx, "bench", fmt.Sprintf("%01000d", i))
	return time.Since(begin), err
}

// storm has the memory of many nodes fail at once, and then be well again.
func (k *kubeBench) storm(ctx context.Context, o options, plan kubePlan) error {
	ctx, cancel := context.WithTimeout(ctx, stormWait)
	defer cancel()
	nodes := slices.Clone(k.fleet.Nodes())
	rnd := rand.New(rand.NewPCG(o.seed, 7))
	rnd.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	nodes = nodes[:plan.storm]
	say := func(s fault.State) error {
		var batches []*fleet.Batch
		for _, n := range nodes {
			b, err := n.State(fault.ComponentMemory, s)
			if err != nil {
				return err
			}
			batches = append(batches, b)
		}
		return k.fleet.Deliver(ctx, batches, len(batches), nil)
	}
	err := k.flood(ctx, o, printed("the memory of %d nodes, as they say", len(nodes)), ids(nodes), fault.ComponentMemory,
		func() error { return say(fault.Failed) })
	if err != nil {
		return err
	}
	var clear []string
	for _, n := range nodes {
		clear = append(clear, string(n.ID())+" clear")
	}
	healed := k.kube.ofAll(clear)
	if err := say(fault.Normal); err != nil {
		return err
	}
	_, err = healed(ctx)
	return err
}

// deaths has many nodes die at once, as their neighbours say.
func (k *kubeBench) deaths(ctx context.Context, o options, plan kubePlan) error {
	ctx, cancel := context.WithTimeout(ctx, stormWait)
	defer cancel()
	victims := scattered(k.fleet.Dims(), plan.storm, o.seed)
	var nodes []*fleet.Node
	for _, v := range victims {
		nodes = append(nodes, k.fleet.Nodes()[v])
	}
	return k.flood(ctx, o, printed("%d nodes, dead, as their neighbours say", len(nodes)), ids(nodes), fault.ComponentNode, func() error {
		_, err := k.fleet.Die(ctx, victims, false)
		return err
	})
}

func ids(nodes []*fleet.Node) (out []string) {
	for _, n := range nodes {
		out = append(out, string(n.ID()))
	}
	return out
}

// flood measures the handling of many faults that happen causes.
func (k *kubeBench) flood(ctx context.Context, o options, what string, nodes []string, c fault.Component, happen func() error) error {
	each := func(word string) (out []string) {
		for _, n := range nodes {
			out = append(out, n+" "+word)
		}
		return out
	}
	begun := time.Now()
	committed, set, events := k.faults.ofAll(each(c.String()+" "+fault.Failed.String())), k.kube.ofAll(each("faulty")),
		k.kube.ofAll(each("event"))
	before, _, err := consumed(k.fleet)
	if err != nil {
		return err
	}
	if err := happen(); err != nil {
		return err
	}
	at, err := committed(ctx)
	if err != nil {
		return err
	}
	effect, err := set(ctx)
	if err != nil {
		return err
	}
	after, _, err := consumed(k.fleet)
	if err != nil {
		return err
	}
	told, err := events(ctx)
	if err != nil {
		return err
	}
	first := slices.MinFunc(at, time.Time.Compare)
	begins, err := k.begins(ctx, c, begun)
	if err != nil {
		return err
	}
	since := func(list []time.Time) (out measure.Latencies) {
		for _, t := range list {
			out = append(out, t.Sub(first))
		}
		return out
	}
	var own measure.Latencies
	for i := range at {
		own = append(own, effect[i].Sub(at[i]))
	}
	s := func(d time.Duration) string { return printed("%.2f", d.Seconds()) }
	all := since(effect)
	o.out.f("| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %.1f s |\n", what, s(since(at).Median()), s(since(at).Max()),
		s(since(begins).Median()), s(all.Median()), s(all.P99()), s(all.Max()),
		s(own.Median()), s(own.Max()), s(since(told).Max()), (after - before).Seconds())
	return nil
}

// begins are when the responses to faults of a component since then began with their first step, by the leader's
// clock, which is this machine's.
func (k *kubeBench) begins(ctx context.Context, c fault.Component, since time.Time) (out []time.Time, err error) {
	r, err := k.fleet.Client().ListResponses(ctx, &lofamov1.ListResponsesRequest{All: true})
	if err != nil {
		return nil, err
	}
	for _, x := range r.GetResponses() {
		if x.GetComponent() == c.String() && x.GetProposed().AsTime().After(since) {
			out = append(out, x.GetSteps()[0].GetStarted().AsTime())
		}
	}
	return out, nil
}

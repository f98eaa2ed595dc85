package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// mapped is a fault map of a test.
type mapped struct {
	mu     sync.Mutex
	states map[fault.NodeID]NodeState
	err    error
}

func (m *mapped) get(context.Context) (map[fault.NodeID]NodeState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.states), m.err
}

func (m *mapped) set(state NodeState, names ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		m.states[fault.NodeID(name)] = state
	}
}

func (m *mapped) remove(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.states, fault.NodeID(name))
}

var (
	ready    = NodeState{Ready: corev1.ConditionTrue, Reason: "LinksNormal", Message: "all links are NORMAL"}
	notReady = NodeState{Ready: corev1.ConditionFalse, Reason: "LinkFault", Message: "links: X+ FAILED"}
)

// keeperExecutor returns an executor with the right to follow nodes. Its account is its own: other tests show that theirs may
// not list nodes.
func keeperExecutor(t *testing.T, c config.KubernetesConditions) *Executor {
	t.Helper()
	s := cluster(t)
	account := shipped(t, "keeper", "rbac", "rbac-conditions")
	return newExecutor(t, Config{Kubeconfig: kubeconfig(t, s.Addr, account), Conditions: &c}, nil)
}

// shipped returns the token of an account with the rights of shipped files.
func shipped(t *testing.T, account string, files ...string) string {
	t.Helper()
	s := cluster(t)
	const subject = "- kind: ServiceAccount\n  name: "
	err := s.Admin.Apply([]byte("apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: " + account + "\n  namespace: lofamo\n"))
	for _, f := range files {
		b, bad := os.ReadFile(strings.Replace(manifest, "rbac", f, 1))
		text := strings.ReplaceAll(string(b), subject+"lofamo-supervisor", subject+account)
		for _, name := range []string{"lofamo-supervisor-events", "lofamo-supervisor-conditions", "lofamo-supervisor-remediation",
			"lofamo-supervisor-node-label"} {
			text = strings.ReplaceAll(text, "name: "+name, "name: "+name+"-"+account)
		}
		text = strings.ReplaceAll(text, "  name: lofamo-supervisor\n", "  name: lofamo-supervisor-"+account+"\n")
		text = strings.ReplaceAll(text, subject+"lofamo-supervisor-"+account, subject+account)
		err = errors.Join(err, bad, s.Admin.Apply([]byte(text)))
	}
	token, bad := s.Admin.TokenOf("lofamo", account)
	if err = errors.Join(err, bad); err != nil {
		t.Fatal(err)
	}
	return token
}

// keep starts a keeper with short waits. The returned function ends it.
func keep(t *testing.T, e *Executor, m *mapped) (stop func()) {
	t.Helper()
	k := e.newKeeper(m.get, nil)
	k.every, k.leave = 50*time.Millisecond, 200*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.run(ctx, true) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// condition reads a condition of a node; "" if the node lacks it.
func conditionOf(t *testing.T, node, typ string) (c corev1.NodeCondition) {
	t.Helper()
	c, _ = find(theNode(t, node).Status.Conditions, typ)
	return c
}

// stands waits until a node has a condition with a status and a reason.
func stands(t *testing.T, node, typ, status, reason string) {
	t.Helper()
	eventually(t, func() bool {
		c := conditionOf(t, node, typ)
		return string(c.Status) == status && c.Reason == reason
	}, fmt.Sprintf("%s of %s is %s, %s", typ, node, status, reason))
}

// TestKeptConditionsStandOnEveryNode: each known node has the conditions from the start, and no other node has them. They
// follow the map, come back when somebody removes them, and go when the node leaves the map.
func TestKeptConditionsStandOnEveryNode(t *testing.T) {
	e := keeperExecutor(t, config.KubernetesConditions{Enabled: true})
	a, b, other := aNode(t), aNode(t), aNode(t)
	m := &mapped{states: map[fault.NodeID]NodeState{}}
	m.set(ready, a)
	m.set(notReady, b)
	stop := keep(t, e, m)
	for node, status := range map[string]string{a: "True", b: "False"} {
		stands(t, node, "LofamoFault", "False", noFaultReason)
		stands(t, node, LinksReady, status, map[string]string{"True": "LinksNormal", "False": "LinkFault"}[status])
	}
	was := conditionOf(t, a, LinksReady)
	m.set(notReady, a)
	stands(t, a, LinksReady, "False", "LinkFault")
	if c := conditionOf(t, a, LinksReady); c.LastTransitionTime.Before(&was.LastTransitionTime) || c.LastHeartbeatTime.IsZero() {
		t.Errorf("times: %+v after %+v", c, was)
	}
	admin(t, http.MethodPatch, "/api/v1/nodes/"+a+"/status", kubetest.MergePatch, `{"status":{"conditions":[]}}`)
	stands(t, a, "LofamoFault", "False", noFaultReason)
	stands(t, a, LinksReady, "False", "LinkFault")
	m.remove(b)
	eventually(t, func() bool { return len(theNode(t, b).Status.Conditions) == 0 }, "the conditions go with the node")
	if c := theNode(t, other).Status.Conditions; len(c) > 0 {
		t.Errorf("a node that the map lacks has conditions: %+v", c)
	}
	// A map that is not known removes nothing.
	stop()
	m.err = errors.New("not leading")
	keep(t, e, m)
	late := aNode(t)
	m.set(ready, late)
	time.Sleep(500 * time.Millisecond) // ten rounds
	if len(theNode(t, a).Status.Conditions) != 2 || len(theNode(t, late).Status.Conditions) != 0 {
		t.Errorf("an unknown map changes conditions: %+v", theNode(t, a).Status.Conditions)
	}
}

// TestResponsesSetKeptConditions: a response makes a kept condition True and its undo makes it False. A person's removal ends
// the response's claim as without the keeper, which does not restore the condition while the claim stands.
func TestResponsesSetKeptConditions(t *testing.T) {
	e := keeperExecutor(t, config.KubernetesConditions{Enabled: true})
	node := aNode(t)
	m := &mapped{states: map[fault.NodeID]NodeState{}}
	m.set(ready, node)
	keep(t, e, m)
	stands(t, node, "LofamoFault", "False", noFaultReason)
	parameters := map[string]string{"type": "LofamoFault"}
	j := aJob(responseID(), node, response.KubernetesCondition, parameters)
	do(t, e, j)
	stands(t, node, "LofamoFault", "True", "MemorySick")
	m.set(notReady, node) // the keeper writes beside it
	stands(t, node, LinksReady, "False", "LinkFault")
	stands(t, node, "LofamoFault", "True", "MemorySick")
	do(t, e, undo(j))
	stands(t, node, "LofamoFault", "False", undoneReason)
	m.set(ready, node)
	stands(t, node, LinksReady, "True", "LinksNormal")
	stands(t, node, "LofamoFault", "False", undoneReason)

	j = aJob(responseID(), node, response.KubernetesCondition, parameters)
	do(t, e, j)
	admin(t, http.MethodPatch, "/api/v1/nodes/"+node+"/status", kubetest.MergePatch, `{"status":{"conditions":[]}}`)
	stands(t, node, LinksReady, "True", "LinksNormal")
	if c := conditionOf(t, node, "LofamoFault"); c.Type != "" {
		t.Errorf("a condition that somebody has removed from a response is back: %+v", c)
	}
	want(t, e.Do(t.Context(), again(j)), response.Unchanged, "somebody has taken away condition LofamoFault")
	other := aJob(responseID(), node, response.KubernetesCondition, parameters)
	want(t, e.Do(t.Context(), other), response.Unchanged, "somebody has removed condition LofamoFault")
	do(t, e, undo(again(j)))
	stands(t, node, "LofamoFault", "False", noFaultReason)
	do(t, e, again(other))
	stands(t, node, "LofamoFault", "True", "MemorySick")
}

// TestConditionsGoWhenTurnedOff: the rights of every executor suffice for that. A response's condition stays.
func TestConditionsGoWhenTurnedOff(t *testing.T) {
	e := keeperExecutor(t, config.KubernetesConditions{Enabled: true})
	a, b := aNode(t), aNode(t)
	m := &mapped{states: map[fault.NodeID]NodeState{}}
	m.set(ready, a, b, "nowhere")
	stop := keep(t, e, m)
	stands(t, a, LinksReady, "True", "LinksNormal")
	stands(t, b, LinksReady, "True", "LinksNormal")
	j := aJob(responseID(), b, response.KubernetesCondition, map[string]string{"type": "LofamoFault"})
	do(t, e, j)
	stop()
	off := newExecutor(t, Config{Conditions: &config.KubernetesConditions{}}, nil)
	off.Keep(t.Context(), m.get, nil) // returns when all are gone
	if c := theNode(t, a).Status.Conditions; len(c) > 0 {
		t.Errorf("conditions stay: %+v", c)
	}
	if c := theNode(t, b).Status.Conditions; len(c) != 1 || c[0].Type != "LofamoFault" || c[0].Status != "True" {
		t.Errorf("want only the response's condition: %+v", c)
	}
	do(t, off, undo(j))
}

// TestConditionsGoFromAllNodesWithTheLabel: with nodeLabel, a node gets the label of another one after its conditions. Both have conditions
// of ours, so both lose them when the conditions are turned off. An error names the node, the label and the node of Kubernetes.
func TestConditionsGoFromAllNodesWithTheLabel(t *testing.T) {
	account := shipped(t, "sharing", "rbac", "rbac-node-label", "rbac-conditions")
	cfg := Config{NodeLabel: "example.org/sharing", Kubeconfig: kubeconfig(t, cluster(t).Addr, account),
		Conditions: &config.KubernetesConditions{Enabled: true}}
	label := func(node, value string) {
		patch(t, node, `{"metadata":{"labels":{"example.org/sharing":"`+value+`"}}}`)
	}
	a, b, other := aNode(t), aNode(t), aNode(t)
	label(a, "m1")
	label(b, "m2")
	m := &mapped{states: map[fault.NodeID]NodeState{}}
	m.set(ready, "m1", "m2", "nowhere")
	stop := keep(t, newExecutor(t, cfg, nil), m)
	stands(t, a, LinksReady, "True", "LinksNormal")
	stands(t, b, LinksReady, "True", "LinksNormal")
	stop()
	label(b, "m1")
	label(other, "m1") // has no conditions of ours
	before := theNode(t, other).ResourceVersion

	cfg.Conditions = &config.KubernetesConditions{}
	refusing := newExecutor(t, cfg, func(next http.RoundTripper) http.RoundTripper {
		return &failingOnce{next: next, method: http.MethodPatch, code: http.StatusForbidden, reason: metav1.StatusReasonForbidden}
	})
	if n, err := refusing.removeKeptFrom(t.Context(), "m1"); n != 1 || err == nil ||
		!strings.HasPrefix(err.Error(), "node m1, by label example.org/sharing, as n") || !strings.HasSuffix(err.Error(), ": not now") {
		t.Errorf("one of two writes is refused: %d nodes, %v: want one, and an error with the label", n, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	newExecutor(t, cfg, nil).Keep(ctx, m.get, nil) // returns when all are gone
	if ctx.Err() != nil {
		t.Error("the removal has not ended within a minute")
	}
	for _, node := range []string{a, b} {
		if c := theNode(t, node).Status.Conditions; len(c) > 0 {
			t.Errorf("node %s: conditions stay: %+v", node, c)
		}
	}
	if theNode(t, other).ResourceVersion != before {
		t.Error("a node without conditions of ours was written")
	}
}

// TestKeptHeartbeatsArePaced: a node without changes is written once in an interval, changes come first, and one round
// writes no more than the rate allows.
func TestKeptHeartbeatsArePaced(t *testing.T) {
	k := &keeper{
		e: &Executor{cfg: Config{}.Filled()}, plan: keeping{types: []string{"LofamoFault"}, heartbeat: 5 * time.Minute}, leave: keepLeave,
		known: true, missing: map[string]time.Time{}, sent: map[string]sentWrite{}, failing: newRetries(), nodes: map[string]*keptNode{},
	}
	states := map[fault.NodeID]NodeState{}
	now := time.Unix(1_700_000_000, 0)
	for i := range 200 {
		name := fmt.Sprintf("n%d", i)
		k.nodes[name] = keptOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}}, "")
		states[fault.NodeID(name)] = ready
	}
	// apply has the result of a write at the API server.
	apply := func(w keepWrite) {
		var body struct {
			Status struct{ Conditions []corev1.NodeCondition }
		}
		if err := json.Unmarshal(w.body, &body); err != nil {
			t.Fatal(err)
		}
		n := *w.node
		n.version += "1"
		n.kept = owned{conditions: map[string]map[string]bool{}}
		for _, c := range body.Status.Conditions {
			n.kept.conditions[string(c.Type)] = map[string]bool{"type": true, "status": true}
		}
		n.conditions, n.owns = body.Status.Conditions, true
		k.nodes[n.name] = &n
	}
	writes := map[string]int{}
	for range 11 * 60 {
		all := k.needed(states, now)
		if len(all) > keepQPS {
			t.Fatalf("%d writes in a round", len(all))
		}
		for _, w := range all {
			writes[w.node.name]++
			apply(w)
		}
		now = now.Add(time.Second)
	}
	for name, n := range writes {
		if n < 3 || n > 4 { // at once, and then every 4:22 to 5:00
			t.Errorf("node %s: %d writes in 11 minutes, want 3", name, n)
		}
	}
	now = now.Add(10 * time.Minute) // all heartbeats are due
	states["n77"] = notReady
	all := k.needed(states, now)
	if len(all) != keepQPS || all[0].node.name != "n77" || !all[0].urgent || all[1].urgent {
		t.Errorf("first of %d: %s: want the changed node first", len(all), all[0].node.name)
	}
	k.sent["n77"] = sentWrite{k.nodes["n77"].version, now}
	if all := k.needed(states, now); all[0].node.name == "n77" {
		t.Error("written again before the watch has the first write")
	}
}

// TestHeartbeatInTheFutureIsRefreshed: a heartbeat from a clock that was ahead gets the right time at once, and not when that time has
// come. Clocks of supervisors may differ a little.
func TestHeartbeatInTheFutureIsRefreshed(t *testing.T) {
	k := keeping{types: []string{"LofamoFault"}, heartbeat: 5 * time.Minute}
	now := time.Unix(1_700_000_000, 0)
	n := &keptNode{name: "a", version: "1", owns: true, kept: owned{conditions: map[string]map[string]bool{
		"LofamoFault": {"type": true, "status": true}, LinksReady: {"type": true, "status": true},
	}}}
	for _, tc := range []struct {
		ahead time.Duration
		need  bool
	}{{0, false}, {maxAhead, false}, {maxAhead + time.Second, true}, {time.Hour, true}} {
		at := metav1.NewTime(now.Add(tc.ahead))
		n.conditions = []corev1.NodeCondition{
			{Type: "LofamoFault", Status: corev1.ConditionFalse, Reason: noFaultReason, Message: noFaultMessage, LastHeartbeatTime: at,
				LastTransitionTime: at},
			{Type: LinksReady, Status: ready.Ready, Reason: ready.Reason, Message: ready.Message, LastHeartbeatTime: at, LastTransitionTime: at},
		}
		w, need := k.plan(n, &ready, now)
		if need != tc.need || w.urgent {
			t.Errorf("a heartbeat %s ahead: write %t, urgent %t: want write %t", tc.ahead, need, w.urgent, tc.need)
		}
		if need && !w.due.Equal(now) {
			t.Errorf("a heartbeat %s ahead: due %s: want now", tc.ahead, w.due)
		}
	}
}

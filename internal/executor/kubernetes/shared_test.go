package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// labelledNode returns a node with a label and one condition of an unknown program.
func labelledNode(name, label, typ string) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1", Labels: map[string]string{"machine": label}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeConditionType(typ), Status: corev1.ConditionTrue}}},
	}
}

// TestSharedLabelIsNoEvidence: while several nodes of Kubernetes have the label of one node, none of them tells anything about it
// or keeps conditions.
func TestSharedLabelIsNoEvidence(t *testing.T) {
	var log bytes.Buffer
	e := &Executor{cfg: Config{NodeLabel: "machine"}.Filled(), log: slog.New(slog.NewTextHandler(&log, nil))}
	k := e.newKeeper(nil, func(response.OutsideChanged) {})
	k.leave = 0
	e.following.Store(k)
	told := map[fault.NodeID]int{}
	want := func(what string, conditions, writes int) {
		t.Helper()
		ev, _ := k.news()
		for id, all := range ev.Nodes {
			told[id] = len(all)
		}
		all, known := e.Outside("m1")
		if told["m1"] != conditions || len(all) != conditions || !known {
			t.Errorf("%s: %d conditions are told, %d stand: want %d", what, told["m1"], len(all), conditions)
		}
		if got := len(k.needed(map[fault.NodeID]NodeState{"m1": ready}, time.Now())); got != writes {
			t.Errorf("%s: %d writes: want %d", what, got, writes)
		}
	}
	a, b := labelledNode("a", "m1", "KernelDeadlock"), labelledNode("b", "m1", "XIDError")
	k.page([]corev1.Node{a}, true, true)
	want("one node", 1, 1)
	k.changed(&b, false)
	want("a second one", 0, 0)
	k.page([]corev1.Node{a, b}, true, true)
	want("both listed", 0, 0)
	other := labelledNode("b", "m2", "XIDError")
	k.changed(&other, false)
	want("the second one has another label", 1, 1)
	k.changed(&b, false)
	k.changed(&a, true)
	want("the first one is gone", 1, 1)
	if strings.Count(log.String(), "several nodes of Kubernetes") != 1 {
		t.Errorf("log %q: want one line", log.String())
	}
}

// TestOwnConditionsAreNoEvidence: the types that this program sets do not count, even if the field managers are lost.
func TestOwnConditionsAreNoEvidence(t *testing.T) {
	k := (&Executor{}).newKeeper(nil, func(response.OutsideChanged) {})
	n := labelledNode("a", "", "LofamoFault") // of the configuration's default
	for _, typ := range []string{"OfAPolicy", "KernelDeadlock"} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeConditionType(typ), Status: corev1.ConditionTrue})
	}
	n.Annotations = map[string]string{markKey("r1-1", 0): mark{Kind: response.KubernetesCondition, Type: "OfAPolicy"}.encode()}
	if all := k.keptOf(&n).outside; len(all) != 1 || all[0].Type != "KernelDeadlock" {
		t.Errorf("evidence %+v: want KernelDeadlock alone", all)
	}
}

// answeringPatches returns a client of an API server that answers each write to a node with the code that answer returns. The
// returned function counts the writes by node.
func answeringPatches(t *testing.T, answer func(node string) int) (*client, func() map[string]int) {
	t.Helper()
	var mu sync.Mutex
	got := map[string]int{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := path.Base(path.Dir(r.URL.Path)) // of …/nodes/NAME/status
		mu.Lock()
		got[name]++
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if code := answer(name); code != http.StatusOK {
			w.WriteHeader(code)
			_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","code":%d}`, code)
			return
		}
		_, _ = fmt.Fprintf(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":%q}}`, name)
	}))
	t.Cleanup(s.Close)
	c, err := newClient(Config{}.Filled(), &rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.http.CloseIdleConnections)
	return c, func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(got)
	}
}

// TestRefusedNodeStopsNoOther: a round goes on after a refused write. The refused node pauses.
func TestRefusedNodeStopsNoOther(t *testing.T) {
	c, writes := answeringPatches(t, func(node string) int {
		if node == "c" {
			return http.StatusOK
		}
		return http.StatusForbidden
	})
	m := &mapped{states: map[fault.NodeID]NodeState{}}
	m.set(ready, "a", "b", "c", "d")
	k := (&Executor{cfg: Config{}.Filled(), c: c}).newKeeper(m.get, nil)
	k.page([]corev1.Node{labelledNode("a", "", "A"), labelledNode("b", "", "A"), labelledNode("c", "", "A"), labelledNode("d", "", "A")},
		true, true)
	ctx := executor.WithFence(t.Context(), func(context.Context) error { return nil })
	if _, err := k.round(ctx); err != nil || len(k.failing.of) != 3 {
		t.Errorf("%v, failing %v: want three nodes", err, k.failing.of)
	}
	if _, err := k.round(ctx); err != nil { // nothing is left to write
		t.Error(err)
	}
	if got, want := writes(), map[string]int{"a": 1, "b": 1, "c": 1, "d": 1}; !maps.Equal(got, want) {
		t.Errorf("writes %v: want %v", got, want)
	}
}

// agedNode returns a node whose LinksReady condition is wrong, with a heartbeat of that age.
func agedNode(name string, age time.Duration) corev1.Node {
	n := labelledNode(name, "", "LofamoFault") // of somebody else, who keeps it
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
		Type: LinksReady, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.NewTime(time.Now().Add(-age)),
	})
	return n
}

// TestFailingNodeStopsNoOther: if the API server fails on the writes of one node, the others get their conditions. The node pauses.
func TestFailingNodeStopsNoOther(t *testing.T) {
	c, writes := answeringPatches(t, func(node string) int {
		if node == "a" {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	m := &mapped{states: map[fault.NodeID]NodeState{}}
	m.set(ready, "a", "b")
	k := (&Executor{cfg: Config{}.Filled(), c: c}).newKeeper(m.get, nil)
	k.page([]corev1.Node{agedNode("a", 2*time.Hour), agedNode("b", time.Hour)}, true, true)
	ctx := executor.WithFence(t.Context(), func(context.Context) error { return nil })
	if whole, err := k.round(ctx); err != nil || !whole || len(k.failing.of) != 1 {
		t.Errorf("whole round %t, %v, failing %v: want a whole one, and a failing node", whole, err, k.failing.of)
	}
	if _, err := k.round(ctx); err != nil { // nothing is left to write
		t.Error(err)
	}
	if got, want := writes(), map[string]int{"a": 1, "b": 1}; !maps.Equal(got, want) {
		t.Errorf("writes %v: want %v", got, want)
	}
}

// TestFailingNodeIsTriedAgainLaterAndLater: the first failure of a write may be that of a server which restarts, so it costs little time.
func TestFailingNodeIsTriedAgainLaterAndLater(t *testing.T) {
	k := (&Executor{cfg: Config{}.Filled()}).newKeeper(nil, nil)
	now := time.Unix(1000, 0)
	for _, want := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute} {
		k.failing.failed("a", errors.New("no"), now)
		if got := k.failing.until("a").Sub(now); got != want {
			t.Errorf("paused for %s: want %s", got, want)
		}
	}
}

// TestDeadServerCostsTwoRequestsARound: the keeper ends a round after two failures in a row, and goes on with other nodes in the next one.
func TestDeadServerCostsTwoRequestsARound(t *testing.T) {
	c, writes := answeringPatches(t, func(string) int { return http.StatusInternalServerError })
	m := &mapped{states: map[fault.NodeID]NodeState{}}
	var nodes []corev1.Node
	for i, name := range []string{"a", "b", "c", "d", "e"} {
		m.set(ready, name)
		nodes = append(nodes, agedNode(name, time.Duration(9-i)*time.Hour))
	}
	k := (&Executor{cfg: Config{}.Filled(), c: c}).newKeeper(m.get, nil)
	k.page(nodes, true, true)
	ctx := executor.WithFence(t.Context(), func(context.Context) error { return nil })
	for _, want := range []map[string]int{{"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1, "d": 1}} {
		if whole, err := k.round(ctx); err != nil || whole || len(k.failing.of) == 0 {
			t.Errorf("whole round %t, %v, failing %v: want the first part of one, and failing nodes", whole, err, k.failing.of)
		}
		if got := writes(); !maps.Equal(got, want) {
			t.Errorf("writes %v: want %v", got, want)
		}
	}
}

// TestStaleLeaderPausesNoNode: a round ends at once if this replica may not write, because the API server failed on no node.
func TestStaleLeaderPausesNoNode(t *testing.T) {
	c, writes := answeringPatches(t, func(string) int { return http.StatusOK })
	m := &mapped{states: map[fault.NodeID]NodeState{}}
	m.set(ready, "a", "b")
	k := (&Executor{cfg: Config{}.Filled(), c: c}).newKeeper(m.get, nil)
	k.page([]corev1.Node{agedNode("a", 2*time.Hour), agedNode("b", time.Hour)}, true, true)
	asked := 0
	ctx := executor.WithFence(t.Context(), func(context.Context) error { asked++; return executor.ErrStale })
	if _, err := k.round(ctx); !errors.Is(err, executor.ErrStale) {
		t.Errorf("error %v: want that of the fence", err)
	}
	if got := writes(); len(got) > 0 || asked != 1 || len(k.failing.of) > 0 {
		t.Errorf("writes %v, %d questions, paused nodes %v: want one question", got, asked, k.failing.of)
	}
}

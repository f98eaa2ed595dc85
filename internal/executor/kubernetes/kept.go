package kubernetes

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lofamo/lofamo/pkg/response"
)

// The plan of the kept conditions is pure: from a node as watched, and its state in the fault map, it returns the one
// write that brings the node's kept conditions up to date.
//
// A kept condition stands on every known node, also when nothing is wrong. There are two sorts. The conditions that
// policies set (Conditions.Types) are False until a response makes one True. The response's write then takes the condition
// over, and the keeper refreshes only its heartbeat. LinksReady has no other writer.
//
// The keeper has a field manager of its own: an apply removes all fields of its manager that it leaves out.

// keeperManager is the field manager of the kept conditions.
const keeperManager = "lofamo-conditions"

// LinksReady is the condition for readiness gates: True while the node's agent has reported and all its links are NORMAL.
const LinksReady = "lofamo.io/LinksReady"

// Reason and message of a condition that no response has set.
const (
	noFaultReason  = "NoFault"
	noFaultMessage = "no response has set this condition"
)

// NodeState is the state of a node in the fault map.
type NodeState struct {
	Ready   corev1.ConditionStatus // of LinksReady
	Reason  string
	Message string
}

// keptNode is the part of a Node object that concerns its conditions.
type keptNode struct {
	name, version string
	uid           types.UID
	label         string // value of NodeLabel
	conditions    []corev1.NodeCondition
	ours, kept    owned           // what responses and the keeper own
	owns          bool            // the keeper owns anything
	claimed       map[string]bool // types that a response's mark claims
	outside       []Outside       // those of other programs, if anybody needs them
}

// maxKeptText bounds the texts of a condition that are kept, in bytes. Ours are shorter, so a text that was cut is none of ours.
const maxKeptText = 2 * maxText

// keptOf returns the part of a node that concerns its conditions. It keeps no reference to the node.
func keptOf(n *corev1.Node, label string) *keptNode {
	k := &keptNode{
		name: strings.Clone(n.Name), version: strings.Clone(n.ResourceVersion), uid: types.UID(strings.Clone(string(n.UID))),
		label: strings.Clone(n.Labels[label]), ours: ownedBy(n), kept: ownedByManager(n, keeperManager), claimed: map[string]bool{},
	}
	k.owns = len(k.kept.conditions) > 0
	for _, m := range marks(n) {
		if m.Kind == response.KubernetesCondition {
			k.claimed[m.Type] = true
		}
	}
	text := func(s string) string { return strings.Clone(cut(s, maxKeptText)) }
	for _, c := range n.Status.Conditions {
		c.Type, c.Status = corev1.NodeConditionType(text(string(c.Type))), corev1.ConditionStatus(text(string(c.Status)))
		c.Reason, c.Message = text(c.Reason), text(c.Message)
		k.conditions = append(k.conditions, c)
	}
	return k
}

// keeping are the settings of the plan.
type keeping struct {
	types     []string
	heartbeat time.Duration
}

// keepWrite is the write that a node needs. An urgent one changes more than heartbeats.
type keepWrite struct {
	node   *keptNode
	body   []byte
	urgent bool
	due    time.Time // when the oldest heartbeat had to be refreshed
}

// plan returns the write that a node needs, or false. Without a state the node is none of ours: it loses all kept
// conditions.
func (k keeping) plan(n *keptNode, st *NodeState, now time.Time) (keepWrite, bool) {
	w := keepWrite{node: n}
	if st == nil {
		if !n.owns {
			return w, false
		}
		w.urgent = true
		return w.with(nil), true
	}
	now = now.UTC().Truncate(time.Second) // the precision of Kubernetes
	var list []map[string]any
	due := false
	beat := func(c map[string]any, was corev1.NodeCondition) {
		c["lastHeartbeatTime"] = metav1.NewTime(now)
		list = append(list, c)
		at := was.LastHeartbeatTime.Add(k.interval(n.name))
		if was.LastHeartbeatTime.After(now.Add(maxAhead)) { // by a clock that was ahead: it would stand for too long
			at = now
		}
		if !at.After(now) {
			due = true
			if w.due.IsZero() || at.Before(w.due) {
				w.due = at
			}
		}
	}
	full := func(typ string, status corev1.ConditionStatus, reason, message string) {
		was, there := find(n.conditions, typ)
		changed := metav1.NewTime(now)
		if there && was.Status == status && !was.LastTransitionTime.IsZero() {
			changed = was.LastTransitionTime
		}
		if !there || was.Status != status || was.Reason != reason || was.Message != message {
			w.urgent = true
		}
		beat(map[string]any{"type": typ, "status": status, "reason": reason, "message": message, "lastTransitionTime": changed}, was)
	}
	for _, typ := range k.types {
		was, there := find(n.conditions, typ)
		switch {
		case n.ours.condition(typ) && there: // of a response, which alone decides about it
			beat(map[string]any{"type": typ}, was)
		case n.claimed[typ], there && !n.kept.condition(typ): // somebody has removed or changed it, and has the last word
		default:
			full(typ, corev1.ConditionFalse, noFaultReason, noFaultMessage)
		}
	}
	full(LinksReady, st.Ready, st.Reason, cut(st.Message, maxText))
	if !due && !w.urgent && k.listed(n, list) {
		return w, false
	}
	return w.with(list), true
}

// listed reports whether the keeper owns exactly the conditions of the list.
func (k keeping) listed(n *keptNode, list []map[string]any) bool {
	var want []string
	for _, c := range list {
		want = append(want, c["type"].(string))
	}
	slices.Sort(want)
	return slices.Equal(want, slices.Sorted(maps.Keys(n.kept.conditions)))
}

// interval returns the interval of a node's heartbeats. It differs between nodes, so that nodes that once were written
// together do not stay together.
func (k keeping) interval(name string) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return k.heartbeat - k.heartbeat/8*time.Duration(h.Sum32()%1024)/1024
}

// with sets the body: an apply to this version of this object.
func (w keepWrite) with(list []map[string]any) keepWrite {
	status := map[string]any{}
	if len(list) > 0 {
		status["conditions"] = list
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Node", "status": status,
		"metadata": map[string]any{"name": w.node.name, "uid": string(w.node.uid), "resourceVersion": w.node.version},
	})
	if err != nil { // unreachable: strings and times of this century
		panic(fmt.Sprintf("conditions of node %s: %v", w.node.name, err))
	}
	w.body = body
	return w
}

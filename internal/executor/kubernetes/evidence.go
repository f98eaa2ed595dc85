package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Outside is a condition that another program has set on a node.
type Outside struct {
	response.OutsideCondition

	Reason  string
	Message string
	By      string // the field manager that has set the status; "" if the API server does not know
}

// Limits of conditions of other programs. Longer texts are cut. Conditions with a longer type or an invalid status are left out, and so are
// further ones, by the order of their types.
const (
	maxOutside       = 24
	maxOutsideType   = 317
	maxOutsideReason = 128
	maxOutsideText   = 256
)

// conditionStatuses are the valid statuses of a condition. The API server checks no status of a node's condition.
var conditionStatuses = []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}

// Evidence receives the conditions of other programs, from one goroutine. It must not block.
type Evidence func(response.OutsideChanged)

// outsideOf returns the conditions of a node that other programs have set, by type. It keeps no reference to the node. ours are
// the types that this program may have set: some programs write nodes so that the field managers are lost.
func outsideOf(n *corev1.Node, ours func(typ string) bool) []Outside {
	by := settersOf(n)
	var out []Outside
	for _, c := range n.Status.Conditions {
		typ := string(c.Type)
		if by[typ] == fieldManager || by[typ] == keeperManager || typ == LinksReady || ours(typ) || len(typ) > maxOutsideType ||
			!slices.Contains(conditionStatuses, c.Status) {
			continue
		}
		out = append(out, Outside{
			OutsideCondition: response.OutsideCondition{Type: strings.Clone(typ), Status: strings.Clone(string(c.Status)),
				Since: c.LastTransitionTime.Time, Beat: c.LastHeartbeatTime.Time},
			Reason: strings.Clone(cut(c.Reason, maxOutsideReason)), Message: strings.Clone(cut(c.Message, maxOutsideText)),
			By: strings.Clone(cut(by[typ], maxOutsideReason)),
		})
	}
	slices.SortFunc(out, func(a, b Outside) int { return cmp.Compare(a.Type, b.Type) })
	return slices.Clip(out[:min(len(out), maxOutside)])
}

// settersOf returns the field managers that have set the status of conditions, by type.
func settersOf(n *corev1.Node) map[string]string {
	out := map[string]string{}
	for _, e := range n.ManagedFields {
		if e.Subresource != "status" || e.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Status struct {
				Conditions map[string]map[string]any `json:"f:conditions"`
			} `json:"f:status"`
		}
		if json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		for k, sub := range fields.Status.Conditions {
			if _, status := sub["f:status"]; !status {
				continue
			}
			if typ, ok := conditionKey(k); ok {
				out[typ] = e.Manager
			}
		}
	}
	return out
}

// conditionKey returns the type of a condition from its key in managed fields.
func conditionKey(k string) (string, bool) {
	var id struct {
		Type string `json:"type"`
	}
	key, ok := strings.CutPrefix(k, "k:")
	ok = ok && json.Unmarshal([]byte(key), &id) == nil // before id.Type is read: Go orders calls, and not reads beside them
	return id.Type, ok
}

// briefs returns what policies need of conditions.
func briefs(all []Outside) []response.OutsideCondition {
	out := make([]response.OutsideCondition, 0, len(all))
	for _, o := range all {
		out = append(out, o.OutsideCondition)
	}
	return out
}

// tell passes the conditions of other programs on, until ctx ends. From then on none are known.
func (k *keeper) tell(ctx context.Context) {
	defer k.evidence(response.OutsideChanged{Source: response.FromKubernetes, Unknown: true})
	t := time.NewTicker(k.every)
	defer t.Stop()
	for {
		if ev, ok := k.news(); ok {
			k.evidence(ev)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// news returns the conditions that have changed since its last call; false if none have.
func (k *keeper) news() (response.OutsideChanged, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.known || !k.relisted && len(k.renewed) == 0 {
		return response.OutsideChanged{}, false
	}
	ev := response.OutsideChanged{Source: response.FromKubernetes, All: k.relisted, Nodes: k.renewed}
	if k.relisted {
		ev.Nodes = make(map[fault.NodeID][]response.OutsideCondition, len(k.nodes))
		for id := range k.names {
			ev.Nodes[id] = briefs(k.outside(id))
		}
	}
	k.relisted, k.renewed = false, map[fault.NodeID][]response.OutsideCondition{}
	return ev, true
}

// renew notes the conditions of a node that has changed, after its change. The caller holds mu.
func (k *keeper) renew(was, n *keptNode, gone bool) {
	if k.evidence == nil {
		return
	}
	id := k.e.idOf(n)
	if was != nil {
		if before := k.e.idOf(was); before != id && before != "" {
			k.renewed[before] = briefs(k.outside(before))
		} else if before == id && !gone && slices.Equal(was.outside, n.outside) {
			return
		}
	}
	if id != "" {
		k.renewed[id] = briefs(k.outside(id))
	}
}

// Outside returns the conditions that other programs have set on a node, while this replica leads and follows them. known is
// false otherwise.
func (e *Executor) Outside(id fault.NodeID) (all []Outside, known bool) {
	k := e.following.Load()
	if k == nil {
		return nil, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.known {
		return nil, false
	}
	return slices.Clone(k.outside(id)), true
}

// maxNotes bounds the conditions that an explanation lists.
const maxNotes = 8

// OutsideNotes returns what other programs report of a node, in words: the conditions of a problem, and nothing of the
// kubelet's. It is empty unless this replica leads and follows conditions.
func (e *Executor) OutsideNotes(id fault.NodeID, now time.Time) []string {
	all, _ := e.Outside(id)
	return outsideNotes(all, e.cfg.GoodConditions, now)
}

func outsideNotes(all []Outside, good map[string]string, now time.Time) (out []string) {
	left := 0
	for _, o := range all {
		if o.By == "kubelet" || !o.problem(good) {
			continue
		}
		if len(out) == maxNotes {
			left++
			continue
		}
		out = append(out, o.note(now))
	}
	if left > 0 {
		out = append(out, fmt.Sprintf("%d further conditions of other programs", left))
	}
	return out
}

func (o Outside) note(now time.Time) string {
	age := func(at time.Time) string { return max(0, now.Sub(at)).Round(time.Second).String() }
	s := fmt.Sprintf("outside evidence, not a verdict: condition %s, set by %s, is %s", o.Type, cmp.Or(o.By, "an unknown program"), o.Status)
	if !o.Since.IsZero() {
		s += " for " + age(o.Since)
	}
	if text := strings.Trim(o.Reason+": "+o.Message, ": "); text != "" {
		s += ": " + strings.Join(strings.FieldsFunc(text, fault.Hidden), " ")
	}
	switch {
	case o.Beat.IsZero():
		return s + " (without a heartbeat: it does not count)"
	case !o.Fresh(now):
		return s + fmt.Sprintf(" (last heartbeat %s ago: it does not count)", age(o.Beat))
	}
	return s + fmt.Sprintf(" (heartbeat %s ago)", age(o.Beat))
}

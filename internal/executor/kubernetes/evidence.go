package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
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

// Limits of conditions of other programs. Longer texts are cut; further conditions, by the order of their types, are left
// out.
const (
	maxOutside       = 24
	maxOutsideType   = 317
	maxOutsideReason = 128
	maxOutsideText   = 256
)

// Evidence receives the conditions of other programs, from one goroutine. It must not block.
type Evidence func(response.OutsideChanged)

// outsideOf returns the conditions of a node that other programs have set, by type. It keeps no reference to the node.
func outsideOf(n *corev1.Node) []Outside {
	by := settersOf(n)
	var out []Outside
	for _, c := range n.Status.Conditions {
		typ := string(c.Type)
		if by[typ] == fieldManager || by[typ] == keeperManager || typ == LinksReady || len(typ) > maxOutsideType {
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
	return id.Type, ok && json.Unmarshal([]byte(key), &id) == nil
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
	defer k.evidence(response.OutsideChanged{Unknown: true})
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
	ev := response.OutsideChanged{All: k.relisted, Nodes: k.renewed}
	if k.relisted {
		ev.Nodes = make(map[fault.NodeID][]response.OutsideCondition, len(k.nodes))
		for _, n := range k.nodes {
			if id := k.e.idOf(n); id != "" {
				ev.Nodes[id] = briefs(n.outside)
			}
		}
	}
	k.relisted, k.renewed = false, map[fault.NodeID][]response.OutsideCondition{}
	return ev, true
}

// renew notes the conditions of a node that has changed; gone nodes have none. The caller holds mu.
func (k *keeper) renew(was, n *keptNode, gone bool) {
	if k.evidence == nil {
		return
	}
	if was != nil && k.e.idOf(was) != k.e.idOf(n) {
		k.renewed[k.e.idOf(was)] = nil
	}
	switch id := k.e.idOf(n); {
	case id == "":
	case gone:
		k.renewed[id] = nil
	case was == nil || !slices.Equal(was.outside, n.outside):
		k.renewed[id] = briefs(n.outside)
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
	if e.cfg.NodeLabel == "" {
		if n := k.nodes[e.cfg.NameOf(id)]; n != nil {
			all = n.outside
		}
		return slices.Clone(all), true
	}
	for _, n := range k.nodes {
		if e.idOf(n) == id {
			return slices.Clone(n.outside), true
		}
	}
	return nil, true
}

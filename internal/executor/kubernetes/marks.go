package kubernetes

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// mark records the effect of a response's step on a node.
type mark struct {
	Kind   response.Kind `json:"kind"`
	Policy string        `json:"policy,omitempty"`
	// Key, Value and Effect of a label or a taint.
	Key    string             `json:"key,omitempty"`
	Value  string             `json:"value,omitempty"`
	Effect corev1.TaintEffect `json:"effect,omitempty"`
	// Own is true if this step has added the taint, at Added, in whole seconds.
	Own   bool      `json:"own,omitempty"`
	Added time.Time `json:"added,omitzero"`
	// Type of a condition, and this response's reason and message in it.
	Type    string    `json:"type,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Grave   int       `json:"grave,omitempty"` // severity: the fault's state; the most severe mark gives the reason
	At      time.Time `json:"at,omitzero"`     // time of the change
	UID     types.UID `json:"uid,omitempty"`   // of the node; "": an earlier version has set the mark

	text string // as on the node
}

// markKey returns the annotation that holds the mark of a step.
func markKey(id string, step int) string { return fmt.Sprintf("%s%s.%d", markPrefix, id, step) }

func (m mark) encode() string {
	b, err := json.Marshal(m)
	if err != nil {
		return "{}" // only for times beyond year 9999
	}
	return string(b)
}

// job returns a job with the claim of the mark.
func (m mark) job() executor.Job {
	p := map[string]string{"key": m.Key, "value": m.Value, "effect": string(m.Effect), "type": m.Type}
	return executor.Job{Effect: response.Effect{Kind: m.Kind, Parameters: p}}
}

// compare orders marks of one claim: those that own the state, the most severe, the oldest.
func (m mark) compare(o mark) int {
	return cmp.Or(btoi(o.Own)-btoi(m.Own), o.Grave-m.Grave, m.At.Compare(o.At), strings.Compare(m.text, o.text))
}

// status reports whether the mark is written with the node's status. All others are written with the node, including
// unreadable marks, which stay unchanged.
func (m mark) status() bool { return m.Kind == response.KubernetesCondition }

// marks returns the marks of a node by annotation. For an unreadable mark only the text is set. It omits marks with the UID of another
// node, because somebody may have created this node from a copy of that one.
func marks(n *corev1.Node) map[string]mark {
	out := map[string]mark{}
	for k, v := range n.Annotations {
		if !strings.HasPrefix(k, markPrefix) {
			continue
		}
		var m mark
		if json.Unmarshal([]byte(v), &m) != nil {
			m = mark{}
		}
		if m.text = v; m.UID == "" || m.UID == n.UID {
			out[k] = m
		}
	}
	return out
}

// owned holds the fields that Manager owns on a node through applies, without those that others have changed since.
type owned struct {
	labels        map[string]bool
	unschedulable bool
	conditions    map[string]map[string]bool // by type, the names of the fields
}

// condition reports whether we own the status of a condition. If somebody else has changed it, its other fields may
// still be ours.
func (o owned) condition(typ string) bool { return o.conditions[typ]["status"] }

// ownedBy reads the managed fields.
func ownedBy(n *corev1.Node) owned { return ownedByManager(n, fieldManager) }

// ownedByManager returns the fields that a field manager owns through applies.
func ownedByManager(n *corev1.Node, manager string) owned {
	o := owned{labels: map[string]bool{}, conditions: map[string]map[string]bool{}}
	for _, e := range n.ManagedFields {
		if e.Manager != manager || e.Operation != metav1.ManagedFieldsOperationApply || e.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Metadata struct {
				Labels map[string]any `json:"f:labels"`
			} `json:"f:metadata"`
			Spec   map[string]any `json:"f:spec"`
			Status struct {
				Conditions map[string]map[string]any `json:"f:conditions"`
			} `json:"f:status"`
		}
		if json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields) != nil {
			continue // unreadable: treat as not ours
		}
		switch e.Subresource {
		case "":
			for k := range fields.Metadata.Labels {
				if key, ok := strings.CutPrefix(k, "f:"); ok {
					o.labels[key] = true
				}
			}
			_, o.unschedulable = fields.Spec["f:unschedulable"]
		case "status":
			for k, sub := range fields.Status.Conditions {
				typ, ok := conditionKey(k)
				if !ok {
					continue
				}
				names := map[string]bool{"type": true}
				for f := range sub {
					names[strings.TrimPrefix(f, "f:")] = true
				}
				o.conditions[typ] = names
			}
		default:
		}
	}
	return o
}

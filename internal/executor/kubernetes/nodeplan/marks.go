package nodeplan

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lofamo/lofamo/pkg/response"
)

// Mark says what a step of a response has done to a node.
type Mark struct {
	Kind   response.Kind `json:"kind"`
	Policy string        `json:"policy,omitempty"`
	// Key, Value and Effect of a label or a taint.
	Key    string             `json:"key,omitempty"`
	Value  string             `json:"value,omitempty"`
	Effect corev1.TaintEffect `json:"effect,omitempty"`
	// Own: the taint was not there before, and was added at Added, in whole seconds.
	Own   bool      `json:"own,omitempty"`
	Added time.Time `json:"added,omitzero"`
	// Type of a condition, and what this response says in it.
	Type    string    `json:"type,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Grave   int       `json:"grave,omitempty"` // of several, the gravest gives the reason: the fault's state
	At      time.Time `json:"at,omitzero"`     // when it was done

	text string // as it stands on the node
}

// MarkKey is the annotation in which the mark of a step stands.
func MarkKey(id string, step int) string { return fmt.Sprintf("%s%s.%d", MarkPrefix, id, step) }

func (m Mark) encode() string {
	b, err := json.Marshal(m)
	if err != nil {
		return "{}" // times beyond year 9999: nobody has them
	}
	return string(b)
}

// status says whether the mark goes with the node's status. All others go with the node, also one that cannot be read, which stays
// as it is.
func (m Mark) status() bool { return m.Kind == response.KubernetesCondition }

// marks of a node, by their annotations. Of one that cannot be read only the text is known.
func marks(n *corev1.Node) map[string]Mark {
	out := map[string]Mark{}
	for k, v := range n.Annotations {
		if !strings.HasPrefix(k, MarkPrefix) {
			continue
		}
		var m Mark
		if json.Unmarshal([]byte(v), &m) != nil {
			m = Mark{}
		}
		m.text = v
		out[k] = m
	}
	return out
}

// owned is what Manager owns on a node by its applies: what others have changed since is not among it.
type owned struct {
	labels        map[string]bool
	unschedulable bool
	conditions    map[string]map[string]bool // by type, the names of the fields
}

// condition says whether what a condition says is ours. Of one that somebody else has changed the rest may still be.
func (o owned) condition(typ string) bool { return o.conditions[typ]["status"] }

// ownedBy reads the managed fields.
func ownedBy(n *corev1.Node) owned {
	o := owned{labels: map[string]bool{}, conditions: map[string]map[string]bool{}}
	for _, e := range n.ManagedFields {
		if e.Manager != Manager || e.Operation != metav1.ManagedFieldsOperationApply || e.FieldsV1 == nil {
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
			continue // what cannot be read is nobody's, and left alone
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
				var id struct {
					Type string `json:"type"`
				}
				key, ok := strings.CutPrefix(k, "k:")
				if !ok || json.Unmarshal([]byte(key), &id) != nil {
					continue
				}
				names := map[string]bool{"type": true}
				for f := range sub {
					names[strings.TrimPrefix(f, "f:")] = true
				}
				o.conditions[id.Type] = names
			}
		default:
		}
	}
	return o
}

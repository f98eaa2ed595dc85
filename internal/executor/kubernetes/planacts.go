package kubernetes

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// fields are our fields in an apply to the node itself.
type fields struct {
	labels        map[string]any
	unschedulable bool
}

// ours returns the fields of the node itself that we own now, with their current values.
func (s *planned) ours() (fields, owned) {
	o := ownedBy(s.n)
	f := fields{labels: map[string]any{}, unschedulable: o.unschedulable && s.n.Spec.Unschedulable}
	for k := range o.labels {
		if v, ok := s.n.Labels[k]; ok {
			f.labels[k] = v
		}
	}
	return f, o
}

// applyNode returns the plan of an apply to the node itself.
func (s *planned) applyNode(f fields, r executor.Result) plan {
	meta := s.head(s.annotated(false))
	if len(f.labels) > 0 {
		meta["labels"] = f.labels
	}
	// Always name spec. An apply that leaves out a field named by the apply before it removes the field, with all parts
	// that have no recorded owner, as on nodes without managed fields.
	spec := map[string]any{}
	if f.unschedulable {
		spec["unschedulable"] = true
	}
	body := map[string]any{"metadata": meta, "spec": spec}
	return s.apply(false, body, r)
}

// cordon keeps new pods away, for a cordon or a drain step.
func (s *planned) cordon() plan {
	f, o := s.ours()
	others := s.others(func(m mark) bool { return m.Kind == response.KubernetesCordon || m.Kind == response.KubernetesDrain })
	var said string
	switch {
	case s.j.Undo && s.mine == nil:
		said = "nothing of this step stands"
	case s.j.Undo:
		s.unmark()
		switch {
		case !s.n.Spec.Unschedulable:
			said = "somebody has uncordoned it"
		case !o.unschedulable:
			said = "somebody else has cordoned it: it stays so"
		case len(others) > 0:
			said = "it stays cordoned: another response wants it so: " + holders(others)
		default:
			f.unschedulable, said = false, "uncordoned"
		}
	case s.mine != nil:
		said = "an earlier attempt had done it"
	default:
		s.put(mark{Kind: s.j.Kind, Policy: s.j.Policy, At: s.stampTime()})
		switch {
		case !s.n.Spec.Unschedulable:
			f.unschedulable, said = true, "cordoned"
		case o.unschedulable:
			said = "another response had cordoned it"
		default:
			said = "somebody else had cordoned it"
		}
	}
	return s.applyNode(f, executor.Done("node %s: %s", s.n.Name, said))
}

// label sets a label.
func (s *planned) label() plan {
	f, o := s.ours()
	key, value := s.j.Parameters["key"], s.j.Parameters["value"]
	was, there := s.n.Labels[key]
	var said string
	switch {
	case s.j.Undo && s.mine == nil:
		said = "nothing of this step stands"
	case s.j.Undo:
		s.unmark()
		key = s.mine.Key
		others := s.others(func(m mark) bool { return m.Kind == response.KubernetesLabel && m.Key == key })
		switch {
		case !o.labels[key]:
			said = fmt.Sprintf("label %s is somebody else's by now: left alone", key)
		case len(others) > 0:
			said = fmt.Sprintf("label %s stays: another response wants it: %s", key, holders(others))
		default:
			delete(f.labels, key)
			said = "label " + key + " taken away"
		}
	case s.mine != nil:
		said = "an earlier attempt had done it"
	case there && was != value:
		return ends(executor.Unchanged("node %s: label %s is %q already: want none, or %q", s.n.Name, key, was, value))
	default:
		s.put(mark{Kind: s.j.Kind, Policy: s.j.Policy, Key: key, Value: value, At: s.stampTime()})
		said = fmt.Sprintf("label %s was %q already", key, value)
		if !there {
			f.labels[key] = value
			said = fmt.Sprintf("label %s=%s", key, value)
		}
	}
	return s.applyNode(f, executor.Done("node %s: %s", s.n.Name, said))
}

// stampTime returns now in whole seconds, the precision of Kubernetes.
func (s *planned) stampTime() time.Time { return s.now.UTC().Truncate(time.Second) }

// taint adds a taint that keeps new pods away or evicts those on the node.
func (s *planned) taint() plan {
	if s.j.Undo {
		return s.untaint()
	}
	t := taintOf(s.j)
	list := s.n.Spec.Taints
	at := slices.IndexFunc(list, func(x corev1.Taint) bool { return x.Key == t.Key && x.Effect == t.Effect })
	m := mark{Kind: s.j.Kind, Policy: s.j.Policy, Key: t.Key, Value: t.Value, Effect: t.Effect, At: s.stampTime(), UID: s.n.UID}
	switch {
	case s.mine != nil:
		return s.mergeTaints(nil, s.mine.text, "an earlier attempt had done it")
	case at < 0:
		added := metav1.NewTime(s.stampTime())
		t.TimeAdded = &added
		m.Own, m.Added = true, added.Time
		return s.mergeTaints(append(slices.Clone(list), t), m.encode(), "tainted "+t.ToString())
	case list[at].Value != t.Value:
		return ends(executor.Unchanged("node %s: taint %s: given value %q: it has %q already", s.n.Name, t.ToString(), t.Value, list[at].Value))
	default:
		for _, k := range s.others(func(m mark) bool { return m.stands(list[at]) }) { // it stays until the last of them is undone
			m.Own, m.Added = true, s.all[k].Added
		}
		return s.mergeTaints(nil, m.encode(), "it had the taint "+t.ToString())
	}
}

// taintOf returns the taint of a job.
func taintOf(j executor.Job) corev1.Taint {
	t := corev1.Taint{Key: j.Parameters["key"], Value: j.Parameters["value"], Effect: corev1.TaintEffect(j.Parameters["effect"])}
	if j.Kind == response.KubernetesEvict {
		t.Effect = corev1.TaintEffectNoExecute
	}
	return t
}

// untaint removes the taint that this step has added.
func (s *planned) untaint() plan {
	if s.mine == nil {
		return s.mergeTaints(nil, "", "nothing of this step stands")
	}
	list := s.n.Spec.Taints
	at := slices.IndexFunc(list, s.mine.stands)
	var others []string
	if at >= 0 {
		others = s.others(func(m mark) bool { return m.stands(list[at]) })
	}
	switch {
	case !s.mine.Own:
		return s.mergeTaints(nil, "", "the taint was there before: left alone")
	case at < 0:
		return s.mergeTaints(nil, "", "somebody has taken the taint away, or changed it")
	case len(others) > 0:
		return s.mergeTaints(nil, "", "it stays tainted: another response wants it so: "+holders(others))
	default:
		return s.mergeTaints(slices.Delete(slices.Clone(list), at, at+1), "", "the taint "+s.mine.Key+" taken away")
	}
}

// stands reports whether the mark's step has added this taint.
func (m mark) stands(t corev1.Taint) bool {
	return m.Own && m.Key == t.Key && m.Value == t.Value && m.Effect == t.Effect && t.TimeAdded != nil && t.TimeAdded.Time.Equal(m.Added)
}

// mergeTaints returns the plan of a merge patch. list holds the new taints, or is nil to keep them; mark is the mark's
// text, or empty to remove it.
func (s *planned) mergeTaints(list []corev1.Taint, mark, said string) plan {
	annotations := s.stamp()
	for _, k := range s.gone {
		annotations[k] = nil
	}
	annotations[s.key] = nil
	if mark != "" {
		annotations[s.key] = mark
	}
	body := map[string]any{"metadata": s.head(annotations)}
	if list != nil {
		body["spec"] = map[string]any{"taints": list}
	}
	return s.write(&nodeWrite{}, body, executor.Done("node %s: %s", s.n.Name, said))
}

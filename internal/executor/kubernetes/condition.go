package kubernetes

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// maxText bounds a condition's text for one response, and maxTexts its whole message, in bytes.
const (
	maxText  = 256
	maxTexts = 1024
)

// kubelets are the conditions that Kubernetes itself acts on, even on a node that does not have them yet.
var kubelets = []string{
	string(corev1.NodeReady), string(corev1.NodeMemoryPressure), string(corev1.NodeDiskPressure), string(corev1.NodePIDPressure),
	string(corev1.NodeNetworkUnavailable),
}

// conditionText describes the job's fault.
func conditionText(j executor.Job) string {
	target := j.Target.String()
	if j.Target.Group != "" {
		target = fmt.Sprintf("%s of %d nodes", target, len(j.Members))
	}
	s := fmt.Sprintf("%s %s, cause %s, since %s", target, j.Fault.State, j.Fault.Cause, j.Fault.Since.UTC().Format(time.RFC3339))
	if j.Fault.Detail != "" {
		s += ": " + j.Fault.Detail
	}
	return cut(s, maxText)
}

// cut shortens a text to at most n bytes and repairs invalid UTF-8.
func cut(s string, n int) string {
	const more = "…"
	if s = strings.ToValidUTF8(s, "?"); len(s) > n {
		s = fault.Cut(s, n-len(more)) + more
	}
	return s
}

// conditionReason returns the default reason of a condition or an event, such as MemorySick or LinkFailed.
func conditionReason(j executor.Job) string {
	if r := j.Parameters["reason"]; r != "" {
		return r
	}
	name := "group"
	if j.Target.Group == "" {
		name, _, _ = strings.Cut(j.Target.Component.String(), "/")
	}
	var b strings.Builder
	for _, word := range append(strings.Split(name, "-"), strings.ToLower(j.Fault.State.String())) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

// condition makes a condition of the node True or False. All responses that want its type share it: it is True while one of
// them wants it, and its message lists the fault of each.
func (s *planned) condition() plan {
	list, o := s.conditions()
	typ := s.j.Parameters["type"]
	var said string
	switch {
	case s.j.Undo && s.mine == nil:
		said = "nothing of this step stands"
	case s.j.Undo:
		typ = s.mine.Type
		s.unmark()
		switch {
		case !o.condition(typ):
			said = fmt.Sprintf("somebody else has changed condition %s, or taken it away: left alone", typ)
		case len(s.wanting(typ)) > 0:
			others := s.others(func(m mark) bool { return m.Kind == response.KubernetesCondition && m.Type == typ })
			list, said = s.restate(list, typ), fmt.Sprintf("condition %s stays: another response wants it: %s", typ, holders(others))
		default:
			list = append(drop(list, typ), s.newCondition(typ, corev1.ConditionFalse, undoneReason, undoneMessage))
			said = "condition " + typ + " is False now"
		}
	case s.mine != nil:
		said = "an earlier attempt had done it"
	case slices.Contains(kubelets, typ):
		return ends(executor.Unchanged("condition %s: want none of %s: they are the kubelet's", typ, strings.Join(kubelets, ", ")))
	default:
		_, there := find(s.n.Status.Conditions, typ)
		if there && !o.condition(typ) && !ownedByManager(s.n, keeperManager).condition(typ) {
			return ends(executor.Unchanged("node %s: condition %s is somebody else's: want a type that no other program "+
				"sets", s.n.Name, typ))
		}
		s.put(mark{
			Kind: s.j.Kind, Policy: s.j.Policy, Type: typ, Reason: conditionReason(s.j), Message: conditionText(s.j), Grave: int(s.j.Fault.State),
			At: s.stampTime(),
		})
		list, said = s.restate(list, typ), "condition "+typ
	}
	st := map[string]any{} // never left out, like spec
	if len(list) > 0 {
		st["conditions"] = list
	}
	body := map[string]any{"metadata": s.head(s.annotated(true)), "status": st}
	return s.apply(true, body, executor.Done("node %s: %s", s.n.Name, said))
}

// conditions returns our conditions with their current values. If somebody else has changed one, it returns the fields
// that are still ours; without them an apply would remove the condition.
func (s *planned) conditions() ([]map[string]any, owned) {
	o := ownedBy(s.n)
	var out []map[string]any
	for _, c := range s.n.Status.Conditions {
		names := o.conditions[string(c.Type)]
		if names == nil {
			continue
		}
		m := asMap(c)
		maps.DeleteFunc(m, func(k string, _ any) bool { return !names[k] })
		out = append(out, m)
	}
	return out, o
}

func asMap(c corev1.NodeCondition) map[string]any {
	m := map[string]any{}
	if b, err := json.Marshal(c); err == nil { // it came from JSON
		_ = json.Unmarshal(b, &m)
	}
	return m
}

// drop removes the condition of that type.
func drop(list []map[string]any, typ string) []map[string]any {
	return slices.DeleteFunc(list, func(m map[string]any) bool { return m["type"] == typ })
}

func find(list []corev1.NodeCondition, typ string) (corev1.NodeCondition, bool) {
	i := slices.IndexFunc(list, func(c corev1.NodeCondition) bool { return string(c.Type) == typ })
	if i < 0 {
		return corev1.NodeCondition{}, false
	}
	return list[i], true
}

// wanting returns the marks of the steps that want a condition, the most severe first.
func (s *planned) wanting(typ string) []mark {
	var out []mark
	for _, m := range s.all {
		if m.Kind == response.KubernetesCondition && m.Type == typ {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, mark.compare)
	return out
}

// restate adds the condition of that type to the list, for all steps that want it.
func (s *planned) restate(list []map[string]any, typ string) []map[string]any {
	wanting := s.wanting(typ)
	var said []string
	for _, m := range wanting {
		said = append(said, m.Message)
	}
	return append(drop(list, typ), s.newCondition(typ, corev1.ConditionTrue, wanting[0].Reason, cut(strings.Join(said, "; "), maxTexts)))
}

// Reason and message of a condition that no response wants any more. It stays on the node as False: others wait for that.
const (
	undoneReason  = "Undone"
	undoneMessage = "no response wants this condition"
)

// newCondition returns the fields of a condition. The time of its last transition changes only with its status.
func (s *planned) newCondition(typ string, status corev1.ConditionStatus, reason, message string) map[string]any {
	now := metav1.NewTime(s.stampTime())
	c := corev1.NodeCondition{
		Type: corev1.NodeConditionType(typ), Status: status, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now,
	}
	if was, there := find(s.n.Status.Conditions, typ); there && was.Status == c.Status {
		c.LastTransitionTime = was.LastTransitionTime
	}
	return asMap(c)
}

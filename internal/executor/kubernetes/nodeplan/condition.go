package nodeplan

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
	"github.com/lofamo/lofamo/pkg/response"
)

// maxText bounds what a condition says of one response, and maxTexts what it says in all, in bytes.
const (
	maxText  = 256
	maxTexts = 1024
)

// kubelets are the conditions by which Kubernetes itself steers, also on a node that has none of them yet.
var kubelets = []string{
	string(corev1.NodeReady), string(corev1.NodeMemoryPressure), string(corev1.NodeDiskPressure), string(corev1.NodePIDPressure),
	string(corev1.NodeNetworkUnavailable),
}

// Text says what the job is for.
func Text(j executor.Job) string {
	s := fmt.Sprintf("%s %s, cause %s, since %s", j.Target, j.Fault.State, j.Fault.Cause, j.Fault.Since.UTC().Format(time.RFC3339))
	if j.Fault.Detail != "" {
		s += ": " + j.Fault.Detail
	}
	return cut(s, maxText)
}

// cut shortens a text to at most n bytes, and makes one of what is none.
func cut(s string, n int) string {
	if s = strings.ToValidUTF8(s, "?"); len(s) > n {
		s = strings.ToValidUTF8(s[:n-len("…")], "") + "…"
	}
	return s
}

// Reason is the one of a condition or an event that has none of its own, as MemorySick or LinkFailed.
func Reason(j executor.Job) string {
	if r := j.Parameters["reason"]; r != "" {
		return r
	}
	name, _, _ := strings.Cut(j.Target.Component.String(), "/")
	var b strings.Builder
	for _, word := range append(strings.Split(name, "-"), strings.ToLower(j.Fault.State.String())) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

// condition sets a condition of the node, or takes it away. There is one for all responses that want its type: it is there while
// one of them does, and says of each what it is for.
func (s *step) condition() Plan {
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
			others := s.others(func(m Mark) bool { return m.Kind == response.KubernetesCondition && m.Type == typ })
			list, said = s.restate(list, typ), fmt.Sprintf("condition %s stays: another response wants it: %s", typ, holders(others))
		default:
			list = drop(list, typ)
			said = "condition " + typ + " taken away"
		}
	case s.mine != nil:
		said = "an attempt before had done it"
	case slices.Contains(kubelets, typ):
		return ends(executor.Unchanged("condition %s: want none of %v: they are the kubelet's", typ, kubelets))
	default:
		if _, there := find(s.n.Status.Conditions, typ); there && !o.condition(typ) {
			return ends(executor.Unchanged("node %s: condition %s is somebody else's: want a type that nobody else sets", s.n.Name, typ))
		}
		s.put(Mark{
			Kind: s.j.Kind, Policy: s.j.Policy, Type: typ, Reason: Reason(s.j), Message: Text(s.j), Grave: int(s.j.Fault.State), At: s.stampTime(),
		})
		list, said = s.restate(list, typ), "condition "+typ
	}
	st := map[string]any{} // never left out, as spec
	if len(list) > 0 {
		st["conditions"] = list
	}
	body := map[string]any{"metadata": s.head(s.annotated(true)), "status": st}
	return s.apply(true, body, executor.Done("node %s: %s", s.n.Name, said))
}

// conditions are those that are ours now, as they stand. Of one that somebody else has changed it is the fields that are ours still:
// without them an apply would take it away altogether.
func (s *step) conditions() ([]map[string]any, owned) {
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

// drop leaves out the condition of that type.
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

// wanting are the marks of those who want a condition, the gravest first.
func (s *step) wanting(typ string) []Mark {
	var out []Mark
	for _, m := range s.all {
		if m.Kind == response.KubernetesCondition && m.Type == typ {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b Mark) int {
		if d := b.Grave - a.Grave; d != 0 {
			return d
		}
		if d := a.At.Compare(b.At); d != 0 {
			return d
		}
		return strings.Compare(a.text, b.text)
	})
	return out
}

// restate puts the condition of that type into the list, as all who want it have it together.
func (s *step) restate(list []map[string]any, typ string) []map[string]any {
	wanting := s.wanting(typ)
	var said []string
	for _, m := range wanting {
		said = append(said, m.Message)
	}
	now := metav1.NewTime(s.stampTime())
	c := corev1.NodeCondition{
		Type: corev1.NodeConditionType(typ), Status: corev1.ConditionTrue, Reason: wanting[0].Reason, Message: cut(strings.Join(said,
			"; "), maxTexts),
		LastHeartbeatTime: now, LastTransitionTime: now,
	}
	if was, there := find(s.n.Status.Conditions, typ); there && was.Status == c.Status {
		c.LastTransitionTime = was.LastTransitionTime
	}
	return append(drop(list, typ), asMap(c))
}

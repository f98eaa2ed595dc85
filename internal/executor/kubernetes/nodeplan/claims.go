package nodeplan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// claim is what a step wants of a node.
type claim struct {
	name   string          // for people: what somebody has taken away
	stands bool            // something of its name is there, whoever has brought it
	asked  bool            // it is there as the step wants it
	same   func(Mark) bool // the mark is of a step that wants the same
}

// wants is what the job's step wants; false: nothing that could be claimed.
func wants(n *corev1.Node, j executor.Job) (claim, bool) {
	p := j.Parameters
	switch j.Kind {
	case response.KubernetesCordon, response.KubernetesDrain:
		return claim{"the cordon", n.Spec.Unschedulable, n.Spec.Unschedulable, func(m Mark) bool {
			return m.Kind == response.KubernetesCordon || m.Kind == response.KubernetesDrain
		}}, true
	case response.KubernetesLabel:
		is, there := n.Labels[p["key"]]
		return claim{"label " + p["key"], there, there && is == p["value"],
			func(m Mark) bool { return m.Kind == response.KubernetesLabel && m.Key == p["key"] }}, true
	case response.KubernetesTaint, response.KubernetesEvict:
		t := taintOf(j)
		at := slices.IndexFunc(n.Spec.Taints, func(x corev1.Taint) bool { return x.Key == t.Key && x.Effect == t.Effect })
		return claim{fmt.Sprintf("taint %s:%s", t.Key, t.Effect), at >= 0, at >= 0 && n.Spec.Taints[at].Value == t.Value, func(m Mark) bool {
			return (m.Kind == response.KubernetesTaint || m.Kind == response.KubernetesEvict) && m.Key == t.Key && m.Effect == t.Effect
		}}, true
	case response.KubernetesCondition:
		c, there := find(n.Status.Conditions, p["type"])
		return claim{"condition " + p["type"], there, there && c.Status == corev1.ConditionTrue,
			func(m Mark) bool { return m.Kind == response.KubernetesCondition && m.Type == p["type"] }}, true
	default:
		return claim{}, false
	}
}

// overruled are the marks of what the step wants and somebody has taken away, in order.
func (s *step) overruled() (c claim, keys []string) {
	c, ok := wants(s.n, s.j)
	if !ok || c.stands || s.j.Undo || s.mine != nil {
		return c, nil
	}
	for _, k := range slices.Sorted(maps.Keys(s.all)) {
		if c.same(s.all[k]) {
			keys = append(keys, k)
		}
	}
	return c, keys
}

// Overruled names the other responses from which somebody has taken away what the job wants: Next asks which of them are open.
func Overruled(n *corev1.Node, j executor.Job) []string {
	s := newStep(n, j, j.Fault.Since) // nothing is written, so that the time is nobody's
	_, keys := s.overruled()
	var out []string
	for _, k := range keys {
		if id := responseOf(k); id != j.Response && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// overrule refuses what somebody has taken away from a response that is open, and has the write take the marks of the others with it.
func (s *step) overrule(open map[string]bool) (executor.Result, bool) {
	c, keys := s.overruled()
	for _, k := range keys {
		if id := responseOf(k); id == s.j.Response || open[id] {
			return executor.Unchanged("node %s: somebody has taken away %s, which response %s had brought: it is not brought again while that one is open and annotation %s stands",
				s.n.Name, c.name, id, k), true
		}
	}
	for _, k := range keys {
		delete(s.all, k)
	}
	s.gone = keys
	return executor.Result{}, false
}

// lost refuses to say again that a step was done where somebody has taken away since what an attempt before had brought: what the
// policy does next may rest on it. A drain finds that out by itself, and then says how far it has come.
func (s *step) lost() (executor.Result, bool) {
	c, ok := wants(s.n, s.j)
	if !ok || c.asked || s.j.Undo || s.mine == nil || s.j.Kind == response.KubernetesDrain {
		return executor.Result{}, false
	}
	verb := "taken away"
	if c.stands {
		verb = "changed"
	}
	return executor.Unchanged("node %s: somebody has %s %s, which an attempt before had brought: it is not brought again while annotation %s stands",
		s.n.Name, verb, c.name, s.key), true
}

// responseOf is the response of a mark's annotation.
func responseOf(key string) string {
	key = strings.TrimPrefix(key, MarkPrefix)
	return key[:max(0, strings.LastIndexByte(key, '.'))]
}

// holders names the responses of marks, for people.
func holders(keys []string) string {
	var ids []string
	for _, k := range keys {
		if id := responseOf(k); !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return strings.Join(ids, ", ")
}

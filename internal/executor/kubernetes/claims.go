package kubernetes

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// claim is the state of a node that a step claims.
type claim struct {
	name   string          // for messages: what somebody has removed
	stands bool            // something of its name is there, set by any client
	asked  bool            // it is there with the value that the step wants
	same   func(mark) bool // whether a mark's step wants the same
	alone  bool            // only one open response may claim it
}

// wants returns the claim of the job's step, or false if there is nothing to claim.
func wants(n *corev1.Node, j executor.Job) (claim, bool) {
	p := j.Parameters
	switch j.Kind {
	case response.KubernetesCordon, response.KubernetesDrain:
		return claim{name: "the cordon", stands: n.Spec.Unschedulable, asked: n.Spec.Unschedulable, same: func(m mark) bool {
			return m.Kind == response.KubernetesCordon || m.Kind == response.KubernetesDrain
		}}, true
	case response.KubernetesLabel:
		is, there := n.Labels[p["key"]]
		return claim{name: "label " + p["key"], stands: there, asked: there && is == p["value"],
			same: func(m mark) bool { return m.Kind == response.KubernetesLabel && m.Key == p["key"] }}, true
	case response.KubernetesTaint, response.KubernetesEvict:
		t := taintOf(j)
		at := slices.IndexFunc(n.Spec.Taints, func(x corev1.Taint) bool { return x.Key == t.Key && x.Effect == t.Effect })
		asked := at >= 0 && n.Spec.Taints[at].Value == t.Value
		return claim{name: fmt.Sprintf("taint %s:%s", t.Key, t.Effect), stands: at >= 0, asked: asked, same: func(m mark) bool {
			return (m.Kind == response.KubernetesTaint || m.Kind == response.KubernetesEvict) && m.Key == t.Key && m.Effect == t.Effect
		}}, true
	case response.KubernetesCondition:
		c, there := find(n.Status.Conditions, p["type"])
		stands := there && !ownedByManager(n, keeperManager).condition(p["type"]) // the keeper's means that no response claims it
		return claim{name: "condition " + p["type"], stands: stands, asked: there && c.Status == corev1.ConditionTrue,
			same: func(m mark) bool { return m.Kind == response.KubernetesCondition && m.Type == p["type"] }}, true
	case response.KubernetesRemediate:
		same := func(m mark) bool { return m.Kind == response.KubernetesRemediate }
		return claim{name: "a remediation", asked: true, same: same, alone: true}, true
	default:
		return claim{}, false
	}
}

// overruled returns the sorted marks with the same claim if somebody has removed the claimed state.
func (s *planned) overruled() (c claim, keys []string) {
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

// overruled returns the other responses with the job's claim whose effect somebody has removed. The caller tells
// nextPlan which of them are open.
func overruled(n *corev1.Node, j executor.Job) []string {
	s := newStep(n, j, j.Fault.Since) // nothing is written, so the time does not matter
	_, keys := s.overruled()
	return slices.DeleteFunc(responsesOf(keys), func(id string) bool { return id == j.Response })
}

// overrule refuses to restore what somebody has removed from an open response. For closed responses it makes the write
// remove their marks.
func (s *planned) overrule(open map[string]bool) (executor.Result, bool) {
	c, keys := s.overruled()
	for _, k := range keys {
		id := responseOf(k)
		if c.alone && (id == s.j.Response || open[id]) {
			return executor.Unchanged("node %s: response %s is still open and has begun %s: only one at a time", s.n.Name, id, c.name), true
		}
		if id == s.j.Response || open[id] {
			return executor.Unchanged("node %s: somebody has removed %s, which response %s had set: it is not set again while that one "+
				"is open and annotation %s stands",
				s.n.Name, c.name, id, k), true
		}
	}
	for _, k := range keys {
		delete(s.all, k)
	}
	s.gone = keys
	return executor.Result{}, false
}

// lost refuses to report a step as done again if somebody has since removed its effect, because the policy's next step
// may rely on it. A drain detects this by itself and then reports its progress.
func (s *planned) lost() (executor.Result, bool) {
	c, ok := wants(s.n, s.j)
	if !ok || c.asked || s.j.Undo || s.mine == nil || s.j.Kind == response.KubernetesDrain {
		return executor.Result{}, false
	}
	verb := "taken away"
	if c.stands {
		verb = "changed"
	}
	return executor.Unchanged("node %s: somebody has %s %s, which an earlier attempt had set: it is not set again while annotation "+
		"%s stands",
		s.n.Name, verb, c.name, s.key), true
}

// responseOf returns the response ID in a mark's annotation.
func responseOf(key string) string {
	key = strings.TrimPrefix(key, markPrefix)
	return key[:max(0, strings.LastIndexByte(key, '.'))]
}

// responsesOf returns the response IDs of marks, each once.
func responsesOf(keys []string) (ids []string) {
	for _, k := range keys {
		if id := responseOf(k); !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// holders returns the response IDs of marks, for messages.
func holders(keys []string) string { return strings.Join(responsesOf(keys), ", ") }

// maxAlike is the number of other responses' marks with one claim that a write leaves alone. If there are more, the write removes the marks
// of closed responses but for one.
const maxAlike = 8

// worn returns the marks of other responses that a write may remove if those responses are closed. dead marks claim a state that is gone.
// Each group in alike has more than maxAlike marks with one claim. worn omits marks of another sort, which the job's write cannot remove.
func (s *planned) worn() (dead []string, alike [][]string) {
	sort := func(k response.Kind) int {
		return btoi(k == response.KubernetesTaint || k == response.KubernetesEvict) + 2*btoi(k == response.KubernetesCondition)
	}
	seen := map[string]bool{}
	for _, k := range slices.Sorted(maps.Keys(s.all)) {
		m := s.all[k]
		c, ok := wants(s.n, m.job())
		if !ok || c.alone || seen[k] || responseOf(k) == s.j.Response || sort(m.Kind) != sort(s.j.Kind) {
			continue
		}
		if !c.stands {
			dead = append(dead, k)
			continue
		}
		group := s.others(func(other mark) bool { return c.same(other) })
		group = slices.DeleteFunc(group, func(k string) bool { return responseOf(k) == s.j.Response })
		for _, k := range group {
			seen[k] = true
		}
		if len(group) > maxAlike {
			slices.SortStableFunc(group, func(a, b string) int { return s.all[a].compare(s.all[b]) })
			alike = append(alike, group)
		}
	}
	return dead, alike
}

// worn returns the responses whose marks the job's write can remove if they are closed. The caller tells nextPlan which of them are open.
func worn(n *corev1.Node, j executor.Job) []string {
	dead, alike := newStep(n, j, j.Fault.Since).worn()
	return responsesOf(slices.Concat(append(alike, dead)...))
}

// tidy makes the write remove worn marks of closed responses. The first one of a group stays: the state is left to a person.
func (s *planned) tidy(open map[string]bool) {
	dead, alike := s.worn()
	closed := func(k string) bool { isOpen, known := open[responseOf(k)]; return known && !isOpen }
	dead = slices.DeleteFunc(dead, func(k string) bool { return !closed(k) })
	for _, group := range alike {
		group = slices.DeleteFunc(group, func(k string) bool { return !closed(k) })
		dead = append(dead, group[min(1, len(group)):]...)
	}
	for _, k := range dead {
		delete(s.all, k)
	}
	s.gone = append(s.gone, dead...)
}

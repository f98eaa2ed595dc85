// Package nodeplan says what one attempt writes to the node object of Kubernetes. It is pure: from the object as it was read, and
// what is to be done or put back, it makes the one write after which it is done, or says why there is none. It sends nothing: that
// is for the package above it.
//
// # What stands on a node
//
// Every attempt ends with one write, which names the attempt and the fencing token that it was made under, whatever else it changes:
//
//	lofamo.io/token: "41"                 the highest token that has written; a lower one is refused
//	lofamo.io/attempt: r41-7/0/2          response, step and attempt of the last write
//	lofamo.io/did-r41-7.0: {"kind":…}     the mark: this step of this response has been done, and not been put back
//
// The write is conditional on the resourceVersion that was read. So of two writers that have read the same, one is refused, and
// nothing that an earlier attempt has sent and that is still on its way can happen after a later attempt has ended: not even where
// that one found nothing to do.
//
// # Whose it is
//
// Labels, spec.unschedulable and conditions go by server-side apply, so that the API server itself keeps in metadata.managedFields
// whose each of them is: a field is ours while our field manager owns it, and it ceases to be as soon as somebody else changes it. What
// is not ours is neither changed nor put back. Each apply names all that is ours on the node, since what an apply leaves out is
// taken away: so marks say who still wants a field, and managed fields say whether it is ours to take away. The list of taints
// has one owner altogether in Kubernetes ("listType=atomic"): taints go by a merge patch, under the same condition, and the mark
// says which taint is ours, by its key, value, effect and the time at which it was added.
//
// # A person's word ends all claims
//
// A mark is a claim: its response wants the node cordoned, or the label, the taint or the condition there. A claim and what it claims
// come by one write. So where a claim stands, and not what it claims, somebody has taken that away: the claim is overruled. No
// response does anew what somebody has taken away from one that is open still, nor does that one's own next step (overrule), and
// the same step, repeated, does not say that it is done (lost). When it ends, what was said of it is over: a new fault is a new
// reason. One that is closed without having been put back has left what it did to a person, and its claim stands for as long as
// that: others that are put back leave it alone. Once it is overruled it means nothing, and the next write takes its mark away.
package nodeplan

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// Manager is the field manager of all that is written.
const Manager = "lofamo"

// The annotations of a node.
const (
	TokenKey   = "lofamo.io/token"
	AttemptKey = "lofamo.io/attempt"
	MarkPrefix = "lofamo.io/did-"
)

// Write is one write to a node object.
type Write struct {
	Status bool   // to the subresource status
	Apply  bool   // server-side apply by Manager, which takes what it names; else a merge patch
	Body   []byte // JSON
}

// Plan is what follows for an attempt. Without a Write it has ended with Result; with one, it ends so once that is written.
type Plan struct {
	Write  *Write
	Result executor.Result
}

func ends(r executor.Result) Plan { return Plan{Result: r} }

// step is one attempt at one node.
type step struct {
	n    *corev1.Node
	j    executor.Job
	now  time.Time
	key  string // of the mark
	all  map[string]Mark
	mine *Mark    // of this step; nil: there is none
	gone []string // marks that this write takes away besides its own
}

func newStep(n *corev1.Node, j executor.Job, now time.Time) *step {
	s := &step{n: n, j: j, now: now, key: MarkKey(j.Response, j.Step), all: marks(n)}
	if m, ok := s.all[s.key]; ok {
		s.mine = &m
	}
	return s
}

// Next says what the attempt writes to the node as it is. open says which of the responses that Overruled has named are open; of
// the others it says nothing.
func Next(n *corev1.Node, j executor.Job, open map[string]bool, now time.Time) Plan {
	if r, refused := Fenced(n, j.Token); refused {
		return ends(r)
	}
	if n.Annotations[TokenKey] == token(j) && n.Annotations[AttemptKey] == attempt(j) {
		return ends(executor.Done("it was written")) // by this attempt, which has not seen the answer
	}
	s := newStep(n, j, now)
	if r, refused := s.overrule(open); refused {
		return ends(r)
	}
	if r, refused := s.lost(); refused {
		return ends(r)
	}
	switch j.Kind {
	case response.KubernetesCondition:
		return s.condition()
	case response.KubernetesLabel:
		return s.label()
	case response.KubernetesCordon, response.KubernetesDrain:
		return s.cordon()
	case response.KubernetesTaint, response.KubernetesEvict:
		return s.taint()
	default:
		return ends(executor.Unchanged("kind %q: want one that writes to a node", j.Kind))
	}
}

// Fenced refuses what a higher token has been before, or what cannot be known to be fenced.
func Fenced(n *corev1.Node, mine uint64) (executor.Result, bool) {
	v, ok := n.Annotations[TokenKey]
	if !ok {
		return executor.Result{}, false
	}
	seen, err := strconv.ParseUint(v, 10, 64)
	switch {
	case err != nil:
		return executor.Unchanged("node %s: annotation %s: given %q: want the number that a supervisor has written", n.Name, TokenKey, v), true
	case mine < seen:
		return executor.Stale("node %s: token %d: %d has been seen", n.Name, mine, seen), true
	default:
		return executor.Result{}, false
	}
}

// Stands says whether the mark of the job's step is on the node, and no higher token: what takes longer than one write looks here
// before each of its acts. What is said otherwise is why it has to end.
func Stands(n *corev1.Node, j executor.Job) (executor.Result, bool) {
	if r, refused := Fenced(n, j.Token); refused {
		return r, false
	}
	if _, ok := n.Annotations[MarkKey(j.Response, j.Step)]; !ok {
		return executor.Partly("node %s: its mark of this step was taken away", n.Name), false
	}
	return executor.Result{}, true
}

func token(j executor.Job) string { return strconv.FormatUint(j.Token, 10) }

func attempt(j executor.Job) string {
	return fmt.Sprintf("%s/%d/%d", j.Response, j.Step, j.Attempt.Attempt)
}

// stamp are the annotations of every write.
func (s *step) stamp() map[string]any {
	return map[string]any{TokenKey: token(s.j), AttemptKey: attempt(s.j)}
}

// head is the metadata of every write: it is for this object as it was read, and creates none.
func (s *step) head(annotations map[string]any) map[string]any {
	return map[string]any{"name": s.n.Name, "uid": string(s.n.UID), "resourceVersion": s.n.ResourceVersion, "annotations": annotations}
}

// annotated are the annotations of an apply: the stamp, and all marks that go the same way.
func (s *step) annotated(status bool) map[string]any {
	out := s.stamp()
	for k, m := range s.all {
		if m.status() == status {
			out[k] = m.text
		}
	}
	return out
}

// apply makes a plan of an apply, of what is in with beside the head.
func (s *step) apply(status bool, with map[string]any, r executor.Result) Plan {
	body := map[string]any{"apiVersion": "v1", "kind": "Node"}
	maps.Copy(body, with)
	return s.write(&Write{Status: status, Apply: true}, body, r)
}

func (s *step) write(w *Write, body map[string]any, r executor.Result) Plan {
	b, err := json.Marshal(body)
	if err != nil {
		return ends(executor.Unchanged("write of node %s: %v", s.n.Name, err))
	}
	w.Body = b
	return Plan{Write: w, Result: r}
}

// put takes up the step's own mark, and unmark leaves it out.
func (s *step) put(m Mark) { m.text = m.encode(); s.all[s.key] = m }
func (s *step) unmark()    { delete(s.all, s.key) }

// others are the marks of other steps and responses for which it is so, by their annotations, in order.
func (s *step) others(so func(Mark) bool) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(s.all)) {
		if k != s.key && so(s.all[k]) {
			out = append(out, k)
		}
	}
	return out
}

package kubernetes

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

// The node plan decides what one attempt writes to a Kubernetes node object. It is pure: from the object as read,
// and an action to do or undo, it returns the one write that completes the attempt, or the reason why there is none.
// The executor sends the write.
//
// # State on a node
//
// Every attempt ends with one write, which names the attempt and its fencing token in addition to any other change:
//
//	lofamo.io/token: "41"                 the highest token that has written; a lower one is refused
//	lofamo.io/attempt: r41-7/0/2          response, step and attempt of the last write
//	lofamo.io/did-r41-7.0: {"kind":…}     the mark: this step of this response is done and not undone. It has the node's UID
//
// The write is conditional on the resourceVersion that was read. So if two writers have read the same version, one is
// refused. A delayed write of an earlier attempt cannot take effect after a later attempt has ended, even if the later
// one had nothing to do.
//
// # Ownership
//
// Labels, spec.unschedulable and conditions are written by server-side apply, so the API server records the owner of
// each in metadata.managedFields. A field is ours while our field manager owns it, and no longer as soon as somebody
// else changes it. We neither change nor undo fields of others. Each apply names all our fields on the node, since it
// removes any field that it leaves out. So marks record who still wants a field, and managed fields record whether we
// may remove it. The list of taints has a single owner in Kubernetes ("listType=atomic"). So taints are written by a
// merge patch, under the same condition. The mark identifies our taint by key, value, effect and the time when it was
// added.
//
// # A person overrules all claims
//
// A mark is a claim: its response wants the node cordoned, or a label, a taint or a condition present. One write sets
// both the mark and the claimed state. So if the mark is there and the claimed state is not, somebody has removed that
// state, and the claim is overruled. While the claim's response is open, neither its next step nor another response
// restores the state (overrule). The same step, repeated, does not report itself as done (lost). When that response
// ends, the decision no longer applies: a new fault is a new reason. A response that is closed without an undo leaves
// its effect to a person, and its claim lasts as long as the effect: an undo by another response does not remove it.
// Once overruled, such a claim has no effect, and the next write of that sort removes its mark (tidy). If many closed
// responses claim the same, the marks of all but one are removed too.

// fieldManager is the field manager of all our writes.
const fieldManager = "lofamo"

// Annotations on a node.
const (
	tokenKey   = "lofamo.io/token"
	attemptKey = "lofamo.io/attempt"
	markPrefix = "lofamo.io/did-"
)

// nodeWrite is one write to a node object.
type nodeWrite struct {
	Status bool   // write to the status subresource
	Apply  bool   // server-side apply by fieldManager, which takes ownership of the fields that it names; else a merge patch
	Body   []byte // JSON
}

// plan is the next action of an attempt. Without a Write the attempt has ended with Result; otherwise it ends with
// Result once the write succeeds.
type plan struct {
	Write  *nodeWrite
	Result executor.Result
}

func ends(r executor.Result) plan { return plan{Result: r} }

// planned is one attempt on one node.
type planned struct {
	n    *corev1.Node
	j    executor.Job
	now  time.Time
	key  string // annotation of the mark
	all  map[string]mark
	mine *mark    // the mark of this step, or nil
	gone []string // other marks that this write removes
}

func newStep(n *corev1.Node, j executor.Job, now time.Time) *planned {
	s := &planned{n: n, j: j, now: now, key: markKey(j.Response, j.Step), all: marks(n)}
	if m, ok := s.all[s.key]; ok {
		s.mine = &m
	}
	return s
}

// nextPlan returns the attempt's plan for the node. open says which of the responses returned by overruled and worn are open.
func nextPlan(n *corev1.Node, j executor.Job, open map[string]bool, now time.Time) plan {
	if r, refused := fencedNode(n, j.Token); refused {
		return ends(r)
	}
	if n.Annotations[tokenKey] == token(j) && n.Annotations[attemptKey] == attemptOf(j) {
		return ends(executor.Done("it was written")) // by this attempt, which has not seen the answer
	}
	s := newStep(n, j, now)
	if _, copied := n.Annotations[s.key]; copied && s.mine == nil && j.Undo {
		return ends(executor.Done("node %s: the mark of this step is of a deleted node, and was copied to this one: nothing to undo", n.Name))
	}
	if r, refused := s.overrule(open); refused {
		return ends(r)
	}
	if r, refused := s.lost(); refused {
		return ends(r)
	}
	s.tidy(open)
	switch j.Kind {
	case response.KubernetesCondition:
		return s.condition()
	case response.KubernetesLabel:
		return s.label()
	case response.KubernetesCordon, response.KubernetesDrain:
		return s.cordon()
	case response.KubernetesTaint, response.KubernetesEvict:
		return s.taint()
	case response.KubernetesRemediate:
		return s.remediation()
	default:
		return ends(executor.Unchanged("kind %q: want one that writes to a node", j.Kind))
	}
}

// fencedNode refuses an attempt if the node has a higher token, or a token that cannot be read.
func fencedNode(n *corev1.Node, mine uint64) (executor.Result, bool) {
	v, ok := n.Annotations[tokenKey]
	if !ok {
		return executor.Result{}, false
	}
	seen, err := strconv.ParseUint(v, 10, 64)
	switch {
	case err != nil:
		return executor.Unchanged("node %s: annotation %s: given %q: want the number that a supervisor has written", n.Name, tokenKey, v), true
	case mine < seen:
		return executor.Stale("node %s: token %d: %d has been seen", n.Name, mine, seen), true
	default:
		return executor.Result{}, false
	}
}

// markStands reports whether the node has the mark of the job's step and no higher token. An action of several requests
// checks it before each one. If it returns false, the result is the reason why the action must end.
func markStands(n *corev1.Node, j executor.Job) (executor.Result, bool) {
	if r, refused := fencedNode(n, j.Token); refused {
		return r, false
	}
	if _, ok := marks(n)[markKey(j.Response, j.Step)]; !ok {
		return executor.Partly("node %s: its mark of this step was removed", n.Name), false
	}
	return executor.Result{}, true
}

func token(j executor.Job) string { return strconv.FormatUint(j.Token, 10) }

func attemptOf(j executor.Job) string {
	return fmt.Sprintf("%s/%d/%d", j.Response, j.Step, j.Attempt.Attempt)
}

// stamp returns the annotations of every write.
func (s *planned) stamp() map[string]any {
	return map[string]any{tokenKey: token(s.j), attemptKey: attemptOf(s.j)}
}

// head returns the metadata of every write, which matches only this version of this object and creates none.
func (s *planned) head(annotations map[string]any) map[string]any {
	return map[string]any{"name": s.n.Name, "uid": string(s.n.UID), "resourceVersion": s.n.ResourceVersion, "annotations": annotations}
}

// annotated returns the annotations of an apply: the stamp, and all marks written through the same resource.
func (s *planned) annotated(status bool) map[string]any {
	out := s.stamp()
	for k, m := range s.all {
		if m.status() == status {
			out[k] = m.text
		}
	}
	return out
}

// apply returns the plan of an apply with the given fields besides the head.
func (s *planned) apply(status bool, with map[string]any, r executor.Result) plan {
	body := map[string]any{"apiVersion": "v1", "kind": "Node"}
	maps.Copy(body, with)
	return s.write(&nodeWrite{Status: status, Apply: true}, body, r)
}

func (s *planned) write(w *nodeWrite, body map[string]any, r executor.Result) plan {
	b, err := json.Marshal(body)
	if err != nil {
		return ends(executor.Unchanged("write of node %s: %v", s.n.Name, err))
	}
	w.Body = b
	return plan{Write: w, Result: r}
}

// put adds the step's own mark, and unmark removes it.
func (s *planned) put(m mark) { m.UID = s.n.UID; m.text = m.encode(); s.all[s.key] = m }
func (s *planned) unmark()    { delete(s.all, s.key) }

// others returns the sorted annotations of other steps' marks for which so is true.
func (s *planned) others(so func(mark) bool) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(s.all)) {
		if k != s.key && so(s.all[k]) {
			out = append(out, k)
		}
	}
	return out
}

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/kubernetes/nodeplan"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/response"
)

// drain empties a node: it is cordoned, with the mark, and its pods are evicted one after the other until none is left. Begun again by
// another attempt it goes on with those that are left. What it evicted cannot be put back; putting it back is to uncordon.
func (e *Executor) drain(ctx context.Context, j executor.Job) executor.Result {
	how, err := nodeplan.DrainOf(j)
	if err != nil {
		return executor.Unchanged("%v", err)
	}
	d := &draining{e: e, j: j, how: how, evicted: map[types.UID]bool{}, waits: map[string]string{}, refused: map[types.UID]string{}}
	// Looked at before anything is changed: a node is not taken from use for a drain that its pods do not allow.
	for try := 0; ; try++ {
		r, err := d.prepare(ctx)
		if err == nil {
			if r.Outcome != 0 {
				return r
			}
			break
		}
		if !e.pause(ctx, err, try) {
			return executor.Unchanged("node of %s: %v", j.Target.Node, err)
		}
	}
	if r := e.alter(ctx, j); r.Outcome != response.Succeeded {
		return r
	}
	return d.run(ctx)
}

// draining is a drain under way.
type draining struct {
	e       *Executor
	j       executor.Job
	how     nodeplan.Drain
	node    string
	evicted map[types.UID]bool
	pods    nodeplan.Pods        // as last seen
	waits   map[string]string    // pods whose eviction was refused for now, and why
	refused map[types.UID]string // those whose eviction is forbidden, and why: they are not asked for again by this attempt
}

// prepare finds the node, and refuses what the parameters do not allow.
func (d *draining) prepare(ctx context.Context) (executor.Result, error) {
	failpoint.Hit(failpoint.KubernetesRead)
	n, err := d.e.find(ctx, d.e.c.all, d.j.Target.Node)
	var done ended
	switch {
	case errors.As(err, &done):
		return done.Result, nil
	case errors.Is(err, errGone), errors.Is(err, errNoName), refused(err):
		return executor.Unchanged("%v", err), nil
	case err != nil:
		return executor.Result{}, err
	}
	d.node = n.Name
	if err := d.look(ctx); err != nil {
		if refused(err) {
			return executor.Unchanged("pods of node %s: %v", d.node, err), nil
		}
		return executor.Result{}, err
	}
	_, marked := nodeplan.Stands(n, d.j)
	if len(d.pods.Blocked) > 0 && !marked {
		return executor.Unchanged("node %s: %s", d.node, sample(d.pods.Blocked)), nil
	}
	return executor.Result{}, nil
}

// look reads which pods are on the node.
func (d *draining) look(ctx context.Context) error {
	list, err := d.e.c.pods(ctx, d.node)
	if err == nil {
		d.pods = d.how.Sort(list)
	}
	return err
}

// run evicts until no pod is left, or its time is over.
func (d *draining) run(ctx context.Context) executor.Result {
	begin := time.Now()
	for round, failures := 0, 0; ; round++ {
		err := d.round(ctx)
		var done ended
		switch {
		case errors.As(err, &done):
			return done.Result
		case err == nil && d.pods.Left() == 0:
			return executor.Done("node %s: cordoned, and drained of %d pods in %s", d.node, len(d.evicted), time.Since(begin).Round(time.Second/10))
		case err == nil && d.forbidden() == len(d.pods.Evict) && len(d.pods.Leaving) == 0:
			return executor.Partly("node %s: cordoned, %d pods evicted, %d left: %s", d.node, len(d.evicted), d.pods.Left(), sample(d.left()))
		case err == nil:
			failures = 0
			// Soon at first: most pods end at once.
			if wait(ctx, min(100*time.Millisecond<<min(round, 16), d.e.pacing.drain)) {
				continue
			}
		default:
			failures++
			if d.e.pause(ctx, err, failures) {
				continue
			}
		}
		return d.late(err)
	}
}

// round looks which pods are left, and asks for the eviction of each. It returns ended where the drain has ended, and an error where it
// cannot be seen to go on.
func (d *draining) round(ctx context.Context) error {
	if err := d.look(ctx); err != nil {
		if refused(err) {
			return ended{executor.Partly("node %s: cordoned; its pods: %v", d.node, err)}
		}
		return err
	}
	if d.pods.Left() == 0 {
		return d.stands(ctx) // else it would be said of a node that another one has put back since
	}
	clear(d.waits)
	var first error
	for _, p := range d.pods.Evict {
		if d.refused[p.UID] != "" {
			continue
		}
		if err := d.stands(ctx); err != nil {
			return err
		}
		err := d.evict(ctx, p)
		var done ended
		if errors.As(err, &done) || errors.Is(err, errNotSent) { // what keeps one from being sent keeps all: the store is asked again after a pause
			return err
		}
		if err != nil { // a webhook that hangs for one pod holds up no other
			d.waits[nodeplan.PodName(p)] = err.Error()
			if first == nil {
				first = err
			}
		}
	}
	return first
}

// stands looks whether the drain is still to go on: no higher token, its mark in its place, and nobody has put the node into use again.
func (d *draining) stands(ctx context.Context) error {
	n, err := d.e.c.node(ctx, d.e.c.all, d.node)
	switch {
	case apierrors.IsNotFound(err) && d.pods.Left() == 0: // as what scales a cluster down does with a node that is empty
		return ended{executor.Done("node %s: drained of %d pods, and somebody has deleted it since", d.node, len(d.evicted))}
	case apierrors.IsNotFound(err):
		return ended{executor.Partly("node %s is gone; %d pods evicted", d.node, len(d.evicted))}
	case err != nil:
		return err
	}
	if r, ok := nodeplan.Stands(n, d.j); !ok {
		return ended{r}
	}
	if !n.Spec.Unschedulable {
		return ended{executor.Partly("node %s: somebody has uncordoned it; %d pods evicted", d.node, len(d.evicted))}
	}
	return nil
}

// evict asks for the eviction of one pod. What a budget, or anything else of that pod, does not allow now is noted, and asked for again
// in the next round; what is forbidden, by a right or by a webhook, is noted for good.
func (d *draining) evict(ctx context.Context, p *corev1.Pod) error {
	failpoint.Hit(failpoint.KubernetesEvict)
	err := d.e.c.evict(ctx, p, d.how.Grace)
	failpoint.Hit(failpoint.KubernetesEvicted)
	name := nodeplan.PodName(p)
	switch {
	case err == nil:
		d.evicted[p.UID] = true
	case errors.Is(err, executor.ErrStale):
		return ended{executor.Stale("node %s: cordoned, %d pods evicted; token %d: %v", d.node, len(d.evicted), d.j.Token, err)}
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// Gone, or another by the same name.
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		d.waits[name] = err.Error()
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		d.waits[name] = "its namespace is ending"
	case apierrors.IsForbidden(err):
		d.refused[p.UID] = err.Error()
	case refused(err), apierrors.IsInternalError(err): // as with two budgets for one pod
		d.waits[name] = err.Error()
	default:
		return err
	}
	return nil
}

// forbidden is how many of the pods that are to be evicted may not be.
func (d *draining) forbidden() int {
	n := 0
	for _, p := range d.pods.Evict {
		if d.refused[p.UID] != "" {
			n++
		}
	}
	return n
}

// left names the pods that are left, and why.
func (d *draining) left() []string {
	var left []string
	for _, p := range d.pods.Evict {
		if why := d.refused[p.UID]; why != "" {
			left = append(left, nodeplan.PodName(p)+": "+why)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.waits)) {
		left = append(left, name+": "+d.waits[name])
	}
	for _, p := range d.pods.Leaving {
		left = append(left, nodeplan.PodName(p)+" is still ending")
	}
	return append(left, d.pods.Blocked...)
}

// late says what is left when the time is over.
func (d *draining) late(err error) executor.Result {
	left := d.left()
	if err != nil {
		left = append(left, err.Error())
	}
	return executor.Partly("node %s: cordoned, %d pods evicted, %d left when its time was over: %s", d.node, len(d.evicted),
		d.pods.Left(), sample(left))
}

// sample is the first few of many.
func sample(all []string) string {
	const few = 3
	if len(all) > few {
		return strings.Join(all[:few], "; ") + fmt.Sprintf("; and %d more", len(all)-few)
	}
	return strings.Join(all, "; ")
}

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
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/response"
)

// drain empties a node. It cordons the node with the mark and evicts one pod after the other until none is left. A
// later attempt continues with the pods that are left. Undoing a drain uncordons the node; evicted pods do not return.
func (e *Executor) drain(ctx context.Context, j executor.Job) executor.Result {
	how, err := drainSettingsOf(j)
	if err != nil {
		return executor.Unchanged("%v", err)
	}
	d := &draining{e: e, j: j, how: how, evicted: map[types.UID]bool{}, waits: map[string]string{}, refused: map[types.UID]string{}}
	// Check before any change: a node stays in use if its pods do not allow the drain.
	var before error
	for try := 0; ; try++ {
		r, err := d.prepare(ctx)
		if err == nil {
			if r.Outcome != 0 {
				return r
			}
			break
		}
		err = cause(ctx, err, before)
		if !e.pause(ctx, err, try) {
			return executor.Unchanged("node of %s: %v", j.Target.Node, err)
		}
		before = err
	}
	if r := e.alter(ctx, j); r.Outcome != response.Succeeded {
		return r
	}
	return d.run(ctx)
}

// draining is a drain in progress.
type draining struct {
	e       *Executor
	j       executor.Job
	how     drainSettings
	node    string
	evicted map[types.UID]bool
	pods    podsToEvict          // as last read
	waits   map[string]string    // pods whose eviction is refused for now, and the reason
	refused map[types.UID]string // pods whose eviction is forbidden, and the reason: this attempt does not retry them
}

// prepare finds the node and refuses the drain if the parameters do not allow it.
func (d *draining) prepare(ctx context.Context) (executor.Result, error) {
	failpoint.Hit(failpoint.KubernetesRead)
	n, err := d.e.find(ctx, d.e.c.all, d.j.Target.Node)
	switch {
	case unfindable(err):
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
	_, marked := markStands(n, d.j)
	if len(d.pods.Blocked) > 0 && !marked {
		return executor.Unchanged("node %s: %s", d.node, sample(d.pods.Blocked)), nil
	}
	return executor.Result{}, nil
}

// look reads the pods on the node.
func (d *draining) look(ctx context.Context) error {
	list, err := d.e.c.pods(ctx, d.node)
	if err == nil {
		d.pods = d.how.Sort(list)
	}
	return err
}

// run evicts pods until none is left or the time is over.
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
			// Poll quickly at first: most pods end at once.
			if executor.Wait(ctx, min(100*time.Millisecond<<min(round, 16), d.e.pacing.drain)) {
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

// round reads the remaining pods and requests the eviction of each. It returns ended if the drain has ended, and
// another error if the round failed.
func (d *draining) round(ctx context.Context) error {
	if err := d.look(ctx); err != nil {
		if refused(err) {
			return ended{executor.Partly("node %s: cordoned; its pods: %v", d.node, err)}
		}
		return err
	}
	if d.pods.Left() == 0 {
		return d.stands(ctx) // else a node that another attempt has since uncordoned would be reported as drained
	}
	before := maps.Clone(d.waits)
	clear(d.waits)
	defer func() { // requests that the end of the attempt cut off: the refusals before it tell more
		for _, p := range d.pods.Evict {
			if why := before[podName(p)]; why != "" && ctx.Err() != nil && !d.evicted[p.UID] {
				d.waits[podName(p)] = why
			}
		}
	}()
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
		// not sent for a reason that applies to all requests: the fence is checked again after a pause
		if errors.As(err, &done) || errors.Is(err, errNotSent) {
			return err
		}
		if err != nil { // a webhook that hangs for one pod must not delay the others
			d.waits[podName(p)] = err.Error()
			if first == nil {
				first = err
			}
		}
	}
	return first
}

// stands checks that the drain may continue: no higher token, its mark in place, and the node still cordoned.
func (d *draining) stands(ctx context.Context) error {
	n, err := d.e.c.node(ctx, d.e.c.all, d.node)
	switch {
	case IsNotFound(err) && d.pods.Left() == 0: // as an autoscaler does with an empty node
		return ended{executor.Done("node %s: drained of %d pods, and somebody has deleted it since", d.node, len(d.evicted))}
	case IsNotFound(err):
		return ended{executor.Partly("node %s is gone; %d pods evicted", d.node, len(d.evicted))}
	case err != nil:
		return err
	}
	if r, ok := markStands(n, d.j); !ok {
		return ended{r}
	}
	if !n.Spec.Unschedulable {
		return ended{executor.Partly("node %s: somebody has uncordoned it; %d pods evicted", d.node, len(d.evicted))}
	}
	return nil
}

// evict requests the eviction of one pod. A temporary refusal, such as a disruption budget's, is recorded and retried
// in the next round. A forbidden eviction, by RBAC or a webhook, is recorded and not retried.
func (d *draining) evict(ctx context.Context, p *corev1.Pod) error {
	failpoint.Hit(failpoint.KubernetesEvict)
	err := d.e.c.evict(ctx, p, d.how.Grace)
	failpoint.Hit(failpoint.KubernetesEvicted)
	name := podName(p)
	switch {
	case err == nil:
		d.evicted[p.UID] = true
	case errors.Is(err, executor.ErrStale):
		return ended{executor.Stale("node %s: cordoned, %d pods evicted; token %d: %v", d.node, len(d.evicted), d.j.Token, err)}
	case IsNotFound(err), apierrors.IsConflict(err):
		// The pod is gone, or another pod has its name.
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

// forbidden returns the number of pods whose eviction is forbidden.
func (d *draining) forbidden() int {
	n := 0
	for _, p := range d.pods.Evict {
		if d.refused[p.UID] != "" {
			n++
		}
	}
	return n
}

// left lists the remaining pods with reasons.
func (d *draining) left() []string {
	var left []string
	for _, p := range d.pods.Evict {
		if why := d.refused[p.UID]; why != "" {
			left = append(left, podName(p)+": "+why)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.waits)) {
		left = append(left, name+": "+d.waits[name])
	}
	for _, p := range d.pods.Leaving {
		left = append(left, podName(p)+" is still ending")
	}
	return append(left, d.pods.Blocked...)
}

// late returns the result of a drain that has run out of time.
func (d *draining) late(err error) executor.Result {
	left := d.left()
	if err != nil {
		left = append(left, err.Error())
	}
	return executor.Partly("node %s: cordoned, %d pods evicted, %d left when its time was over: %s", d.node, len(d.evicted),
		d.pods.Left(), sample(left))
}

// sample joins the first few of many texts.
func sample(all []string) string {
	const few = 3
	if len(all) > few {
		return strings.Join(all[:few], "; ") + fmt.Sprintf("; and %d more", len(all)-few)
	}
	return strings.Join(all, "; ")
}

// Package kubernetes carries out responses in a Kubernetes cluster: node conditions and events, labels, cordons, taints
// and drains. Its package nodeplan decides what to write to a node and recognises our own marks. This package sends the
// writes, within its own rate limits, and retries failed ones until the attempt's time is over.
//
// The token on the node refuses a lower one, and every write is conditional on the resourceVersion that was read. A new
// leader may not have written to the node yet. So right before each changing request the executor asks the supervisors'
// store whether a higher token is known (executor.Fenced). The remaining window lasts from that answer to the API
// server's answer, for one request. A write takes effect in it only if the node is unchanged since it was read. The
// API server can refuse neither an event nor the eviction of one pod. An event is harmless, and its name is unique for
// each step, so there is one at most. Before each eviction the executor also checks the token on the node and the
// drain's mark.
package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Config holds the cluster's address and limits.
type Config = config.KubernetesConfig

// Kinds returns the kinds of actions that Executor carries out.
func Kinds() []response.Kind {
	return []response.Kind{
		response.KubernetesCondition, response.KubernetesEvent, response.KubernetesLabel, response.KubernetesCordon,
		response.KubernetesTaint, response.KubernetesEvict, response.KubernetesDrain, response.KubernetesRemediate,
	}
}

// Executor implements executor.Executor.
type Executor struct {
	cfg    Config
	c      *client
	open   executor.Open // nil if unknown; then all responses count as open
	guard  executor.Guard
	log    *slog.Logger
	pacing pacing
	absent sync.Map // the key of a remediation's mark to the time at which its undo first found no object

	following atomic.Pointer[keeper] // that passes evidence on now; nil: none
}

// pacing holds the intervals between two tries, and other times of attempts.
type pacing struct {
	conflict time.Duration // first backoff after somebody else's write
	failure  time.Duration // first backoff after a failed request
	most     time.Duration // maximum of both, which double each time
	drain    time.Duration // maximum interval between two reads of the pods of a node being drained
	// unmark is the time beyond an attempt's end for the removal of its mark. It is shorter than response.Config.ResultTime by default,
	// so that the engine still waits for the result.
	unmark time.Duration
}

var usual = pacing{conflict: 10 * time.Millisecond, failure: 100 * time.Millisecond, most: 5 * time.Second, drain: 5 * time.Second,
	unmark: 3 * time.Second}

// New returns an executor. It connects to the cluster only when there is work. If open is nil, an overruled mark blocks
// other responses from the same change until somebody removes the mark.
func New(cfg Config, open executor.Open, log *slog.Logger) (*Executor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.Filled()
	c, err := connect(cfg)
	if err != nil {
		return nil, err
	}
	return &Executor{cfg: cfg, c: c, open: open, log: log, pacing: usual}, nil
}

// Do implements executor.Executor.
func (e *Executor) Do(ctx context.Context, j executor.Job) executor.Result {
	if r, ok := e.guard.Admit(j.Effect); !ok {
		return r
	}
	if j.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, j.Timeout)
		defer cancel()
	}
	begin := time.Now()
	var r executor.Result
	switch {
	case j.Kind == response.KubernetesEvent:
		r = e.event(ctx, j)
	case j.Target.Node == "":
		r = executor.Unchanged("%s: want the fault of a node", j.Target)
	case j.Kind == response.KubernetesDrain && !j.Undo:
		r = e.drain(ctx, j)
	case j.Kind == response.KubernetesRemediate && j.Undo:
		r = e.endRemediation(ctx, j)
	case j.Kind == response.KubernetesRemediate:
		r = e.remediate(ctx, j)
	default:
		r = e.alter(ctx, j)
	}
	e.log.Debug("kubernetes", "response", j.Response, "step", j.Step, "attempt", j.Attempt.Attempt, "kind", j.Kind, "undo", j.Undo,
		"target", j.Target,
		"outcome", r.Outcome, "detail", r.Detail, "took", time.Since(begin))
	return r
}

// alter brings one write to the node. It reads, plans and writes until the write is done, unnecessary or refused.
func (e *Executor) alter(ctx context.Context, j executor.Job) executor.Result {
	return e.retry(ctx, fmt.Sprintf("node of %s", j.Target.Node), func(sent *bool) error { return e.alterOnce(ctx, j, sent) })
}

// retry calls once until that returns ended or the attempt's time is over. what names the object in the result. once
// sets sent when a write has left with an unknown outcome.
func (e *Executor) retry(ctx context.Context, what string, once func(sent *bool) error) executor.Result {
	sent := false
	var before error
	for try := 0; ; try++ {
		was := sent
		err := once(&sent)
		var done ended
		if errors.As(err, &done) {
			return done.Result
		}
		if sent == was { // otherwise err says why the outcome of this try's write is unknown
			err = cause(ctx, err, before)
		}
		if !e.pause(ctx, err, try) {
			if sent {
				return executor.NotKnown("%s: %v", what, err)
			}
			return executor.Unchanged("%s: %v", what, err)
		}
		before = err
	}
}

// ended is the end of an attempt, as an error.
type ended struct{ executor.Result }

func (ended) Error() string { return "the attempt has ended" }

// alterOnce reads, plans and writes once. It returns ended, or the reason for a retry.
func (e *Executor) alterOnce(ctx context.Context, j executor.Job, sent *bool) error {
	failpoint.Hit(failpoint.KubernetesRead)
	n, err := e.findFor(ctx, j)
	switch {
	case err == nil:
	case errors.Is(err, errGone) && j.Undo:
		return ended{e.undoneByDeletion(j, err)}
	case unfindable(err) && !*sent:
		return ended{executor.Unchanged("%v", err)}
	default:
		return err
	}
	open, err := e.openOn(ctx, n, j)
	if err != nil {
		return err
	}
	p := nextPlan(n, j, open, time.Now())
	if p.Write == nil {
		return ended{p.Result}
	}
	failpoint.Hit(failpoint.KubernetesWrite)
	err = e.c.write(ctx, n.Name, p.Write)
	failpoint.Hit(failpoint.KubernetesWritten)
	switch {
	case err == nil:
		return ended{p.Result}
	case errors.Is(err, executor.ErrStale) && *sent:
		return ended{executor.NotKnown("node %s: a write was sent, and its outcome cannot be read: %v", n.Name, err)}
	case errors.Is(err, executor.ErrStale):
		return ended{executor.Stale("node %s: token %d: %v", n.Name, j.Token, err)}
	case refused(err) && !*sent && !IsNotFound(err):
		return ended{executor.Unchanged("node %s: %v", n.Name, err)}
	case !notDone(err):
		*sent = true
	default:
	}
	return err
}

// findFor returns the node that an attempt changes.
func (e *Executor) findFor(ctx context.Context, j executor.Job) (*corev1.Node, error) {
	if j.Undo {
		return e.findUndone(ctx, j)
	}
	return e.find(ctx, e.c.all, j.Target.Node)
}

// findUndone returns the node that an undo changes, or errGone if the node was deleted. With nodeLabel, somebody may have removed the label
// from the node, or moved it to another one. So unless the node with the label has the mark of the step, findUndone looks for the mark on
// all nodes, and its error names a node that has the mark.
func (e *Executor) findUndone(ctx context.Context, j executor.Job) (*corev1.Node, error) {
	n, err := e.find(ctx, e.c.all, j.Target.Node)
	if e.cfg.NodeLabel == "" || err != nil && !errors.Is(err, errNoName) {
		return n, err
	}
	key, has := markKey(j.Response, j.Step), ""
	if err == nil {
		if _, marked := marks(n)[key]; marked {
			return n, nil
		}
	}
	_, failed := e.c.listNodes(ctx, e.c.all, "", func(nodes []corev1.Node, _, _ bool) {
		for i := range nodes {
			if _, marked := marks(&nodes[i])[key]; marked {
				has = nodes[i].Name
			}
		}
	})
	switch {
	case failed != nil:
		return nil, failed
	case has != "" && err == nil:
		return nil, fmt.Errorf("node %s, by label %s: %w: %s has the label, and %s has the mark of this step: want one node with both",
			j.Target.Node, e.cfg.NodeLabel, errNoName, n.Name, has)
	case has != "":
		return nil, fmt.Errorf("%w: %s has the mark of this step, and not the label", err, has)
	case err != nil:
		return nil, fmt.Errorf("node %s, by label %s or by the mark of this step: %w", j.Target.Node, e.cfg.NodeLabel, errGone)
	default:
		return n, nil
	}
}

// undoneByDeletion returns the result of an undo whose node is gone, and logs it.
func (e *Executor) undoneByDeletion(j executor.Job, err error) executor.Result {
	e.log.Warn("undo of a deleted node: nothing is left to put back", "response", j.Response, "step", j.Step, "kind", j.Kind, "err", err)
	return executor.Done("%v: nothing is left to put back", err)
}

// openOn returns which of the responses with marks on the node are open, as far as the job's plan needs that. If the store does not answer,
// worn marks stay.
func (e *Executor) openOn(ctx context.Context, n *corev1.Node, j executor.Job) (map[string]bool, error) {
	ids, marks := overruled(n, j), worn(n, j)
	open, err := e.stillOpen(ctx, slices.Concat(ids, marks))
	if err != nil && len(ids) == 0 {
		e.log.Warn("cannot check which responses are closed: their marks stay on the node", "node", n.Name, "err", err)
		return nil, nil //nolint:nilnil // nothing that the step needs
	}
	return open, err
}

// stillOpen returns which of the responses are open.
func (e *Executor) stillOpen(ctx context.Context, ids []string) (map[string]bool, error) {
	if len(ids) > 0 && e.open != nil {
		return e.open(ctx, ids)
	}
	open := make(map[string]bool, len(ids))
	for _, id := range ids {
		open[id] = true
	}
	return open, nil
}

// pause waits before the next try, with growing backoff. It waits at least as long as the API server asks, within the bound of pauseAsked.
// It returns false when the attempt's time is over.
func (e *Executor) pause(ctx context.Context, err error, try int) bool {
	d := e.pacing.failure
	if apierrors.IsConflict(err) {
		d = e.pacing.conflict
	}
	d = min(d<<min(try, 16), e.pacing.most)
	d = max(d/2+rand.N(d/2+1), pauseAsked(err))
	return executor.Wait(ctx, d)
}

// errGone means that Kubernetes has no node of that name. errNoName means that the node's name is unknown: the node may
// still exist, with all our changes. errShared means that several nodes have its label.
var (
	errGone   = errors.New("no such node in Kubernetes")
	errNoName = errors.New("no node of Kubernetes is known to be it")
	errShared = errors.New("want one node with it")
)

// unfindable reports whether find has failed for a reason that another try does not change.
func unfindable(err error) bool {
	return errors.Is(err, errGone) || errors.Is(err, errNoName) || errors.Is(err, errShared) || refused(err)
}

// find reads our node from the API server, in its current version.
func (e *Executor) find(ctx context.Context, p *pace, id fault.NodeID) (*corev1.Node, error) {
	if e.cfg.NodeLabel != "" {
		return e.findLabelled(ctx, p, id)
	}
	name := e.cfg.NameOf(id)
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil, fmt.Errorf("node %s would be %q: %w: its names are of a-z, 0-9, '-' and '.'", id, name, errNoName)
	}
	n, err := e.c.node(ctx, p, name)
	if IsNotFound(err) {
		return nil, fmt.Errorf("node %s, as %s: %w", id, name, errGone)
	}
	return n, err
}

// findLabelled finds the node by its label, with one request. It keeps no names, because only a lookup by label shows a second node.
func (e *Executor) findLabelled(ctx context.Context, p *pace, id fault.NodeID) (*corev1.Node, error) {
	key := e.cfg.NodeLabel
	list, err := e.c.labelled(ctx, p, key, string(id))
	switch {
	case err != nil:
		return nil, err
	case len(list) == 0:
		return nil, fmt.Errorf("node %s, by label %s: %w: want one that has it", id, key, errNoName)
	case len(list) > 1:
		return nil, fmt.Errorf("node %s, by label %s: %s and %s have it: %w", id, key, list[0].Name, list[1].Name, errShared)
	}
	return &list[0], nil
}

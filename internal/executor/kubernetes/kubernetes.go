// Package kubernetes carries out responses at a Kubernetes cluster: conditions and events of nodes, labels, cordons, taints and
// drains. What it writes to a node, and how it knows its own again, is in its package nodeplan; this one sends it, within limits of its
// own, and repeats what did not come through until its time is over.
//
// A token that is lower than the one on the node is refused by what stands on the node, and every write is conditional on the
// resourceVersion that was read. Where the next leader has not been yet, the supervisors' own store says whether a higher token is known
// (executor.Fenced): it is asked just before each request that changes something. What is left is the time from that answer to
// the API server's, for one request: a write comes through in it only if nobody has written to the node since it was read; an
// eviction, of one pod, and an event, which is harmless and has a name of its own for every step, so that there is one, the API
// server cannot refuse. Before each single eviction the token on the node is looked at too, and that the drain's mark stands.
package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/kubernetes/nodeplan"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Config says how the cluster is reached.
type Config = config.KubernetesConfig

// Kinds are what it carries out.
func Kinds() []response.Kind {
	return []response.Kind{
		response.KubernetesCondition, response.KubernetesEvent, response.KubernetesLabel, response.KubernetesCordon,
		response.KubernetesTaint, response.KubernetesEvict, response.KubernetesDrain,
	}
}

// Executor implements executor.Executor.
type Executor struct {
	cfg    Config
	c      *client
	open   executor.Open // nil: nobody knows, and all count as open
	guard  executor.Guard
	log    *slog.Logger
	pacing pacing
	names  sync.Map // fault.NodeID to the name of its node, where a label says it
}

// pacing is how long it waits between two requests for the same.
type pacing struct {
	conflict time.Duration // after somebody else's write, at first
	failure  time.Duration // after a request that failed, at first
	most     time.Duration // of both, doubled each time
	drain    time.Duration // between two looks at the pods of a node that is drained, at most
}

var usual = pacing{conflict: 10 * time.Millisecond, failure: 100 * time.Millisecond, most: 5 * time.Second, drain: 5 * time.Second}

// New makes an executor. It reaches for the cluster only when there is something to do. Where open is nil a mark that somebody
// has overruled keeps others from doing what it stands for until it is taken away.
func New(cfg Config, open executor.Open, log *slog.Logger) (*Executor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.Filled()
	rc, err := restConfig(cfg)
	if err != nil {
		return nil, err
	}
	c, err := newClient(cfg, rc)
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
	case j.Target.Node == "":
		r = executor.Unchanged("%s: want the fault of a node", j.Target)
	case j.Kind == response.KubernetesEvent:
		r = e.event(ctx, j)
	case j.Kind == response.KubernetesDrain && !j.Undo:
		r = e.drain(ctx, j)
	default:
		r = e.alter(ctx, j)
	}
	e.log.Debug("kubernetes", "response", j.Response, "step", j.Step, "attempt", j.Attempt.Attempt, "kind", j.Kind, "undo", j.Undo,
		"target", j.Target,
		"outcome", r.Outcome, "detail", r.Detail, "took", time.Since(begin))
	return r
}

// alter brings one write to the node: it reads, plans and writes, until the write is there, is not needed or is refused.
func (e *Executor) alter(ctx context.Context, j executor.Job) executor.Result {
	sent := false // a write went out of which nobody knows whether it came through
	for try := 0; ; try++ {
		err := e.alterOnce(ctx, j, &sent)
		var done ended
		if errors.As(err, &done) {
			return done.Result
		}
		if !e.pause(ctx, err, try) {
			if sent {
				return executor.NotKnown("node of %s: %v", j.Target.Node, err)
			}
			return executor.Unchanged("node of %s: %v", j.Target.Node, err)
		}
	}
}

// ended is the end of an attempt.
type ended struct{ executor.Result }

func (ended) Error() string { return "the attempt has ended" }

// alterOnce reads, plans and writes once. It returns ended, or why it is to be tried again.
func (e *Executor) alterOnce(ctx context.Context, j executor.Job, sent *bool) error {
	failpoint.Hit(failpoint.KubernetesRead)
	n, err := e.find(ctx, e.c.all, j.Target.Node)
	switch {
	case err == nil:
	case errors.Is(err, errGone) && j.Undo:
		return ended{executor.Done("%v: nothing is left to put back", err)}
	case (errors.Is(err, errGone) || errors.Is(err, errNoName) || refused(err)) && !*sent:
		return ended{executor.Unchanged("%v", err)}
	default:
		return err
	}
	open, err := e.stillOpen(ctx, nodeplan.Overruled(n, j))
	if err != nil {
		return err
	}
	p := nodeplan.Next(n, j, open, time.Now())
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
		return ended{executor.NotKnown("node %s: a write was sent, and what became of it cannot be looked at: %v", n.Name, err)}
	case errors.Is(err, executor.ErrStale):
		return ended{executor.Stale("node %s: token %d: %v", n.Name, j.Token, err)}
	case refused(err) && !*sent && !apierrors.IsNotFound(err):
		return ended{executor.Unchanged("node %s: %v", n.Name, err)}
	case !notDone(err):
		*sent = true
	default:
	}
	return err
}

// stillOpen says which of the responses are open.
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

// pause waits before the next try, longer each time, and no less than the API server asks for. It returns false when the attempt's time
// is over.
func (e *Executor) pause(ctx context.Context, err error, try int) bool {
	d := e.pacing.failure
	if apierrors.IsConflict(err) {
		d = e.pacing.conflict
	}
	d = min(d<<min(try, 16), e.pacing.most)
	d = d/2 + rand.N(d/2+1)
	if s, ok := apierrors.SuggestsClientDelay(err); ok {
		d = max(d, time.Duration(s)*time.Second)
	}
	return wait(ctx, d)
}

// wait returns false when ctx ends before d is over.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// errGone says that Kubernetes has no node of that name; errNoName that nobody can say which node it would be: there it may still be, with
// all that was done to it.
var (
	errGone   = errors.New("no such node in Kubernetes")
	errNoName = errors.New("no node of Kubernetes is known to be it")
)

// find reads the node that ours is in Kubernetes, from the API server, as it is now.
func (e *Executor) find(ctx context.Context, p *pace, id fault.NodeID) (*corev1.Node, error) {
	if e.cfg.NodeLabel != "" {
		return e.findLabelled(ctx, p, id)
	}
	name := e.cfg.NameOf(id)
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil, fmt.Errorf("node %s would be %q: %w: its names are of a-z, 0-9, '-' and '.'", id, name, errNoName)
	}
	n, err := e.c.node(ctx, p, name)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("node %s, as %s: %w", id, name, errGone)
	}
	return n, err
}

// findLabelled looks for the node with the label. Where it was the last time it is looked for first: one object instead of all.
func (e *Executor) findLabelled(ctx context.Context, p *pace, id fault.NodeID) (*corev1.Node, error) {
	key := e.cfg.NodeLabel
	last, known := e.names.Load(id)
	gone := false
	if known {
		n, err := e.c.node(ctx, p, last.(string))
		switch gone = apierrors.IsNotFound(err); {
		case err == nil && n.Labels[key] == string(id):
			return n, nil
		case err != nil && !gone:
			return nil, err
		}
	}
	list, err := e.c.labelled(ctx, p, key, string(id))
	switch {
	case err != nil:
		return nil, err
	case len(list) == 0 && gone:
		return nil, fmt.Errorf("node %s, by label %s last %s: %w", id, key, last, errGone)
	case len(list) == 0:
		return nil, fmt.Errorf("node %s, by label %s: %w: want one that has it", id, key, errNoName)
	case len(list) > 1:
		return nil, ended{executor.Unchanged("node %s: label %s: %s and %s have it: want one node with it", id, key, list[0].Name, list[1].Name)}
	}
	e.names.Store(id, list[0].Name)
	return &list[0], nil
}

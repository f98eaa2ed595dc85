package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Limits of the keeper.
const (
	// keepQPS is the maximum rate of its writes in a second: conditions of 200 new nodes stand after some 10 s.
	keepQPS = 20
	// keepEvery is the interval at which it compares the nodes with the map.
	keepEvery = time.Second
	// keepLeave is how long a node must be missing from the map before it loses its conditions.
	keepLeave = 10 * time.Second
	// keepEcho is how long it waits for its own write to come back through the watch.
	keepEcho = 10 * time.Second
)

// States returns the states of all nodes that the fault map knows. An error means that they are unknown now.
type States func(ctx context.Context) (map[fault.NodeID]NodeState, error)

// keeper keeps the conditions of nodes while this replica leads.
type keeper struct {
	e       *Executor
	plan    keeping
	states  States
	every   time.Duration
	leave   time.Duration
	missing map[string]time.Time // nodes with kept conditions that the map lacks, since when
	sent    map[string]sentWrite
	failing *retries

	evidence Evidence // nil: not needed

	listing map[string]*keptNode // the pages of a list that is not complete

	mu       sync.Mutex
	known    bool // the nodes of Kubernetes have been listed
	nodes    map[string]*keptNode
	names    map[fault.NodeID][]string                    // of the nodes in Kubernetes that are it: more than one have its label wrongly
	shared   map[fault.NodeID]bool                        // ids of more than one node, in the log already
	relisted bool                                         // news has not passed the list on yet
	renewed  map[fault.NodeID][]response.OutsideCondition // nodes that have changed since
}

// sentWrite is the last write to a node: the version that it was planned for, and when it was sent.
type sentWrite struct {
	version string
	at      time.Time
}

// Keeps reports whether Keep has anything to do.
func (e *Executor) Keeps() bool { return e.cfg.Conditions != nil || e.cfg.Evidence }

// Keep keeps the conditions of all nodes up to date until ctx ends, or removes them if the configuration has turned them
// off. It also passes the conditions of other programs on, if the configuration wants that. Only the leader calls it, with a
// fence in ctx.
func (e *Executor) Keep(ctx context.Context, states States, evidence Evidence) {
	c := e.cfg.Conditions
	keeps := c != nil && c.Enabled
	var wg sync.WaitGroup
	defer wg.Wait()
	if c != nil && !keeps {
		wg.Go(func() { e.removeKept(ctx, states) })
	}
	if !e.cfg.Evidence {
		evidence = nil
	}
	if !keeps && evidence == nil {
		return
	}
	k := e.newKeeper(states, evidence)
	if k.evidence != nil {
		e.following.Store(k)
		defer e.following.CompareAndSwap(k, nil)
	}
	k.run(ctx, keeps)
}

func (e *Executor) newKeeper(states States, evidence Evidence) *keeper {
	c := config.KubernetesConditions{}
	if e.cfg.Conditions != nil {
		c = *e.cfg.Conditions
	}
	c = c.Filled()
	return &keeper{
		e: e, plan: keeping{types: c.Types, heartbeat: c.Heartbeat.D()}, states: states, every: keepEvery, leave: keepLeave,
		missing: map[string]time.Time{}, sent: map[string]sentWrite{}, failing: newRetries(), evidence: evidence,
		nodes: map[string]*keptNode{}, names: map[fault.NodeID][]string{}, shared: map[fault.NodeID]bool{},
		renewed: map[fault.NodeID][]response.OutsideCondition{},
	}
}

// keptOf returns the part of a node that concerns its conditions.
func (k *keeper) keptOf(n *corev1.Node) *keptNode {
	kept := keptOf(n, k.e.cfg.NodeLabel)
	if k.evidence != nil {
		kept.outside = outsideOf(n, func(typ string) bool { return slices.Contains(k.plan.types, typ) || kept.claimed[typ] })
	}
	return kept
}

// page implements nodeFollower.
func (k *keeper) page(nodes []corev1.Node, first, last bool) {
	if first {
		k.listing = map[string]*keptNode{}
	}
	for i := range nodes {
		k.listing[nodes[i].Name] = k.keptOf(&nodes[i])
	}
	if !last {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.nodes, k.known, k.relisted = k.listing, true, true
	k.listing, k.names = nil, map[fault.NodeID][]string{}
	for _, n := range k.nodes {
		k.name(n)
	}
}

// name notes which node of ours a node is. The caller holds mu.
func (k *keeper) name(n *keptNode) {
	id := k.e.idOf(n)
	if id == "" {
		return
	}
	k.names[id] = append(k.names[id], n.name)
	if all := k.names[id]; len(all) > 1 && !k.shared[id] {
		k.shared[id] = true
		k.e.log.Warn("several nodes of Kubernetes have the label of one node: none keeps conditions, and theirs do not count",
			"node", id, "label", k.e.cfg.NodeLabel, "nodes", all)
	}
}

// unname is the opposite of name.
func (k *keeper) unname(n *keptNode) {
	id := k.e.idOf(n)
	k.names[id] = slices.DeleteFunc(k.names[id], func(name string) bool { return name == n.name })
	if len(k.names[id]) == 0 {
		delete(k.names, id)
	}
}

// outside returns the conditions of other programs on a node of ours. It has none unless exactly one node of Kubernetes is it.
func (k *keeper) outside(id fault.NodeID) []Outside {
	if all := k.names[id]; len(all) == 1 {
		return k.nodes[all[0]].outside
	}
	return nil
}

// changed implements nodeFollower.
func (k *keeper) changed(n *corev1.Node, gone bool) {
	kept := k.keptOf(n)
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.nodes[kept.name]
	if was != nil {
		k.unname(was)
	}
	if gone {
		delete(k.nodes, kept.name)
	} else {
		k.nodes[kept.name] = kept
		k.name(kept)
	}
	k.renew(was, kept, gone)
}

// run follows the nodes, passes evidence on, and writes the conditions of nodes if it keeps them.
func (k *keeper) run(ctx context.Context, keeps bool) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { k.e.c.followNodes(ctx, k, k.e.log) })
	if k.evidence != nil {
		wg.Go(func() { k.tell(ctx) })
	}
	if !keeps {
		return
	}
	pause := k.every
	for executor.Wait(ctx, pause) {
		whole, err := k.round(ctx)
		if ctx.Err() != nil || errors.Is(err, executor.ErrStale) {
			return
		}
		if pause = min(2*pause, retryFirst); whole { // a node that failed has a pause
			pause = k.every
		}
		for _, err := range k.failing.news(err) {
			k.e.log.Warn("cannot keep the conditions of nodes: trying again", "err", err)
		}
	}
}

// round writes the pending changes of nodes, as many as the rate allows until the next round. If a write fails, its node pauses, and round
// continues with the others. It ends early after a 429, and after two failures in a row that are no refusals, because the API server may be
// dead. whole is then true only if the last node had failed before: such nodes come last, so all others had their turn. After a 429 the
// node pauses too, because a webhook may have sent it. round returns an error only if a write did not leave this process, or ctx has ended.
func (k *keeper) round(ctx context.Context) (whole bool, _ error) {
	states, err := k.states(ctx)
	if err != nil {
		return true, nil //nolint:nilerr // the map is not known yet: nothing is wrong with Kubernetes
	}
	inRow := 0
	for _, w := range k.needed(states, time.Now()) {
		k.sent[w.node.name] = sentWrite{w.node.version, time.Now()}
		err := k.e.c.keep(ctx, w)
		if err == nil || apierrors.IsConflict(err) || IsNotFound(err) { // somebody else was faster: the watch tells
			k.failing.succeeded(w.node.name)
			inRow = 0
			continue
		}
		delete(k.sent, w.node.name)
		if errors.Is(err, errNotSent) || ctx.Err() != nil { // no fault of the node
			return false, err
		}
		before := k.failing.has(w.node.name)
		k.failing.failed(w.node.name, err, time.Now())
		if inRow++; refused(err) { // of this node, as by a webhook
			inRow = 0
		}
		if inRow == 2 || busy(err) {
			return before, nil // such nodes come last
		}
	}
	return true, nil
}

// needed returns the next writes: first those that change more than heartbeats, then by the age of the heartbeats. Nodes whose last write
// failed come after all others, by the end of their pauses, so that nodes that always fail delay no other for long.
func (k *keeper) needed(states map[fault.NodeID]NodeState, now time.Time) []keepWrite {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.known {
		return nil
	}
	for name, s := range k.sent {
		if n := k.nodes[name]; n == nil || n.version != s.version || now.Sub(s.at) > keepEcho {
			delete(k.sent, name)
		}
	}
	k.failing.keep(func(name string) bool { return k.nodes[name] != nil })
	var out []keepWrite
	for name, n := range k.nodes {
		var st *NodeState
		id := k.e.idOf(n)
		if s, ok := states[id]; ok && len(k.names[id]) < 2 {
			st = &s
			delete(k.missing, name)
		} else if n.owns && !k.left(name, now) {
			continue
		}
		_, sent := k.sent[name]
		if sent || now.Before(k.failing.until(name)) {
			continue
		}
		if w, need := k.plan.plan(n, st, now); need {
			out = append(out, w)
		} else {
			k.failing.succeeded(name)
		}
	}
	for name := range k.missing {
		if k.nodes[name] == nil {
			delete(k.missing, name)
		}
	}
	slices.SortFunc(out, func(a, b keepWrite) int {
		if d := k.failing.until(a.node.name).Compare(k.failing.until(b.node.name)); d != 0 { // zero without a failure
			return d
		}
		if a.urgent != b.urgent {
			if a.urgent {
				return -1
			}
			return 1
		}
		return a.due.Compare(b.due)
	})
	return out[:min(keepQPS, len(out))]
}

// left reports whether a node has been missing from the map for long enough.
func (k *keeper) left(name string, now time.Time) bool {
	at, known := k.missing[name]
	if !known {
		k.missing[name] = now
		return false
	}
	return now.Sub(at) >= k.leave
}

// idOf returns the name of a node of Kubernetes here.
func (e *Executor) idOf(n *keptNode) fault.NodeID {
	if e.cfg.NodeLabel != "" {
		return fault.NodeID(n.label)
	}
	return e.cfg.IDOf(n.name)
}

// keep sends one write of kept conditions.
func (c *client) keep(ctx context.Context, w keepWrite) error {
	r := c.api.Patch(types.ApplyPatchType).Resource("nodes").Name(w.node.name).SubResource("status").Param("fieldManager", keeperManager).
		Param("force", "true") // a heartbeat may be of a response's write
	return c.do(ctx, c.follow, r.Body(w.body))
}

// removeKept removes the kept conditions from all nodes of the map, one after the other, because they have been turned off.
// It needs only the rights of every executor.
func (e *Executor) removeKept(ctx context.Context, states States) {
	removed, log := 0, e.log
	without := map[fault.NodeID]bool{}
	for pause := keepEvery; executor.Wait(ctx, pause); pause = min(2*pause, retryMost) {
		all, err := states(ctx)
		if err != nil {
			continue
		}
		var last error
		for id := range all {
			if without[id] {
				continue
			}
			n, err := e.removeKeptFrom(ctx, id)
			removed += n
			switch {
			case ctx.Err() != nil || errors.Is(err, executor.ErrStale):
				return
			case err != nil:
				last = err
			}
			without[id] = err == nil
		}
		if last == nil {
			if removed > 0 {
				log.Info("kept conditions removed", "nodes", removed)
			}
			return
		}
		log.Warn("cannot remove the conditions of all nodes: trying again", "err", last)
	}
}

// removeKeptFrom removes the kept conditions of a node, and returns the number of changed Kubernetes nodes. With nodeLabel it changes all
// Kubernetes nodes with the label, because one that already had conditions may later have got the label of another.
func (e *Executor) removeKeptFrom(ctx context.Context, id fault.NodeID) (removed int, _ error) {
	which := "node " + string(id)
	if e.cfg.NodeLabel != "" {
		which += ", by label " + e.cfg.NodeLabel
	}
	nodes, failed := e.findAll(ctx, id)
	if failed != nil {
		return 0, fmt.Errorf("%s: %w", which, failed)
	}
	for _, n := range nodes {
		w, need := keeping{}.plan(n, nil, time.Now())
		if !need {
			continue
		}
		switch err := e.c.keep(ctx, w); {
		case err == nil:
			removed++
		case !IsNotFound(err):
			failed = errors.Join(failed, fmt.Errorf("%s, as %s: %w", which, n.name, err))
		}
	}
	return removed, failed
}

// findAll returns all Kubernetes nodes that represent a node: none, one, or with nodeLabel several.
func (e *Executor) findAll(ctx context.Context, id fault.NodeID) (all []*keptNode, _ error) {
	if label := e.cfg.NodeLabel; label != "" {
		_, err := e.c.listNodes(ctx, e.c.follow, label+"="+string(id), func(nodes []corev1.Node, _, _ bool) {
			for i := range nodes {
				all = append(all, keptOf(&nodes[i], label))
			}
		})
		return all, err
	}
	n, err := e.find(ctx, e.c.follow, id)
	switch {
	case errors.Is(err, errGone), errors.Is(err, errNoName):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return []*keptNode{keptOf(n, "")}, nil
}

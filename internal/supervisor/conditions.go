package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/kubernetes"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// leadConditions keeps the conditions of nodes in Kubernetes, and follows those of other programs, until ctx ends.
func (s *Supervisor) leadConditions(ctx context.Context, wg *sync.WaitGroup, fence store.Fence) {
	x := s.respond.cluster
	if x == nil || !x.Keeps() {
		return
	}
	ctx = executor.WithFence(ctx, func(ctx context.Context) error {
		executor.Asks(ctx)
		_, err := s.store.Confirm(ctx, fence)
		if errors.Is(err, store.ErrNotLeader) {
			return fmt.Errorf("%w: %w", executor.ErrStale, err)
		}
		return err
	})
	states := &nodeStates{read: s.engine.Map}
	wg.Go(func() { x.Keep(ctx, states.get, s.respond.responder.OutsideChanged) })
}

// nodeStates derives the states of nodes for Kubernetes from the leader's map. It recomputes changed nodes only.
type nodeStates struct {
	read     func(context.Context) (view.Map, error)
	topology *topology.Topology
	of       map[fault.NodeID]nodeStateAt
}

type nodeStateAt struct {
	revision uint64
	state    kubernetes.NodeState
}

// get implements kubernetes.States. A node that named itself has no state: Kubernetes may have another machine of that name.
func (s *nodeStates) get(ctx context.Context) (map[fault.NodeID]kubernetes.NodeState, error) {
	m, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	if m.Topology() != s.topology { // nodes may have moved
		s.of, s.topology = nil, m.Topology()
	}
	next := make(map[fault.NodeID]nodeStateAt, m.Len())
	out := make(map[fault.NodeID]kubernetes.NodeState, m.Len())
	for rank := range m.Len() {
		id, revision := m.ID(rank), m.NodeRevision(rank)
		st, ok := s.of[id]
		if !ok || st.revision != revision {
			st = nodeStateAt{revision, linksOf(m, rank)}
		}
		next[id] = st
		if n, _ := m.Topology().Node(id); fault.Managed(n.Labels) {
			out[id] = st.state
		}
	}
	for _, n := range m.Topology().Spares() {
		if !fault.Managed(n.Labels) {
			continue
		}
		out[n.ID] = kubernetes.NodeState{Ready: corev1.ConditionUnknown, Reason: "NoPlace", Message: "the node has no place in the torus"}
	}
	s.of = next
	return out, nil
}

// linksOf returns the state of the links of a node.
func linksOf(m view.Map, rank int) kubernetes.NodeState {
	switch m.State(rank) {
	case fault.Unknown:
		if stop := m.Stop(rank); stop.Reason != 0 {
			return kubernetes.NodeState{Ready: corev1.ConditionUnknown, Reason: "Stopped", Message: "the node announced its " + stop.Reason.String()}
		}
		return kubernetes.NodeState{Ready: corev1.ConditionUnknown, Reason: "NotHeard", Message: "no report of the node's agent is known"}
	case fault.Failed:
		return kubernetes.NodeState{Ready: corev1.ConditionFalse, Reason: "NodeFailed", Message: "the node is FAILED"}
	default:
	}
	var bad, unknown []string
	for c, state := range m.Components(rank) {
		d, link := c.LinkDirection()
		switch {
		case !link || state == fault.Normal:
		case state == fault.Unknown:
			unknown = append(unknown, d.String())
		default:
			bad = append(bad, fmt.Sprintf("%s %s", d, state))
		}
	}
	switch {
	case len(bad) > 0:
		return kubernetes.NodeState{Ready: corev1.ConditionFalse, Reason: "LinkFault", Message: "links: " + strings.Join(bad, ", ")}
	case len(unknown) > 0:
		return kubernetes.NodeState{Ready: corev1.ConditionUnknown, Reason: "LinkUnknown",
			Message: "links not known: " + strings.Join(unknown, ", ")}
	default:
		return kubernetes.NodeState{Ready: corev1.ConditionTrue, Reason: "LinksNormal", Message: "all links are NORMAL"}
	}
}

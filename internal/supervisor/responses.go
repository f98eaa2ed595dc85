package supervisor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/alertmanager"
	"github.com/lofamo/lofamo/internal/executor/kubernetes"
	"github.com/lofamo/lofamo/internal/executor/node"
	"github.com/lofamo/lofamo/internal/executor/webhook"
	"github.com/lofamo/lofamo/internal/notify"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/respond"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// start creates the responder and its executors. A parent of regions has none; the configuration may disable it.
func (p *respondPart) start(s *Supervisor) error {
	if s.cfg.Parent() {
		return nil
	}
	p.actor = node.NewActor(agentOrders{s})
	c := s.cfg.Responses
	if !c.Enabled {
		return nil
	}
	executors, err := s.executors()
	if err != nil {
		return err
	}
	limits := c.Limits(s.cfg.DomainLabels)
	limits.Silence = time.Duration(s.periods.DigestMisses) * s.periods.DigestPeriod // older reports of a half do not count
	if limits.SharedMargin = s.periods.LeastFenceMargin(); limits.FenceMargin < limits.SharedMargin && len(s.cfg.Replicas) > 1 {
		s.logger.Warn("responses.fenceMargin is too short for a cluster of several supervisors: the longer margin is used",
			"configured", limits.FenceMargin.String(), "in_force", limits.SharedMargin.String())
	}
	p.responder, err = respond.New(respond.Config{
		Cluster: s.cfg.Cluster, Limits: limits, Audit: store.AuditLimits{Lines: uint64(c.AuditLines), Bytes: uint64(c.AuditBytes)},
		Store: s.store.Etcd, Incidents: s.store.incidents, Awareness: awarenessOf{s.engine.Engine}, Supervisors: s.whereReplicas,
		Executors: executors, Targets: targetNames(s.configuredTargets()), SetTargets: s.setTargets, Unconfigured: s.sourceKey,
		Metrics: respond.NewMetrics(s.metrics.registry), Logger: s.logger,
	})
	return err
}

// stop closes the connection to the executor process.
func (p *respondPart) stop(context.Context) error {
	if p.executor == nil {
		return nil
	}
	return p.executor.Close()
}

// executors returns the configured executors, by kind.
func (s *Supervisor) executors() (map[response.Kind]executor.Executor, error) {
	c := s.cfg.Responses.Executors
	out, err := s.nodeExecutors(c.Node)
	if err != nil {
		return nil, fmt.Errorf("responses.executors.node: %w", err)
	}
	add := func(x executor.Executor, kinds ...response.Kind) {
		for _, k := range kinds {
			out[k] = x
		}
	}
	if c.Kubernetes != nil {
		x, err := kubernetes.New(*c.Kubernetes, s.openResponses, s.logger)
		if err != nil {
			return nil, fmt.Errorf("responses.executors.kubernetes: %w", err)
		}
		s.respond.cluster = x
		add(x, kubernetes.Kinds()...)
	}
	if s.respond.webhooks, err = webhook.New(s.cfg.Cluster, c.Webhooks); err != nil {
		return nil, fmt.Errorf("responses.executors.webhooks: %w", err)
	}
	add(s.respond.webhooks, webhook.Kinds()...)
	if s.respond.alerts, err = alertmanager.NewTargets(s.cfg.Cluster, c.Alertmanager, s.standingResponses, s.logger); err != nil {
		return nil, fmt.Errorf("responses.executors.alertmanager: %w", err)
	}
	add(s.respond.alerts, alertmanager.Kinds()...)
	if c.Process != nil {
		x, err := executor.NewRemote(*c.Process, s.cfg.Cluster, s.cfg.TLS, s.trust.registry)
		if err != nil {
			return nil, fmt.Errorf("responses.executors.process: %w", err)
		}
		s.respond.executor = x
		s.respond.witnesses = &witnesses{fetch: x.Controllers, read: s.engine.Map, logger: s.logger,
			tell: func(ev response.OutsideChanged) { s.respond.responder.OutsideChanged(ev) },
			warn: func() { s.respond.responder.WarnSources() }}
		add(x, executor.RemoteKinds()...)
	}
	return out, nil
}

// standingResponses implements executor.Active through the responder, which is created after its callers.
func (s *Supervisor) standingResponses(ctx context.Context, kinds ...response.Kind) ([]executor.Job, bool, error) {
	return s.respond.responder.Active(ctx, kinds...)
}

// openResponses implements executor.Open in the same way.
func (s *Supervisor) openResponses(ctx context.Context, ids []string) (map[string]bool, error) {
	return s.respond.responder.Open(ctx, ids)
}

// workResponses starts the responder.
func (s *Supervisor) workResponses(ctx context.Context, wg *sync.WaitGroup) {
	if s.respond.responder == nil {
		return
	}
	wg.Go(func() { s.respond.responder.Run(ctx) })
	wg.Go(func() { s.respond.alerts.Run(ctx) })
}

// sourceKey implements response.Unconfigured.
func (s *Supervisor) sourceKey(source response.Source) string {
	c := s.cfg.Responses.Executors
	switch {
	case source == response.FromKubernetes && (c.Kubernetes == nil || !c.Kubernetes.Evidence):
		return "responses.executors.kubernetes.evidence: true"
	case source == response.FromControllers && c.Process == nil:
		return "responses.executors.process, and controllers.nodes in the configuration of the executor process"
	case source == response.FromControllers && s.respond.witnesses.none.Load():
		return "controllers.nodes in the configuration of the executor process"
	default:
		return ""
	}
}

// responseService returns the service of policies and responses. A parent of regions has neither.
func (s *Supervisor) responseService() *api.Responses {
	switch {
	case s.cfg.Parent():
		return api.NewResponses(s.api.Server, nil, nil)
	case s.respond.responder == nil:
		return api.NewResponses(s.api.Server, s.store.Etcd, nil)
	default:
		out := api.NewResponses(s.api.Server, s.store.Etcd, s.respond.responder)
		out.Sources(s.sourceKey)
		out.Notify(api.Notifier{Configured: s.configuredTargets(), Test: s.testTarget})
		return out
	}
}

// configuredTargets returns the targets in the configuration that policies may name.
func (s *Supervisor) configuredTargets() []api.ConfiguredTarget {
	w := s.cfg.Responses.Executors.Webhooks
	if w == nil {
		return nil
	}
	var out []api.ConfiguredTarget
	for _, t := range w.Filled().Targets {
		c := api.ConfiguredTarget{Name: t.Name, URL: t.URL, Signed: len(t.SecretFiles) > 0}
		for _, k := range webhook.Kinds() {
			if slices.Contains(t.Kinds, webhook.KindName(k)) {
				c.Kinds = append(c.Kinds, k)
			}
		}
		out = append(out, c)
	}
	return out
}

func targetNames(configured []api.ConfiguredTarget) []string {
	var out []string
	for _, c := range configured {
		out = append(out, c.Name)
	}
	return out
}

// setTargets passes the targets that operators have added to the executors.
func (s *Supervisor) setTargets(added []notify.Target) {
	s.respond.webhooks.SetTargets(added)
	s.respond.alerts.SetTargets(added)
}

// testTarget sends a test message to a target.
func (s *Supervisor) testTarget(ctx context.Context, to notify.Target) error {
	if to.Format == notify.Alertmanager {
		return s.respond.alerts.Test(ctx, to)
	}
	return s.respond.webhooks.Test(ctx, to)
}

// mapChanged passes a version of the map to its followers.
func (s *Supervisor) mapChanged(m view.Map, changed []fault.NodeID) {
	s.notifier.Changed(m, changed)
	if s.respond.responder != nil {
		s.respond.responder.MapChanged(m, changed)
	}
}

// leadResponses starts to decide on responses, until ctx ends. Once wg is done, nothing new begins.
func (s *Supervisor) leadResponses(ctx context.Context, wg *sync.WaitGroup, fence store.Fence) {
	if s.respond.responder != nil {
		wg.Go(func() { s.respond.responder.Lead(ctx, fence) })
	}
	s.leadConditions(ctx, wg, fence)
	if w := s.respond.witnesses; w != nil {
		wg.Go(func() { w.lead(ctx) })
	}
}

// outsideNotes returns the reports of other programs about a node, in words.
func (s *Supervisor) outsideNotes(id fault.NodeID, now time.Time) []string {
	var out []string
	if s.respond.cluster != nil {
		out = s.respond.cluster.OutsideNotes(id, now)
	}
	if s.respond.witnesses != nil {
		out = append(out, s.respond.witnesses.notes(id, now)...)
	}
	return out
}

// whereReplicas returns the nodes on which the replicas run, and which replicas live.
func (s *Supervisor) whereReplicas() []response.SupervisorInfo {
	top := s.names.Topology()
	var out []response.SupervisorInfo
	for _, r := range (&directory{s}).Supervisors(context.Background()) {
		info := response.SupervisorInfo{ID: r.GetId(), Alive: r.GetState() == lofamov1.State_NORMAL}
		info.Node, info.Unknown = whereIs(top, s.cfg.Responses, r)
		out = append(out, info)
	}
	return out
}

// whereIs returns the node that a replica runs on: from the configuration, or else from the addresses of both; none
// if the configuration says so. If the replica is at no node's service address, its node is unknown: it may use
// another address of a node.
func whereIs(top *topology.Topology, c config.SupervisorResponses, r *lofamov1.Supervisor) (_ fault.NodeID, unknown bool) {
	switch said := c.NodeOf(r.GetId()); said {
	case config.NoNode:
		return "", false
	case "":
		for _, addr := range []string{r.GetReportAddress(), r.GetAddress()} {
			if id := nodeAt(top, addr); id != "" {
				return id, false
			}
		}
		return "", true
	default:
		_, there := top.Node(fault.NodeID(said))
		if !there {
			return "", true
		}
		return fault.NodeID(said), false
	}
}

// nodeAt returns the node that has an address; none if no node has it, or several, as on a machine that runs all nodes.
func nodeAt(top *topology.Topology, addr string) fault.NodeID {
	at, err := netip.ParseAddrPort(addr)
	if err != nil || at.Addr().IsUnspecified() {
		return ""
	}
	var found fault.NodeID
	for _, n := range top.Nodes {
		for _, service := range n.Service {
			if service.Addr() != at.Addr() || found == n.ID {
				continue
			}
			if found != "" {
				return ""
			}
			found = n.ID
		}
	}
	return found
}

// awarenessOf implements respond.Awareness.
type awarenessOf struct{ *engine.Engine }

// Evidence implements respond.Awareness, for evidence that no committed record has or that has become old. It leaves
// out targets that are NORMAL. While a change is on its way to either engine, the state that the evidence supports may
// differ from the state in question.
func (a awarenessOf) Evidence(ctx context.Context, targets []response.Target) map[response.Target]response.Seen {
	out := make(map[response.Target]response.Seen, len(targets))
	var m view.Map
	for _, t := range targets {
		if t.Group != "" && m.Len() == 0 {
			var err error
			if m, err = a.Map(ctx); err != nil {
				return out
			}
		}
	}
	of := make(map[response.Target][]fault.NodeID, len(targets))
	asked := map[fault.NodeID]bool{}
	var ids []fault.NodeID
	ask := func(id fault.NodeID) {
		if !asked[id] {
			asked[id], ids = true, append(ids, id)
		}
	}
	for _, t := range targets {
		of[t] = []fault.NodeID{t.Node}
		if t.Group != "" {
			g, _ := m.Group(t.Group)
			of[t] = g.Members[:min(len(g.Members), respond.MaxMembers)]
		}
		for _, id := range of[t] {
			ask(id)
		}
	}
	known := map[fault.NodeID]awareness.NodeStatus{}
	if !a.detail(ctx, ids, known) {
		return out
	}
	ids = nil
	for _, t := range targets {
		for _, id := range of[t] {
			for _, who := range view.Observers(known[id], component(t)) {
				ask(who)
			}
		}
	}
	if !a.detail(ctx, ids, known) {
		return out
	}
	now := time.Now()
	life := func(id fault.NodeID) time.Time { return known[id].Life }
	for _, t := range targets {
		for _, id := range of[t] {
			st, ok := known[id]
			switch {
			case !ok, t.Group == "" && view.StateOf(st, t.Component) == fault.Normal:
			case t.Group == "":
				out[t] = response.Seen{Target: t, State: view.StateOf(st, t.Component), Evidence: view.Gather(st, t.Component, life, now)}
			default:
				if at := view.Gather(st, component(t), life, now).At; at.After(out[t].Evidence.At) {
					out[t] = response.Seen{Target: t, Evidence: response.Evidence{At: at}}
				}
			}
		}
	}
	return out
}

// component returns the component of a target. For members of a group fault it is the whole node.
func component(t response.Target) fault.Component {
	if t.Group != "" {
		return fault.ComponentNode
	}
	return t.Component
}

// detail adds full nodes to into; false: this replica no longer leads.
func (a awarenessOf) detail(ctx context.Context, ids []fault.NodeID, into map[fault.NodeID]awareness.NodeStatus) bool {
	list, err := a.Detail(ctx, ids)
	for _, e := range list {
		into[e.Status.ID] = e.Status
	}
	return err == nil
}

package supervisor

import (
	"context"
	"fmt"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet/gossip"
)

// start joins the gossip pool, unless the configuration has no address for it. The workers already read the sockets that
// this member announces.
func (p *gossipPart) start(s *Supervisor) error {
	if s.cfg.Parent() || s.cfg.GossipListen == "" {
		return nil
	}
	var err error
	p.Net, err = gossip.New(gossip.Config{
		Name: "supervisor/" + s.cfg.ID, Bind: s.cfg.GossipListen, Join: s.cfg.GossipJoin, Key: s.gossipKeys[0], Further: s.gossipKeys[1:],
		Meta: s.gossipMeta(false), Logger: s.logger, OnMember: s.onMember, OnBroadcast: s.ingest.intake.Broadcast, Strangers: maxStrangers,
		Admit: s.admitMember,
	})
	if err != nil {
		return fmt.Errorf("gossip on %s: %w", s.cfg.GossipListen, err)
	}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(s.workers.ctx)
	p.wg.Go(func() { s.tellLeadership(ctx) })
	p.wg.Go(func() { s.refuseMembers(ctx) })
	return nil
}

// stop leaves the gossip pool.
func (p *gossipPart) stop(context.Context) error {
	if p.Net == nil {
		return nil
	}
	p.cancel()
	p.wg.Wait()
	// When all members stop at once, no member receives the farewell: that is no failure.
	_ = p.Leave(500 * time.Millisecond)
	return p.Close()
}

func (s *Supervisor) gossipMeta(leader bool) gossip.Meta {
	return gossip.Meta{Role: gossip.RoleSupervisor, ID: s.cfg.ID, ReportAddr: s.self.Report, Leader: leader}
}

// admitMember reports whether gossip may have a member: a node of the topology, or a replica, under its name.
func (s *Supervisor) admitMember(m gossip.Member) bool {
	if m.Meta.Role == gossip.RoleSupervisor {
		replica := slices.ContainsFunc(s.engine.replicas.all(), func(r *lofamov1.Supervisor) bool { return r.GetId() == m.Meta.ID })
		return replica && m.Name == "supervisor/"+m.Meta.ID
	}
	_, known := s.names.Topology().Node(fault.NodeID(m.Meta.ID))
	return known && m.Name == m.Meta.ID
}

// onMember passes gossip membership to the machine as a hint, never as proof.
func (s *Supervisor) onMember(ev gossip.Event) {
	if ev.Member.Meta.Role != gossip.RoleNode || ev.Kind == gossip.EventUpdate || !s.engine.Leading() {
		return
	}
	id := fault.NodeID(ev.Member.Meta.ID)
	if !s.names.Known(id) {
		return
	}
	s.engine.Submit(engine.Input{Gossip: &awareness.GossipOpinion{Node: id, Alive: ev.Kind == gossip.EventJoin}, Arrived: time.Now()})
}

// tellLeadership keeps the leader flag in the gossip metadata up to date.
func (s *Supervisor) tellLeadership(ctx context.Context) {
	told := false
	for {
		id, changed := s.store.observer.Leader()
		if leads := id == s.cfg.ID; leads != told {
			if err := s.gossip.UpdateMeta(s.gossipMeta(leads)); err != nil {
				s.logger.Warn("gossip metadata", "err", err)
			}
			told = leads
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

package supervisor

import (
	"context"
	"net/netip"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/ingest"
	"github.com/lofamo/lofamo/internal/supervisor/notify"
	"github.com/lofamo/lofamo/internal/supervisor/replica"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	transfer "github.com/lofamo/lofamo/pkg/servicenet/bulk"
)

// start creates the receivers and senders of agents' messages. A parent of regions needs none.
func (p *ingestPart) start(s *Supervisor) error {
	if s.cfg.Parent() {
		return nil
	}
	allowed, err := s.cfg.Allowed()
	if err != nil {
		return err
	}
	p.exchanges = ingest.NewExchanges(ingest.ExchangeConfig{
		ID: s.cfg.ID, Allowed: allowed, Wait: s.periods.AckTimeout, Metrics: s.metrics.Metrics, Logger: s.logger,
	})
	p.sender = ingest.NewSender(ingest.SenderConfig{
		Ports: s.ports(), Nodes: s.names, Paths: p.exchanges, Leader: s.leader, NoQuorum: s.engine.ready.noQuorum, Signer: s.signer,
		Refused: s.challengeRefused, Metrics: s.metrics.Metrics, Logger: s.logger,
	})
	s.engine.forward = replica.NewForwarder(replica.ForwarderConfig{
		Peers: s.engine.peers, Leaders: s.store.observer, Answerer: p.sender, Requester: fullDigests{s},
		Challenger: p.sender, Late: s.periods.DigestPeriod / 2, Metrics: s.metrics.Metrics, Logger: s.logger,
	})
	p.bulk = ingest.NewBulk(ingest.BulkConfig{
		Self: s.cfg.ID, ReplyTo: s.self.Report, DirectAddr: s.transferAddr, Names: s.names, Signer: s.signer,
		Normal: s.normal, Receiver: transfer.DefaultReceiverConfig(), Metrics: s.metrics.Metrics, Logger: s.logger,
	})
	s.notifier = notify.New(notify.Config{
		Names: s.names, Marks: s.marks, Sender: p.sender, NoQuorum: s.engine.ready.noQuorum,
		DigestPeriod: s.periods.DigestPeriod, DigestMisses: s.periods.DigestMisses, Metrics: s.metrics.Metrics,
	})
	s.connectOrders()
	var border ingest.Border
	if s.federation.border != nil {
		border = s.federation.border
	}
	p.intake = ingest.NewIntake(ingest.IntakeConfig{
		Names: s.names, Verifier: p.exchanges.Verifier(s.verify), Sender: p.sender, Leader: s.engine.Engine,
		Forwarder: s.engine.forward, Bulk: p.bulk, Notifier: s.notifier, Orders: s.answers(), Border: border,
		Renewals: s.renewals.intake(), Lost: s.lost,
		Metrics: s.metrics.Metrics, Logger: s.logger,
	})
	s.engine.followers = &replica.Server{
		Engine: s.engine.Engine, Verifier: p.intake, Names: s.names, Own: s.own, Foreign: s.foreignVerdicts, Metrics: s.metrics.Metrics,
		Window: time.Duration(s.periods.DigestMisses) * s.periods.DigestPeriod,
	}
	return nil
}

// stop does nothing: the receivers and senders work in the workers.
func (*ingestPart) stop(context.Context) error { return nil }

// refused takes an ICMP answer from a report socket, which reads only once the sender exists.
func (p *ingestPart) refused(to netip.AddrPort, quote []byte) bool {
	return p.sender != nil && p.sender.Refused(to, quote)
}

// full is called when a report socket's buffer has overflowed. No socket reads before the intake exists.
func (p *ingestPart) full() {
	if p.intake != nil {
		p.intake.Full()
	}
}

// lost records that this replica may have lost messages of nodes. The leader then ignores the silence of nodes.
func (s *Supervisor) lost() {
	s.engine.Lost()
	s.engine.forward.Lost()
}

// challengeRefused passes a refused challenge to the engine, which asked for it.
func (s *Supervisor) challengeRefused(r awareness.Refused) {
	if s.engine.Leading() {
		s.engine.Submit(engine.Input{Refused: &r, Arrived: time.Now()})
	}
}

// ports returns the report addresses, with the reply address that agents get for each. The first is the one that the
// replicas know; the others belong to one host each.
func (s *Supervisor) ports() []ingest.Port {
	out := make([]ingest.Port, len(s.listeners.sockets))
	for k, socket := range s.listeners.sockets {
		out[k] = ingest.Port{Socket: socket, ReplyTo: s.cfg.Reports()[k]}
	}
	out[0].ReplyTo = s.self.Report
	return out
}

// transferAddr returns the address at which transfers reach a node.
func (s *Supervisor) transferAddr(id fault.NodeID) (ingest.BulkPlace, bool) {
	to, from, ok := s.ingest.sender.DirectAddr(id)
	return ingest.BulkPlace{Addr: to, Socket: from.Socket, ReplyTo: from.ReplyTo}, ok
}

// normal returns the nodes that are NORMAL in this replica's own copy of the map. It is a hint, so it needs neither a
// leader nor a quorum.
func (s *Supervisor) normal(ctx context.Context) map[fault.NodeID]bool {
	ctx, cancel := context.WithTimeout(ctx, raftTime)
	defer cancel()
	nodes, _, err := s.store.Nodes(ctx)
	if err != nil {
		s.logger.Debug("no map for a transfer", "err", err)
	}
	out := make(map[fault.NodeID]bool, len(nodes))
	for _, n := range nodes {
		out[fault.NodeID(n.GetId())] = n.GetState() == lofamov1.State_NORMAL
	}
	return out
}

// knowEvery is the interval between updates of the nodes' addresses at the report sockets.
const knowEvery = time.Second

// keepKnown updates the report sockets with the nodes' addresses, and has the intake forget nodes that have left, until ctx ends.
func (s *Supervisor) keepKnown(ctx context.Context) {
	tick := time.NewTicker(knowEvery)
	defer tick.Stop()
	var version uint64 // of the addresses that the sockets know
	var topo *topology.Topology
	for {
		if v, t := s.ingest.intake.SourcesVersion(), s.names.Topology(); v != version || t != topo {
			if t != topo { // looks at all halves
				s.ingest.intake.Keep()
			}
			version, topo = v, t
			known := s.ingest.intake.Sources()
			for _, n := range t.Nodes {
				known = append(known, n.Service...)
			}
			for _, socket := range s.listeners.sockets {
				socket.Know(known)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

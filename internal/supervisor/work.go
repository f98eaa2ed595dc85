package supervisor

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/supervisor/bulk"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/ingest"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet/gossip"
)

// openStore starts the embedded etcd, or connects to the external one.
func (s *Supervisor) openStore() error {
	e := s.cfg.Etcd
	if !s.cfg.Embedded() {
		if err := s.dialEtcd(); err != nil {
			return err
		}
		s.store.Etcd = store.NewEtcd(s.store.client, s.storeOptions(0))
		return nil
	}
	conf, err := pki.ServerTLS(s.cfg.TLS.Cert, s.cfg.TLS.Key, s.cfg.TLS.CA, pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		return err
	}
	s.store.member, err = embedded.Start(embedded.Config{
		DataDir: s.cfg.DataDir, Name: s.cfg.EtcdName(), PeerURL: e.PeerURL, ClientURL: e.ClientURL,
		InitialCluster: e.InitialCluster, ClusterState: e.ClusterState, Token: s.cfg.EtcdToken(), PeerName: pki.SupervisorName(s.cfg.Cluster),
		CertFile: s.cfg.TLS.Cert, KeyFile: s.cfg.TLS.Key, CAFile: s.cfg.TLS.CA,
		AllowClient: api.AuthorizeUnary(api.SupervisorsOnly, s.trust.registry), AllowStream: api.AuthorizeStream(api.SupervisorsOnly, s.trust.registry),
		Verify: s.trust.registry.WithTLS(conf).VerifyConnection, Closed: func(listener, reason string) { s.metrics.Closed.WithLabelValues(listener, reason).Inc() },
		Retention: time.Duration(e.CompactionRetention), QuotaBytes: e.QuotaBytes, Logger: s.logger,
	})
	if err != nil {
		return err
	}
	s.onStop("embedded etcd", s.store.member.Stop)
	s.store.client = s.store.member.Client()
	s.store.Etcd = store.NewEtcd(s.store.client, s.storeOptions(embedded.MaxTxnOps))
	return nil
}

func (s *Supervisor) storeOptions(maxOps int) store.Options {
	e := s.cfg.Etcd
	return store.Options{
		MaxOps: maxOps, OnRetry: s.commitRetry, KeepEvents: uint64(e.KeepEvents), HistoryAge: e.HistoryAge.D(), HistoryBytes: e.HistoryBytes,
	}
}

// commitRetry logs commits that the store does not accept: at first all, then ever fewer.
func (s *Supervisor) commitRetry(attempt int, err error) {
	s.metrics.CommitRetries.Inc()
	if attempt&(attempt-1) == 0 {
		s.logger.Warn("the store does not take a commit: trying again", "attempt", attempt, "err", err)
	}
}

// dialEtcd connects to an external etcd, with our certificate if it uses TLS.
func (s *Supervisor) dialEtcd() error {
	var err error
	if s.store.client, err = s.etcdClient(s.cfg.Etcd.Endpoints); err != nil {
		return err
	}
	s.onStop("etcd client", func(context.Context) error {
		if err := s.store.client.Close(); !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	})
	return nil
}

// etcdClient returns a client of the etcd members at these addresses.
func (s *Supervisor) etcdClient(endpoints []string) (*clientv3.Client, error) {
	cc := clientv3.Config{
		Endpoints: endpoints, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		DialTimeout: 5 * time.Second, Logger: embedded.NewZap(s.logger),
	}
	if strings.HasPrefix(cc.Endpoints[0], "https://") {
		var err error
		if cc.TLS, err = pki.EtcdTLS(s.cfg.TLS.Cert, s.cfg.TLS.Key, s.cfg.TLS.CA); err != nil {
			return nil, fmt.Errorf("certificate for etcd: %w", err)
		}
	}
	c, err := clientv3.New(cc)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(endpoints, ", "), err)
	}
	return c, nil
}

// admin returns the service by which operators manage the embedded etcd.
func (s *Supervisor) admin() *embedded.Admin {
	cfg := embedded.AdminConfig{
		Cluster: s.cfg.Cluster, Dial: s.etcdClient, Supervisors: s.engine.replicas.all, Removed: s.store.RemoveSupervisor,
	}
	if s.store.member != nil {
		cfg.Client, cfg.Self = s.store.client, s.store.member.ID()
	}
	return embedded.NewAdmin(cfg)
}

// peerTLS returns a configuration that admits only the replica with that ID.
func (s *Supervisor) peerTLS(id string) (*tls.Config, error) {
	want := pki.SupervisorIdentity(s.cfg.Cluster, id)
	conf, err := pki.ClientTLS(s.cfg.TLS.Cert, s.cfg.TLS.Key, s.cfg.TLS.CA, func(got pki.Identity) error {
		if got != want {
			return fmt.Errorf("the replica at this address is %s: want %s", got, want)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.trust.registry.WithTLS(conf), nil
}

// ports returns the report addresses, with the reply address that agents get for each. The first is the one that the
// replicas know; the others belong to one host each.
func (s *Supervisor) ports() []ingest.Port {
	out := make([]ingest.Port, len(s.ingest.sockets))
	for k, socket := range s.ingest.sockets {
		out[k] = ingest.Port{Socket: socket, ReplyTo: s.cfg.Reports()[k]}
	}
	out[0].ReplyTo = s.self.Report
	return out
}

// straight returns the address at which transfers reach a node.
func (s *Supervisor) straight(id fault.NodeID) (bulk.Place, bool) {
	to, from, ok := s.ingest.sender.DirectAddr(id)
	return bulk.Place{Addr: to, Socket: from.Socket, ReplyTo: from.ReplyTo}, ok
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

// awareness converts the configuration for the machine. A new leader waits one digest period, so that evidence from
// before its term cannot outweigh evidence that it receives itself.
func (s *Supervisor) awareness() awareness.Config {
	p, ids := s.periods, s.names.Topology().IDs()
	return awareness.Config{
		Dims: s.names.Dims(), IDs: ids, Foreign: s.foreign(ids), Supervisor: s.cfg.ID,
		ChallengeNode: p.ChallengeNode, ChallengeHalf: p.ChallengeHalf, ChallengeSingle: p.ChallengeSingle,
		DigestPeriod: p.DigestPeriod, DigestMisses: p.DigestMisses, Grace: p.DigestPeriod,
		HalfBound: p.HalfBound(), HoldOff: p.LinkHoldOff, Horizon: s.cfg.Foresight.D(),
		Nonce: func() (n [16]byte) {
			_, _ = rand.Read(n[:]) // never fails
			return n
		},
	}
}

// info returns the cluster information of every list.
func (s *Supervisor) info() *lofamov1.ClusterInfo {
	return &lofamov1.ClusterInfo{
		Cluster: s.cfg.Cluster, Dims: s.names.Dims().String(), Preset: s.cfg.Preset,
		HalfBound: durationpb.New(s.periods.HalfBound()), NodeBound: durationpb.New(s.periods.NodeBound()),
	}
}

// leader returns the leader that this replica knows.
func (s *Supervisor) leader() string {
	id, _ := s.store.observer.Leader()
	return id
}

// renewEvery is how often a replica checks for a renewed certificate: long before the old one expires.
const renewEvery = 10 * time.Second

// renew loads the certificate and key that an issuer puts in place, until ctx ends.
func (s *Supervisor) renew(ctx context.Context) {
	t := time.NewTicker(s.renewEvery)
	defer t.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		renewed, err := s.signer.Renew()
		switch {
		case err == nil:
			if said = ""; renewed {
				s.logger.Info("certificate renewed", "expires", s.signer.Expires())
			}
		case err.Error() != said:
			said = err.Error()
			s.logger.Warn("what stands in the files of the certificate and its key now is not taken up", "err", err)
		}
	}
}

// work starts the goroutines. On stopping, leadership is resigned first, while all parts that this needs still work.
func (s *Supervisor) work() error {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	s.onStop("workers", func(context.Context) error {
		cancel()
		wg.Wait()
		return nil
	})
	wg.Go(func() { s.store.observer.Run(ctx, s.store.client) })
	wg.Go(func() { s.store.Run(ctx) })
	wg.Go(func() { s.api.Run(ctx) })
	wg.Go(func() { s.engine.peers.Run(ctx) })
	wg.Go(func() { s.renew(ctx) })
	wg.Go(func() { s.followReplicas(ctx) })
	wg.Go(func() { s.followDenied(ctx) })
	s.workRegions(ctx, &wg)
	if !s.cfg.Parent() {
		s.workNodes(ctx, &wg)
	}
	wg.Go(func() { s.monitor(ctx) })
	wg.Go(func() { s.publish(ctx) })
	for k, socket := range s.ingest.sockets {
		wg.Go(func() {
			if err := socket.Run(ctx, s.ingest.intake.Datagrams(uint8(k))); err != nil && ctx.Err() == nil {
				s.fail(fmt.Errorf("report socket: %w", err))
			}
		})
	}
	if s.store.member != nil {
		wg.Go(func() {
			select {
			case <-ctx.Done():
			case err := <-s.store.member.Err():
				s.fail(fmt.Errorf("embedded etcd: %w", err))
			}
		})
	}
	if err := s.joinGossip(); err != nil {
		return err
	}
	if s.ingest.gossip != nil {
		wg.Go(func() { s.tellLeadership(ctx) })
		wg.Go(func() { s.refuseMembers(ctx) })
	}
	lctx, resign := context.WithCancel(ctx)
	resigned := make(chan struct{})
	go func() {
		defer close(resigned)
		store.Campaigner{Client: s.store.client, ID: s.cfg.ID, Logger: s.logger}.Run(lctx, s.lead)
	}()
	s.onStop("leadership", func(ctx context.Context) error {
		resign()
		select {
		case <-resigned:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return nil
}

// knowEvery is the interval between updates of the nodes' addresses at the report sockets.
const knowEvery = time.Second

// keepKnown updates the report sockets with the nodes' addresses until ctx ends.
func (s *Supervisor) keepKnown(ctx context.Context) {
	tick := time.NewTicker(knowEvery)
	defer tick.Stop()
	for {
		known := s.ingest.intake.Sources()
		for _, n := range s.names.Topology().Nodes {
			known = append(known, n.Service...)
		}
		for _, socket := range s.ingest.sockets {
			socket.Know(known)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// workNodes starts the work with nodes.
func (s *Supervisor) workNodes(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() { s.ingest.sender.Run(ctx) })
	wg.Go(func() { s.ingest.intake.Run(ctx) })
	wg.Go(func() { s.keepKnown(ctx) })
	wg.Go(func() { s.engine.forward.Run(ctx) })
	wg.Go(func() { s.engine.local.Run(ctx) })
	wg.Go(func() { s.followTopology(ctx) })
	wg.Go(func() { s.followMaintenance(ctx) })
	wg.Go(func() { s.followMasks(ctx) })
	wg.Go(func() { s.orders.run(ctx) })
	wg.Go(func() { s.notifier.Run(ctx) })
	wg.Go(func() { s.tellEngine(ctx) })
	if s.renewals != nil {
		wg.Go(func() { s.renewals.run(ctx) })
	}
	if s.respond.executor != nil {
		wg.Go(func() { s.tellExecutor(ctx, s.respond.executor.Deny) })
	}
	s.workResponses(ctx, wg)
}

// raftTime bounds the attempt to take the raft lead.
const raftTime = time.Second

// lead runs one term.
func (s *Supervisor) lead(ctx context.Context, fence store.Fence) error {
	if s.store.member != nil {
		rctx, cancel := context.WithTimeout(ctx, raftTime)
		if err := s.store.member.TakeRaftLead(rctx); err != nil {
			s.logger.Info("raft is led by another replica: commits take one hop more", "err", err)
		}
		cancel()
	}
	if s.federation.parent != nil {
		return s.federation.parent.Lead(ctx, fence)
	}
	defer s.leadDiagnoses(ctx, fence)()
	defer s.leadResponses(ctx, fence)()
	if s.federation.border != nil {
		return s.leadRegion(ctx, fence)
	}
	return s.engine.Lead(ctx, fence)
}

// joinGossip becomes a member of the gossip pool.
func (s *Supervisor) joinGossip() error {
	if s.cfg.GossipListen == "" {
		return nil
	}
	var err error
	s.ingest.gossip, err = gossip.New(gossip.Config{
		Name: "supervisor/" + s.cfg.ID, Bind: s.cfg.GossipListen, Join: s.cfg.GossipJoin, Key: s.gossipKeys[0], Further: s.gossipKeys[1:],
		Meta: s.gossipMeta(false), Logger: s.logger, OnMember: s.onMember, OnBroadcast: s.ingest.intake.Broadcast, Strangers: maxStrangers,
	})
	if err != nil {
		return fmt.Errorf("gossip on %s: %w", s.cfg.GossipListen, err)
	}
	s.onStop("gossip", func(context.Context) error {
		// When all members stop at once, no member receives the farewell: that is no failure.
		if err := s.ingest.gossip.Leave(500 * time.Millisecond); err != nil {
			s.logger.Info("gossip farewell was not heard", "err", err)
		}
		return s.ingest.gossip.Close()
	})
	return nil
}

func (s *Supervisor) gossipMeta(leader bool) gossip.Meta {
	return gossip.Meta{Role: gossip.RoleSupervisor, ID: s.cfg.ID, ReportAddr: s.self.Report, Leader: leader}
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
			if err := s.ingest.gossip.UpdateMeta(s.gossipMeta(leads)); err != nil {
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

// Package supervisor assembles one replica: the store (embedded or external etcd), the election, the engine with the
// inbox and the awareness machine, the rails by which agents reach it, and the gRPC and HTTP services (seed 001 §II,
// §III-C: the place of the fault awareness of the whole system).
//
// Each part is a package below. This package only creates them, connects them, starts them in order and stops them in
// reverse. It decides nothing about faults.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/bounded"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor/node"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/supervisor/bulk"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/ingest"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/notify"
	"github.com/lofamo/lofamo/internal/supervisor/replica"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	transfer "github.com/lofamo/lofamo/pkg/servicenet/bulk"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
)

// Supervisor is one replica.
//
//	New ──Start──► running ──Stop, or a part fails──► stopped
type Supervisor struct {
	site
	identity

	store      storePart
	engine     enginePart
	ingest     ingestPart
	orders     *orderChannel // the leader's orders to nodes, by kind
	plain      []order.Plain // kinds of orders without messages of their own
	notifier   *notify.Notifier
	respond    respondPart
	federation federationPart
	api        apiPart
	web        webPart
	metrics    metricsPart

	lifecycle
}

// Option changes the assembly of a Supervisor.
type Option func(*Supervisor)

// WithOrders adds kinds of orders that have no messages of their own. The nodes must know them too.
func WithOrders(kinds ...order.Plain) Option {
	return func(s *Supervisor) { s.plain = append(s.plain, kinds...) }
}

// New validates the configuration and the keys without opening anything.
func New(cfg config.Supervisor, logger *slog.Logger, options ...Option) (*Supervisor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	periods, err := cfg.Timing()
	if err != nil {
		return nil, err
	}
	top, err := topology.FromConfig(cfg)
	if err != nil {
		return nil, err
	}
	border, _ := topology.BorderFromConfig(cfg)
	s := &Supervisor{
		site: site{
			cfg: cfg, periods: periods, born: time.Now(), logger: logger.With("supervisor", cfg.ID),
			names: view.NamesOf(top).WithBorder(border), seed: top, marks: view.NewMarks(), masks: view.NewMasks(),
		},
		identity:   identity{renewEvery: renewEvery},
		store:      storePart{observer: store.NewObserver()},
		engine:     enginePart{replicas: newReplicas(cfg.Replicas)},
		federation: federationPart{regionOf: regionOf(cfg)},
		metrics:    metricsPart{registry: prometheus.NewRegistry()},
		lifecycle:  newLifecycle(),
	}
	if s.signer, err = pki.LoadSigner(cfg.TLS.Cert, cfg.TLS.Key); err != nil {
		return nil, fmt.Errorf("supervisor %s: %w", cfg.ID, err)
	}
	if want := pki.SupervisorIdentity(cfg.Cluster, cfg.ID); s.signer.Identity() != want {
		return nil, fmt.Errorf("supervisor %s: certificate %s is of %s: want %s", cfg.ID, cfg.TLS.Cert, s.signer.Identity(), want)
	}
	s.trust.registry = pki.NewRegistry()
	if s.verify, err = pki.LoadVerifier(cfg.TLS.CA, cfg.Cluster, pki.WithRegistry(s.trust.registry)); err != nil {
		return nil, fmt.Errorf("supervisor %s: %w", cfg.ID, err)
	}
	s.newTrust()
	if s.renewals, err = s.newRenewals(); err != nil {
		return nil, fmt.Errorf("supervisor %s: %w", cfg.ID, err)
	}
	if cfg.GossipListen != "" {
		if s.gossipKeys, err = pki.LoadGossipKeys(cfg.GossipKeyFile); err != nil {
			return nil, fmt.Errorf("supervisor %s: %w", cfg.ID, err)
		}
	}
	for _, r := range cfg.Replicas {
		if r.ID == cfg.ID {
			s.self = r
		}
	}
	for _, o := range options {
		o(s)
	}
	s.metrics.Metrics = metrics.New(s.metrics.registry)
	s.renewals.tell()
	s.metrics.Promise(s.promised())
	s.metrics.alarms.gauge = s.metrics.Alarm
	s.metrics.alarms.set(nil)
	return s, nil
}

// Start opens everything and returns. It does not wait for a quorum or a leader. If it fails, it closes all
// open parts.
func (s *Supervisor) Start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop(ctx))
		}
	}()
	for _, step := range []func() error{s.listen, s.openStore, s.connect, s.serve, s.work} {
		if err := step(); err != nil {
			return fmt.Errorf("start supervisor %s: %w", s.cfg.ID, err)
		}
	}
	s.logger.Info("supervisor started", "grpc", s.cfg.GRPC, "report", s.cfg.Report, "http", s.cfg.HTTP,
		"nodes", len(s.cfg.Nodes), "embedded_etcd", s.cfg.Embedded())
	return nil
}

// Stop stops everything in the reverse order of Start. It may be called more than once.
func (s *Supervisor) Stop(ctx context.Context) error { return s.stop(ctx, s.logger) }

// listen occupies the addresses first, so that a conflict shows before anything is written.
func (s *Supervisor) listen() error {
	var err error
	for _, addr := range s.cfg.Reports() {
		socket, err := direct.Listen(addr, direct.Options{Strangers: maxStrangers, OnUnfiltered: func(err error) {
			s.logger.Warn("report socket: strangers are not filtered in the kernel", "address", addr, "err", err)
		}})
		if err != nil {
			return fmt.Errorf("report address: %w", err)
		}
		s.ingest.sockets = append(s.ingest.sockets, socket)
		s.onStop("report socket", func(context.Context) error { return socket.Close() })
	}
	if s.api.listener, err = s.listenTCP("grpc", s.cfg.GRPC, grpcConns); err != nil {
		return fmt.Errorf("gRPC address %s: %w", s.cfg.GRPC, err)
	}
	s.onStop("gRPC listener", closeListener(s.api.listener))
	if s.cfg.Web.Listen != "" {
		if s.web.listener, err = s.listenTCP("web", s.cfg.Web.Listen, webConns); err != nil {
			return fmt.Errorf("web address %s: %w", s.cfg.Web.Listen, err)
		}
		s.onStop("web listener", closeListener(s.web.listener))
	}
	if s.cfg.HTTP == "" {
		return nil
	}
	if s.metrics.listener, err = s.listenTCP("http", s.cfg.HTTP, httpConns); err != nil {
		return fmt.Errorf("HTTP address %s: %w", s.cfg.HTTP, err)
	}
	s.onStop("HTTP listener", closeListener(s.metrics.listener))
	return nil
}

// maxStrangers is the number of strangers' datagrams per second that a report socket accepts. Strangers are addresses
// that are not a node's and have no proved session; nodes whose service address is not in the topology start as
// strangers.
const maxStrangers = 1000

// Connection limits of each listener. Each connection is a descriptor that agents and replicas must not lack.
// Browsers open up to six for a page without HTTP/2, and many people may share an address. Replicas may use the gRPC
// connections that people leave.
var (
	grpcConns = bounded.Limits{All: 2048, PerSource: 256, PerSubject: 256, Subjects: 1536}
	webConns  = bounded.Limits{All: 512, PerSource: 128, PerSubject: 64, Subjects: 384}
	httpConns = bounded.Limits{All: 128, PerSource: 32}
)

// listenTCP listens at an address, with limits, and counts closed connections under the given name.
func (s *Supervisor) listenTCP(name, addr string, limits bounded.Limits) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return bounded.Listen(l, bounded.Options{Limits: limits, Dropped: func(reason string) { s.metrics.Closed.WithLabelValues(name, reason).Inc() }}), nil
}

// closeListener closes a listener that its server may have closed already.
func closeListener(ln net.Listener) func(context.Context) error {
	return func(context.Context) error {
		if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

// connect creates the parts that agents and replicas talk to.
func (s *Supervisor) connect() error {
	var err error
	if s.engine.peers, err = replica.Dial(s.engine.replicas.addresses(s.cfg.ID), s.peerTLS); err != nil {
		return err
	}
	s.onStop("connections to replicas", func(context.Context) error { return s.engine.peers.Close() })
	if s.cfg.Parent() {
		return s.connectParent()
	}
	if err := s.connectUpstream(); err != nil {
		return err
	}
	allowed, err := s.cfg.Allowed()
	if err != nil {
		return err
	}
	s.ingest.exchanges = ingest.NewExchanges(ingest.ExchangeConfig{
		ID: s.cfg.ID, Allowed: allowed, Wait: s.periods.AckTimeout, Metrics: s.metrics.Metrics, Logger: s.logger,
	})
	s.ingest.sender = ingest.NewSender(ingest.SenderConfig{
		Ports: s.ports(), Nodes: s.names, Paths: s.ingest.exchanges, Leader: s.leader, NoQuorum: s.engine.ready.noQuorum, Signer: s.signer,
		Metrics: s.metrics.Metrics, Logger: s.logger,
	})
	s.engine.Engine = engine.New(engine.Config{
		Awareness: s.awareness(), Meta: store.Meta{Cluster: s.cfg.Cluster, Dims: s.names.Dims().String()},
		Challenger: everywhere{s}, Metrics: s.metrics.Metrics, Logger: s.logger, Names: s.names, Seed: s.seed, Marks: s.marks, Masks: s.masks,
		Revoked: s.revokedNodes,
	}, s.store.Etcd)
	s.respond.actor = node.NewActor(agentOrders{s})
	s.engine.local = replica.NewCopy(replica.CopyConfig{
		Store: s.store.Etcd, Names: s.names, Logger: s.logger,
		OnChange: s.mapChanged,
	})
	s.engine.forward = replica.NewForwarder(replica.ForwarderConfig{
		Peers: s.engine.peers, Leaders: s.store.observer, Answerer: s.ingest.sender, Wanting: wanting{s},
		Challenger: s.ingest.sender, Metrics: s.metrics.Metrics, Logger: s.logger,
	})
	s.ingest.bulk = bulk.New(bulk.Config{
		Self: s.cfg.ID, ReplyTo: s.self.Report, DirectAddr: s.straight, Names: s.names, Signer: s.signer,
		Normal: s.normal, Receiver: transfer.DefaultReceiverConfig(), Metrics: s.metrics.Metrics, Logger: s.logger,
	})
	s.ingest.diagnose = s.newDiagnose()
	s.orders = newOrderChannel(s)
	s.notifier = notify.New(notify.Config{
		Names: s.names, Marks: s.marks, Sender: s.ingest.sender, DigestPeriod: s.periods.DigestPeriod, DigestMisses: s.periods.DigestMisses,
		Metrics: s.metrics.Metrics,
	})
	if s.respond.responder, err = s.newResponder(); err != nil {
		return err
	}
	border, err := s.connectBorder()
	if err != nil {
		return err
	}
	s.ingest.intake = ingest.NewIntake(ingest.IntakeConfig{
		Names: s.names, Verifier: s.ingest.exchanges.Verifier(s.verify), Sender: s.ingest.sender, Leader: s.engine.Engine,
		Forwarder: s.engine.forward, Bulk: s.ingest.bulk, Notifier: s.notifier, Orders: s.orders.answers(), Border: border, Renewals: s.renewals.intake(),
		Metrics: s.metrics.Metrics, Logger: s.logger,
	})
	s.engine.followers = &replica.Server{
		Engine: s.engine.Engine, Verifier: s.ingest.intake, Names: s.names, Own: s.own, Foreign: s.foreignVerdicts, Metrics: s.metrics.Metrics,
	}
	return nil
}

// everywhere sends challenges from this replica's own addresses and from those of its followers. Repeated challenges
// go direct only.
type everywhere struct{ s *Supervisor }

func (e everywhere) Challenge(c awareness.Challenge) bool {
	c.Term, c.Issued = e.s.engine.Term(), e.s.born.UnixNano()+time.Since(e.s.born).Nanoseconds()
	if !c.Again {
		e.s.engine.followers.Challenge(c)
	}
	return e.s.ingest.sender.Challenge(c)
}

// held returns why verdicts wait; a parent of regions has no intake and judges nothing.
func (s *Supervisor) held() string {
	if s.ingest.intake == nil {
		return ""
	}
	return s.ingest.intake.Holding()
}

// Behind implements engine.Challenger.
func (e everywhere) Behind() time.Duration {
	return max(e.s.ingest.sender.Behind(), e.s.ingest.intake.Behind())
}

// wanting forwards to the intake, which is created after the forwarder.
type wanting struct{ s *Supervisor }

func (w wanting) RequestFull(origins []fault.Origin) { w.s.ingest.intake.RequestFull(origins) }

// serve starts the gRPC and HTTP services.
func (s *Supervisor) serve() error {
	conf, err := pki.ServerTLS(s.cfg.TLS.Cert, s.cfg.TLS.Key, s.cfg.TLS.CA, pki.AllowRoles(api.Callers()...))
	if err != nil {
		return err
	}
	s.api.grpc = api.NewServer(api.ServerConfig{
		TLS: s.trust.registry.WithTLS(conf), Revoked: s.trust.registry, Registerer: s.metrics.registry, Logger: s.logger,
		MaxMessage: replica.MaxMessage,
		Refused:    func(reason string) { s.metrics.Calls.WithLabelValues(reason).Inc() },
	})
	s.api.health = s.api.grpc.Health
	cfg := api.Config{
		Self: s.cfg.ID, Info: s.info(), Names: s.names, Engine: s.engine.Engine, Copy: s.store.Etcd,
		Directory: &directory{s}, Bundles: s.ingest.bulk, Metrics: s.metrics.Metrics, Stopping: s.stopping,
		Held:      s.held,
		QuorumAge: s.engine.ready.quorumAge, Logger: s.logger, Operators: s.engine.Engine, Marks: s.marks, Masks: s.masks, MaxOps: s.maxOps(),
	}
	if len(s.cfg.Regions) > 0 {
		cfg.RegionOf = s.federation.regionOf
	}
	if s.cfg.Parent() {
		s.serveParent(&cfg)
	} else {
		cfg.Local, cfg.MasksSaid, cfg.Diagnosed = s.engine.local.Map, s.orders.masks.Said, s.store.OwnDiagnosis
		cfg.Mapped, cfg.MappedDead = s.orders.mapping.Of, s.orders.mapping.Dead
		lofamov1.RegisterReplicaServer(s.api.grpc, s.engine.followers)
	}
	s.api.Server = api.New(cfg)
	lofamov1.RegisterFaultSupervisorServer(s.api.grpc, s.api.Server)
	lofamov1.RegisterReconfigureServer(s.api.grpc, s.api.Server)
	lofamov1.RegisterSupervisorAdminServer(s.api.grpc, s.admin())
	lofamov1.RegisterManageServer(s.api.grpc, s.manage())
	lofamov1.RegisterCertificatesServer(s.api.grpc, s.certificates())
	lofamov1.RegisterResponseServiceServer(s.api.grpc, s.responseService())
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := s.api.grpc.Serve(s.api.listener); err != nil {
			s.fail(fmt.Errorf("gRPC service on %s: %w", s.cfg.GRPC, err))
		}
	}()
	s.onStop("gRPC service", func(ctx context.Context) error {
		s.api.health.Shutdown()
		stop := context.AfterFunc(ctx, s.api.grpc.Stop)
		defer stop()
		s.api.grpc.GracefulStop()
		<-served
		return nil
	})
	if s.metrics.listener != nil {
		s.serveHTTP()
	}
	if s.web.listener != nil {
		return s.serveWeb()
	}
	return nil
}

// manage returns the service for operators' diagnoses and procedures.
func (s *Supervisor) manage() *api.Manage {
	if s.ingest.diagnose == nil {
		return api.NewManage(s.api.Server, nil)
	}
	return api.NewManage(s.api.Server, s.ingest.diagnose)
}

// serveHTTP starts metrics and health.
func (s *Supervisor) serveHTTP() {
	s.observe()
	srv := bounded.HTTPServer(s.handler())
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := srv.Serve(s.metrics.listener); !errors.Is(err, http.ErrServerClosed) {
			s.fail(fmt.Errorf("HTTP service on %s: %w", s.cfg.HTTP, err))
		}
	}()
	s.onStop("HTTP service", func(ctx context.Context) error {
		err := srv.Shutdown(ctx)
		<-served
		return err
	})
}

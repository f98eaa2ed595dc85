package supervisor

import (
	"context"
	"fmt"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/replica"
)

// leaderWait is how long a change waits for a leader: longer than an election takes while leases have their shortest time.
const leaderWait = 5 * time.Second

// start creates the services of the API and serves them.
func (p *apiPart) start(s *Supervisor) error {
	conf, err := pki.ServerTLS(s.cfg.TLS.Cert, s.cfg.TLS.Key, s.cfg.TLS.CA, pki.AllowRoles(api.Callers()...))
	if err != nil {
		return err
	}
	p.grpc = api.NewServer(api.ServerConfig{
		TLS: s.trust.registry.WithTLS(s.ecdsa.WithTLS(conf)), Revoked: s.trust.registry, Registerer: s.metrics.registry, Logger: s.logger,
		MaxMessage: replica.MaxMessage,
		Refused:    func(reason string) { s.metrics.Calls.WithLabelValues(reason).Inc() },
	})
	p.health = p.grpc.Health
	cfg := api.Config{
		Self: s.cfg.ID, Info: s.info(), Names: s.names, Engine: s.engine.Engine, Copy: s.store.Etcd,
		Directory: &directory{s}, Bundles: s.ingest.bulk, Metrics: s.metrics.Metrics, Stopping: s.stopping,
		Held:      s.held,
		QuorumAge: s.engine.ready.quorumAge, Logger: s.logger, Operators: s.engine.Engine,
		LeaderWait: leaderWait, Marks: s.marks, Masks: s.masks, MaxOps: s.maxOps(),
	}
	if len(s.cfg.Regions) > 0 {
		cfg.RegionOf = s.federation.regionOf
	}
	if s.cfg.Parent() {
		s.serveParent(&cfg)
	} else {
		cfg.Local, cfg.MasksSaid, cfg.Diagnosed = s.engine.local.Map, s.orders.Masks, s.store.OwnDiagnosis
		cfg.Incidents, cfg.IncidentFeed = s.store.Etcd, s.store.incidents
		cfg.Mapped, cfg.MappedDead, cfg.Ends = s.orders.Mapped, s.orders.MappedDead, s.orders
		lofamov1.RegisterReplicaServer(p.grpc, s.engine.followers)
	}
	cfg.Outside = s.outsideNotes
	if s.respond.responder != nil {
		cfg.Sources = s.respond.responder.SourceNotes
	}
	if s.respond.witnesses != nil {
		cfg.Controller = s.respond.witnesses.node
	}
	p.Server = api.New(cfg)
	lofamov1.RegisterFaultSupervisorServer(p.grpc, p.Server)
	lofamov1.RegisterReconfigureServer(p.grpc, p.Server)
	lofamov1.RegisterSupervisorAdminServer(p.grpc, s.admin())
	lofamov1.RegisterManageServer(p.grpc, s.manage())
	lofamov1.RegisterCertificatesServer(p.grpc, s.certificates())
	responses := s.responseService()
	if s.objects.policies != nil {
		responses.KeptBy("kubernetes/" + s.cfg.Kubernetes.Namespace)
	}
	s.objects.responses = responses
	lofamov1.RegisterResponseServiceServer(p.grpc, responses)
	if err := p.serveEnrolment(s); err != nil {
		return err
	}
	p.served = make(chan struct{})
	go func() {
		defer close(p.served)
		if err := p.grpc.Serve(s.listeners.grpc); err != nil {
			s.fail(fmt.Errorf("gRPC service on %s: %w", s.cfg.GRPC, err))
		}
	}()
	return nil
}

// stop lets running calls end, and cuts those that do not end in time.
func (p *apiPart) stop(ctx context.Context) error {
	if p.served == nil {
		return nil
	}
	if p.enrols != nil {
		p.enrols.Stop() // nodes ask another replica
		<-p.enrolled
	}
	p.health.Shutdown()
	stop := context.AfterFunc(ctx, p.grpc.Stop)
	defer stop()
	p.grpc.GracefulStop()
	<-p.served
	return nil
}

// manage returns the service for operators' diagnoses and procedures.
func (s *Supervisor) manage() *api.Manage {
	if s.ingest.diagnoses == nil {
		return api.NewManage(s.api.Server, nil)
	}
	return api.NewManage(s.api.Server, s.ingest.diagnoses)
}

// admin returns the service by which operators manage the embedded etcd.
func (s *Supervisor) admin() *embedded.Admin {
	cfg := embedded.AdminConfig{
		Cluster: s.cfg.Cluster, Dial: s.etcdClient, Supervisors: s.engine.replicas.all, Removed: s.store.RemoveSupervisor,
		Withdraw: s.store.WithdrawRolledBack,
	}
	if s.store.member != nil {
		cfg.Client, cfg.Self = s.store.client, s.store.member.ID()
	}
	return embedded.NewAdmin(cfg)
}

// info returns the cluster information of every list.
func (s *Supervisor) info() *lofamov1.ClusterInfo {
	return &lofamov1.ClusterInfo{
		Cluster: s.cfg.Cluster, Dims: s.names.Dims().String(), Preset: s.cfg.Preset,
		HalfBound: durationpb.New(s.periods.HalfBound()), DpuHalfBound: durationpb.New(s.periods.DPUHalfBound()),
		NodeBound: durationpb.New(s.periods.NodeBound()),
	}
}

package supervisor

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/federation"
	"github.com/lofamo/lofamo/internal/supervisor/replica"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// term returns the running engine: of evidence, or of a parent of regions.
func (s *Supervisor) term() interface {
	Leading() bool
	Committing() time.Duration
	Committed() (view.Map, bool)
	Map(ctx context.Context) (view.Map, error)
} {
	if s.federation.parent != nil {
		return s.federation.parent
	}
	return s.engine.Engine
}

// regionOf returns a function from a node to its region in the configuration.
func regionOf(cfg config.Supervisor) func(fault.NodeID) string {
	of := make(map[fault.NodeID]string, len(cfg.Nodes))
	for _, n := range cfg.Nodes {
		of[n.NodeID()] = n.Region
	}
	return func(id fault.NodeID) string { return of[id] }
}

// foreign adds the bordering nodes of other regions to ids, and returns their set; nil: no regions.
func (s *Supervisor) foreign(ids map[grid.Coord]fault.NodeID) map[fault.NodeID]bool {
	if s.cfg.Region == "" {
		return nil
	}
	out := make(map[fault.NodeID]bool)
	for _, n := range s.names.Border() {
		ids[n.Coord], out[n.ID] = n.ID, true
	}
	return out
}

func addressesOf(list []config.UpstreamEntry) (ids []string, addresses map[string]string) {
	addresses = make(map[string]string, len(list))
	for _, u := range list {
		ids = append(ids, u.ID)
		addresses[u.ID] = u.GRPC
	}
	return ids, addresses
}

// start connects a parent to its regions, or a region to its parent and to the neighbouring regions.
func (p *federationPart) start(s *Supervisor) error {
	if s.cfg.Parent() {
		return s.connectParent()
	}
	if err := s.connectUpstream(); err != nil {
		return err
	}
	return s.connectBorder()
}

// stop closes the connections.
func (p *federationPart) stop(context.Context) error {
	var errs []error
	if p.border != nil {
		errs = append(errs, p.border.Close())
	}
	for _, peers := range []*replica.Peers{p.parents, p.below} {
		if peers != nil {
			errs = append(errs, peers.Close())
		}
	}
	return errors.Join(errs...)
}

// connectParent creates the parent of regions. It does not talk to agents.
func (s *Supervisor) connectParent() error {
	configured := s.federation.regionOf
	s.federation.regionOf = func(id fault.NodeID) string { return cmp.Or(configured(id), s.federation.spares.region(id)) }
	addresses := make(map[string]string)
	for _, r := range s.cfg.Regions {
		for _, u := range r.Supervisors {
			addresses[u.ID] = u.GRPC
		}
	}
	var err error
	if s.federation.below, err = replica.Dial(addresses, s.peerTLS); err != nil {
		return err
	}
	ops := 0
	if s.cfg.Embedded() {
		ops = embedded.MaxTxnOps - 16 // for the operations in every transaction
	}
	s.federation.parent = federation.NewParent(federation.ParentConfig{
		Regions: s.cfg.RegionNames(), Region: s.federation.regionOf, Names: s.names,
		Meta: store.Meta{Cluster: s.cfg.Cluster, Dims: s.names.Dims().String()},
		Beat: s.periods.DigestPeriod, Misses: s.periods.DigestMisses, Reconnect: config.SupervisorGone, Ops: ops,
		Metrics: s.metrics.Metrics, Logger: s.logger,
	}, s.store.Etcd)
	return nil
}

// belowOf returns the supervisors of a node's region, if the parent is in contact with the region.
func (s *Supervisor) belowOf(id fault.NodeID) []lofamov1.FaultSupervisorClient {
	name := s.federation.regionOf(id)
	if !slices.ContainsFunc(s.federation.parent.Regions(),
		func(r *lofamov1.Region) bool { return r.GetName() == name && r.GetState() == lofamov1.State_NORMAL }) {
		return nil
	}
	return s.regionClients(name)
}

// regionClients returns connections to the supervisors of a region.
func (s *Supervisor) regionClients(name string) []lofamov1.FaultSupervisorClient {
	var out []lofamov1.FaultSupervisorClient
	for _, r := range s.cfg.Regions {
		for _, u := range r.Supervisors {
			if conn := s.federation.below.Conn(u.ID); r.Name == name && conn != nil {
				out = append(out, lofamov1.NewFaultSupervisorClient(conn))
			}
		}
	}
	return out
}

// serveParent admits the regions' supervisors, and makes the API answer from their data.
func (s *Supervisor) serveParent(cfg *api.Config) {
	cfg.Engine, cfg.Copy, cfg.Bundles, cfg.Regions = s.federation.parent, federation.Copy{Etcd: s.store.Etcd}, noBundles{}, s.standing
	cfg.Operators, cfg.Below, cfg.RegionClients = s.federation.parent, s.belowOf, s.regionClients
	cfg.Kept = func(ctx context.Context, id fault.NodeID) (*lofamov1.Node, error) {
		return federation.Copy{Etcd: s.store.Etcd}.Kept(ctx, s.federation.regionOf(id), id)
	}
	speakers := make(map[string]string)
	cfg.RegionSupervisors = make(map[string][]string)
	for _, r := range s.cfg.Regions {
		for _, u := range r.Supervisors {
			speakers[u.ID] = r.Name
			cfg.RegionSupervisors[r.Name] = append(cfg.RegionSupervisors[r.Name], u.GRPC)
		}
	}
	lofamov1.RegisterUpstreamServer(s.api.grpc, &federation.Server{Parent: s.federation.parent, Caller: api.Caller, Speakers: speakers,
		Stopping: s.stopping})
}

// standing returns the status of the regions: from the leader, or from this replica's copy if it does not lead.
func (s *Supervisor) standing(ctx context.Context) []*lofamov1.Region {
	if list := s.federation.parent.Regions(); list != nil {
		return list
	}
	list, err := federation.Copy{Etcd: s.store.Etcd}.Regions(ctx, s.cfg.RegionNames())
	if err != nil {
		s.logger.Debug("cannot read the regions", "err", err)
	}
	return list
}

// connectUpstream connects to the parent, if there is one.
func (s *Supervisor) connectUpstream() error {
	if len(s.cfg.Upstream) == 0 {
		return nil
	}
	ids, addresses := addressesOf(s.cfg.Upstream)
	var err error
	if s.federation.parents, err = replica.Dial(addresses, s.peerTLS); err != nil {
		return err
	}
	s.federation.uplink = federation.NewUplink(federation.UplinkConfig{
		Region: s.cfg.Region, Dims: s.names.Dims().String(), Store: s.store.Etcd, Parents: ids, Conn: s.federation.parents.Conn,
		Beat: s.periods.DigestPeriod, Logger: s.logger,
	})
	return nil
}

// connectBorder connects to the neighbouring regions, if there are any.
func (s *Supervisor) connectBorder() error {
	if s.cfg.Region == "" {
		return nil
	}
	cfg := federation.PeerConfig{
		Regions: make(map[string]map[string]string), Foreign: make(map[fault.NodeID]string), Beside: make(map[fault.NodeID][]string),
		TLS: s.peerTLS, Answerer: acks{s}, Metrics: s.metrics.Metrics, Logger: s.logger,
	}
	dims := s.names.Dims()
	for _, n := range s.names.Border() {
		name := s.federation.regionOf(n.ID)
		cfg.Foreign[n.ID] = name
		for _, r := range s.cfg.Regions {
			if r.Name == name {
				_, cfg.Regions[name] = addressesOf(r.Supervisors)
			}
		}
		for _, at := range dims.Neighbours(n.Coord) {
			if own, ok := s.names.Topology().Place(at); ok && !slices.Contains(cfg.Beside[own.ID], name) {
				cfg.Beside[own.ID] = append(cfg.Beside[own.ID], name)
			}
		}
	}
	var err error
	s.federation.border, err = federation.NewPeers(cfg)
	return err
}

// acks forwards to the sender, which starts after the federation.
type acks struct{ s *Supervisor }

func (a acks) Answer(to engine.To, ack *lofamov1.Ack) { a.s.ingest.sender.Answer(to, ack) }

// own reports whether the caller is one of this region's own replicas.
func (s *Supervisor) own(ctx context.Context) bool {
	id, err := api.Caller(ctx)
	return err == nil && slices.ContainsFunc(s.engine.replicas.all(), func(r *lofamov1.Supervisor) bool { return r.GetId() == id.Name })
}

// foreignVerdicts returns another region's verdicts on its nodes at our border.
func (s *Supervisor) foreignVerdicts(ctx context.Context, v *lofamov1.BorderVerdicts) []awareness.ForeignVerdict {
	id, err := api.Caller(ctx)
	if s.federation.border == nil || err != nil {
		return nil
	}
	for _, r := range s.cfg.Regions {
		if slices.ContainsFunc(r.Supervisors, func(u config.UpstreamEntry) bool { return u.ID == id.Name }) {
			return s.federation.border.Of(r.Name, v)
		}
	}
	return nil
}

// leadRegion starts the work of a region's leader with the parent and the other regions, if there are any.
func (s *Supervisor) leadRegion(ctx context.Context, wg *sync.WaitGroup, fence store.Fence) {
	if s.federation.border == nil {
		return
	}
	if s.federation.uplink != nil {
		wg.Go(func() { s.federation.uplink.Run(ctx, fence) })
	}
	wg.Go(func() { s.federation.border.Tell(ctx, s.periods.DigestPeriod, s.store.Etcd, s.engine.Detail) })
}

// noBundles refuses diagnostic bundles in a parent of regions.
type noBundles struct{}

// Fetch implements api.Bundles.
func (noBundles) Fetch(context.Context, fault.Origin, string, uint64, func(*lofamov1.GetBundleResponse) error) error {
	return status.Error(codes.FailedPrecondition, "a parent of regions reaches no nodes: ask a supervisor of the node's region")
}

// workRegions starts the work with other regions, if there are any.
func (s *Supervisor) workRegions(ctx context.Context, wg *sync.WaitGroup) {
	if s.federation.below != nil {
		wg.Go(func() { s.federation.below.Run(ctx) })
		wg.Go(func() { s.followRegions(ctx) })
	}
	if s.federation.border != nil {
		wg.Go(func() { s.federation.border.Run(ctx) })
	}
	if s.federation.parents != nil {
		wg.Go(func() { s.federation.parents.Run(ctx) })
	}
}

// Package api is the supervisor's gRPC interface: the service lofamo.v1.FaultSupervisor, its authorization and its
// health.
//
// Any replica answers. The leader reads from its own map. The others ask the leader or, if they reach none, serve
// their copy and mark it stale. Every replica serves watches from its own etcd. The leader commits operators'
// changes, and the others forward them to it.
package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
)

// Engine is the leader's map. Its methods fail with engine.ErrNotLeading on other replicas.
type Engine interface {
	Map(ctx context.Context) (view.Map, error)
	Detail(ctx context.Context, ids []fault.NodeID) ([]view.Entry, error)
	Reports(ctx context.Context, q engine.ReportQuery) (engine.ReportView, error)
	Explain(ctx context.Context, id fault.NodeID, c fault.Component) (awareness.Explanation, error)
	ExplainGroup(ctx context.Context, id string) (awareness.GroupExplanation, error)
	Seen(buffer int) (changes <-chan *lofamov1.Event, cancel func(), err error)
}

// Copy is the replica's own copy of the store. Except for Revision its methods need no quorum.
type Copy interface {
	MapNow(ctx context.Context) (store.Snapshot, error)
	hubSource
	Revision(ctx context.Context) (uint64, error)
}

// Directory knows the replicas.
type Directory interface {
	// Supervisors returns all replicas as this one knows them, in the order of the configuration.
	Supervisors(ctx context.Context) []*lofamov1.Supervisor
	// Leader returns the leader's ID, or "" if there is none.
	Leader() string
	// Conn returns a connection to another replica, or nil if there is none.
	Conn(id string) *grpc.ClientConn
}

// Stated is what nodes have stated about their links and places.
type Stated interface {
	topology.Ends
	// Placed reports whether a node's agent waits for orders about its place, and has one by its last report.
	Placed(fault.NodeID) bool
	// Heard reports whether a node's agent has reported lately. Ends may be from long ago.
	Heard(fault.NodeID) bool
	// Ask asks nodes' agents for a report, once. It does not block.
	Ask([]fault.NodeID)
}

// Config of the service.
type Config struct {
	Self      string                // this replica's id
	Info      *lofamov1.ClusterInfo // the constant part: dims, preset, bounds
	Names     *view.Names
	Engine    Engine
	Operators Operators
	// LeaderWait is how long a change waits for a leader before it fails; 0 means no wait.
	LeaderWait time.Duration
	Copy       Copy
	// Incidents and IncidentFeed are nil on a parent of regions. The owner runs the feed.
	Incidents    Incidents
	IncidentFeed *store.IncidentFeed
	Marks        *view.Marks // the maintenance marks; nil: none
	Masks        *view.Masks // the masks of links; nil: none
	// MasksSaid returns the nodes' reports of their channel masks while this replica leads; nil: none.
	MasksSaid func() []*lofamov1.MaskStatus
	// Ends has what nodes have stated about their links and places, while this replica leads; nil on a parent of regions.
	Ends Stated
	// Diagnosed returns the last diagnosis in this replica's own copy, or nil if there was none. It is nil on a
	// parent of regions.
	Diagnosed func(context.Context) (*lofamov1.DiagnosisReport, error)
	// Mapped returns the findings of a mapper node about an unknown node, and MappedDead the dead links that mappers
	// found where nothing else is known about them, while this replica leads (mapping by delegation, seed 003
	// §5.2.3.2). nil: none.
	Mapped func(fault.NodeID) (view.Mapped, bool)
	// Outside returns what other programs report of a node, in words, while this replica leads; nil: nothing.
	Outside func(fault.NodeID, time.Time) []string
	// Sources returns, in words, policies that could respond to a fault if their sources of outside conditions were configured; nil: none.
	Sources func(fault.Component, fault.State) []string
	// Controller returns the last answer of a node's management controller, while this replica leads; nil: none is known.
	Controller func(fault.NodeID, time.Time) *lofamov1.ManagementController
	MappedDead func() []chanmask.Link
	Directory  Directory
	Bundles    Bundles
	Metrics    *metrics.Metrics
	// MaxOps is the most operations in one transaction of the store; 0: unlimited.
	MaxOps int
	// RegionOf returns the region of a node, and Regions the status of a parent's regions. nil: no regions.
	RegionOf func(id fault.NodeID) string
	Regions  func(ctx context.Context) []*lofamov1.Region
	// Kept returns a node as its region last reported it, from a parent's copy, even while the region is cut off;
	// nil: the copy does not have the node. Only parents set it.
	Kept func(ctx context.Context, id fault.NodeID) (*lofamov1.Node, error)
	// Below returns the supervisors of a node's own region, on a parent that is in contact with the region. Only parents
	// set it.
	Below func(id fault.NodeID) []lofamov1.FaultSupervisorClient
	// RegionSupervisors holds the addresses of each region's supervisors, on a parent of regions, which changes
	// nothing itself. Only parents set it.
	RegionSupervisors map[string][]string
	// RegionClients returns connections to a region's supervisors. Only parents set it.
	RegionClients func(region string) []lofamov1.FaultSupervisorClient
	// Stopping ends watches when the replica stops.
	Stopping <-chan struct{}
	// QuorumAge returns the time since this replica last reached a quorum; -1: never since it started.
	QuorumAge func() time.Duration
	// Held returns why this replica holds verdicts while it leads; "": it holds none. It is nil if the replica judges
	// nothing.
	Held func() string
	// Local returns the up-to-date map of this replica's own store; false: not ready yet. If it is nil, the map is
	// read when needed.
	Local func() (view.Map, bool)
	// WatchQueue bounds the updates that a watcher may be behind; 0 means 1,024. A watcher further behind is cut off
	// with the revision to resume from.
	WatchQueue int
	Logger     *slog.Logger
}

// Server implements lofamov1.FaultSupervisorServer.
type Server struct {
	lofamov1.UnimplementedFaultSupervisorServer
	lofamov1.UnimplementedReconfigureServer

	cfg       Config
	hub       *watchHub
	pages     snapshots
	old       staleMaps
	divisions divisions
	members   members
	scans     scans
}

// New returns the service.
func New(cfg Config) *Server {
	if cfg.WatchQueue == 0 {
		cfg.WatchQueue = 1024
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg, hub: newHub(hubConfig{Updates: cfg.WatchQueue, Logger: cfg.Logger}, cfg.Copy),
		old: staleMaps{turn: semaphore.NewWeighted(1)}, scans: scans{limit: scanWait}}
}

// Run follows the store for watchers until the context ends.
func (s *Server) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { s.pages.run(ctx) })
	s.hub.Run(ctx)
	wg.Wait()
}

// proxyTime is how long the leader may take to answer a follower's forwarded call.
const proxyTime = time.Second

// proxiedKey marks a call that a follower has forwarded. Such a call is not forwarded again.
const proxiedKey = "lofamo-proxied"

func isProxied(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, proxiedKey)) > 0
}

// leader returns a client of the leader, or nil if it has no connection.
func (s *Server) leader() lofamov1.FaultSupervisorClient {
	conn := s.cfg.Directory.Conn(s.cfg.Directory.Leader())
	if conn == nil {
		return nil
	}
	return lofamov1.NewFaultSupervisorClient(conn)
}

// answer serves a read: from this replica's map when it leads, else through the leader, else from the copy.
func answer[R proto.Message](ctx context.Context, s *Server, own func(snapshot) (R, error),
	ask func(context.Context, lofamov1.FaultSupervisorClient) (R, error)) (R, error) {
	var none R
	m, err := s.cfg.Engine.Map(ctx)
	if err == nil {
		return own(s.snap(m))
	}
	if resp, ok, err := byLeader(ctx, s, err, ask); ok {
		return resp, err
	}
	if m, err = s.stale(ctx); err != nil {
		return none, status.Error(codes.Unavailable, err.Error())
	}
	return own(s.snap(m))
}

// answerPage is answer for one page of a list, from the same map as the first page if that map is still kept.
func answerPage[R proto.Message](ctx context.Context, s *Server, page *token, own func(snapshot) (R, error),
	ask func(context.Context, lofamov1.FaultSupervisorClient) (R, error)) (R, error) {
	if page == nil {
		return answer(ctx, s, own, ask)
	}
	if snap, ok := s.pages.get(page.revision, time.Now()); ok {
		return own(snap)
	}
	return answer(ctx, s, func(snap snapshot) (R, error) {
		if snap.Revision == page.revision {
			return own(snap)
		}
		var none R
		return none, expired(fmt.Sprintf("continue: the map of revision %d is no longer kept", page.revision), "begin again without continue")
	}, ask)
}

// info returns the cluster information of a list.
func (s *Server) info(ctx context.Context, snap snapshot) *lofamov1.ClusterInfo {
	info := proto.CloneOf(s.cfg.Info)
	info.Dims, info.Ordinary, info.DomainLabels = snap.Dims().String(), snap.topo.Ordinary(), snap.topo.DomainLabels
	if snap.Stale {
		info.Leader = s.cfg.Directory.Leader()
		markStale(info, snap.StaleAge)
	} else {
		info.Leader = s.cfg.Self // the election's information may lag behind
		info.VerdictsHeld = s.held()
	}
	if s.cfg.Regions != nil {
		info.Regions = s.cfg.Regions(ctx)
	}
	return info
}

func (s *Server) held() string {
	if s.cfg.Held == nil {
		return ""
	}
	return s.cfg.Held()
}

// markStale marks an answer as stale, with its age (-1: unknown).
func markStale(info *lofamov1.ClusterInfo, age time.Duration) {
	info.Stale, info.StaleAge = true, knownAge(age)
}

// knownAge returns the API's form of the age of a stale answer; nil for -1, unknown.
func knownAge(age time.Duration) *durationpb.Duration {
	if age < 0 {
		return nil
	}
	return durationpb.New(age)
}

// quorumAge returns the time since this replica last reached a quorum; -1: never.
func (s *Server) quorumAge() time.Duration {
	if s.cfg.QuorumAge == nil {
		return -1
	}
	return s.cfg.QuorumAge()
}

// verdicts are the codes of a leader's own answer. Any other code means that the leader was not reached.
var verdicts = []codes.Code{codes.OK, codes.InvalidArgument, codes.NotFound, codes.OutOfRange}

// byLeader forwards to the leader a call that the own engine could not answer for the given reason. ok is false when
// the leader cannot be reached either.
func byLeader[R proto.Message](ctx context.Context, s *Server, reason error,
	ask func(context.Context, lofamov1.FaultSupervisorClient) (R, error)) (resp R, ok bool, err error) {
	if !errors.Is(reason, engine.ErrNotLeading) {
		return resp, true, status.FromContextError(reason).Err()
	}
	if isProxied(ctx) {
		return resp, true, status.Error(codes.FailedPrecondition, reason.Error())
	}
	c := s.leader()
	if c == nil {
		return resp, false, nil
	}
	pctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, proxiedKey, "1"), proxyTime)
	defer cancel()
	resp, err = ask(pctx, c)
	code := status.Code(err)
	return resp, slices.Contains(verdicts, code), err
}

// staleMaps caches the map last read from the copy, until the next commit.
type staleMaps struct {
	turn *semaphore.Weighted // of 1: one query at a time reads the copy
	kept atomic.Pointer[staleMap]
}

type staleMap struct {
	view.Map

	written uint64 // the revision of the last commit that it includes
	topo    *topology.Topology
}

// stale reads the map from the copy. It waits for the store, and for another query that reads the copy, until the context ends.
func (s *Server) stale(ctx context.Context) (view.Map, error) {
	bounds, err := s.cfg.Copy.Bounds(ctx)
	if err != nil {
		return view.Map{}, err
	}
	m, ok := s.local(bounds.Written)
	if ok {
		s.old.kept.Store(nil)
	} else if m, err = s.keptCopy(ctx, bounds.Written); err != nil {
		return view.Map{}, err
	}
	m.Revision, m.Stale, m.StaleAge = max(m.Revision, bounds.Revision), true, s.quorumAge()
	return m, nil
}

// keptCopy returns a map of the copy that includes the last commit. It reads the copy only if the kept map does not include it.
func (s *Server) keptCopy(ctx context.Context, written uint64) (view.Map, error) {
	if err := s.old.turn.Acquire(ctx, 1); err != nil {
		return view.Map{}, err
	}
	defer s.old.turn.Release(1)
	topo := s.cfg.Names.Topology()
	if kept := s.old.kept.Load(); kept != nil && kept.topo == topo && kept.written >= written {
		return kept.Map, nil
	}
	m, err := s.readCopy(ctx)
	if err != nil {
		return view.Map{}, err
	}
	s.old.kept.Store(&staleMap{m, written, topo})
	return m, nil
}

// local returns the up-to-date map if it includes the last commit.
func (s *Server) local(written uint64) (view.Map, bool) {
	if s.cfg.Local == nil {
		return view.Map{}, false
	}
	m, ok := s.cfg.Local()
	return m, ok && m.Revision >= written
}

// readCopy builds a map from the copy. It skips nodes that no longer exist.
func (s *Server) readCopy(ctx context.Context) (view.Map, error) {
	snap, err := s.cfg.Copy.MapNow(ctx)
	if err != nil {
		return view.Map{}, err
	}
	b := view.NewBuilder(s.cfg.Names, time.Time{})
	for _, doc := range snap.Nodes {
		e, err := view.Restore(doc)
		if err != nil {
			return view.Map{}, err
		}
		b.Set(e)
	}
	for _, doc := range snap.Groups {
		g, err := view.RestoreGroup(doc)
		if err != nil {
			return view.Map{}, err
		}
		if g.Members = slices.DeleteFunc(g.Members, func(id fault.NodeID) bool { return !b.Has(id) }); len(g.Members) > 0 {
			b.SetGroup(g)
		}
	}
	for _, doc := range snap.Warnings {
		w, err := view.RestoreWarning(doc.Node, doc.Warning)
		if err != nil {
			return view.Map{}, err
		}
		if b.Has(w.Node) {
			b.SetWarning(w)
		}
	}
	return b.Map(snap.Revision), nil
}

// checkStates refuses invalid states, and returns a filter.
func checkStates(states []lofamov1.State) (func(lofamov1.State) bool, error) {
	for _, st := range states {
		if !known(st) || st == lofamov1.State_STATE_UNSPECIFIED {
			return nil, status.Errorf(codes.InvalidArgument, "states: given %v: want UNKNOWN, NORMAL, SICK or FAILED", st)
		}
	}
	return func(st lofamov1.State) bool { return len(states) == 0 || slices.Contains(states, st) }, nil
}

// find converts a name into an ID, and errors into the API's errors.
func (s *Server) find(name string) (fault.NodeID, error) {
	id, err := s.cfg.Names.Find(name)
	var unknown *view.UnknownNodeError
	switch {
	case err == nil:
		return id, nil
	case errors.As(err, &unknown):
		return "", status.Error(codes.NotFound, err.Error())
	}
	return "", status.Error(codes.InvalidArgument, err.Error())
}

// findOptional is find, but accepts the empty name for all nodes.
func (s *Server) findOptional(name string) (fault.NodeID, error) {
	if name == "" {
		return "", nil
	}
	return s.find(name)
}

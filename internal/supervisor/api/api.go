// Package api is the supervisor's gRPC face: the service lofamo.v1.FaultSupervisor, who may call
// it, and its health.
//
// Any replica answers. The leader reads from its own map; the others ask the leader and, where
// none can be reached, serve their copy and say so. Watches are served by every replica from its
// own etcd. It changes nothing.
package api

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Engine is the leader's map; its methods fail with engine.ErrNotLeading elsewhere.
type Engine interface {
	Map(ctx context.Context) (view.Map, error)
	Detail(ctx context.Context, ids []fault.NodeID) ([]view.Entry, error)
	Reports(ctx context.Context, q engine.ReportQuery) (engine.ReportView, error)
	Seen(buffer int) (changes <-chan *lofamov1.Event, cancel func(), err error)
}

// Copy is the replica's own copy of the store. But for Revision its methods need no quorum.
type Copy interface {
	Nodes(ctx context.Context) ([]*lofamov1.Node, uint64, error)
	Events(ctx context.Context, after uint64, limit int, keep func(*lofamov1.Event) bool) ([]*lofamov1.Event, uint64, error)
	Watch(ctx context.Context, after uint64) <-chan store.Update
	Revision(ctx context.Context) (uint64, error)
}

// Directory knows the replicas.
type Directory interface {
	// Supervisors returns all replicas as this one knows them, in the order of the configuration.
	Supervisors(ctx context.Context) []*lofamov1.Supervisor
	// Leader returns the leader's id, empty when there is none.
	Leader() string
	// Conn returns a connection to another replica, nil when there is none.
	Conn(id string) *grpc.ClientConn
}

// Config of the service.
type Config struct {
	Self      string                // this replica's id
	Info      *lofamov1.ClusterInfo // what does not change: dims, preset, bounds
	Names     *view.Names
	Engine    Engine
	Copy      Copy
	Directory Directory
	Bundles   Bundles
	Metrics   *metrics.Metrics
	// Stopping ends watches when the replica stops.
	Stopping <-chan struct{}
	// WatchQueue bounds the updates that wait for one watcher; 0 stands for 1,024. A watcher that is
	// further behind is cut off and told where to resume.
	WatchQueue int
}

// Server implements lofamov1.FaultSupervisorServer.
type Server struct {
	lofamov1.UnimplementedFaultSupervisorServer

	cfg Config
}

// New returns the service.
func New(cfg Config) *Server {
	if cfg.WatchQueue == 0 {
		cfg.WatchQueue = 1024
	}
	return &Server{cfg: cfg}
}

// The limits of ListEvents.
const (
	defaultEvents = 1_000
	maxEvents     = 10_000
)

// proxyTime is how long the leader may take to answer in a follower's stead.
const proxyTime = time.Second

// proxiedKey marks a call that a follower passes on: it is not passed on again.
const proxiedKey = "lofamo-proxied"

func isProxied(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, proxiedKey)) > 0
}

// leader returns a client of the leader, nil when it cannot be asked.
func (s *Server) leader() lofamov1.FaultSupervisorClient {
	conn := s.cfg.Directory.Conn(s.cfg.Directory.Leader())
	if conn == nil {
		return nil
	}
	return lofamov1.NewFaultSupervisorClient(conn)
}

// answer serves a read: from our own map when we lead, else by the leader, else from the copy.
func answer[R proto.Message](ctx context.Context, s *Server, own func(view.Map) (R, error),
	ask func(context.Context, lofamov1.FaultSupervisorClient) (R, error)) (R, error) {
	var none R
	m, err := s.cfg.Engine.Map(ctx)
	if err == nil {
		return own(m)
	}
	if resp, ok, err := byLeader(ctx, s, err, ask); ok {
		return resp, err
	}
	if m, err = s.stale(ctx); err != nil {
		return none, status.Error(codes.Unavailable, err.Error())
	}
	return own(m)
}

// byLeader has the leader answer what our own engine could not for a reason. ok is false when the leader
// cannot be asked either.
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
	return resp, code == codes.OK || code == codes.InvalidArgument || code == codes.NotFound, err
}

// stale reads the map from the copy.
func (s *Server) stale(ctx context.Context) (view.Map, error) {
	docs, rev, err := s.cfg.Copy.Nodes(ctx)
	if err != nil {
		return view.Map{}, err
	}
	b := view.NewBuilder(s.cfg.Names, time.Time{})
	for _, doc := range docs {
		e, err := view.Restore(doc)
		if err != nil {
			return view.Map{}, err
		}
		b.Set(e)
	}
	m := b.Map(rev)
	m.Stale, m.StaleAge = true, -1
	return m, nil
}

// entries are those of a map that are wanted, in full as far as this replica can tell.
func (s *Server) entries(ctx context.Context, m view.Map, keep func(rank int) bool) ([]view.Entry, error) {
	var ids []fault.NodeID
	var out []view.Entry
	for rank := range m.Len() {
		switch {
		case !keep(rank):
		case m.Stale:
			out = append(out, m.At(rank))
		default:
			ids = append(ids, m.ID(rank))
		}
	}
	if m.Stale {
		return out, nil
	}
	out, err := s.cfg.Engine.Detail(ctx, ids)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return out, nil
}

// checkStates refuses what is no state, and returns a filter.
func checkStates(states []lofamov1.State) (func(lofamov1.State) bool, error) {
	for _, st := range states {
		if _, ok := lofamov1.State_name[int32(st)]; !ok || st == lofamov1.State_STATE_UNSPECIFIED {
			return nil, status.Errorf(codes.InvalidArgument, "states: given %v: want UNKNOWN, NORMAL, SICK or FAILED", st)
		}
	}
	return func(st lofamov1.State) bool { return len(states) == 0 || slices.Contains(states, st) }, nil
}

// find turns a name into an id, and errors into the API's.
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

// findOptional is find where the empty name means all.
func (s *Server) findOptional(name string) (fault.NodeID, error) {
	if name == "" {
		return "", nil
	}
	return s.find(name)
}

// ListNodes implements the service.
func (s *Server) ListNodes(ctx context.Context, req *lofamov1.ListNodesRequest) (*lofamov1.ListNodesResponse, error) {
	keep, err := checkStates(req.GetStates())
	if err != nil {
		return nil, err
	}
	return answer(ctx, s, func(m view.Map) (*lofamov1.ListNodesResponse, error) {
		now := time.Now()
		info := proto.CloneOf(s.cfg.Info)
		info.Leader, info.Stale = s.cfg.Directory.Leader(), m.Stale
		if !m.Stale {
			info.Leader = s.cfg.Self // what the election tells may lag behind
		}
		entries, err := s.entries(ctx, m, func(rank int) bool { return keep(lofamov1.State(m.State(rank))) })
		if err != nil {
			return nil, err
		}
		resp := &lofamov1.ListNodesResponse{Revision: m.Revision, Cluster: info}
		for _, e := range entries {
			resp.Nodes = append(resp.Nodes, view.Node(e, now))
		}
		return resp, nil
	}, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.ListNodesResponse, error) {
		return c.ListNodes(ctx, req)
	})
}

// GetNode implements the service.
func (s *Server) GetNode(ctx context.Context, req *lofamov1.GetNodeRequest) (*lofamov1.Node, error) {
	id, err := s.find(req.GetNode())
	if err != nil {
		return nil, err
	}
	return answer(ctx, s, func(m view.Map) (*lofamov1.Node, error) {
		entries, err := s.entries(ctx, m, func(rank int) bool { return m.ID(rank) == id })
		if err != nil {
			return nil, err
		}
		if len(entries) == 0 {
			return nil, status.Errorf(codes.NotFound, "node %q: not in the map", id)
		}
		return view.Node(entries[0], time.Now()), nil
	}, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.Node, error) {
		return c.GetNode(ctx, req)
	})
}

// ListLinks implements the service.
func (s *Server) ListLinks(ctx context.Context, req *lofamov1.ListLinksRequest) (*lofamov1.ListLinksResponse, error) {
	keep, err := checkStates(req.GetStates())
	if err != nil {
		return nil, err
	}
	id, err := s.findOptional(req.GetNode())
	if err != nil {
		return nil, err
	}
	return answer(ctx, s, func(m view.Map) (*lofamov1.ListLinksResponse, error) {
		resp := &lofamov1.ListLinksResponse{Revision: m.Revision}
		entries, err := s.entries(ctx, m, func(rank int) bool { return id == "" || m.ID(rank) == id })
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			for _, l := range view.NodeLinks(m, e, time.Now()) {
				if keep(l.GetState()) {
					resp.Links = append(resp.Links, l)
				}
			}
		}
		return resp, nil
	}, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.ListLinksResponse, error) {
		return c.ListLinks(ctx, req)
	})
}

// ListEvents implements the service. History does not change, so every replica tells its own.
// Where there is a quorum it first catches up with it, so that what was acknowledged is there.
func (s *Server) ListEvents(ctx context.Context, req *lofamov1.ListEventsRequest) (*lofamov1.ListEventsResponse, error) {
	limit := int(req.GetLimit())
	switch {
	case limit == 0:
		limit = defaultEvents
	case limit > maxEvents:
		return nil, status.Errorf(codes.InvalidArgument, "limit: given %d: want at most %d", limit, maxEvents)
	}
	id, err := s.findOptional(req.GetNode())
	if err != nil {
		return nil, err
	}
	var keep func(*lofamov1.Event) bool
	if id != "" {
		keep = func(ev *lofamov1.Event) bool { return ev.GetNode() == string(id) }
	}
	qctx, cancel := context.WithTimeout(ctx, proxyTime)
	_, _ = s.cfg.Copy.Revision(qctx) // without a quorum the copy as it is must do
	cancel()
	events, rev, err := s.cfg.Copy.Events(ctx, req.GetAfterRevision(), limit, keep)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &lofamov1.ListEventsResponse{Events: events, Revision: rev}, nil
}

// ListSupervisors implements the service.
func (s *Server) ListSupervisors(ctx context.Context, _ *lofamov1.ListSupervisorsRequest) (*lofamov1.ListSupervisorsResponse, error) {
	return &lofamov1.ListSupervisorsResponse{Supervisors: s.cfg.Directory.Supervisors(ctx)}, nil
}

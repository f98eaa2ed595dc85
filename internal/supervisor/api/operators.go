package api

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// Operators commits operators' changes while this replica leads; see engine.Engine.Change and engine.Engine.Topology.
type Operators interface {
	Change(ctx context.Context, change func(store.Topology) ([]store.Write, error)) (uint64, error)
	Topology(ctx context.Context) (store.Topology, error)
}

const (
	// changeTime bounds a change with its wait for a leader; the topology of a large torus takes many transactions.
	changeTime = 30 * time.Second
	// leaderLook is the interval between two tries to find a leader.
	leaderLook = 100 * time.Millisecond
)

// SubjectKey names the caller of a forwarded call. It is trusted only from a supervisor.
const SubjectKey = "lofamo-subject"

// subject returns the caller, "ROLE/NAME" as in the certificate. For a forwarded call the forwarding replica names
// the caller; no other role may.
func subject(ctx context.Context) (string, error) {
	id, err := caller(ctx)
	if err != nil {
		return "", status.Error(codes.PermissionDenied, err.Error())
	}
	if said := metadata.ValueFromIncomingContext(ctx, SubjectKey); id.Role == pki.RoleSupervisor && len(said) == 1 {
		return said[0], nil
	}
	return string(id.Role) + "/" + id.Name, nil
}

// lead runs a change at the leader: on this replica, or forwarded to the replica that leads.
func lead[R any](ctx context.Context, s *Server, do func(ctx context.Context, by string) (R, error),
	ask func(context.Context, lofamov1.FaultSupervisorClient) (R, error)) (R, error) {
	return leadBy(ctx, s, do, func(ctx context.Context, conn grpc.ClientConnInterface) (R, error) {
		return ask(ctx, lofamov1.NewFaultSupervisorClient(conn))
	})
}

// leadBy is lead for any gRPC service.
func leadBy[R any](ctx context.Context, s *Server, do func(ctx context.Context, by string) (R, error),
	ask func(context.Context, grpc.ClientConnInterface) (R, error)) (R, error) {
	by, err := subject(ctx)
	if err != nil {
		var none R
		return none, err
	}
	return leadAs(ctx, s, by, do, ask)
}

// leadAs is leadBy for a caller that the certificate does not identify. While no replica leads, it tries again for Config.LeaderWait. That
// is safe, because nothing was changed.
func leadAs[R any](ctx context.Context, s *Server, by string, do func(ctx context.Context, by string) (R, error),
	ask func(context.Context, grpc.ClientConnInterface) (R, error)) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	for end := time.Now().Add(s.cfg.LeaderWait); ; {
		resp, none, err := leadOnce(ctx, s, by, do, ask)
		if none == "" {
			return resp, err
		}
		if !time.Now().Before(end) {
			return resp, noLeader(none)
		}
		select {
		case <-ctx.Done():
			return resp, noLeader(none)
		case <-s.cfg.Stopping:
			return resp, noLeader("this supervisor is stopping")
		case <-time.After(leaderLook):
		}
	}
}

// leadNow is leadBy without a wait for a leader, for reads and for changes that must not be repeated. It takes at most the given time.
func leadNow[R any](ctx context.Context, s *Server, within time.Duration, do func(ctx context.Context, by string) (R, error),
	ask func(context.Context, grpc.ClientConnInterface) (R, error)) (resp R, err error) {
	by, err := subject(ctx)
	if err != nil {
		return resp, err
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	resp, none, err := leadOnce(ctx, s, by, do, ask)
	if none != "" {
		err = noLeader(none)
	}
	return resp, err
}

// leadOnce is one try of leadAs. A non-empty none says why no replica leads; then nothing was changed.
func leadOnce[R any](ctx context.Context, s *Server, by string, do func(ctx context.Context, by string) (R, error),
	ask func(context.Context, grpc.ClientConnInterface) (R, error)) (resp R, none string, err error) {
	resp, err = do(ctx, by)
	if !errors.Is(err, engine.ErrNotLeading) {
		return resp, "", changeStatus(err)
	}
	if isProxied(ctx) {
		return resp, "", withInfo(codes.FailedPrecondition, reasonNotLeading, err.Error(), nil)
	}
	leader := s.cfg.Directory.Leader()
	conn := s.cfg.Directory.Conn(leader)
	if conn == nil {
		return resp, "none is known", nil
	}
	var reached peer.Peer
	resp, err = ask(metadata.AppendToOutgoingContext(ctx, proxiedKey, "1", SubjectKey, by), noted{conn, &reached})
	switch code := status.Code(err); {
	case isNotLeading(err):
		return resp, "supervisor " + leader + " does not lead any more", nil
	case code == codes.Unavailable && reached.Addr == nil:
		return resp, "supervisor " + leader + ", which led last, is not reached", nil
	}
	return resp, "", err
}

// noLeader refuses a change that has not begun on any replica.
func noLeader(why string) error {
	return withInfo(codes.Unavailable, reasonNoLeader,
		"no leader: nothing was changed: "+why+". When a majority of the supervisors answers, one of them leads within seconds: "+
			"look who does not (lofamoctl get supervisors), start those, and try again", nil)
}

// noted records the peer of a call. Without a connection it stays empty: nothing was sent.
type noted struct {
	grpc.ClientConnInterface
	by *peer.Peer
}

func (n noted) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return n.ClientConnInterface.Invoke(ctx, method, args, reply, append(opts, grpc.Peer(n.by))...)
}

// changeStatus converts an error of a change into the API's errors.
func changeStatus(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrConflict):
		return status.Errorf(codes.Aborted, "%v: nothing was changed", err)
	case errors.Is(err, engine.ErrTopology), errors.Is(err, store.ErrRefused):
		return status.Errorf(codes.InvalidArgument, "%v: nothing was changed", err)
	case errors.Is(err, engine.ErrUnsettled):
		return status.Errorf(codes.DeadlineExceeded, "%v: the outcome is unknown: check when there is a leader, and ask again if "+
			"it was not", err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	if st, ok := status.FromError(err); ok {
		return st.Err()
	}
	return status.Error(codes.Internal, err.Error())
}

package client

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// changeTimeout bounds one attempt of a change: the topology of a large torus takes long.
const changeTimeout = 40 * time.Second

// change asks one supervisor after the other until one knows the outcome. It asks the next one only if nothing was changed: a supervisor
// was not reached, or refused the change because it had no leader or could not read its store. After other failures the change may have
// happened. If those that answer refuse it so and the others cannot be reached, the error is the last refusal.
func change[T any](ctx context.Context, c *Client, ask func(context.Context, lofamov1.FaultSupervisorClient) (T, error)) (T, error) {
	return changeBy(ctx, c, func(ctx context.Context, conn grpc.ClientConnInterface) (T, error) {
		return ask(ctx, lofamov1.NewFaultSupervisorClient(conn))
	})
}

// changeBy is change for any service of the supervisors.
func changeBy[T any](ctx context.Context, c *Client, ask func(context.Context, grpc.ClientConnInterface) (T, error)) (T, error) {
	var zero T
	var refused error
	for f := c.find(c.start(), anyAnswer); ; {
		i, err := f.next(ctx)
		var none *NoAnswerError
		switch {
		case errors.As(err, &none) && refused != nil:
			return zero, refused
		case err != nil:
			return zero, err
		}
		var reached peer.Peer
		var answer T
		conn, err := c.conn(i)
		if err == nil {
			tctx, cancel := context.WithTimeout(ctx, changeTimeout)
			answer, err = ask(tctx, peerRecorder{conn, &reached})
			cancel()
		}
		switch {
		case err == nil:
			return answer, nil
		case ctx.Err() != nil:
			return zero, ctx.Err()
		case status.Code(err) != codes.Unavailable:
			return zero, err
		case nothingChanged(err):
			refused = err
		case reached.Addr != nil:
			return zero, &UnknownOutcomeError{Try{c.cfg.Targets[i], err}}
		}
		f.failed(i, err)
	}
}

// nothingChanged reports whether a supervisor refused a change before it began.
func nothingChanged(err error) bool {
	st, _ := status.FromError(err)
	return slices.ContainsFunc(st.Details(), func(d any) bool {
		info, ok := d.(*errdetails.ErrorInfo)
		return ok && (info.GetReason() == "NO_LEADER" || info.GetReason() == "NOTHING_CHANGED")
	})
}

// peerRecorder records which peer a call reached. It stays empty without a connection: then nothing was sent.
type peerRecorder struct {
	grpc.ClientConnInterface
	by *peer.Peer
}

func (n peerRecorder) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return n.ClientConnInterface.Invoke(ctx, method, args, reply, append(opts, grpc.Peer(n.by))...)
}

// GetTopology returns the topology: sizes, nodes with places, labels and addresses, spares.
func (c *Client) GetTopology(ctx context.Context) (*lofamov1.Topology, error) {
	return call(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.Topology, error) {
		return s.GetTopology(ctx, &lofamov1.GetTopologyRequest{})
	})
}

// ApplyTopology replaces the topology.
func (c *Client) ApplyTopology(ctx context.Context, req *lofamov1.ApplyTopologyRequest) (*lofamov1.ApplyTopologyResponse, error) {
	return change(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.ApplyTopologyResponse, error) {
		return s.ApplyTopology(ctx, req)
	})
}

// SetMaintenance puts nodes under maintenance.
func (c *Client) SetMaintenance(ctx context.Context, req *lofamov1.SetMaintenanceRequest) (*lofamov1.SetMaintenanceResponse, error) {
	return change(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.SetMaintenanceResponse, error) {
		return s.SetMaintenance(ctx, req)
	})
}

// EndMaintenance ends the maintenance of nodes.
func (c *Client) EndMaintenance(ctx context.Context, req *lofamov1.EndMaintenanceRequest) (*lofamov1.EndMaintenanceResponse, error) {
	return change(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.EndMaintenanceResponse, error) {
		return s.EndMaintenance(ctx, req)
	})
}

// SetMask masks links or unmasks them.
func (c *Client) SetMask(ctx context.Context, req *lofamov1.SetMaskRequest) (*lofamov1.SetMaskResponse, error) {
	return changeBy(ctx, c, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.SetMaskResponse, error) {
		return lofamov1.NewReconfigureClient(conn).SetMask(ctx, req)
	})
}

// ListMasks returns the masked links. It takes the answer of a replica without a leader only if no other replica has a fresh one.
func (c *Client) ListMasks(ctx context.Context) (*lofamov1.ListMasksResponse, error) {
	var old *lofamov1.ListMasksResponse
	resp, err := readBy(ctx, c, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.ListMasksResponse, error) {
		r, err := lofamov1.NewReconfigureClient(conn).ListMasks(ctx, &lofamov1.ListMasksRequest{})
		if r.GetStale() {
			old, err = r, status.Error(codes.Unavailable, "it reaches no leader") // so that the next supervisor is asked
		}
		return r, err
	})
	if err != nil && old != nil {
		return old, nil
	}
	return resp, err
}

// CloseRegions masks links until faulty regions are convex, or only finds the concave ones.
func (c *Client) CloseRegions(ctx context.Context, req *lofamov1.CloseRegionsRequest) (*lofamov1.CloseRegionsResponse, error) {
	return changeBy(ctx, c, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.CloseRegionsResponse, error) {
		return lofamov1.NewReconfigureClient(conn).CloseRegions(ctx, req)
	})
}

// JoinNodes puts nodes into the running torus.
func (c *Client) JoinNodes(ctx context.Context, req *lofamov1.JoinNodesRequest) (*lofamov1.JoinNodesResponse, error) {
	return changeBy(ctx, c, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.JoinNodesResponse, error) {
		return lofamov1.NewReconfigureClient(conn).JoinNodes(ctx, req)
	})
}

// LeaveNodes takes nodes out of the running torus.
func (c *Client) LeaveNodes(ctx context.Context, req *lofamov1.LeaveNodesRequest) (*lofamov1.LeaveNodesResponse, error) {
	return changeBy(ctx, c, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.LeaveNodesResponse, error) {
		return lofamov1.NewReconfigureClient(conn).LeaveNodes(ctx, req)
	})
}

// MoveNodes gives nodes of the running torus other places.
func (c *Client) MoveNodes(ctx context.Context, req *lofamov1.MoveNodesRequest) (*lofamov1.MoveNodesResponse, error) {
	return changeBy(ctx, c, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.MoveNodesResponse, error) {
		return lofamov1.NewReconfigureClient(conn).MoveNodes(ctx, req)
	})
}

// CreateToken makes a token with which nodes enrol.
func (c *Client) CreateToken(ctx context.Context, req *lofamov1.CreateTokenRequest) (*lofamov1.CreateTokenResponse, error) {
	return changeBy(ctx, c, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.CreateTokenResponse, error) {
		return lofamov1.NewEnrolmentClient(conn).CreateToken(ctx, req)
	})
}

// ListTokens returns the tokens that have not expired, without their secrets.
func (c *Client) ListTokens(ctx context.Context) (*lofamov1.ListTokensResponse, error) {
	return readBy(ctx, c, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.ListTokensResponse, error) {
		return lofamov1.NewEnrolmentClient(conn).ListTokens(ctx, &lofamov1.ListTokensRequest{})
	})
}

// RevokeToken ends a token.
func (c *Client) RevokeToken(ctx context.Context, id string) (*lofamov1.RevokeTokenResponse, error) {
	return changeBy(ctx, c, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.RevokeTokenResponse, error) {
		return lofamov1.NewEnrolmentClient(conn).RevokeToken(ctx, &lofamov1.RevokeTokenRequest{Id: id})
	})
}

package agent

import (
	"context"

	"google.golang.org/grpc"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/hostcore"
	"github.com/lofamo/lofamo/internal/agent/local"
)

// serveLocal answers the jobs of this node until ctx ends. The half does not need it: where its socket
// cannot be made, it says so and goes on.
func (h *hostHalf) serveLocal(ctx context.Context) {
	l, err := listenUnix(ctx, h.statePath(local.Socket))
	if err != nil {
		h.log.Warn("jobs on this node will not be told of faults", "err", err)
		return
	}
	// Handlers step the half even when they end, and it is gone soon after ctx ends: they are waited for.
	srv := grpc.NewServer(grpc.MaxConcurrentStreams(128), grpc.MaxRecvMsgSize(1<<20), grpc.WaitForHandlers(true))
	lofamov1.RegisterLocalServer(srv, h.local)
	stop := context.AfterFunc(ctx, srv.Stop)
	defer stop()
	if err := srv.Serve(l); err != nil && ctx.Err() == nil {
		h.log.Warn("jobs on this node are not told of faults any more", "err", err)
	}
}

// Known implements local.Half.
func (h *hostHalf) Known(ids []fault.NodeID) hostcore.Known {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.core.Known(ids)
}

// Watch implements local.Half.
func (h *hostHalf) Watch(ids []fault.NodeID) { h.step(hostcore.Watch{Nodes: ids}) }

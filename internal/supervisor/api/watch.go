package api

import (
	"context"
	"errors"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Watch implements the service.
func (s *Server) Watch(req *lofamov1.WatchRequest, stream grpc.ServerStreamingServer[lofamov1.WatchResponse]) error {
	id, err := s.findOptional(req.GetNode())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	if err := s.checkRevision(ctx, req.GetAfterRevision()); err != nil {
		return err
	}
	var seen <-chan *lofamov1.Event
	if req.GetAsSeen() {
		changes, unsubscribe, err := s.cfg.Engine.Seen(s.cfg.WatchQueue)
		if err != nil {
			return s.watchAtLeader(ctx, req, stream)
		}
		defer unsubscribe()
		seen = changes
	}
	s.cfg.Metrics.Watchers.Inc()
	defer s.cfg.Metrics.Watchers.Dec()
	w := &watcher{
		node: id, queue: make(chan *lofamov1.WatchResponse, s.cfg.WatchQueue),
		updates: s.cfg.Copy.Watch(ctx, req.GetAfterRevision()), seen: seen, stopping: s.cfg.Stopping,
	}
	w.sent.Store(req.GetAfterRevision())
	// Sending has a goroutine of its own: where the client does not read, it blocks until the handler
	// has returned.
	failed := make(chan error, 1)
	go func() { failed <- w.send(ctx, stream) }()
	err = w.collect(ctx, failed)
	if status.Code(err) == codes.ResourceExhausted {
		s.cfg.Metrics.SlowCut.Inc()
	}
	return err
}

// checkRevision refuses revisions that are still to come: they are another store's. Without a
// quorum it cannot tell, and lets pass.
func (s *Server) checkRevision(ctx context.Context, after uint64) error {
	if after == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, proxyTime)
	defer cancel()
	if rev, err := s.cfg.Copy.Revision(ctx); err == nil && after > rev {
		return status.Errorf(codes.OutOfRange, "after_revision: given %d: the store is at %d: list again and watch after the list's revision", after, rev)
	}
	return nil
}

// watchAtLeader passes a watch for changes as seen on to the leader, which alone sees them.
func (s *Server) watchAtLeader(ctx context.Context, req *lofamov1.WatchRequest, stream grpc.ServerStreamingServer[lofamov1.WatchResponse]) error {
	c := s.leader()
	if isProxied(stream.Context()) || c == nil {
		return status.Error(codes.Unavailable, "as_seen: only the leader sees changes before their commit, and there is none that this replica can ask")
	}
	in, err := c.Watch(metadata.AppendToOutgoingContext(ctx, proxiedKey, "1"), req)
	if err != nil {
		return err
	}
	for {
		resp, err := in.Recv()
		if err != nil {
			return err
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

// watcher is one watch: collect fills the queue, send empties it.
type watcher struct {
	node     fault.NodeID // empty for all
	queue    chan *lofamov1.WatchResponse
	updates  <-chan store.Update
	seen     <-chan *lofamov1.Event // nil unless asked for
	stopping <-chan struct{}
	sent     atomic.Uint64 // revision of what was sent last
}

// collect returns when the watch ends, with the reason for the client.
func (w *watcher) collect(ctx context.Context, failed <-chan error) error {
	for {
		var resp *lofamov1.WatchResponse
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-w.stopping:
			return status.Errorf(codes.Unavailable, "this supervisor is stopping: resume after revision %d at another", w.sent.Load())
		case err := <-failed:
			return err
		case ev, ok := <-w.seen:
			if !ok {
				return status.Errorf(codes.Unavailable, "as_seen: leadership moved, or the client is too slow: resume after revision %d", w.sent.Load())
			}
			if w.node != "" && ev.GetNode() != string(w.node) {
				continue
			}
			resp = &lofamov1.WatchResponse{Events: []*lofamov1.Event{ev}}
		case u, ok := <-w.updates:
			if !ok {
				return status.Errorf(codes.Unavailable, "the store's watch ended: resume after revision %d", w.sent.Load())
			}
			if u.Err != nil {
				return w.refusal(u.Err)
			}
			if resp = w.filter(u); resp == nil {
				continue
			}
		}
		select {
		case w.queue <- resp:
		default:
			return status.Errorf(codes.ResourceExhausted, "the client is %d updates behind: resume after revision %d", cap(w.queue), w.sent.Load())
		}
	}
}

// filter leaves out other nodes' events, and updates of which nothing is left.
func (w *watcher) filter(u store.Update) *lofamov1.WatchResponse {
	resp := &lofamov1.WatchResponse{Revision: u.Revision, Events: u.Events}
	if w.node == "" || len(u.Events) == 0 {
		return resp
	}
	resp.Events = nil
	for _, ev := range u.Events {
		if ev.GetNode() == string(w.node) {
			resp.Events = append(resp.Events, ev)
		}
	}
	if len(resp.Events) == 0 {
		return nil
	}
	return resp
}

func (w *watcher) refusal(err error) error {
	if errors.Is(err, store.ErrCompacted) {
		return status.Errorf(codes.OutOfRange, "%v: list again and watch after the list's revision", err)
	}
	return status.Errorf(codes.Unavailable, "%v: resume after revision %d", err, w.sent.Load())
}

func (w *watcher) send(ctx context.Context, stream grpc.ServerStreamingServer[lofamov1.WatchResponse]) error {
	for {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case resp := <-w.queue:
			if err := stream.Send(resp); err != nil {
				return err
			}
			if resp.GetRevision() > 0 {
				w.sent.Store(resp.GetRevision())
			}
		}
	}
}

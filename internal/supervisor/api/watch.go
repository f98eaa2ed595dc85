package api

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Watch implements the service.
func (s *Server) Watch(req *lofamov1.WatchRequest, stream grpc.ServerStreamingServer[lofamov1.WatchResponse]) error {
	f, err := s.newEventFilter(req.GetNode(), req.GetLabelSelector(), req.GetFieldSelector())
	if err != nil {
		return err
	}
	if req.GetInitial() && req.GetAfterRevision() > 0 {
		return invalid("initial", "given with after_revision %d: want only one of the two, because the initial map has its own revision",
			req.GetAfterRevision())
	}
	from := place{req.GetAfterRevision(), req.GetAfterIndex()}
	if err := from.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	w := &watcher{s: s, stream: stream, keep: f.keep(), from: from}
	after, err := s.startOf(ctx, req.GetAfterRevision())
	if err != nil {
		return err
	}
	if req.GetAsSeen() {
		changes, unsubscribe, err := s.cfg.Engine.Seen(s.cfg.WatchQueue)
		if err != nil {
			return s.watchAtLeader(ctx, req, stream)
		}
		defer unsubscribe()
		w.seen = changes
	}
	s.cfg.Metrics.Watchers.Inc()
	defer s.cfg.Metrics.Watchers.Dec()
	if req.GetInitial() {
		if after, err = s.sendInitial(ctx, req, w); err != nil {
			return err
		}
	}
	if from.index > 0 {
		after = from.before()
	}
	w.sent.Store(after)
	err = w.run(ctx, after, req.GetAfterRevision() == 0 && !req.GetInitial())
	if status.Code(err) == codes.ResourceExhausted {
		s.cfg.Metrics.SlowCut.Inc()
	}
	return err
}

// startOf returns the revision that a watch begins after: the requested one, or the newest for 0. It refuses
// revisions from the future, which belong to another store. Without a quorum it cannot tell, and accepts them.
func (s *Server) startOf(ctx context.Context, after uint64) (uint64, error) {
	bounded, cancel := context.WithTimeout(ctx, proxyTime)
	defer cancel()
	rev, err := s.cfg.Copy.Revision(bounded)
	switch {
	case err == nil && after > rev:
		return 0, expired(fmt.Sprintf("after_revision: given %d: the store is at %d", after, rev), listAgain)
	case after > 0:
		return after, nil
	case err == nil:
		return rev, nil
	}
	b, err := s.cfg.Copy.Bounds(ctx)
	if err != nil {
		return 0, status.Error(codes.Unavailable, err.Error())
	}
	return b.Revision, nil
}

// watchAtLeader forwards a watch for uncommitted changes to the leader, which alone sees them.
func (s *Server) watchAtLeader(ctx context.Context, req *lofamov1.WatchRequest,
	stream grpc.ServerStreamingServer[lofamov1.WatchResponse]) error {
	c := s.leader()
	if isProxied(stream.Context()) || c == nil {
		return status.Error(codes.Unavailable, "as_seen: only the leader sees changes before their commit, and there is none that this replica "+
			"can ask")
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

// watcher is one watch. Two goroutines send committed and uncommitted changes: sending blocks while the client does
// not read, until the handler has returned.
type watcher struct {
	s      *Server
	stream grpc.ServerStreamingServer[lofamov1.WatchResponse]
	keep   func(*lofamov1.Event) bool // nil: all
	seen   <-chan *lofamov1.Event     // nil unless requested
	from   place                      // where the watch began

	mu   sync.Mutex    // held while sending
	sent atomic.Uint64 // revision sent last
}

// run returns when the watch ends, with the reason for the client. With fromNow it first sends the starting revision.
func (w *watcher) run(ctx context.Context, after uint64, fromNow bool) error {
	sub := w.s.hub.Subscribe(after)
	defer sub.Close()
	failed := make(chan error, 2)
	go func() {
		if fromNow {
			if err := w.send(&lofamov1.WatchResponse{Revision: after}); err != nil {
				failed <- err
				return
			}
		}
		failed <- w.committed(ctx, sub)
	}()
	if w.seen != nil {
		go func() { failed <- w.asSeen(ctx) }()
	}
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-w.s.cfg.Stopping:
		return resumable(codes.Unavailable, reasonResume, w.sent.Load(), "this supervisor is stopping, another goes on")
	case <-sub.Slow():
		return w.tooSlow()
	case err := <-failed:
		return err
	}
}

func (w *watcher) tooSlow() error {
	return resumable(codes.ResourceExhausted, reasonSlow, w.sent.Load(), "the client is more than %d updates behind", w.s.cfg.WatchQueue)
}

// send sends a message: a response, or an encoded one.
func (w *watcher) send(m any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stream.SendMsg(m)
}

// committed sends committed changes.
func (w *watcher) committed(ctx context.Context, sub *subscription) error {
	for {
		frames, err := sub.Next(ctx)
		if err != nil {
			return w.refusal(err)
		}
		for _, f := range frames {
			if f.Len() == 0 && f.Revision <= w.sent.Load() {
				continue // a bookmark without news
			}
			keep := w.keep
			if w.from.index > 0 && f.Revision == w.from.revision {
				keep = w.from.keep(keep)
			}
			pieces := f.Wire(keep)
			if pieces == nil {
				continue
			}
			if err := w.send(asEncoded(pieces)); err != nil {
				return err
			}
			w.sent.Store(f.Revision)
		}
	}
}

// asSeen sends changes that the leader sees before they are committed.
func (w *watcher) asSeen(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case ev, ok := <-w.seen:
			if !ok {
				return resumable(codes.Unavailable, reasonResume, w.sent.Load(), "as_seen: leadership moved, or the client is too slow")
			}
			if w.keep != nil && !w.keep(ev) {
				continue
			}
			if err := w.send(&lofamov1.WatchResponse{Events: []*lofamov1.Event{ev}}); err != nil {
				return err
			}
		}
	}
}

// refusal returns the error with which a watch ends.
func (w *watcher) refusal(err error) error {
	if gone, ok := asExpired(err, listAgain); ok {
		return gone
	}
	switch {
	case errors.Is(err, errSlowReader):
		return w.tooSlow()
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	return resumable(codes.Unavailable, reasonResume, w.sent.Load(), "%v", err)
}

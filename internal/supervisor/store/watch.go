package store

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Watch sends the events committed after a revision (0: from now on), grouped by revision, with bookmarks in between.
// The first update of a watch from now on is a bookmark with its starting revision. The channel is closed after an
// update with Err, and when the context ends. The reader must be fast: etcd's client queues updates without bound.
func (s *Etcd) Watch(ctx context.Context, after uint64) <-chan Update {
	out := make(chan Update)
	opts := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithFilterDelete(), clientv3.WithProgressNotify(),
		clientv3.WithCreatedNotify()}
	if after > 0 {
		opts = append(opts, clientv3.WithRev(int64(after)+1))
	}
	ctx, cancel := context.WithCancel(ctx)
	in := s.c.Watch(ctx, keyEvents, opts...)
	s.watchers.Add(1)
	go func() {
		defer func() {
			cancel()
			s.watchers.Add(-1)
			close(out)
		}()
		w := watch{out: out, last: after}
		for resp := range in {
			if !w.handle(ctx, resp) {
				return
			}
		}
		if ctx.Err() == nil {
			w.send(ctx, Update{Err: fmt.Errorf("watch events after revision %d: the store closed the watch", w.last)})
		}
	}()
	return out
}

// watch follows one etcd watch. last is the newest revision sent: updates never go back.
type watch struct {
	out  chan<- Update
	last uint64
}

func (w *watch) handle(ctx context.Context, resp clientv3.WatchResponse) bool {
	if resp.CompactRevision != 0 {
		return w.send(ctx, Update{Err: fmt.Errorf("%w: asked for what follows %d, the oldest kept is %d", ErrCompacted, w.last,
			resp.CompactRevision)})
	}
	if err := resp.Err(); err != nil {
		return w.send(ctx, Update{Err: fmt.Errorf("watch events after revision %d: %w", w.last, err)})
	}
	if resp.Created {
		// With a start revision the header may be ahead of events still to come.
		return w.last != 0 || w.send(ctx, Update{Revision: uint64(resp.Header.Revision)})
	}
	if resp.IsProgressNotify() {
		rev := uint64(resp.Header.Revision)
		return rev <= w.last || w.send(ctx, Update{Revision: rev})
	}
	var cur Update
	for _, e := range resp.Events {
		if e.Type != mvccpb.Event_PUT {
			continue
		}
		ev, err := decodeEvent(e.Kv)
		if err != nil {
			return w.send(ctx, Update{Err: err})
		}
		if cur.Events != nil && cur.Revision != ev.Revision {
			if !w.send(ctx, cur) {
				return false
			}
			cur = Update{}
		}
		cur.Revision = ev.Revision
		cur.Events = append(cur.Events, ev)
	}
	return cur.Events == nil || w.send(ctx, cur)
}

// send sends an update, and reports whether to continue.
func (w *watch) send(ctx context.Context, u Update) bool {
	select {
	case w.out <- u:
	case <-ctx.Done():
		return false
	}
	w.last = max(w.last, u.Revision)
	return u.Err == nil
}

// Run requests bookmarks from etcd while there are watchers, until the context ends.
func (s *Etcd) Run(ctx context.Context) {
	t := time.NewTicker(s.opts.Bookmarks)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if s.watchers.Load() > 0 {
			// After a failure only this bookmark is missing.
			_ = s.c.RequestProgress(ctx)
		}
	}
}

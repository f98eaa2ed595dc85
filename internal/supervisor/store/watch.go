package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// Watch sends the events committed after a revision (0: from now on), grouped by revision, with bookmarks in between.
// The first update of a watch from now on is a bookmark with its starting revision. The channel is closed after an
// update with Err, and when the context ends. The reader must be fast: etcd's client queues updates without bound.
func (s *Etcd) Watch(ctx context.Context, after uint64) <-chan Update {
	return watch(ctx, s, watching[Update]{
		what: "watch events", key: keyEvents, after: after, fromNow: after == 0,
		options:  []clientv3.OpOption{clientv3.WithFilterDelete()},
		bookmark: func(revision uint64) Update { return Update{Revision: revision} },
		failed:   func(err error) Update { return Update{Err: err} },
		update: func(revision uint64, changes []*clientv3.Event) (Update, bool, error) {
			u := Update{Revision: revision}
			for _, e := range changes {
				ev, err := decodeEvent(e.Kv)
				if err != nil {
					return u, false, err
				}
				u.Events, u.Values = append(u.Events, ev), append(u.Values, e.Kv.Value)
			}
			return u, true, nil
		},
	})
}

// watching describes a watch of the keys with a prefix, and its updates of type T.
type watching[T any] struct {
	what, key string // what begins error texts
	after     uint64
	fromNow   bool // not after a revision; the first update is a bookmark
	options   []clientv3.OpOption
	bookmark  func(revision uint64) T // nothing else changed up to a revision
	failed    func(error) T           // the last update
	// update makes the update of one transaction; false: the transaction is of no interest.
	update func(revision uint64, changes []*clientv3.Event) (T, bool, error)
}

// watch sends the updates of w in order, with bookmarks in between. The channel is closed after a failure, and when the
// context ends. Each watch has its own gRPC stream, because etcd answers a request for bookmarks only if no watch of the
// stream waits for a revision that the store does not have yet. A watch that ends because its member has no leader resumes, at another
// member if there is one.
func watch[T any](ctx context.Context, s *Etcd, w watching[T]) <-chan T {
	ctx = metadata.AppendToOutgoingContext(ctx, "lofamo-watch", strconv.FormatUint(s.streams.Add(1), 10))
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	r := reading[T]{watching: w, out: make(chan T), last: w.after}
	r.in = r.open(ctx, s.c)
	go func() {
		defer close(r.out)
		defer cancel()
		err := led(ctx, mostLedPause, func(resumed bool) error {
			if resumed {
				r.in = r.open(ctx, s.c)
			}
			return r.run(ctx, func() { _ = s.c.RequestProgress(ctx) }, s.opts.Bookmarks) // after a failure the next request follows
		})
		if err != nil && ctx.Err() == nil {
			_ = r.send(ctx, w.failed(err), r.last) // fails only when the context ends
		}
	}()
	return r.out
}

// reading is a running watch. last is the newest revision that was sent: updates never go back.
type reading[T any] struct {
	watching[T]
	in   clientv3.WatchChan
	out  chan T
	last uint64
}

// open starts the watch after the last revision that was sent, or from now on.
func (r *reading[T]) open(ctx context.Context, c *clientv3.Client) clientv3.WatchChan {
	opts := append([]clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithProgressNotify()}, r.options...)
	if r.fromNow && r.last == 0 {
		opts = append(opts, clientv3.WithCreatedNotify())
	} else {
		opts = append(opts, clientv3.WithRev(int64(r.last)+1))
	}
	return c.Watch(ctx, r.key, opts...)
}

// Bounds of the pause before a watch is resumed.
const (
	leastLedPause = 100 * time.Millisecond
	mostLedPause  = 3 * time.Second
)

// led calls do until it returns another error than ErrNoLeader, with growing pauses of at most most. do must use
// clientv3.WithRequireLeader, else it would wait in silence at a member that is cut off from its quorum. resumed is false for the first
// call.
func led(ctx context.Context, most time.Duration, do func(resumed bool) error) error {
	for d, resumed := leastLedPause, false; ; resumed = true {
		began := time.Now()
		if err := do(resumed); !errors.Is(err, rpctypes.ErrNoLeader) {
			return err
		}
		if time.Since(began) > most {
			d = leastLedPause // it worked for a while
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d/2 + rand.N(d/2+1)): //nolint:gosec // jitter
		}
		d = min(2*d, most)
	}
}

// firstBookmark is the time until a watch first asks etcd for a bookmark. Later pauses grow to Options.Bookmarks.
const firstBookmark = 50 * time.Millisecond

// run handles the answers until the watch fails or the context ends.
func (r *reading[T]) run(ctx context.Context, ask func(), longest time.Duration) error {
	pause := firstBookmark
	due := time.NewTimer(pause)
	defer due.Stop()
	for {
		var resp clientv3.WatchResponse
		var open bool
		select {
		case resp, open = <-r.in:
		case <-due.C:
			pause = min(2*pause, longest)
			due.Reset(pause)
			select {
			case resp, open = <-r.in: // a closed watch must not be asked: the request would open another stream
			default:
				ask()
				continue
			}
		}
		if !open {
			return fmt.Errorf("%s after revision %d: the store closed the watch", r.what, r.last)
		}
		if err := r.handle(ctx, resp); err != nil {
			return err
		}
	}
}

// handle sends the updates in one answer of etcd.
func (r *reading[T]) handle(ctx context.Context, resp clientv3.WatchResponse) error {
	if resp.CompactRevision != 0 {
		return fmt.Errorf("%w: changes after %d were requested, the oldest kept is %d", ErrCompacted, r.last, resp.CompactRevision)
	}
	if err := resp.Err(); err != nil {
		return fmt.Errorf("%s after revision %d: %w", r.what, r.last, err)
	}
	if resp.Created || resp.IsProgressNotify() {
		if revision := uint64(resp.Header.Revision); revision > r.last {
			return r.send(ctx, r.bookmark(revision), revision)
		}
		return nil
	}
	for events := resp.Events; len(events) > 0; {
		n, revision := 1, events[0].Kv.ModRevision
		for n < len(events) && events[n].Kv.ModRevision == revision {
			n++
		}
		u, wanted, err := r.update(uint64(revision), events[:n])
		if err != nil {
			return err
		}
		if wanted {
			if err := r.send(ctx, u, uint64(revision)); err != nil {
				return err
			}
		}
		events = events[n:]
	}
	return nil
}

// send sends the update of a revision. It fails when the context ends.
func (r *reading[T]) send(ctx context.Context, u T, revision uint64) error {
	select {
	case r.out <- u:
		r.last = revision
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

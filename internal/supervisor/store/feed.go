package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Change is the part of one transaction that is forwarded to a parent of regions. Without events and documents it
// says up to which revision there was none. Err ends the watch.
type Change struct {
	*lofamov1.UpstreamChange
	Err error
}

func eventNumber(key string) (uint64, error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(key, keyEvents), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", key, err)
	}
	return n, nil
}

// Follow sends the commits after a revision, one change per transaction: events, and documents with wanted keys
// (below Prefix), with bookmarks in between. The channel is closed after a change with Err (ErrCompacted if the next
// commit is no longer kept), and when the context ends.
func (s *Etcd) Follow(ctx context.Context, after uint64, wanted func(key string) bool) <-chan Change {
	out := make(chan Change)
	ctx, cancel := context.WithCancel(s.ownStream(ctx))
	in := s.c.Watch(ctx, Prefix, clientv3.WithPrefix(), clientv3.WithProgressNotify(), clientv3.WithRev(int64(after)+1))
	go func() {
		defer func() {
			cancel()
			close(out)
		}()
		f := follower{out: out, wanted: wanted, last: after}
		pause := firstBookmark
		bookmark := time.NewTimer(pause)
		defer bookmark.Stop()
		for {
			var resp clientv3.WatchResponse
			var open bool
			select {
			case resp, open = <-in:
			case <-bookmark.C:
				pause = min(2*pause, s.opts.Bookmarks)
				bookmark.Reset(pause)
				select {
				case resp, open = <-in: // a closed watch must not be asked: the request would open another stream
				default:
					_ = s.c.RequestProgress(ctx) // after a failure the next request follows
					continue
				}
			}
			switch {
			case open && f.handle(ctx, resp):
				continue
			case !open && ctx.Err() == nil:
				f.fail(ctx, fmt.Errorf("follow the map after revision %d: the store closed the watch", f.last))
			}
			return
		}
	}()
	return out
}

// firstBookmark is the time until a follower first asks etcd for a bookmark. Later pauses grow to Options.Bookmarks.
const firstBookmark = 50 * time.Millisecond

// ownStream makes a watch use its own gRPC stream, because etcd answers a request for bookmarks only if no watch of the stream
// waits for a revision that the store does not have yet.
func (s *Etcd) ownStream(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "lofamo-watch", strconv.FormatUint(s.streams.Add(1), 10))
}

// follower follows one etcd watch. last is the newest revision that was sent.
type follower struct {
	out    chan<- Change
	wanted func(key string) bool
	last   uint64
}

func (f *follower) handle(ctx context.Context, resp clientv3.WatchResponse) bool {
	if resp.CompactRevision != 0 {
		return f.fail(ctx, fmt.Errorf("%w: asked for what follows %d, the oldest kept is %d", ErrCompacted, f.last, resp.CompactRevision))
	}
	if err := resp.Err(); err != nil {
		return f.fail(ctx, fmt.Errorf("follow the map after revision %d: %w", f.last, err))
	}
	if resp.IsProgressNotify() {
		rev := uint64(resp.Header.Revision)
		return rev <= f.last || f.send(ctx, &lofamov1.UpstreamChange{Revision: rev})
	}
	var cur *lofamov1.UpstreamChange
	for _, e := range resp.Events {
		rev := uint64(e.Kv.ModRevision)
		if cur != nil && cur.GetRevision() != rev {
			if !f.sendFull(ctx, cur) {
				return false
			}
			cur = nil
		}
		if cur == nil {
			cur = &lofamov1.UpstreamChange{Revision: rev}
		}
		if err := f.add(cur, e); err != nil {
			return f.fail(ctx, err)
		}
	}
	return cur == nil || f.sendFull(ctx, cur)
}

// add adds one key of a transaction to a change.
func (f *follower) add(c *lofamov1.UpstreamChange, e *clientv3.Event) error {
	key := string(e.Kv.Key)
	deleted := e.Type == mvccpb.Event_DELETE
	if strings.HasPrefix(key, keyEvents) {
		if deleted {
			return nil // trimmed history
		}
		n, err := eventNumber(key)
		if err != nil {
			return err
		}
		ev, err := decodeEvent(e.Kv)
		if err != nil {
			return err
		}
		if c.GetEvents() == nil {
			c.FirstEvent = n
		}
		c.Events = append(c.Events, ev)
		return nil
	}
	if below := strings.TrimPrefix(key, Prefix); f.wanted(below) {
		c.Documents = append(c.Documents, &lofamov1.Document{Key: below, Value: e.Kv.Value, Deleted: deleted})
	}
	return nil
}

// sendFull sends a change unless it is empty.
func (f *follower) sendFull(ctx context.Context, c *lofamov1.UpstreamChange) bool {
	return len(c.GetEvents())+len(c.GetDocuments()) == 0 || f.send(ctx, c)
}

func (f *follower) send(ctx context.Context, c *lofamov1.UpstreamChange) bool {
	select {
	case f.out <- Change{UpstreamChange: c}:
	case <-ctx.Done():
		return false
	}
	f.last = c.GetRevision()
	return true
}

func (f *follower) fail(ctx context.Context, err error) bool {
	select {
	case f.out <- Change{Err: err}:
	case <-ctx.Done():
	}
	return false
}

// Whole returns the documents whose keys begin with one of kinds (below Prefix), and the kept events from a number
// on, all at one revision and as new as the cluster's.
func (s *Etcd) Whole(ctx context.Context, kinds []string, fromEvent uint64) (*lofamov1.UpstreamChange, error) {
	ops := []clientv3.Op{
		clientv3.OpGet(keyHead),
		clientv3.OpGet(eventKey(fromEvent), clientv3.WithRange(clientv3.GetPrefixRangeEnd(keyEvents))),
	}
	for _, kind := range kinds {
		ops = append(ops, clientv3.OpGet(Prefix+kind, clientv3.WithPrefix()))
	}
	resp, err := s.c.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("read the whole map from the store: %w", err)
	}
	out := &lofamov1.UpstreamChange{Revision: uint64(resp.Header.Revision), FirstEvent: max(1, fromEvent)}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		var h head
		if err := json.Unmarshal(kv.Value, &h); err != nil {
			return nil, fmt.Errorf("read %s: %w", keyHead, err)
		}
		out.FirstEvent = h.Next
	}
	for i, kv := range resp.Responses[1].GetResponseRange().Kvs {
		ev, err := decodeEvent(kv)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			if out.FirstEvent, err = eventNumber(string(kv.Key)); err != nil {
				return nil, err
			}
		}
		out.Events = append(out.Events, ev)
	}
	for i := range kinds {
		for _, kv := range resp.Responses[2+i].GetResponseRange().Kvs {
			out.Documents = append(out.Documents, &lofamov1.Document{Key: strings.TrimPrefix(string(kv.Key), Prefix), Value: kv.Value})
		}
	}
	return out, nil
}

// Tree returns all keys below Prefix that begin with another prefix, without both prefixes, and their values with
// their revisions. With own it reads the replica's own copy, which needs no quorum.
func (s *Etcd) Tree(ctx context.Context, prefix string, own bool) ([]Entry, uint64, error) {
	opts := []clientv3.OpOption{clientv3.WithPrefix()}
	if own {
		opts = append(opts, clientv3.WithSerializable())
	}
	resp, err := s.c.Get(ctx, Prefix+prefix, opts...)
	if err != nil {
		return nil, 0, fmt.Errorf("read %s%s from the store: %w", Prefix, prefix, err)
	}
	out := make([]Entry, len(resp.Kvs))
	for i, kv := range resp.Kvs {
		out[i] = Entry{Key: strings.TrimPrefix(string(kv.Key), Prefix+prefix), Value: kv.Value, Revision: uint64(kv.ModRevision)}
	}
	return out, uint64(resp.Header.Revision), nil
}

// Entry is a key of a Tree.
type Entry struct {
	Key      string
	Value    []byte
	Revision uint64
}

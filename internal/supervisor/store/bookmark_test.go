package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// TestWatchesGetBookmarksBesideWatchOfFuture commits only keys that no watch wants, while another watch of the same
// client waits for a revision to come. Each watch must still learn that it has read everything.
func TestWatchesGetBookmarksBesideWatchOfFuture(t *testing.T) {
	c := outside(t)
	s := store.NewEtcd(c, store.Options{Bookmarks: 100 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), 4*supervisortest.Wait)
	future := s.FollowMap(ctx, 1000)
	defer func() {
		cancel()
		for range future { // until it is closed
		}
	}()
	var head uint64
	for _, key := range []string{"lead/a", "lead/b", "lead/a"} {
		put, err := c.Put(ctx, store.Prefix+key, "x")
		if err != nil {
			t.Fatal(err)
		}
		head = uint64(put.Header.Revision)
	}
	for _, tc := range []struct {
		name string
		// watch reads changes after a revision until one passes head, and reports whether all before were bookmarks.
		watch func(ctx context.Context, after uint64) (bool, error)
	}{
		{"Watch", func(ctx context.Context, after uint64) (bool, error) {
			return readTo(head, s.Watch(ctx, after), func(u store.Update) (uint64, bool, error) { return u.Revision, len(u.Events) == 0, u.Err })
		}},
		{"Follow", func(ctx context.Context, after uint64) (bool, error) {
			return readTo(head, s.Follow(ctx, after, func(string) bool { return false }), func(ch store.Change) (uint64, bool, error) {
				return ch.GetRevision(), len(ch.GetEvents())+len(ch.GetDocuments()) == 0, ch.Err
			})
		}},
		{"FollowMap", func(ctx context.Context, after uint64) (bool, error) {
			return readTo(head+1, s.FollowMap(ctx, after), func(u store.MapUpdate) (uint64, bool, error) { return u.Revision, u.Empty(), u.Err })
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.name == "FollowMap" { // it passes every transaction under its prefix: only a bookmark can pass another key
				put, err := c.Put(ctx, "/elsewhere", "x")
				if err != nil {
					t.Fatal(err)
				}
				if uint64(put.Header.Revision) != head+1 {
					t.Fatalf("revision %d: want %d", put.Header.Revision, head+1)
				}
			}
			ctx, cancel := context.WithTimeout(ctx, supervisortest.Wait)
			defer cancel()
			if only, err := tc.watch(ctx, head-2); err != nil || !only {
				t.Fatalf("only bookmarks %v, %v: want bookmarks up to revision %d", only, err, head)
			}
		})
	}
}

// readTo reads updates until one has a revision of at least head. It reports whether all were bookmarks.
func readTo[T any](head uint64, in <-chan T, of func(T) (revision uint64, bookmark bool, err error)) (bool, error) {
	for u := range in {
		revision, bookmark, err := of(u)
		if err != nil || !bookmark {
			return false, err
		}
		if revision >= head {
			return true, nil
		}
	}
	return false, context.DeadlineExceeded
}

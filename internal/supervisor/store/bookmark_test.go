package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// TestFollowerGetsBookmarksBesideAWatchOfTheFuture commits only keys that the follower does not want, while another watch
// of the same client waits for a revision to come. The follower must still learn that it has read everything.
func TestFollowerGetsBookmarksBesideAWatchOfTheFuture(t *testing.T) {
	c := outside(t)
	s := store.NewEtcd(c, store.Options{Bookmarks: 100 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ran := make(chan struct{})
	go func() { defer close(ran); s.Run(ctx) }()
	defer func() { cancel(); <-ran }()
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
	for ch := range s.Follow(ctx, head-2, func(string) bool { return false }) {
		if ch.Err != nil {
			t.Fatal(ch.Err)
		}
		if len(ch.GetEvents())+len(ch.GetDocuments()) > 0 {
			t.Fatalf("%v: want bookmarks alone", ch)
		}
		if ch.GetRevision() >= head {
			return
		}
	}
	t.Fatalf("no bookmark of revision %d: %v", head, context.Cause(ctx))
}

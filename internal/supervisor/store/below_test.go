package store_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// TestUnreadableSettingsOfOneRegionStay: what one region stores cannot be read, as of a later version. Its former settings stay, and those
// of the other region are followed.
func TestUnreadableSettingsOfOneRegionStay(t *testing.T) {
	c := supervisortest.NewEtcd(t, 1).Members[0].Client()
	put := func(key string, value []byte) {
		t.Helper()
		if _, err := c.Put(t.Context(), store.Prefix+key, string(value)); err != nil {
			t.Fatal(err)
		}
	}
	mark := func(node string) []byte {
		b, err := proto.Marshal(&lofamov1.Maintenance{Node: node})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	put("regions/west/maintenance/w1", mark("w1"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	updates, ended := make(chan []store.Below, 64), make(chan error, 1)
	go func() {
		s := store.NewEtcd(c, store.Options{})
		ended <- s.FollowBelow(ctx, []string{"regions/west/", "regions/east/"}, func(all []store.Below) { updates <- all })
	}()
	await := func(what string, is func(west, east store.Below) bool) {
		t.Helper()
		for {
			select {
			case all := <-updates:
				if is(all[0], all[1]) {
					return
				}
			case err := <-ended:
				t.Fatalf("%s: the following ended: %v", what, err)
			case <-ctx.Done():
				t.Fatalf("%s: %v", what, ctx.Err())
			}
		}
	}
	await("the first mark", func(west, _ store.Below) bool { return len(west.Marks) == 1 && west.Unread == nil })
	put("regions/west/maintenance/w2", []byte{0xff})
	await("the unreadable mark", func(west, _ store.Below) bool { return west.Unread != nil && len(west.Marks) == 1 })
	put("regions/east/maintenance/e1", mark("e1"))
	await("the other region's mark", func(west, east store.Below) bool {
		return len(east.Marks) == 1 && east.Unread == nil && len(west.Marks) == 1
	})
	put("regions/west/maintenance/w2", mark("w2"))
	await("the repaired mark", func(west, _ store.Below) bool { return west.Unread == nil && len(west.Marks) == 2 })
	cancel()
	<-ended
}

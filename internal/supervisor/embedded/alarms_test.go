package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// TestRestoreOfFullStore: the snapshot is of a store that was full. The restored store accepts writes with a larger quota. If it is full
// itself, its own alarm says so.
func TestRestoreOfFullStore(t *testing.T) {
	keys := keys(t)
	m := start(t, config(t, keys))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := m.RaiseFull(ctx); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "snapshot")
	save(t, m.Client(), file)
	for _, tc := range []struct {
		what  string
		quota int64
		full  bool
	}{{"larger quota", 64 << 20, false}, {"no room", 1, true}} {
		t.Run(tc.what, func(t *testing.T) {
			cfg := config(t, keys)
			cfg.Token, cfg.QuotaBytes = "restored", tc.quota
			if _, err := embedded.Restore(embedded.RestoreConfig{
				Snapshot: file, DataDir: cfg.DataDir, Name: cfg.Name, PeerURL: cfg.PeerURL, InitialCluster: cfg.InitialCluster,
				Token: cfg.Token, At: time.Now(), Logger: slog.New(slog.DiscardHandler),
			}); err != nil {
				t.Fatal(err)
			}
			r := start(t, cfg)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			want := ""
			if tc.full {
				want = r.ID()
			}
			for ; ; <-tick.C { // until the alarm of the former member is disarmed, and its own is raised if it has no room
				_, grant := r.Client().Grant(ctx, 60)
				list, err := r.Client().AlarmList(ctx)
				if ctx.Err() != nil {
					t.Fatalf("alarms of %v, lease of the election: %v; want an alarm of %q", list, grant, want)
				}
				if err != nil || of(list.Alarms) != want {
					continue
				}
				if full := errors.Is(grant, rpctypes.ErrNoSpace); full == tc.full && (grant == nil || full) {
					break
				}
			}
			if got := fmt.Sprint(r.Alarms()); (got == "[NOSPACE]") != tc.full {
				t.Errorf("the replica's alarms: %s", got)
			}
		})
	}
}

// refusesDisarm is an etcd that disarms no alarm.
type refusesDisarm struct {
	clientv3.Maintenance

	tries atomic.Int64
}

func (r *refusesDisarm) AlarmDisarm(context.Context, *clientv3.AlarmMember) (*clientv3.AlarmResponse, error) {
	r.tries.Add(1)
	return nil, errors.New("no quorum")
}

// TestFailedDisarmIsRetriedSoon: no replica can lead while a former member's alarm stands, so a failed disarm is repeated within seconds.
func TestFailedDisarmIsRetriedSoon(t *testing.T) {
	m := start(t, config(t, keys(t)))
	refuses, c, loops := &refusesDisarm{}, clientv3.NewCtxClient(t.Context()), int64(0)
	c.Maintenance = refuses
	began := time.Now()
	supervisortest.Eventually(t, "a second attempt to disarm", func() bool {
		if err := m.RaiseFullOf(t.Context(), 1); err != nil { // again, because the member may have disarmed it
			t.Fatal(err)
		}
		if refuses.tries.Load() == 0 {
			m.DisarmBy(c)
			loops++
		}
		return refuses.tries.Load() > loops
	})
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the second attempt came after %v: want it after seconds", took)
	}
}

// of returns the IDs with alarms.
func of(alarms []*etcdserverpb.AlarmMember) string {
	var ids []string
	for _, a := range alarms {
		ids = append(ids, strconv.FormatUint(a.GetMemberID(), 16))
	}
	return strings.Join(ids, " ")
}

package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/internal/supervisor/topology"
)

// Below is a region's operator settings, as stored at a parent.
type Below struct {
	Marks    []Mark
	Topology *topology.Topology // nil: none is kept; its revision is the parent's
	// Unread is why the region's newest settings cannot be read. Marks and Topology are then the last readable ones.
	Unread error
}

// FollowBelow calls each with the entries below every prefix, in the order of prefixes, from the replica's own copy:
// once all are read, and after every change. It returns when the context ends or a watch breaks. Calls do not
// overlap, and each owns its argument. What cannot be read concerns its prefix only: see Below.Unread.
func (s *Etcd) FollowBelow(ctx context.Context, prefixes []string, each func([]Below)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	all, missing := make([]Below, len(prefixes)), 2*len(prefixes)
	unread := make([]map[string]error, len(prefixes))
	for i := range unread {
		unread[i] = map[string]error{}
	}
	follow := func(i int, kind string, decode func([]Kept) error) error {
		first, prefix := true, prefixes[i]
		return s.follow(ctx, "settings of regions", Prefix+prefix+kind[len(Prefix):], []clientv3.OpOption{clientv3.WithPrefix()},
			func() (uint64, error) {
				mu.Lock()
				defer mu.Unlock()
				kept, rev, err := s.kept(ctx, Prefix+prefix+kind[len(Prefix):], clientv3.WithSerializable())
				for i := range kept {
					kept[i].Key = Prefix + kept[i].Key[len(Prefix)+len(prefix):] // the region's own key
				}
				if err != nil {
					return 0, fmt.Errorf("read the settings below %s: %w", prefix, err)
				}
				unread[i][kind] = decode(kept)
				all[i].Unread = errors.Join(unread[i][keyMaintenance], unread[i][keyTopology])
				if first {
					first = false
					missing--
				}
				if missing == 0 {
					each(slices.Clone(all))
				}
				return rev, nil
			})
	}
	var wg sync.WaitGroup
	for i := range prefixes {
		wg.Go(func() {
			cancel(follow(i, keyMaintenance, func(kept []Kept) error {
				marks, err := DecodeMaintenance(kept)
				if err == nil {
					all[i].Marks = marks
				}
				return err
			}))
		})
		wg.Go(func() {
			cancel(follow(i, keyTopology, func(kept []Kept) error {
				t, err := DecodeTopology(kept)
				if err == nil {
					all[i].Topology = t.Topology
				}
				return err
			}))
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

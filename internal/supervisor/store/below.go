package store

import (
	"context"
	"fmt"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/internal/supervisor/topology"
)

// Below is what operators of a region have set, as it is kept in the store of a parent.
type Below struct {
	Marks    []Mark
	Topology *topology.Topology // nil: none is kept; its revision is the parent's
}

// FollowBelow calls each with what is kept below every prefix, in their order, as far as the replica's own copy goes: when
// all was read, and after every change. It returns when the context ends or a watch breaks. each is not called twice at
// once, and what it is given is its own.
func (s *Etcd) FollowBelow(ctx context.Context, prefixes []string, each func([]Below)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	all, missing := make([]Below, len(prefixes)), 2*len(prefixes)
	follow := func(prefix, kind string, decode func([]Kept) error) error {
		first := true
		return s.follow(ctx, "what is set in regions", Prefix+prefix+kind[len(Prefix):], []clientv3.OpOption{clientv3.WithPrefix()},
			func() (uint64, error) {
				mu.Lock()
				defer mu.Unlock()
				kept, rev, err := s.kept(ctx, Prefix+prefix+kind[len(Prefix):], clientv3.WithSerializable())
				for i := range kept {
					kept[i].Key = Prefix + kept[i].Key[len(Prefix)+len(prefix):] // as the region calls it
				}
				if err == nil {
					err = decode(kept)
				}
				if err != nil {
					return 0, fmt.Errorf("read what is set below %s: %w", prefix, err)
				}
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
	for i, prefix := range prefixes {
		wg.Go(func() {
			cancel(follow(prefix, keyMaintenance, func(kept []Kept) (err error) {
				all[i].Marks, err = DecodeMaintenance(kept)
				return err
			}))
		})
		wg.Go(func() {
			cancel(follow(prefix, keyTopology, func(kept []Kept) error {
				t, err := DecodeTopology(kept)
				all[i].Topology = t.Topology
				return err
			}))
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

package store

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// FollowSupervisors calls each with the replicas' entries in this replica's own copy, at first and after every
// change. It returns when the context ends or the watch breaks.
func (s *Etcd) FollowSupervisors(ctx context.Context, each func([]*lofamov1.Supervisor)) error {
	return s.follow(ctx, "supervisors", keySupervisors, []clientv3.OpOption{clientv3.WithPrefix()}, func() (uint64, error) {
		list, rev, err := s.supervisorsAt(ctx)
		if err == nil {
			each(list)
		}
		return rev, err
	})
}

// RemoveSupervisor marks a replica as removed, until it publishes its own entry again.
func (s *Etcd) RemoveSupervisor(ctx context.Context, id string) error {
	return s.PutSupervisor(ctx, &lofamov1.Supervisor{Id: id, Removed: true})
}

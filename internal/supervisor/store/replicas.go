package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// FollowSupervisors calls each with the replicas' entries in this replica's own copy, at first and after every
// change. It returns when the context ends or the watch breaks.
func (s *Etcd) FollowSupervisors(ctx context.Context, each func([]*lofamov1.Supervisor)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := s.c.Watch(ctx, keySupervisors, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	for resp := range watch { // the first response says that the watch exists
		if err := resp.Err(); err != nil {
			return fmt.Errorf("watch supervisors: %w", err)
		}
		list, err := s.Supervisors(ctx)
		if err != nil {
			return err
		}
		each(list)
	}
	return ctx.Err()
}

// RemoveSupervisor marks a replica as removed, until it publishes its own entry again.
func (s *Etcd) RemoveSupervisor(ctx context.Context, id string) error {
	return s.PutSupervisor(ctx, &lofamov1.Supervisor{Id: id, Removed: true})
}

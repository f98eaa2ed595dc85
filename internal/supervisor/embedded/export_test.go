package embedded

import (
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// RaiseFull raises NOSPACE for a member as a write beyond the quota does.
func (m *Member) RaiseFull(ctx context.Context) error {
	return m.RaiseFullOf(ctx, uint64(m.etcd.Server.MemberID()))
}

// RaiseFullOf raises NOSPACE for the member with an ID.
func (m *Member) RaiseFullOf(ctx context.Context, id uint64) error {
	_, err := m.etcd.Server.Alarm(ctx, &etcdserverpb.AlarmRequest{
		MemberID: id, Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	return err
}

// DisarmBy disarms alarms of former members by another client, as a running member does, until the member stops.
func (m *Member) DisarmBy(c *clientv3.Client) {
	other := &Member{etcd: m.etcd, client: c, stopping: m.stopping, logger: m.logger}
	m.watching.Go(other.disarmGone)
}

// EndByItself ends the member's server as a removal from the cluster does.
func (m *Member) EndByItself() { m.etcd.Server.HardStop() }

// LogInMemory returns the entries of its log that a member keeps in memory, and those that it reads at a start.
func LogInMemory(cfg Config) (kept, atStart uint64, err error) {
	ec, err := etcdConfig(cfg)
	if err != nil {
		return 0, 0, err
	}
	return ec.SnapshotCatchUpEntries, ec.SnapshotCount, nil
}

// LookAtPuts looks whether an early compaction is due, as a running member does once a minute, after so many keys.
func (m *Member) LookAtPuts(many int64) {
	m.compaction.many = many
	m.lookAtPuts()
}

// PutUnchecked stores a value without its checksum, as damage would leave it.
func (m *Member) PutUnchecked(ctx context.Context, key, value string) error {
	_, err := m.etcd.Server.Put(ctx, &etcdserverpb.PutRequest{Key: []byte(key), Value: []byte(value)})
	return err
}

package embedded

import (
	"context"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// An alarm stops the whole store, even if the member that raised it is gone: it was removed, or the store was restored from a snapshot that
// has the alarm. No present member's state explains such an alarm, so it counts as every member's.

// alarmsOf returns the distinct alarms of one member, with those of IDs that are no members.
func alarmsOf(member uint64, members []uint64, alarms []*etcdserverpb.AlarmMember) []etcdserverpb.AlarmType {
	var out []etcdserverpb.AlarmType
	for _, a := range alarms {
		counts := a.GetMemberID() == member || !slices.Contains(members, a.GetMemberID())
		if counts && !slices.Contains(out, a.GetAlarm()) {
			out = append(out, a.GetAlarm())
		}
	}
	slices.Sort(out)
	return out
}

// memberIDs returns the IDs of the members in this member's own copy.
func (m *Member) memberIDs() []uint64 {
	var out []uint64
	for _, o := range m.etcd.Server.Cluster().Members() {
		out = append(out, uint64(o.ID))
	}
	return out
}

// Alarms returns etcd's alarms of this member, with those of IDs that are no members, from its own copy, without a quorum.
func (m *Member) Alarms() []etcdserverpb.AlarmType {
	return alarmsOf(uint64(m.etcd.Server.MemberID()), m.memberIDs(), m.etcd.Server.Alarms())
}

// disarmRetry is the pause after a failed disarm. Until it succeeds, the store takes no writes and no replica can lead.
const disarmRetry = 2 * time.Second

// disarmGone disarms the alarms of removed members, at the start of each raft term and every lookPeriod, until the member stops.
func (m *Member) disarmGone() {
	t := time.NewTimer(lookPeriod)
	defer t.Stop()
	for {
		led := m.etcd.Server.FirstCommitInTermNotify()
		t.Reset(m.disarmNow())
		select {
		case <-m.stopping:
			return
		case <-m.etcd.Server.StoppingNotify():
			return
		case <-led:
		case <-t.C:
		}
	}
}

// disarmNow disarms alarms of IDs that are no members, if this member leads in raft. A member that is full raises the alarm again, for
// itself. CORRUPT of ID 0 stays for a person to decide: etcd cannot tell which member is corrupt. disarmNow returns the pause before the
// next call.
func (m *Member) disarmNow() time.Duration {
	server := m.etcd.Server
	if server.Lead() != uint64(server.MemberID()) {
		return lookPeriod
	}
	members := m.memberIDs()
	for _, a := range server.Alarms() {
		if a.GetMemberID() == 0 || slices.Contains(members, a.GetMemberID()) {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), changeTime)
		_, err := m.client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: a.GetMemberID(), Alarm: a.GetAlarm()})
		cancel()
		if err != nil {
			m.logger.Warn("alarm of a former member not disarmed: retrying", "pause", disarmRetry, "alarm", a.GetAlarm(),
				"member", hexID(a.GetMemberID()), "err", err)
			return disarmRetry
		}
		m.logger.Info("disarmed the alarm of a former member", "alarm", a.GetAlarm(), "member", hexID(a.GetMemberID()))
	}
	return lookPeriod
}

package embedded

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// membersOf makes members from words: "s1 s2- s3~" are a healthy voter, a silent voter, and a learner.
func membersOf(words string) []*lofamov1.Member {
	var out []*lofamov1.Member
	for i, w := range strings.Fields(words) {
		m := &lofamov1.Member{Id: fmt.Sprintf("%x", 0xa0+i), Healthy: true}
		if name, silent := strings.CutSuffix(w, "-"); silent {
			w, m.Healthy, m.Problem = name, false, "no answer"
		}
		if name, learner := strings.CutSuffix(w, "~"); learner {
			w, m.Learner = name, true
		}
		m.Name, m.PeerUrl = w, "https://"+w+":1"
		out = append(out, m)
	}
	return out
}

func TestRemovalThatLosesQuorumIsRefused(t *testing.T) {
	for _, tc := range []struct{ members, remove, why string }{
		{"s1 s2 s3", "s2", ""},
		{"s1 s2- s3", "s2", ""}, // the dead one of three
		{"s1 s2- s3", "s1", "of the 2 members left 1 answer and 2 must; not well: s2 (no answer)"},
		{"s1 s2 s3 s4- s5-", "s5", ""},
		{"s1 s2 s3 s4- s5-", "s1", "of the 4 members left 2 answer and 3 must; not well: s4 (no answer), s5 (no answer)"},
		{"s1", "s1", "s1 is the only member with a vote"},
		{"s1 s2~", "s1", "s1 is the only member with a vote"},
		{"s1 s2~", "s2", ""},
		{"s1 s2- s3~-", "s3", ""}, // it has no vote
		{"s1 s2-", "s2", ""},      // the way out of a pair of which one is dead
		{"s1 s2-", "s1", "of the 1 members left 0 answer and 1 must"},
	} {
		members := membersOf(tc.members)
		target, err := find(members, tc.remove)
		if err != nil {
			t.Fatal(err)
		}
		err = checkRemoval(members, target)
		if (err == nil) != (tc.why == "") || err != nil &&
			(!strings.Contains(err.Error(), tc.why) || status.Code(err) != codes.FailedPrecondition) {
			t.Errorf("%s without %s: %v, want %q", tc.members, tc.remove, err, tc.why)
		}
	}
}

func TestMemberIsFoundByNameOrID(t *testing.T) {
	members := append(membersOf("s1 s2"), &lofamov1.Member{Id: "beef", PeerUrl: "https://s3:1", Learner: true})
	for name, want := range map[string]string{
		"s2": "s2", "a0": "s1", "beef": "",
	} {
		if m, err := find(members, name); err != nil || m.GetName() != want {
			t.Errorf("%s: %v, %v", name, m, err)
		}
	}
	for name, want := range map[string]error{
		"s9": status.Error(codes.NotFound, `member "s9": not among s1, s2, beef at https://s3:1, which was not started yet`),
		"":   status.Error(codes.InvalidArgument, "name: none given: want a member's name or id"),
	} {
		if _, err := find(members, name); err == nil || err.Error() != want.Error() {
			t.Errorf("%q: %v, want %v", name, err, want)
		}
	}
	if got := initialCluster(members); got != "s1=https://s1:1,s2=https://s2:1" {
		t.Error(got)
	}
}

func TestDisarmNeedsRoomInEveryMember(t *testing.T) {
	members := membersOf("s1 s2 s3 s4 s5 s6-")
	// The last two are the sizes after an alarm for a write of 1 MiB into 16 MiB: the smallest possible, and that
	// after a compaction.
	for i, size := range []uint64{16 << 20, 10 << 20, 15 << 20, 15<<20 - 4096} {
		members[i].DbBytes, members[i].QuotaBytes = size, 16<<20
	}
	nospace, corrupt := etcdserverpb.AlarmType_NOSPACE, etcdserverpb.AlarmType_CORRUPT
	for _, tc := range []struct {
		id    string
		alarm etcdserverpb.AlarmType
		name  string
		why   string
	}{
		{"a1", nospace, "s2", ""},
		{"a0", nospace, "", "defragment it after a compaction"},
		{"a2", nospace, "", "defragment it after a compaction"},
		{"a3", nospace, "s4", ""},
		{"a5", nospace, "s6", ""}, // of one that does not answer
		{"a1", corrupt, "", "replace it"},
		{"ff", corrupt, "ff", ""}, // of one that was replaced
	} {
		name, err := checkDisarm(members, tc.id, tc.alarm)
		if name != tc.name || (err == nil) != (tc.why == "") || err != nil && !strings.Contains(err.Error(), tc.why) {
			t.Errorf("%s of %s: %q, %v; want %q, %q", tc.alarm, tc.id, name, err, tc.name, tc.why)
		}
	}
}

// fakeEtcd is an etcd of members with room in their stores.
type fakeEtcd struct {
	clientv3.Cluster
	clientv3.Maintenance

	members  []*etcdserverpb.Member
	alarms   []*etcdserverpb.AlarmMember
	disarmed int
	removed  []uint64
	added    []string // peer addresses
}

func (f *fakeEtcd) MemberAddAsLearner(_ context.Context, peerURLs []string) (*clientv3.MemberAddResponse, error) {
	f.added = append(f.added, peerURLs...)
	return &clientv3.MemberAddResponse{Member: &etcdserverpb.Member{ID: 9, PeerURLs: peerURLs, IsLearner: true}}, nil
}

func (f *fakeEtcd) MemberPromote(context.Context, uint64) (*clientv3.MemberPromoteResponse, error) {
	return &clientv3.MemberPromoteResponse{}, nil
}

// client returns a client of the fake.
func (f *fakeEtcd) client(t *testing.T) *clientv3.Client {
	t.Helper()
	c := clientv3.NewCtxClient(t.Context())
	c.Cluster, c.Maintenance = f, f
	return c
}

func (f *fakeEtcd) MemberRemove(_ context.Context, id uint64) (*clientv3.MemberRemoveResponse, error) {
	f.removed = append(f.removed, id)
	return &clientv3.MemberRemoveResponse{}, nil
}

func (f *fakeEtcd) MemberList(context.Context, ...clientv3.OpOption) (*clientv3.MemberListResponse, error) {
	return &clientv3.MemberListResponse{Members: f.members}, nil
}

func (f *fakeEtcd) AlarmList(context.Context) (*clientv3.AlarmResponse, error) {
	return &clientv3.AlarmResponse{Alarms: f.alarms}, nil
}

func (f *fakeEtcd) AlarmDisarm(context.Context, *clientv3.AlarmMember) (*clientv3.AlarmResponse, error) {
	f.disarmed++
	return &clientv3.AlarmResponse{}, nil
}

func (f *fakeEtcd) Status(context.Context, string) (*clientv3.StatusResponse, error) {
	return &clientv3.StatusResponse{Header: &etcdserverpb.ResponseHeader{}, DbSize: 1 << 20, DbSizeQuota: 16 << 20, Leader: 1}, nil
}

// TestAlarmOfFormerMemberCountsForEveryMember: it stops the whole store, as their own alarms do.
func TestAlarmOfFormerMemberCountsForEveryMember(t *testing.T) {
	const full, corrupt = etcdserverpb.AlarmType_NOSPACE, etcdserverpb.AlarmType_CORRUPT
	f := &fakeEtcd{members: []*etcdserverpb.Member{{ID: 1, Name: "s1"}, {ID: 2, Name: "s2"}}}
	s := NewAdmin(AdminConfig{Client: f.client(t)})
	for _, tc := range []struct {
		alarms []*etcdserverpb.AlarmMember
		want   string // of s1 and s2
	}{
		{nil, "[] []"},
		{[]*etcdserverpb.AlarmMember{{MemberID: 2, Alarm: full}}, "[] [NOSPACE]"},
		{[]*etcdserverpb.AlarmMember{{MemberID: 9, Alarm: full}}, "[NOSPACE] [NOSPACE]"},
		{[]*etcdserverpb.AlarmMember{{MemberID: 9, Alarm: full}, {MemberID: 2, Alarm: full}}, "[NOSPACE] [NOSPACE]"},
		{[]*etcdserverpb.AlarmMember{{MemberID: 0, Alarm: corrupt}, {MemberID: 2, Alarm: full}}, "[CORRUPT] [NOSPACE CORRUPT]"},
	} {
		f.alarms = tc.alarms
		list, err := s.ListMembers(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(list.GetMembers()[0].GetAlarms(), " ", list.GetMembers()[1].GetAlarms()); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.alarms, got, tc.want)
		}
	}
}

// TestRefusedDisarmLeavesAllAlarms: if one alarm must stay, DisarmAlarms clears none.
func TestRefusedDisarmLeavesAllAlarms(t *testing.T) {
	f, noted := &fakeEtcd{}, true
	for id := range uint64(2) {
		f.members = append(f.members, &etcdserverpb.Member{ID: id + 1, Name: fmt.Sprintf("s%d", id+1), ClientURLs: []string{"https://x:1"}})
	}
	s := NewAdmin(AdminConfig{
		Client: f.client(t), Dial: func([]string) (*clientv3.Client, error) { return f.client(t), nil },
		Withdraw: func(context.Context) (was bool, err error) {
			was, noted = noted, false
			return was, nil
		},
	})
	f.alarms = []*etcdserverpb.AlarmMember{
		{MemberID: 1, Alarm: etcdserverpb.AlarmType_NOSPACE}, {MemberID: 2, Alarm: etcdserverpb.AlarmType_CORRUPT},
	}
	_, err := s.DisarmAlarms(t.Context(), &lofamov1.DisarmAlarmsRequest{})
	if status.Code(err) != codes.FailedPrecondition || f.disarmed != 0 || !noted {
		t.Errorf("%v, %d alarms disarmed: want a refusal and none", err, f.disarmed)
	}
	resp, err := s.DisarmAlarms(t.Context(), &lofamov1.DisarmAlarmsRequest{Name: "s1"})
	if err != nil || f.disarmed != 1 || strings.Join(resp.GetDisarmed(), ", ") != "NOSPACE of s1" {
		t.Errorf("of one member: %v, %v, %d alarms disarmed", resp, err, f.disarmed)
	}
}

// progressStream takes the steps of a change of members.
type progressStream struct {
	grpc.ServerStream

	ctx   context.Context //nolint:containedctx // of the stream
	steps []lofamov1.MemberStep
}

func (s *progressStream) Context() context.Context { return s.ctx }

func (s *progressStream) Send(p *lofamov1.MemberProgress) error {
	s.steps = append(s.steps, p.GetStep())
	return nil
}

// TestNewMemberIsRefusedWhileLearnerWaits: etcd allows one learner. A replacement that could not add the successor removes no member.
func TestNewMemberIsRefusedWhileLearnerWaits(t *testing.T) {
	urls := []string{"https://x:1"}
	member := func(id uint64, name string) *etcdserverpb.Member {
		return &etcdserverpb.Member{ID: id, Name: name, ClientURLs: urls, PeerURLs: []string{fmt.Sprintf("https://p%d:1", id)}}
	}
	three := []*etcdserverpb.Member{member(1, "s1"), member(2, "s2"), member(3, "s3")}
	unnamed := &etcdserverpb.Member{ID: 0xbeef, IsLearner: true, PeerURLs: []string{"https://p4:1"}}
	named := member(5, "s5")
	named.IsLearner = true
	replace := func(name string) func(s *Admin, to *progressStream) error {
		return func(s *Admin, to *progressStream) error {
			return s.ReplaceMember(&lofamov1.ReplaceMemberRequest{Name: name}, to)
		}
	}
	add := func(s *Admin, to *progressStream) error {
		return s.AddMember(&lofamov1.AddMemberRequest{Name: "s6", PeerUrl: "https://p6:1"}, to)
	}
	for _, tc := range []struct {
		what    string
		members []*etcdserverpb.Member
		change  func(s *Admin, to *progressStream) error
		steps   string
		why     string
	}{
		{"replace", three, replace("s3"), "[REMOVED ADDED PROMOTED]", ""},
		{"replace the learner", append(three[:2:2], named), replace("s5"), "[REMOVED ADDED PROMOTED]", ""},
		{"replace while a learner waits", append(three[:3:3], unnamed), replace("s3"), "[]", "learner beef at https://p4:1 waits"},
		{"add", three, add, "[ADDED PROMOTED]", ""},
		{"add while a learner waits", append(three[:3:3], named), add, "[]", "`lofamoctl supervisor remove 5`"},
	} {
		f, to := &fakeEtcd{members: tc.members}, &progressStream{ctx: t.Context()}
		s := NewAdmin(AdminConfig{
			Client: f.client(t), Self: "1", Dial: func([]string) (*clientv3.Client, error) { return f.client(t), nil },
			Supervisors: func() []*lofamov1.Supervisor { return nil },
		})
		err := tc.change(s, to)
		if (err == nil) != (tc.why == "") || err != nil &&
			(status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), tc.why)) {
			t.Errorf("%s: %v, want %q", tc.what, err, tc.why)
		}
		if got := fmt.Sprint(to.steps); got != tc.steps || err != nil && len(f.removed)+len(f.added) > 0 {
			t.Errorf("%s: %s, removed %d, added %s; want %s", tc.what, got, f.removed, f.added, tc.steps)
		}
	}
}

// TestRemovalByReplicaIDRemovesMember: RemoveMember with a replica's id removes the replica's member, or forgets a replica without one. It
// refuses while a member may be the replica's.
func TestRemovalByReplicaIDRemovesMember(t *testing.T) {
	urls := []string{"https://x:1"}
	s1 := &etcdserverpb.Member{ID: 1, Name: "s1", ClientURLs: urls}
	s3 := &etcdserverpb.Member{ID: 3, Name: "s3", ClientURLs: urls}
	m2 := &etcdserverpb.Member{ID: 2, Name: "m2", ClientURLs: urls, PeerURLs: []string{"https://b:1"}}
	learner := &etcdserverpb.Member{ID: 4, IsLearner: true, PeerURLs: []string{"https://b:1"}}
	for _, tc := range []struct {
		what      string
		members   []*etcdserverpb.Member
		entry     string // member in s2's own entry
		remove    string
		gone      string // removed members
		forgotten string
		why       string
	}{
		{"its etcd.name differs", []*etcdserverpb.Member{s1, m2, s3}, "2", "s2", "[2]", "s2", ""},
		{"no member since a restore", []*etcdserverpb.Member{s1, s3}, "2", "s2", "[]", "s2", ""},
		{"its etcd.name differs, and it has no entry yet", []*etcdserverpb.Member{s1, m2, s3}, "", "s2", "[]", "", "member 2 at https://b:1"},
		{"an interrupted replacement", []*etcdserverpb.Member{s1, s3, learner}, "2", "s2", "[]", "", "member 4 at https://b:1"},
		{"the learner that was not started", []*etcdserverpb.Member{s1, s3, learner}, "2", "4", "[4]", "", ""},
	} {
		f, forgotten := &fakeEtcd{members: tc.members}, ""
		s := NewAdmin(AdminConfig{
			Client: f.client(t), Self: "1", Dial: func([]string) (*clientv3.Client, error) { return f.client(t), nil },
			Supervisors: func() []*lofamov1.Supervisor {
				return []*lofamov1.Supervisor{{Id: "s1", EtcdMember: "1"}, {Id: "s2", EtcdMember: tc.entry}, {Id: "s3", EtcdMember: "3"}}
			},
			Removed: func(_ context.Context, id string) error { forgotten += id; return nil },
		})
		_, err := s.RemoveMember(t.Context(), &lofamov1.RemoveMemberRequest{Name: tc.remove})
		if got := fmt.Sprint(f.removed); got != tc.gone || forgotten != tc.forgotten {
			t.Errorf("%s: removed members %s, forgotten %q; want %s, %q", tc.what, got, forgotten, tc.gone, tc.forgotten)
		}
		if (err == nil) != (tc.why == "") || err != nil &&
			(status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), tc.why)) {
			t.Errorf("%s: %v, want %q", tc.what, err, tc.why)
		}
	}
}

func TestInvalidMemberRequestIsRefused(t *testing.T) {
	for want, req := range map[string]*lofamov1.AddMemberRequest{
		`name: given ""`:             {PeerUrl: "https://1.2.3.4:5"},
		`name: given "a b"`:          {Name: "a b", PeerUrl: "https://1.2.3.4:5"},
		`peer_url: given ""`:         {Name: "s4"},
		`peer_url: given "http://1`:  {Name: "s4", PeerUrl: "http://1.2.3.4:5"},
		`peer_url: given "https://1`: {Name: "s4", PeerUrl: "https://1.2.3.4"},
	} {
		if err := checkAdd(req); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", req, err, want)
		}
	}
	if err := checkAdd(&lofamov1.AddMemberRequest{Name: "s4", PeerUrl: "https://[::1]:5"}); err != nil {
		t.Error(err)
	}
	for _, bad := range []time.Duration{0, time.Millisecond, 2 * time.Hour} {
		if _, err := waitOf(durationpb.New(bad)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("wait %s: %v", bad, err)
		}
	}
	if w, err := waitOf(nil); err != nil || w != defaultWait {
		t.Errorf("no wait given: %s, %v", w, err)
	}
}

// TestOutsideEtcdRefusesAdministration: with an external etcd every call refuses, and refers to that etcd's own tools.
func TestOutsideEtcdRefusesAdministration(t *testing.T) {
	s, ctx := NewAdmin(AdminConfig{Cluster: "c"}), t.Context()
	_, list := s.ListMembers(ctx, nil)
	_, remove := s.RemoveMember(ctx, nil)
	_, disarm := s.DisarmAlarms(ctx, nil)
	_, defrag := s.Defragment(ctx, nil)
	for what, err := range map[string]error{
		"list": list, "remove": remove, "disarm": disarm, "defragment": defrag, "snapshot": s.Snapshot(nil, nil),
	} {
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "etcdctl") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestRefusalsHavePlainTextAndCode(t *testing.T) {
	for want, err := range map[string]error{
		"it took too long": fmt.Errorf("x: %w", context.DeadlineExceeded),
		"no":               status.Error(codes.Unavailable, "no"),
		"plain":            errors.New("plain"),
	} {
		if got := refusal(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
	if got := status.Code(refused("x", rpctypes.ErrUnhealthy)); got != codes.FailedPrecondition {
		t.Error(got)
	}
	if got := status.Code(refused("x", rpctypes.ErrNoLeader)); got != codes.Unavailable {
		t.Error(got)
	}
}

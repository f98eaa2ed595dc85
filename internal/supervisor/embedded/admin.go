package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// AdminConfig configures Admin.
type AdminConfig struct {
	Cluster string // its name
	// Client of this replica's own member, within the process; nil with an etcd outside.
	Client *clientv3.Client
	// Self is the own member's id in hexadecimal.
	Self string
	// Dial connects to one member by its client addresses.
	Dial func(endpoints []string) (*clientv3.Client, error)
	// Supervisors returns the replicas known to this one.
	Supervisors func() []*lofamov1.Supervisor
	// Removed notes that a replica is one no longer.
	Removed func(ctx context.Context, supervisor string) error
	// Withdraw removes the note that the store was rolled back, and reports whether there was one.
	Withdraw func(ctx context.Context) (bool, error)
}

// Admin serves lofamo.v1.SupervisorAdmin: an operator changes the members of the embedded etcd, takes snapshots, and handles alarms and
// space. It knows nothing of the stored keys.
//
// AddMember works in two steps, so that a cluster never waits for a voter without data:
//
//	absent ──AddMember──► learner, not started ──its replica starts──► learner, catching up ──► voter
//	voter ──RemoveMember──► absent for good: its data directory is useless from then on
//
// The replica that receives the call changes etcd's own membership, so the change outlives that replica. A repeated call continues where
// the first one ended.
type Admin struct {
	lofamov1.UnimplementedSupervisorAdminServer

	cfg AdminConfig
}

// NewAdmin returns the service.
func NewAdmin(cfg AdminConfig) *Admin { return &Admin{cfg: cfg} }

// Time limits of requests to members.
const (
	statusTime = 2 * time.Second  // a member's own status
	changeTime = 10 * time.Second // one step of a change
)

// embedded refuses where etcd is not ours.
func (s *Admin) embedded() error {
	if s.cfg.Client == nil {
		return status.Error(codes.FailedPrecondition,
			"this cluster's etcd is outside: its members, snapshots, alarms and space are looked after by its own tools (etcdctl, etcdutl)")
	}
	return nil
}

// ListMembers implements the service.
func (s *Admin) ListMembers(ctx context.Context, _ *lofamov1.ListMembersRequest) (*lofamov1.ListMembersResponse, error) {
	if err := s.embedded(); err != nil {
		return nil, err
	}
	members, stale, err := s.members(ctx)
	if err != nil {
		return nil, err
	}
	return &lofamov1.ListMembersResponse{Members: members, Stale: stale, InitialCluster: initialCluster(members)}, nil
}

// members asks for the members, and each for its state. Stale: without a quorum, from our own copy.
func (s *Admin) members(ctx context.Context) (members []*lofamov1.Member, stale bool, err error) {
	qctx, cancel := context.WithTimeout(ctx, statusTime)
	resp, err := s.cfg.Client.MemberList(qctx)
	cancel()
	if err != nil {
		stale = true
		if resp, err = s.cfg.Client.MemberList(ctx, clientv3.WithSerializable()); err != nil {
			return nil, true, status.Errorf(codes.Unavailable, "list the members of etcd: %v", err)
		}
	}
	members = make([]*lofamov1.Member, len(resp.Members))
	var wg sync.WaitGroup
	for i, m := range resp.Members {
		members[i] = memberOf(m)
		wg.Go(func() { s.inquire(ctx, members[i], m.ClientURLs) })
	}
	var alarms []*etcdserverpb.AlarmMember
	if !stale {
		actx, cancel := context.WithTimeout(ctx, statusTime)
		if resp, err := s.cfg.Client.AlarmList(actx); err == nil {
			alarms = resp.Alarms
		}
		cancel()
	}
	wg.Wait()
	ids := make([]uint64, len(resp.Members))
	for i, m := range resp.Members {
		ids[i] = m.ID
	}
	for i, m := range members {
		for _, a := range alarmsOf(ids[i], ids, alarms) {
			m.Alarms = append(m.Alarms, a.String())
		}
	}
	slices.SortFunc(members, func(a, b *lofamov1.Member) int {
		return cmp.Or(cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(a.GetId(), b.GetId()))
	})
	return members, stale, nil
}

func hexID(id uint64) string { return fmt.Sprintf("%x", id) }

func memberOf(m *etcdserverpb.Member) *lofamov1.Member {
	return &lofamov1.Member{
		Id: hexID(m.ID), Name: m.Name, PeerUrl: strings.Join(m.PeerURLs, ","), ClientUrl: strings.Join(m.ClientURLs, ","), Learner: m.IsLearner,
	}
}

// inquire queries a member's own status.
func (s *Admin) inquire(ctx context.Context, m *lofamov1.Member, urls []string) {
	if len(urls) == 0 {
		m.Problem = "not started yet"
		return
	}
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	err := s.at(urls, func(c *clientv3.Client) error {
		st, err := c.Status(ctx, urls[0])
		if err != nil {
			return err
		}
		m.Version, m.Revision = st.Version, uint64(st.Header.GetRevision())
		m.DbBytes, m.DbInUseBytes, m.QuotaBytes = uint64(st.DbSize), uint64(st.DbSizeInUse), uint64(st.DbSizeQuota)
		m.RaftLeader = st.Leader != 0 && hexID(st.Leader) == m.GetId()
		if st.Leader == 0 {
			m.Problem = "it knows no leader in raft"
		}
		return nil
	})
	if err != nil {
		m.Problem = fmt.Sprintf("no answer at %s: %s", urls[0], refusal(err))
	}
	m.Healthy = m.GetProblem() == ""
}

// at calls do with a client of one member.
func (s *Admin) at(urls []string, do func(*clientv3.Client) error) error {
	c, err := s.cfg.Dial(urls)
	if err != nil {
		return err
	}
	err = do(c)
	if cerr := c.Close(); err == nil && !errors.Is(cerr, context.Canceled) {
		err = cerr
	}
	return err
}

// refusal leaves gRPC's own words out.
func refusal(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "it took too long"
	}
	if st, ok := status.FromError(err); ok {
		return st.Message()
	}
	return err.Error()
}

// find returns the member of that name or id.
func find(members []*lofamov1.Member, name string) (*lofamov1.Member, error) {
	if name == "" {
		return nil, status.Error(codes.InvalidArgument, "name: none given: want a member's name or id")
	}
	var known, unnamed []string
	for _, m := range members {
		if m.GetName() == name || m.GetId() == name {
			return m, nil
		}
		if m.GetName() == "" {
			unnamed = append(unnamed, fmt.Sprintf("%s at %s, which was not started yet", m.GetId(), m.GetPeerUrl()))
		} else {
			known = append(known, m.GetName())
		}
	}
	return nil, status.Errorf(codes.NotFound, "member %q: not among %s", name, strings.Join(append(known, unnamed...), ", "))
}

// initialCluster returns the initial-cluster setting for a new member.
func initialCluster(members []*lofamov1.Member) string {
	var out []string
	for _, m := range members {
		if m.GetName() != "" {
			out = append(out, m.GetName()+"="+m.GetPeerUrl())
		}
	}
	return strings.Join(out, ",")
}

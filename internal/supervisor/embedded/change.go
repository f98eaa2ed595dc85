package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// The bounds of the wait for a new member.
const (
	defaultWait = 5 * time.Minute
	minWait     = time.Second
	maxWait     = time.Hour
	promoteTick = 300 * time.Millisecond
)

func waitOf(d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return defaultWait, nil
	}
	if w := d.AsDuration(); d.IsValid() && w >= minWait && w <= maxWait {
		return w, nil
	}
	return 0, status.Errorf(codes.InvalidArgument, "wait: given %s: want %s to %s", d.AsDuration(), minWait, maxWait)
}

var memberName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`)

func checkAdd(req *lofamov1.AddMemberRequest) error {
	if !memberName.MatchString(req.GetName()) {
		return status.Errorf(codes.InvalidArgument, "name: given %q: want 1 to 63 letters, digits, '-', '_' and '.'", req.GetName())
	}
	u, err := url.Parse(req.GetPeerUrl())
	if err != nil || u.Scheme != "https" || u.Port() == "" || u.Path != "" {
		return status.Errorf(codes.InvalidArgument, "peer_url: given %q: want https://ip:port", req.GetPeerUrl())
	}
	return nil
}

// checkRemoval returns the reason not to remove a member, or nil. Without a responding majority among the others,
// no further commit would be possible, not even to bring the member back.
func checkRemoval(members []*lofamov1.Member, target *lofamov1.Member) error {
	if target.GetLearner() {
		return nil // it has no vote
	}
	var left, silent []string
	for _, m := range members {
		if m.GetId() == target.GetId() || m.GetLearner() {
			continue
		}
		left = append(left, m.GetName())
		if !m.GetHealthy() {
			silent = append(silent, fmt.Sprintf("%s (%s)", m.GetName(), m.GetProblem()))
		}
	}
	if len(left) == 0 {
		return status.Errorf(codes.FailedPrecondition, "%s is the only member with a vote: without it there is no cluster", target.GetName())
	}
	if answer, need := len(left)-len(silent), len(left)/2+1; answer < need {
		return status.Errorf(codes.FailedPrecondition,
			"without %s there would be no quorum: of the %d members left %d answer and %d must; not well: %s",
			target.GetName(), len(left), answer, need, strings.Join(silent, ", "))
	}
	return nil
}

// quorate returns the members, as a quorum has them.
func (s *Admin) quorate(ctx context.Context) ([]*lofamov1.Member, error) {
	if err := s.embedded(); err != nil {
		return nil, err
	}
	members, stale, err := s.members(ctx)
	if err == nil && stale {
		err = status.Error(codes.FailedPrecondition, "no quorum: members cannot be changed now; when it is lost for good, restore a snapshot")
	}
	return members, err
}

// removable finds a member that this replica may remove.
func (s *Admin) removable(ctx context.Context, name string) ([]*lofamov1.Member, *lofamov1.Member, error) {
	members, err := s.quorate(ctx)
	if err != nil {
		return nil, nil, err
	}
	target, err := find(members, name)
	if m := s.memberOfSupervisor(members, name); status.Code(err) == codes.NotFound && m != nil {
		target, err = m, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if err := checkRemoval(members, target); err != nil {
		return nil, nil, err
	}
	if target.GetId() == s.cfg.Self {
		// The removal would also lose the replica's own answer.
		return nil, nil, status.Errorf(codes.Unavailable, "%s cannot remove itself (%s): call another replica", target.GetName(),
			target.GetName())
	}
	return members, target, nil
}

// remove removes a member.
func (s *Admin) remove(ctx context.Context, members []*lofamov1.Member, m *lofamov1.Member) error {
	id, err := strconv.ParseUint(m.GetId(), 16, 64)
	if err != nil {
		return err
	}
	if m.GetRaftLeader() {
		s.takeLead(ctx, m) // else commits stop until the others notice the loss
	}
	err = settled(ctx, func(ctx context.Context) error {
		_, err := s.cfg.Client.MemberRemove(ctx, id)
		return err
	})
	if err != nil && !errors.Is(err, rpctypes.ErrMemberNotFound) {
		return refused(fmt.Sprintf("take %s out of %d", m.GetName(), len(members)), err)
	}
	return nil
}

// takeLead has our own member lead in raft instead of another. It need not succeed.
func (s *Admin) takeLead(ctx context.Context, from *lofamov1.Member) {
	self, err := strconv.ParseUint(s.cfg.Self, 16, 64)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	_ = s.at(strings.Split(from.GetClientUrl(), ","), func(c *clientv3.Client) error {
		_, err := c.MoveLeader(ctx, self)
		return err
	})
}

// settleTime is the maximum time to retry a change of members. etcd refuses changes for 5 s after the last member
// has joined, and while it elects a new leader in raft.
const settleTime = 20 * time.Second

// passing are the reasons of etcd that pass by themselves.
var passing = []error{
	rpctypes.ErrUnhealthy, rpctypes.ErrNoLeader, rpctypes.ErrLeaderChanged, rpctypes.ErrTimeout, rpctypes.ErrTimeoutDueToLeaderFail,
	rpctypes.ErrTimeoutDueToConnectionLost, context.DeadlineExceeded,
}

// settled retries a change of members until etcd accepts it. A change whose answer was lost is repeated, so it
// must be idempotent.
func settled(ctx context.Context, change func(context.Context) error) error {
	for end := time.Now().Add(settleTime); ; {
		cctx, cancel := context.WithTimeout(ctx, changeTime)
		err := change(cctx)
		cancel()
		passes := slices.ContainsFunc(passing, func(p error) bool { return errors.Is(err, p) })
		if !passes || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(promoteTick):
		}
	}
}

// refused is etcd's refusal in our words.
func refused(what string, err error) error {
	code := codes.Unavailable
	if errors.Is(err, rpctypes.ErrUnhealthy) || errors.Is(err, rpctypes.ErrMemberNotEnoughStarted) ||
		errors.Is(err, rpctypes.ErrTooManyLearners) {
		code = codes.FailedPrecondition
	}
	return status.Errorf(code, "%s: etcd: %s", what, refusal(err))
}

// RemoveMember implements the service.
func (s *Admin) RemoveMember(ctx context.Context, req *lofamov1.RemoveMemberRequest) (*lofamov1.RemoveMemberResponse, error) {
	members, target, err := s.removable(ctx, req.GetName())
	if status.Code(err) == codes.NotFound && s.isSupervisor(req.GetName()) {
		return s.forget(ctx, req.GetName())
	}
	if err != nil {
		return nil, err
	}
	if err := s.remove(ctx, members, target); err != nil {
		return nil, err
	}
	if id := s.supervisorOf(target); id != "" {
		if err := s.cfg.Removed(ctx, id); err != nil {
			return nil, status.Errorf(codes.Unavailable, "%s is out of etcd, but the other replicas could not be notified: "+
				"%v", target.GetName(), err)
		}
	}
	resp := &lofamov1.RemoveMemberResponse{}
	for _, m := range members {
		if m.GetId() != target.GetId() {
			resp.Members = append(resp.Members, m)
		}
	}
	return resp, nil
}

func (s *Admin) isSupervisor(id string) bool {
	return slices.ContainsFunc(s.cfg.Supervisors(), func(sup *lofamov1.Supervisor) bool { return sup.GetId() == id })
}

// forget removes a replica that is no longer a member, for instance since a smaller cluster was restored. It refuses if a member belongs
// to no known replica, because that member may be the replica's.
func (s *Admin) forget(ctx context.Context, id string) (*lofamov1.RemoveMemberResponse, error) {
	members, err := s.quorate(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		if !s.isSupervisor(s.supervisorOf(m)) {
			return nil, status.Errorf(codes.FailedPrecondition, "remove %s: member %s at %s belongs to no listed replica, and may be that of %s: "+
				"remove the member by its id, or complete it with `lofamoctl supervisor add`", id, m.GetId(), m.GetPeerUrl(), id)
		}
	}
	if err := s.cfg.Removed(ctx, id); err != nil {
		return nil, status.Errorf(codes.Unavailable, "forget %s: %v", id, err)
	}
	return &lofamov1.RemoveMemberResponse{Members: members}, nil
}

// memberOfSupervisor returns the member that a replica's own entry names; nil: none.
func (s *Admin) memberOfSupervisor(members []*lofamov1.Member, id string) *lofamov1.Member {
	for _, sup := range s.cfg.Supervisors() {
		for _, m := range members {
			if sup.GetId() == id && sup.GetEtcdMember() == m.GetId() {
				return m
			}
		}
	}
	return nil
}

// supervisorOf returns the id of the member's replica, or the member's name if no replica's entry names the member. The name of a learner
// that has not started is "". Id and name are equal unless the configuration sets etcd.name.
func (s *Admin) supervisorOf(m *lofamov1.Member) string {
	for _, sup := range s.cfg.Supervisors() {
		if sup.GetEtcdMember() == m.GetId() {
			return sup.GetId()
		}
	}
	return m.GetName()
}

// ReplaceMember implements the service.
func (s *Admin) ReplaceMember(req *lofamov1.ReplaceMemberRequest, stream grpc.ServerStreamingServer[lofamov1.MemberProgress]) error {
	wait, err := waitOf(req.GetWait())
	if err != nil {
		return err
	}
	ctx := stream.Context()
	members, old, err := s.removable(ctx, req.GetName())
	if err != nil {
		return err
	}
	if old.GetName() == "" {
		return status.Errorf(codes.FailedPrecondition, "replace member %s: it has no name in etcd, and may never have started: "+
			"continue with `lofamoctl supervisor add`, or remove it", old.GetId())
	}
	if err := checkLearner(without(members, old)); err != nil {
		return err
	}
	if err := s.remove(ctx, members, old); err != nil {
		return err
	}
	left := without(members, old)
	if err := stream.Send(removed(old, old.GetName(), len(left))); err != nil {
		return err
	}
	if err := s.take(stream, left, old.GetName(), old.GetPeerUrl(), wait); err != nil {
		st, _ := status.FromError(err)
		return status.Errorf(st.Code(), "%s; %s is already removed: continue with AddMember %s %s", st.Message(), old.GetName(), old.GetName(),
			old.GetPeerUrl())
	}
	return nil
}

// checkLearner returns the reason not to add a member, or nil. etcd allows one learner at a time.
func checkLearner(members []*lofamov1.Member) error {
	for _, m := range members {
		if m.GetLearner() {
			return status.Errorf(codes.FailedPrecondition, "learner %s at %s waits for its vote, and etcd allows one learner: finish it first with "+
				"`lofamoctl supervisor add`, or give it up with `lofamoctl supervisor remove %s`", m.GetId(), m.GetPeerUrl(), m.GetId())
		}
	}
	return nil
}

// removed returns the step of a removal.
func removed(m *lofamov1.Member, name string, left int) *lofamov1.MemberProgress {
	rest := fmt.Sprintf("%d members are left", left)
	if left == 1 {
		rest = "1 member is left"
	}
	return &lofamov1.MemberProgress{Step: lofamov1.MemberStep_REMOVED, Id: m.GetId(), Message: fmt.Sprintf("%s is out: %s", name, rest)}
}

func without(members []*lofamov1.Member, m *lofamov1.Member) []*lofamov1.Member {
	var out []*lofamov1.Member
	for _, o := range members {
		if o.GetId() != m.GetId() {
			out = append(out, o)
		}
	}
	return out
}

// AddMember implements the service.
func (s *Admin) AddMember(req *lofamov1.AddMemberRequest, stream grpc.ServerStreamingServer[lofamov1.MemberProgress]) error {
	wait, err := waitOf(req.GetWait())
	if err != nil {
		return err
	}
	if err := checkAdd(req); err != nil {
		return err
	}
	members, err := s.quorate(stream.Context())
	if err != nil {
		return err
	}
	for _, m := range members {
		if m.GetPeerUrl() == req.GetPeerUrl() && m.GetLearner() && (m.GetName() == "" || m.GetName() == req.GetName()) {
			return s.again(stream, members, m, req.GetName(), wait)
		}
		if m.GetPeerUrl() == req.GetPeerUrl() || m.GetName() == req.GetName() {
			return status.Errorf(codes.AlreadyExists, "a member %q at %s is there already (learner: %t): want a name and an address of its own, "+
				"or ReplaceMember",
				m.GetName(), m.GetPeerUrl(), m.GetLearner())
		}
	}
	if err := checkLearner(members); err != nil {
		return err
	}
	return s.take(stream, members, req.GetName(), req.GetPeerUrl(), wait)
}

// again continues a call that added a learner and broke off. etcd commits a learner's name some time after its start, so a learner
// without a name may have started: it has if its address answers. If not, its data may still be on its disk. An empty replica must not
// run under the same member ID, so again removes the learner and adds a new one.
func (s *Admin) again(stream grpc.ServerStreamingServer[lofamov1.MemberProgress], members []*lofamov1.Member, m *lofamov1.Member,
	name string, wait time.Duration) error {
	if m.GetName() != "" || answers(stream.Context(), m.GetPeerUrl()) {
		return s.seeThrough(stream, m, name, wait, &lofamov1.MemberProgress{
			Step: lofamov1.MemberStep_CATCHING_UP, Id: m.GetId(), Message: fmt.Sprintf(
				"%s has started before: let its replica run with the data that it has; if they are lost, remove %s and add it again", name, name),
		})
	}
	if err := s.remove(stream.Context(), members, m); err != nil {
		return err
	}
	left := without(members, m)
	if err := stream.Send(removed(m, "the former learner for "+name, len(left))); err != nil {
		return err
	}
	return s.take(stream, left, name, m.GetPeerUrl(), wait)
}

// answers reports whether a process listens at a peer address.
func answers(ctx context.Context, peerURL string) bool {
	u, err := url.Parse(peerURL)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// take adds a member and follows it until it is a voter.
func (s *Admin) take(stream grpc.ServerStreamingServer[lofamov1.MemberProgress], members []*lofamov1.Member, name, peerURL string,
	wait time.Duration) error {
	var m *lofamov1.Member
	err := settled(stream.Context(), func(ctx context.Context) error {
		resp, err := s.cfg.Client.MemberAddAsLearner(ctx, []string{peerURL})
		if errors.Is(err, rpctypes.ErrPeerURLExist) {
			m, err = s.learnerAt(ctx, peerURL) // the answer to the try before was lost
			return err
		}
		if err == nil {
			m = memberOf(resp.Member)
		}
		return err
	})
	if err != nil {
		return refused("take "+name+" in", err)
	}
	return s.seeThrough(stream, m, name, wait, &lofamov1.MemberProgress{
		Step: lofamov1.MemberStep_ADDED, Id: m.GetId(), InitialCluster: initialCluster(append(without(members, m), memberNamed(m, name))),
		Message: fmt.Sprintf("%s is in as a learner: start its replica now, with an empty data directory and etcd.clusterState existing", name),
	})
}

// learnerAt is the member at a peer address.
func (s *Admin) learnerAt(ctx context.Context, peerURL string) (*lofamov1.Member, error) {
	resp, err := s.cfg.Client.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range resp.Members {
		if slices.Contains(m.PeerURLs, peerURL) && m.IsLearner {
			return memberOf(m), nil
		}
	}
	return nil, rpctypes.ErrPeerURLExist
}

// seeThrough sends begin, waits until a learner has caught up, and gives it its vote. A learner that has started keeps its data: if it
// came back without them, raft's leader would count on entries that it no longer has, and the learner would panic at every start.
func (s *Admin) seeThrough(stream grpc.ServerStreamingServer[lofamov1.MemberProgress], m *lofamov1.Member, name string, wait time.Duration,
	begin *lofamov1.MemberProgress) error {
	if err := stream.Send(begin); err != nil {
		return err
	}
	id, err := strconv.ParseUint(m.GetId(), 16, 64)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(stream.Context(), wait)
	defer cancel()
	tick := time.NewTicker(promoteTick)
	defer tick.Stop()
	said, last := "", errors.New("it was not tried yet")
	for {
		if _, err := s.cfg.Client.MemberPromote(ctx, id); err == nil || errors.Is(err, rpctypes.ErrMemberNotLearner) {
			return stream.Send(&lofamov1.MemberProgress{Step: lofamov1.MemberStep_PROMOTED, Id: m.GetId(), Message: name + " votes"})
		} else if errors.Is(err, rpctypes.ErrMemberNotFound) {
			return status.Errorf(codes.Aborted, "%s was removed again meanwhile", name)
		} else if ctx.Err() == nil {
			last = err
		}
		if word := s.progress(ctx, id); word != "" && word != said && ctx.Err() == nil {
			said = word
			if err := stream.Send(&lofamov1.MemberProgress{Step: lofamov1.MemberStep_CATCHING_UP, Id: m.GetId(),
				Message: name + ": " + word}); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			if stream.Context().Err() != nil {
				return status.FromContextError(stream.Context().Err()).Err()
			}
			return status.Errorf(codes.DeadlineExceeded, "%s has not caught up within %s (%s; %s): it stays a learner. `lofamoctl supervisor add` "+
				"continues with it if its replica has started; otherwise a new member replaces it and needs an empty data directory",
				name, wait, said, refusal(last))
		case <-tick.C:
		}
	}
}

func memberNamed(m *lofamov1.Member, name string) *lofamov1.Member {
	return &lofamov1.Member{Id: m.GetId(), Name: name, PeerUrl: m.GetPeerUrl()}
}

// progress describes a learner's progress.
func (s *Admin) progress(ctx context.Context, id uint64) string {
	resp, err := s.cfg.Client.MemberList(ctx, clientv3.WithSerializable())
	if err != nil {
		return ""
	}
	for _, m := range resp.Members {
		if m.ID != id {
			continue
		}
		out := memberOf(m)
		s.inquire(ctx, out, m.ClientURLs)
		if !out.GetHealthy() {
			return out.GetProblem()
		}
		newest, err := s.cfg.Client.Get(ctx, anyKey, clientv3.WithKeysOnly(), clientv3.WithSerializable())
		if err != nil { // the header of a member list has no revision
			return fmt.Sprintf("its copy is at revision %d", out.GetRevision())
		}
		return fmt.Sprintf("its copy is at revision %d of %d", out.GetRevision(), newest.Header.GetRevision())
	}
	return ""
}

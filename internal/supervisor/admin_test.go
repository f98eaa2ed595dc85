package supervisor_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

func adminOf(t testing.TB, c *supervisortest.Cluster, i int) lofamov1.SupervisorAdminClient {
	t.Helper()
	return lofamov1.NewSupervisorAdminClient(c.Conn(t, pki.RoleOperator, c.Configs[i].GRPC))
}

// follow reads a change of members to its end and calls added when the new member may be started.
func follow(t testing.TB, stream grpc.ServerStreamingClient[lofamov1.MemberProgress], added func(initialCluster string)) (steps string,
	err error) {
	t.Helper()
	for {
		p, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return steps, nil
		}
		if err != nil {
			return steps, err
		}
		t.Log(p.GetStep(), p.GetMessage())
		if strings.HasSuffix(p.GetMessage(), " of 0") {
			t.Errorf("%s: the store's revision is unknown", p.GetMessage())
		}
		if !strings.HasSuffix(steps, p.GetStep().String()) {
			steps = strings.TrimSpace(steps + " " + p.GetStep().String())
		}
		if p.GetStep() == lofamov1.MemberStep_ADDED {
			added(p.GetInitialCluster())
		}
	}
}

// TestReplacedReplicaLosesNoReport: a replica loses its disk while evidence arrives. Its successor has the same name and addresses
// and an empty directory. No acknowledged report is lost, and the successor can lead.
func TestReplacedReplicaLosesNoReport(t *testing.T) {
	t.Parallel()
	c, sups, leader := three(t, supervisortest.Options{})
	lost, asked := (leader+1)%3, (leader+2)%3
	admin := adminOf(t, c, asked)

	stop(t, sups[lost])
	sups[lost] = nil
	cfg := c.Configs[lost]
	if err := os.RemoveAll(cfg.DataDir); err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, other := range c.Configs {
		targets = append(targets, other.Report)
	}
	c.Storm(t, targets, func() {
		var steps string
		var err error
		whenHealthy(t, func() error {
			stream, serr := admin.ReplaceMember(t.Context(), &lofamov1.ReplaceMemberRequest{Name: cfg.ID, Wait: durationpb.New(time.Minute)})
			if serr != nil {
				t.Fatal(serr)
			}
			steps, err = follow(t, stream, func(initial string) {
				if !sameMembers(initial, cfg.Etcd.InitialCluster) {
					t.Errorf("initial cluster %s, was %s", initial, cfg.Etcd.InitialCluster)
				}
				again := cfg
				again.Etcd.ClusterState = "existing"
				sups[lost] = start(t, again)
			})
			return err
		})
		if err != nil || !strings.HasPrefix(steps, "REMOVED ADDED") || !strings.HasSuffix(steps, "PROMOTED") {
			t.Fatalf("%s, %v", steps, err)
		}
	})
	supervisortest.Eventually(t, "three healthy members with a vote", func() bool {
		list, err := admin.ListMembers(t.Context(), nil)
		return err == nil && len(list.GetMembers()) == 3 && !slices.ContainsFunc(list.GetMembers(), func(m *lofamov1.Member) bool {
			return !m.GetHealthy() || m.GetLearner() || m.GetVersion() == "" || m.GetQuotaBytes() != uint64(cfg.Etcd.QuotaBytes)
		})
	})
	stop(t, sups[leader])
	sups[leader] = nil
	next := c.AwaitLeader(t, lost, asked)
	events := supervisortest.Fresh(t, c.Client(t, c.Configs[lost].GRPC).ListEvents, &lofamov1.ListEventsRequest{})
	c.CheckStorm(t, "led by "+c.Configs[next].ID, events.GetEvents())
	sups[lost] = nil // start's cleanup stops it
}

// whenHealthy repeats a change of members while a member seems dead, as it does after 2 s without a processor.
func whenHealthy(t *testing.T, change func() error) {
	t.Helper()
	supervisortest.Eventually(t, "members that answer", func() bool { return status.Code(change()) != codes.FailedPrecondition })
}

func sameMembers(a, b string) bool {
	set := func(s string) map[string]bool {
		out := make(map[string]bool)
		for m := range strings.SplitSeq(s, ",") {
			out[m] = true
		}
		return out
	}
	x, y := set(a), set(b)
	for m := range x {
		if !y[m] {
			return false
		}
	}
	return len(x) == len(y)
}

// TestThreeFiveThree: replicas are added and removed without a change of the other replicas' configurations.
func TestThreeFiveThree(t *testing.T) {
	t.Parallel()
	c, sups, leader := three(t, supervisortest.Options{})
	admin := adminOf(t, c, leader)
	for range 2 {
		cfg := c.Grow(t)
		var steps string
		var err error
		begin := sync.OnceFunc(func() { start(t, cfg) })
		whenHealthy(t, func() error {
			stream, serr := admin.AddMember(t.Context(), &lofamov1.AddMemberRequest{Name: cfg.ID, PeerUrl: cfg.Etcd.PeerURL,
				Wait: durationpb.New(time.Minute)})
			if serr != nil {
				t.Fatal(serr)
			}
			steps, err = follow(t, stream, func(initial string) {
				cfg.Etcd.InitialCluster = initial
				begin()
			})
			return err
		})
		if err != nil || !strings.HasSuffix(steps, "PROMOTED") {
			t.Fatalf("%s, %v", steps, err)
		}
		whenHealthy(t, func() error {
			again, serr := admin.AddMember(t.Context(), &lofamov1.AddMemberRequest{Name: cfg.ID, PeerUrl: cfg.Etcd.PeerURL})
			if err = serr; err == nil {
				_, err = again.Recv()
			}
			return err
		})
		wantCode(t, "one that is there", err, codes.AlreadyExists, cfg.ID)
	}
	known := func(i, n int) {
		t.Helper()
		client := c.Client(t, c.Configs[i].GRPC)
		supervisortest.Eventually(t, "all replicas to be known", func() bool {
			sups, err := client.ListSupervisors(t.Context(), &lofamov1.ListSupervisorsRequest{})
			if err != nil || len(sups.GetSupervisors()) != n {
				return false
			}
			for _, s := range sups.GetSupervisors() {
				if s.GetState() != lofamov1.State_NORMAL {
					return false
				}
			}
			return true
		})
	}
	for i := range 5 {
		known(i, 5)
	}
	// A new replica receives evidence and forwards it to the old leader.
	a := c.Agents["n0-0-0"]
	id, b := a.Report(t, fault.HalfHost, false, temperature(fault.Sick))
	if ack := a.Deliver(t, id, b, c.Configs[4].Report); ack.From != c.Configs[4].ID {
		t.Errorf("committed by %s", ack.From)
	}

	// The old followers leave: one is stopped before, the other still runs and ends by itself.
	gone, ended := (leader+1)%3, (leader+2)%3
	stop(t, sups[gone])
	sups[gone] = nil
	for _, i := range []int{gone, ended} {
		var resp *lofamov1.RemoveMemberResponse
		var err error
		whenHealthy(t, func() error {
			resp, err = admin.RemoveMember(t.Context(), &lofamov1.RemoveMemberRequest{Name: c.Configs[i].ID})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Log("left:", len(resp.GetMembers()))
	}
	select {
	case err := <-sups[ended].Failed():
		if !errors.Is(err, embedded.ErrEnded) {
			t.Error(err)
		}
	case <-time.After(supervisortest.Wait):
		t.Error("a removed replica goes on")
	}
	for _, i := range []int{leader, 3, 4} {
		known(i, 3)
	}
	remove := func(name string) (err error) {
		whenHealthy(t, func() error {
			_, err = admin.RemoveMember(t.Context(), &lofamov1.RemoveMemberRequest{Name: name})
			return err
		})
		return err
	}
	wantCode(t, "itself", remove(c.Configs[leader].ID), codes.Unavailable, "call another replica")
	wantCode(t, "nobody", remove("s9"), codes.NotFound, `"s9": not among`)
}

// TestForgottenReplicaWithMemberReturnsToList: another replica, perhaps of an older version, removes a running replica from the list and
// leaves its member.
func TestForgottenReplicaWithMemberReturnsToList(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	start(t, c.Configs[0])
	st := store.NewEtcd(etcdClient(t, c.Configs[0]), store.Options{})
	listed := func() bool {
		list, err := st.Supervisors(t.Context())
		return err == nil && len(list) == 1 && list[0].GetEtcdMember() != "" && !list[0].GetRemoved()
	}
	supervisortest.Eventually(t, "the replica to be listed", listed)
	if err := st.RemoveSupervisor(t.Context(), c.Configs[0].ID); err != nil {
		t.Fatal(err)
	}
	supervisortest.Eventually(t, "the replica to be listed again", listed)
}

// TestLearnerThatNeverStarts: an unfinished change of members does no harm, and can be undone.
func TestLearnerThatNeverStarts(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	start(t, c.Configs[0])
	c.AwaitLeader(t)
	admin := adminOf(t, c, 0)
	var ids []string
	for _, want := range []string{"ADDED CATCHING_UP", "REMOVED ADDED CATCHING_UP"} { // the second call replaces the first one's learner
		addUnstarted(t, admin, "https://127.0.0.1:1", want)
		list, err := admin.ListMembers(t.Context(), nil)
		if err != nil || len(list.GetMembers()) != 2 || list.GetMembers()[0].GetName() != "" || !list.GetMembers()[0].GetLearner() {
			t.Fatal(list, err)
		}
		ids = append(ids, list.GetMembers()[0].GetId())
	}
	if ids[0] == ids[1] {
		t.Errorf("the second call asks for an empty replica of member %s, which may have had data", ids[0])
	}
	a := c.Agents["n0-0-0"]
	id, b := a.Report(t, fault.HalfHost, false, temperature(fault.Sick))
	a.Deliver(t, id, b, c.Configs[0].Report)
	if _, err := admin.RemoveMember(t.Context(), &lofamov1.RemoveMemberRequest{Name: ids[1]}); err != nil {
		t.Error(err)
	}
	_, err := admin.RemoveMember(t.Context(), &lofamov1.RemoveMemberRequest{Name: "s1"})
	wantCode(t, "the last", err, codes.FailedPrecondition, "only member")
	replace, err := admin.ReplaceMember(t.Context(), &lofamov1.ReplaceMemberRequest{Name: "s1"})
	if err == nil {
		_, err = replace.Recv()
	}
	wantCode(t, "the last", err, codes.FailedPrecondition, "only member")
}

// TestStartedLearnerKeepsItsData: the call that added it broke off. The next call promotes it, and does not ask for an empty replica:
// raft's leader counts on the entries that the learner has.
func TestStartedLearnerKeepsItsData(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	start(t, c.Configs[0])
	c.AwaitLeader(t)
	admin := adminOf(t, c, 0)
	cfg := c.Grow(t)
	add := &lofamov1.AddMemberRequest{Name: cfg.ID, PeerUrl: cfg.Etcd.PeerURL, Wait: durationpb.New(time.Minute)}
	ctx, breakOff := context.WithCancel(t.Context())
	whenHealthy(t, func() error {
		stream, err := admin.AddMember(ctx, add)
		if err == nil {
			_, err = follow(t, stream, func(initial string) {
				cfg.Etcd.InitialCluster = initial
				breakOff()
			})
		}
		return err
	})
	if cfg.Etcd.InitialCluster == "" || ctx.Err() == nil {
		t.Fatal("the member was not added")
	}
	start(t, cfg)
	supervisortest.Eventually(t, "the learner to have started", func() bool {
		list, err := admin.ListMembers(t.Context(), nil)
		return err == nil && slices.ContainsFunc(list.GetMembers(), func(m *lofamov1.Member) bool {
			return m.GetName() == cfg.ID && m.GetLearner()
		})
	})
	var steps string
	var err error
	whenHealthy(t, func() error {
		var stream grpc.ServerStreamingClient[lofamov1.MemberProgress]
		if stream, err = admin.AddMember(t.Context(), add); err == nil {
			steps, err = follow(t, stream, func(string) {})
		}
		return err
	})
	if err != nil || steps != "CATCHING_UP PROMOTED" {
		t.Errorf("%s, %v: want CATCHING_UP PROMOTED", steps, err)
	}
}

// TestStartedLearnerWithoutNameKeepsItsData: a learner has started, and etcd has not committed its name yet. The next call recognises
// it by its address, and does not ask for an empty replica.
func TestStartedLearnerWithoutNameKeepsItsData(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	start(t, c.Configs[0])
	c.AwaitLeader(t)
	admin := adminOf(t, c, 0)
	peers, err := net.Listen("tcp", "127.0.0.1:0") // of the replica
	if err != nil {
		t.Fatal(err)
	}
	defer peers.Close()
	for _, want := range []string{"ADDED CATCHING_UP", "CATCHING_UP"} {
		addUnstarted(t, admin, "https://"+peers.Addr().String(), want)
	}
}

// addUnstarted adds a learner s2 that does not start in time, and checks the steps of the call.
func addUnstarted(t *testing.T, admin lofamov1.SupervisorAdminClient, peerURL, want string) {
	t.Helper()
	stream, err := admin.AddMember(t.Context(), &lofamov1.AddMemberRequest{Name: "s2", PeerUrl: peerURL,
		Wait: durationpb.New(5 * time.Second)}) // on a busy machine the call needs a while to find that s2 is not started yet
	if err != nil {
		t.Fatal(err)
	}
	steps, err := follow(t, stream, func(string) {})
	wantCode(t, "a learner that is not started", err, codes.DeadlineExceeded, "not started yet")
	if steps != want {
		t.Errorf("%s: want %s", steps, want)
	}
}

// snapshot takes a snapshot and checks its header.
func snapshot(t testing.TB, admin lofamov1.SupervisorAdminClient) (*lofamov1.SnapshotHeader, []byte) {
	t.Helper()
	stream, err := admin.Snapshot(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil || first.GetHeader() == nil {
		t.Fatal(first, err)
	}
	var file bytes.Buffer
	for {
		chunk, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		file.Write(chunk.GetData())
		if end := chunk.GetTrailer(); end != nil {
			if sum := sha256.Sum256(file.Bytes()); end.GetBytes() != uint64(file.Len()) || !bytes.Equal(end.GetSha256(), sum[:]) {
				t.Fatalf("%d bytes, said to be %d", file.Len(), end.GetBytes())
			}
			return first.GetHeader(), file.Bytes()
		}
	}
}

func TestSnapshotWithoutQuorum(t *testing.T) {
	t.Parallel()
	c, sups, leader := three(t, supervisortest.Options{})
	left := (leader + 1) % 3
	admin := adminOf(t, c, left)
	before, _ := snapshot(t, admin)
	if !before.GetConfirmed() || before.GetCluster() != supervisortest.Name || before.GetMember() != c.Configs[left].ID ||
		before.GetRevision() == 0 {
		t.Error(before)
	}
	for i := range sups {
		if i != left {
			_ = sups[i].Stop(context.Background()) // the second cannot resign without a quorum
			sups[i] = nil
		}
	}
	after, _ := snapshot(t, admin)
	if after.GetConfirmed() || after.GetRevision() < before.GetRevision() {
		t.Error(after)
	}
	list, err := admin.ListMembers(t.Context(), nil)
	if err != nil || !list.GetStale() || len(list.GetMembers()) != 3 {
		t.Errorf("%v, %v", list, err)
	}
	for _, m := range list.GetMembers() {
		if m.GetHealthy() || m.GetProblem() == "" {
			t.Errorf("without a quorum: %v", m)
		}
	}
	_, err = admin.RemoveMember(t.Context(), &lofamov1.RemoveMemberRequest{Name: c.Configs[leader].ID})
	wantCode(t, "remove", err, codes.FailedPrecondition, "no quorum")
}

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/attempts"
	"github.com/lofamo/lofamo/internal/testing/lab"
)

// at connects to one replica alone.
func (t trial) at(id string, role pki.Role) *client.Client { return clientAt(t.T, t.Lab, id, role) }

func clientAt(t *testing.T, l *lab.Lab, id string, role pki.Role) *client.Client {
	t.Helper()
	s, err := l.Cluster.Supervisor(id)
	if err != nil {
		t.Fatal(err)
	}
	tls, err := pki.ClientTLS(l.Cluster.PKI(string(role)+".pem"), l.Cluster.PKI(string(role)+".key"), l.Cluster.PKI("ca.pem"),
		pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Config{Targets: []string{s.GRPC}, TLS: tls})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// operator connects to all replicas with the operator's certificate.
func operator(t *testing.T, l *lab.Lab) *client.Client {
	t.Helper()
	c, err := l.Cluster.ClientAs(pki.RoleOperator)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !cond() {
		select {
		case <-deadline:
			t.Fatalf("waited %s for %s", patience, what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// leaderFirst waits until somebody leads, and returns all replicas, the leader first.
func (t trial) leaderFirst() []string {
	t.Helper()
	var ids []string
	eventually(t.T, "a leader", func() bool {
		resp, err := t.Client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{Brief: true})
		if err != nil || resp.GetCluster().GetStale() || resp.GetCluster().GetLeader() == "" {
			return false
		}
		ids = []string{resp.GetCluster().GetLeader()}
		return true
	})
	for _, s := range t.Cluster.Info().Supervisors {
		if s.ID != ids[0] {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

func (t trial) signal(id string, sig unix.Signal) {
	t.Helper()
	if err := t.Cluster.SignalSupervisor(id, sig); err != nil {
		t.Fatal(err)
	}
}

func (t trial) kill(ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := t.Cluster.KillSupervisor(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}

func (t trial) start(ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := t.Cluster.StartSupervisor(id); err != nil {
			t.Fatal(err)
		}
	}
}

// once checks that since the trial began a component became so exactly once, and that revisions only rose.
func (t trial) once(node, component string, state lofamov1.State) {
	t.Helper()
	n, last := 0, uint64(0)
	for _, s := range t.Since(t.mark) {
		if s.GetNode() == node && s.GetComponent() == component && s.GetTo() == state {
			n++
		}
		if s.GetRevision() < last {
			t.Errorf("revision %d after %d: %s", s.GetRevision(), last, s)
		}
		last = s.GetRevision()
	}
	if n != 1 {
		t.Errorf("%s of %s became %s %d times", component, node, state, n)
	}
}

// TestSupervisorMachineFaults subjects the supervisors to the faults of their machines, while the nodes live.
func TestSupervisorMachineFaults(t *testing.T) {
	t.Parallel()
	l := startCluster(t, "2x2x1", 3)
	try(t, l, "the leader stopped past its lease and continued", leaderStopped)
	try(t, l, "a member that stalls again and again", stalls)
	try(t, l, "quorum lost and back", quorumLost)
	try(t, l, "a replica replaced under load", replaced)
	try(t, l, "all replicas killed at once", allKilled)
}

// leaderStopped: row 14. Another replica leads meanwhile; the old leader, continued, neither writes nor reports
// outdated states.
func leaderStopped(t trial) {
	old := t.leaderFirst()[0]
	reader := t.at(old, pki.RoleViewer)
	if _, err := reader.GetNode(t.Context(), "0,1,0"); err != nil {
		t.Fatal(err)
	}
	t.signal(old, unix.SIGSTOP)
	t.inject("0,1,0", sensor("temperature", 110))
	change := t.becomes("n0-1-0", "temperature", failed)
	t.signal(old, unix.SIGCONT)
	answers, staleOnes := 0, 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		resp, err := reader.ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
		if err != nil {
			continue // a refusal is no lie
		}
		answers++
		if resp.GetCluster().GetStale() {
			staleOnes++
			continue
		}
		i := slices.IndexFunc(resp.GetNodes(), func(n *lofamov1.Node) bool { return n.GetId() == "n0-1-0" })
		if got := t.component(resp.GetNodes()[i], "temperature").GetState(); got != failed || resp.GetRevision() < change.GetRevision() {
			t.Fatalf("%s was stopped past its lease, and says of what changed at revision %d: %s, as of revision %d, not marked stale",
				old, change.GetRevision(), got, resp.GetRevision())
		}
	}
	t.Logf("%d answers of the old leader, %d of them marked stale", answers, staleOnes)
	t.once("n0-1-0", "temperature", failed)
	t.othersWereSpared("n0-1-0")
	t.neverFailed()
}

// stalls: row 12. A member whose disk takes 0.1 to 5 s for a write is one that does nothing for so long: the
// whole process is stopped, which takes its network along. Followers and leaders in turn.
func stalls(t trial) {
	ids := t.leaderFirst()
	for _, p := range []struct {
		id         string
		stop, goOn time.Duration
		times      int
	}{
		{ids[1], 100 * time.Millisecond, 100 * time.Millisecond, 10},
		{ids[0], 100 * time.Millisecond, 100 * time.Millisecond, 10},
		{ids[1], 700 * time.Millisecond, 300 * time.Millisecond, 2},
		{ids[0], 5 * time.Second, 0, 1},
	} {
		for range p.times {
			t.signal(p.id, unix.SIGSTOP)
			pause(t, p.stop)
			t.signal(p.id, unix.SIGCONT)
			pause(t, p.goOn)
		}
	}
	// While everybody stalls in turn a fault comes in.
	t.inject("1,1,0", sensor("temperature", 110))
	for _, id := range ids {
		t.signal(id, unix.SIGSTOP)
		pause(t, 500*time.Millisecond)
		t.signal(id, unix.SIGCONT)
	}
	t.becomes("n1-1-0", "temperature", failed)
	t.once("n1-1-0", "temperature", failed)
	t.neverFailed()
	t.othersWereSpared("n1-1-0")
}

// pause lets a fault last; it waits for nothing.
func pause(t trial, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// quorumLost: row 12. The remaining replica shows the age of its data, on its page too, and changes nothing; evidence
// stays with its senders and arrives later.
func quorumLost(t trial) {
	ids := t.leaderFirst()
	var p *page // nil without a browser
	t.Run("a killed node in the browser", func(asks *testing.T) {
		p = t.browser(asks, ids[2])
		p.killed(trial{asks, t.Lab, t.mark, t.faults}, "n1-0-0")
	})
	t = begin(t.T, t.Lab)
	for t.leaderFirst()[0] == ids[2] { // a busy machine has ended the leader's lease: one of those to be killed must lead
		t.signal(ids[2], unix.SIGSTOP)
		eventually(t.T, "another leader", func() bool { return t.leaderFirst()[0] != ids[2] })
		t.signal(ids[2], unix.SIGCONT)
	}
	left := t.at(ids[2], pki.RoleViewer)
	t.kill(ids[0], ids[1])
	var last uint64
	eventually(t.T, "an answer that says that it is old", func() bool {
		resp, err := left.ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
		last = resp.GetRevision()
		return err == nil && resp.GetCluster().GetStale() && len(resp.GetNodes()) == 4
	})
	gone := t.Mark() // events of the time before may come until now
	_, err := operator(t.T, t.Lab).SetMaintenance(t.Context(), &lofamov1.SetMaintenanceRequest{Nodes: []string{"n0-1-0"}, Reason: "new fan"})
	if status.Code(err) != codes.Unavailable || !slices.ContainsFunc(ids[:2], func(id string) bool {
		return strings.Contains(err.Error(), "no leader: nothing was changed: supervisor "+id+", which led last, is not reached")
	}) {
		t.Errorf("a mark without a quorum: %v", err)
	}
	t.inject("1,0,0", sensor("temperature", 110))
	t.inject("0,0,0", simple(cluster.KillHost))
	pause(t, 2*time.Second)
	if sups, err := left.ListSupervisors(t.Context()); err != nil || len(sups.GetSupervisors()) != 3 ||
		slices.ContainsFunc(sups.GetSupervisors(), (*lofamov1.Supervisor).GetLeader) {
		t.Errorf("without a quorum the supervisors are %v, %v", sups, err)
	}
	resp, err := left.ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
	if err != nil || !resp.GetCluster().GetStale() {
		t.Errorf("without a quorum: %v, %v", resp.GetCluster(), err)
	} else if resp.GetRevision() != last {
		t.Errorf("without a quorum the map is of revision %d: want %d, as before", resp.GetRevision(), last)
	} else if age := resp.GetCluster().GetStaleAge(); age == nil || age.AsDuration() < time.Second || age.AsDuration() > patience {
		t.Errorf("2 s after the quorum was lost the answer's age is %v", age)
	}
	if seen := t.Since(gone); len(seen) > 0 {
		t.Errorf("committed without a quorum: %v", seen)
	}
	if p != nil {
		p.do(t.T, "stale")
	}
	t.start(ids[0], ids[1])
	t.becomes("n1-0-0", "temperature", failed)
	t.becomes("n0-0-0", "host", failed)
	if p != nil {
		p.do(t.T, "live")
	}
	t.once("n1-0-0", "temperature", failed)
	t.once("n0-0-0", "host", failed)
	t.neverFailed()
	t.othersWereSpared("n1-0-0", "n0-0-0")
}

// replaced: the leader's disk is lost while faults come in; its successor has nothing but the addresses.
func replaced(t trial) {
	ids := t.leaderFirst()
	admin := operator(t.T, t.Lab)
	stop, ended := make(chan struct{}), make(chan struct{})
	t.mayFail("n0-1-0", "temperature")
	go func() { // a fault that comes and goes
		defer close(ended)
		for v := 110.0; ; v = 150 - v {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				_, _ = t.Cluster.Inject(context.Background(), "0,1,0", sensor("temperature", v))
			}
		}
	}()
	err := admin.ReplaceMember(t.Context(), &lofamov1.ReplaceMemberRequest{Name: ids[0], Wait: durationpb.New(time.Minute)},
		func(p *lofamov1.MemberProgress) error {
			t.Log(p.GetStep(), p.GetMessage())
			if p.GetStep() != lofamov1.MemberStep_ADDED {
				return nil
			}
			if err := t.Cluster.EmptySupervisor(t.Context(), ids[0], p.GetInitialCluster()); err != nil {
				return err
			}
			return t.Cluster.StartSupervisor(ids[0])
		})
	close(stop)
	<-ended
	if err != nil {
		t.Fatal(err)
	}
	t.inject("1,1,0", sensor("temperature", 110))
	t.becomes("n1-1-0", "temperature", failed)
	// The new one carries a quorum with one of the others.
	t.kill(ids[1])
	t.inject("1,0,0", sensor("temperature", 110))
	t.becomes("n1-0-0", "temperature", failed)
	resp, err := t.at(ids[0], pki.RoleViewer).ListEvents(t.Context(), &lofamov1.ListEventsRequest{})
	if err != nil || !slices.ContainsFunc(resp.GetEvents(),
		func(e *lofamov1.Event) bool { return e.GetNode() == "n1-1-0" && e.GetTo() == failed }) {
		t.Errorf("the successor does not have the history: %v, %v", resp, err)
	}
	t.start(ids[1])
	t.neverFailed()
	t.othersWereSpared("n0-1-0", "n1-1-0", "n1-0-0")
}

// allKilled: a power cut of the supervisors' hall. The committed map is the same after it, except for ages.
func allKilled(t trial) {
	t.inject("1,0,0", sensor("temperature", 110))
	t.inject("0,1,0", simple(cluster.KillHost))
	t.becomes("n1-0-0", "temperature", failed)
	t.becomes("n0-1-0", "host", failed)
	ids := t.leaderFirst()
	// Links to the dead half's node may still be judged.
	before := ""
	eventually(t.T, "the map to rest", func() bool {
		was := before
		before = t.committed()
		pause(t, 2*time.Second) // on a busy machine the verdict on a link is late
		return before == was
	})
	t.kill(ids...)
	t.start(ids...)
	t.leaderFirst()
	after := ""
	defer func() {
		if t.Failed() {
			t.Logf("the committed map before:\n%s\nafter:\n%s", before, after)
		}
	}()
	eventually(t.T, "the map to be the committed one", func() bool {
		after = t.committed()
		return after == before
	})
	pause(t, 2*time.Second) // some digest periods
	// On a busy machine, a node that waits for a processor may call its service network UNKNOWN for a moment.
	eventually(t.T, "the map to stay the committed one", func() bool {
		after = t.committed()
		return after == before
	})
	t.neverFailed()
}

// committed returns the part of the map that must survive a restart of all supervisors, without ages, registers,
// evidence and deliveries. A half that misses the supervisors meanwhile calls its service network UNKNOWN, which
// changes the node's revision and that component's time.
func (t trial) committed() string {
	t.Helper()
	resp := answered(t.T, "read the map", func() (*lofamov1.ListNodesResponse, error) {
		return t.Client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
	})
	var b strings.Builder
	for _, n := range resp.GetNodes() {
		fmt.Fprintf(&b, "%s %s %s %s since %s epochs %d %d\n", n.GetId(), n.GetCoord(), n.GetState(), n.GetCause(),
			n.GetSince().AsTime(), n.GetHostEpoch(), n.GetDnpEpoch())
		for _, c := range n.GetComponents() {
			fmt.Fprintf(&b, "  %s %s", c.GetName(), c.GetState())
			if c.GetName() != "service-network" {
				fmt.Fprintf(&b, " since %s", c.GetSince().AsTime())
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// TestDeathOfAllNodesIsShown: row 18. All nodes die at once. The map shows it, the supervisors stay up and their leader keeps
// leading. Row 21: everything starts cold, and no node is called FAILED because it is not up yet.
func TestDeathOfAllNodesIsShown(t *testing.T) {
	l := startCluster(t, "2x2x1", 3)
	resp := answered(t, "read the events", func() (*lofamov1.ListEventsResponse, error) {
		return l.Client.ListEvents(t.Context(), &lofamov1.ListEventsRequest{})
	})
	for _, e := range resp.GetEvents() {
		if e.GetTo() == failed {
			t.Errorf("while the cluster started: %s of %s became FAILED", e.GetComponent(), e.GetNode())
		}
	}
	try(t, l, "all nodes killed at once", func(t trial) {
		nodes := t.Cluster.Info().Nodes
		// A busy machine may also end the leader's lease of a second.
		attempts.One(t.T, 3, "the leader keeps leading while all nodes die", func() bool {
			ids := t.leaderFirst()
			for _, n := range nodes {
				t.inject(string(n.ID), simple(cluster.KillNode))
			}
			eventually(t.T, "no node to be called NORMAL", func() bool {
				resp, err := t.Client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
				return err == nil && !resp.GetCluster().GetStale() && len(resp.GetNodes()) == 4 &&
					!slices.ContainsFunc(resp.GetNodes(), func(n *lofamov1.Node) bool { return n.GetState() == normal })
			})
			now := t.leaderFirst()
			if now[0] == ids[0] && len(now) == 3 {
				return true
			}
			t.Logf("led by %v, before by %v", now, ids)
			for _, n := range nodes {
				if err := t.Cluster.Heal(t.Context(), string(n.ID)); err != nil {
					t.Fatal(err)
				}
			}
			t.settled()
			return false
		})
		eventually(t.T, "all supervisors to be NORMAL", func() bool {
			sups, err := t.Client.ListSupervisors(t.Context())
			list := sups.GetSupervisors()
			return err == nil && len(list) == 3 && !slices.ContainsFunc(list, func(s *lofamov1.Supervisor) bool { return s.GetState() != normal })
		})
	})
	try(t, l, "cold start of everything", func(t trial) {
		t.kill(t.leaderFirst()...)
		if err := t.Cluster.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := t.Cluster.Start(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		t.settled()
		for _, s := range t.Since(t.mark) {
			if s.GetTo() == failed {
				t.Errorf("while the cluster started cold: %s", s)
			}
		}
	})
}

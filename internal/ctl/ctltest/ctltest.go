// Package ctltest has the shared parts of lofamoctl's tests: fault maps to print, a server that answers with them, and
// golden files. It runs no commands.
package ctltest

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"

	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lofamo/lofamo/internal/testing/clienttest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var update = flag.Bool("update", false, "write the golden files again")

// testdata is absolute: a test may change its working directory.
var testdata = func() string {
	dir, err := filepath.Abs("testdata")
	if err != nil {
		panic(err)
	}
	return dir
}()

// Now is when every golden file was printed.
var Now = time.Date(2024, 5, 6, 12, 0, 0, 0, time.UTC)

// Golden compares a test's output with its golden file, or writes the file with -update.
func Golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join(testdata, name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; got:\n%s\nwant:\n%s", name, got, want)
	}
}

// GoldenBlock compares text with the first console block below a heading of a page, or writes that block with -update.
func GoldenBlock(t *testing.T, page, heading, got string) {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const fence = "```console\n"
	before, below, ok := strings.Cut(string(b), "\n"+heading+"\n")
	prose, rest, fenced := strings.Cut(below, fence)
	want, after, ends := strings.Cut(rest, "```\n")
	if !ok || !fenced || !ends || strings.Contains(prose, "\n#") {
		t.Fatalf("%s: want a console block below %q", page, heading)
	}
	if *update {
		text := before + "\n" + heading + "\n" + prose + fence + got + "```\n" + after
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != want {
		t.Errorf("%s, %s differs; got:\n%s\nwant:\n%s", page, heading, got, want)
	}
}

// Remote is a fake cluster and the flags to reach it.
type Remote struct {
	Map    *clienttest.Map
	Server *clienttest.Server
	Dir    string
}

// StartRemote serves a map for one test.
func StartRemote(t *testing.T, m *clienttest.Map) Remote {
	t.Helper()
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	return Remote{m, clienttest.Serve(t, dir, m), dir}
}

// Flags returns the arguments and the flags that lead to the cluster.
func (r Remote) Flags(args ...string) []string {
	return append(args, "--server", r.Server.Address, "--ca", filepath.Join(r.Dir, "ca.pem"),
		"--cert", filepath.Join(r.Dir, "viewer.pem"), "--key", filepath.Join(r.Dir, "viewer.key"))
}

// Ago is a time before Now.
func Ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(Now.Add(-d)) }

// Healthy is a fault map of a torus where everything is NORMAL.
func Healthy(t *testing.T, dims string) *clienttest.Map {
	t.Helper()
	d, err := grid.ParseDims(dims)
	if err != nil {
		t.Fatal(err)
	}
	return HealthyMap(d)
}

// HealthyMap is Healthy for sizes that are known.
func HealthyMap(d grid.Dims) *clienttest.Map {
	m := clienttest.NewMap()
	m.Nodes.Revision, m.Links.Revision = 41, 41
	m.Nodes.Cluster = &lofamov1.ClusterInfo{
		Dims: d.String(), Preset: "default", Leader: "sup-1",
		HalfBound: durationpb.New(210 * time.Millisecond), NodeBound: durationpb.New(175 * time.Millisecond),
	}
	for r := range d.Nodes() {
		at := d.At(r)
		n := &lofamov1.Node{
			Id: string(fault.DefaultNodeID(at)), Coord: at.String(), State: lofamov1.State_NORMAL, Cause: lofamov1.Cause_NONE,
			Since: Ago(3 * time.Minute), Age: durationpb.New(120 * time.Millisecond), HostEpoch: 1, DnpEpoch: 1, Revision: 12,
			Platform:  lofamov1.Platform_SHARED_KERNEL,
			Registers: &lofamov1.Registers{DnpWatchdog: 1, HostWatchdog: 1, Age: durationpb.New(130 * time.Millisecond)},
		}
		for _, c := range []string{"host", "dnp", "service-network", "memory", "temperature"} {
			n.Components = append(n.Components, &lofamov1.Component{Name: c, State: lofamov1.State_NORMAL, Since: Ago(3 * time.Minute)})
		}
		for _, dir := range d.Links() {
			n.Components = append(n.Components, &lofamov1.Component{Name: "link/" + dir.String(), State: lofamov1.State_NORMAL,
				Since: Ago(3 * time.Minute)})
			peer, _ := d.Neighbour(at, dir)
			m.Links.Links = append(m.Links.Links, &lofamov1.Link{
				Node: n.GetId(), Coord: n.GetCoord(), Direction: dir.String(), Peer: string(fault.DefaultNodeID(peer)), PeerCoord: peer.String(),
				State: lofamov1.State_NORMAL, Cause: lofamov1.Cause_NONE, Since: Ago(3 * time.Minute),
			})
		}
		m.Nodes.Nodes = append(m.Nodes.Nodes, n)
	}
	m.Supervisors.Supervisors = []*lofamov1.Supervisor{
		{Id: "sup-0", Address: "127.0.0.1:11000", State: lofamov1.State_NORMAL, Pid: 4001, ReportAddress: "127.0.0.1:11002",
			HttpAddress: "127.0.0.1:11001"},
		{Id: "sup-1", Address: "127.0.0.1:11006", State: lofamov1.State_NORMAL, Leader: true, Pid: 4002},
		{Id: "sup-2", Address: "127.0.0.1:11012", State: lofamov1.State_FAILED},
	}
	return m
}

// Harmed is a 2x2x2 map: n1-0-1 has lost its host half, n0-1-0 is dead, and the cable X+ of n0-0-0 loses sent frames.
func Harmed(t *testing.T) *clienttest.Map {
	t.Helper()
	m := Healthy(t, "2x2x2")
	n := m.Nodes.Nodes[5]
	n.State, n.Cause, n.Since, n.Revision = lofamov1.State_SICK, lofamov1.Cause_HOST, Ago(12*time.Second), 40
	n.Components[0].State, n.Components[0].Since = lofamov1.State_FAILED, Ago(12*time.Second)
	n.Components[0].Evidence = []*lofamov1.Evidence{
		{Kind: "CHALLENGE", Observer: "supervisor/sup-1", Age: durationpb.New(11900 * time.Millisecond), State: lofamov1.State_FAILED,
			Detail: "no answer within 20ms"},
		{Kind: "WATCHDOG", Observer: "n1-0-1/dnp", Path: lofamov1.Path_TORUS, Age: durationpb.New(12100 * time.Millisecond),
			State: lofamov1.State_FAILED, Detail: "Valid still 0, twice\x1b[2J"},
	}
	n.Components[2].State = lofamov1.State_UNKNOWN
	n.Registers.DnpWatchdog = 1 | 1<<6 | 1<<25

	dead := m.Nodes.Nodes[2]
	dead.State, dead.Cause, dead.Since, dead.Age, dead.Registers, dead.SingleWitness = lofamov1.State_FAILED, lofamov1.Cause_NODE,
		Ago(75*time.Minute), nil, nil, true
	for _, c := range dead.Components {
		c.State = lofamov1.State_UNKNOWN
	}
	link := m.Links.Links[0]
	link.State, link.Cause, link.Since = lofamov1.State_SICK, lofamov1.Cause_LINK, Ago(4*time.Second)
	link.Evidence = []*lofamov1.Evidence{{Kind: "ERROR_RATIO", Observer: "n0-0-0/host", Path: lofamov1.Path_DIRECT,
		Age: durationpb.New(4 * time.Second), State: lofamov1.State_SICK, Detail: "17 of 100 frames"}}
	link = m.Links.Links[7]
	link.State, link.Cause, link.Since, link.Reason = lofamov1.State_SICK, lofamov1.Cause_DNP, Ago(time.Second), "peer-restarting"
	for _, l := range m.Links.Links {
		if l.GetPeer() == "n0-1-0" {
			l.State, l.Cause = lofamov1.State_FAILED, lofamov1.Cause_NODE
		}
	}
	deliveries(m)
	health(m)
	m.Commit(40, &lofamov1.Event{
		Node: "n1-0-1", Coord: "1,0,1", Component: "host", From: lofamov1.State_NORMAL, To: lofamov1.State_FAILED, Cause: lofamov1.Cause_HOST,
		Path: lofamov1.Path_TORUS, AwarenessLatency: durationpb.New(143 * time.Millisecond), Time: Ago(12 * time.Second), Observer: "n1-0-1/dnp",
		Reason: "watchdog, and no answer to a challenge",
	}, &lofamov1.Event{
		Node: "n1-0-1", Coord: "1,0,1", Component: "node", From: lofamov1.State_NORMAL, To: lofamov1.State_SICK, Cause: lofamov1.Cause_HOST,
		Path: lofamov1.Path_TORUS, AwarenessLatency: durationpb.New(143 * time.Millisecond), Time: Ago(12 * time.Second), Observer: "n1-0-1/dnp",
	})
	m.Commit(41, &lofamov1.Event{
		Node: "n0-1-0", Coord: "0,1,0", Component: "node", From: lofamov1.State_NORMAL, To: lofamov1.State_FAILED, Cause: lofamov1.Cause_NODE,
		Time: Ago(25 * time.Hour), SingleWitness: true,
	})
	return m
}

// health adds recoveries and self-tests: the DNP half of n0-0-0 was restarted, that of n1-0-0 is being, of n1-0-1 the
// host half was given up. n0-1-1 has agents of an earlier version.
func health(m *clienttest.Map) {
	at := func(i int) *lofamov1.Node { return m.Nodes.Nodes[i] }
	at(0).HostHealth = &lofamov1.HalfHealth{
		Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING, Budget: 5, WindowMs: 60_000},
		Tests: []*lofamov1.SelfTest{
			{Number: 9, Module: "report-path", State: lofamov1.TestState_PASSED, AgeMs: 800, LatencyUs: 310, LearnedUs: 290, Tests: 4410},
			{Number: 12, Module: "bulk", State: lofamov1.TestState_IDLE, AgeMs: 7_200_000, LatencyUs: 9100, LearnedUs: 9000, Tests: 3},
			{Number: 16, Module: "direct/eth0", State: lofamov1.TestState_UNTESTED, AgeMs: 400, Tests: 12, Lost: 12},
		},
		AgeNs: uint64(800 * time.Millisecond),
	}
	at(0).DnpHealth = &lofamov1.HalfHealth{
		Recovery: &lofamov1.RecoveryStatus{
			State: lofamov1.RecoveryState_RUNNING, Restarts: 7, InWindow: 1, Budget: 5, WindowMs: 60_000, Cause: "ended by signal 9",
			AgeNs:  uint64(42 * time.Second),
			GoneUs: 1, StartedUs: 3200, ServingUs: 43_000, ProvenUs: 61_000, Resumption: lofamov1.Resumption_RESUMED,
		},
		Tests: []*lofamov1.SelfTest{
			{Number: 1, Module: "link/X+", State: lofamov1.TestState_FAILING, AgeMs: 300, LatencyUs: 88_000, LearnedUs: 900, Tests: 40, Lost: 2,
				Altered: 1, Late: 4, Why: "altered: 1 of 3\x1b[2J"},
			{Number: 10, Module: "mailbox", State: lofamov1.TestState_PASSED, AgeMs: 300, LatencyUs: 60, LearnedUs: 70, Tests: 4, Proving: true},
		},
		AgeNs: uint64(2 * time.Second),
	}
	at(1).DnpHealth = &lofamov1.HalfHealth{
		Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RESTARTING, Restarts: 3, InWindow: 3, Budget: 5, WindowMs: 60_000,
			Cause: "hung (no word for 62ms)", AgeNs: uint64(210 * time.Millisecond), GoneUs: 2100, UntilMs: 790},
		Cut: true, AgeNs: uint64(100 * time.Millisecond),
	}
	at(5).HostHealth = &lofamov1.HalfHealth{
		Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_GIVEN_UP, Restarts: 6, InWindow: 5, Budget: 5, WindowMs: 60_000,
			Cause: "ended with code 1",
			AgeNs: uint64(12 * time.Second), GoneUs: 1, Resumption: lofamov1.Resumption_COLD, Cold: "of another kernel boot",
			Reason: "next start after 1m0s: 5 restarts within 1m0s, the last ended with code 1"},
		AgeNs: uint64(72 * time.Second), Old: true,
	}
}

// deliveries adds delivery states of reports: n0-0-0 uses its second interface, n1-0-1 reaches no supervisor.
func deliveries(m *clienttest.Map) {
	two := &lofamov1.DeliveryStatus{
		State: lofamov1.PathState_ARMED, Primary: "eth1>sup-1", Alternate: "eth0>sup-0", Logged: 3, Unanswered: 1,
		OldestNs: uint64(340 * time.Millisecond), Migrations: 2, Retries: 17,
		Rails: []*lofamov1.RailStatus{
			{Name: "direct/eth0", Sent: 40, Answered: 38, RttNs: uint64(420 * time.Microsecond)},
			{Name: "direct/eth1", InFlight: 1, Sent: 12, Answered: 11, RttNs: uint64(390 * time.Microsecond)},
			{Name: "gossip", Sent: 2},
			{Name: "torus", Sent: 1, Answered: 1, RttNs: uint64(5100 * time.Microsecond)},
		},
	}
	none := &lofamov1.DeliveryStatus{
		State: lofamov1.PathState_REESTABLISHING, Primary: "eth0>sup-2", Logged: 212, Unanswered: 212, OldestNs: uint64(75 * time.Second),
		Migrations: 9, Retries: 1031, Shortened: 12, IsolatedNs: uint64(71 * time.Second), Spool: "no space left\x1b[2J",
		Rails: []*lofamov1.RailStatus{{Name: "direct/eth0", Down: true, Sent: 90, Answered: 3}, {Name: "torus", InFlight: 4, Sent: 9}},
	}
	m.Nodes.Nodes[0].Delivery, m.Nodes.Nodes[5].Delivery = two, none
	m.Nodes.Nodes[0].DeliveryAge = durationpb.New(800 * time.Millisecond)
	m.Nodes.Nodes[5].DeliveryAge, m.Nodes.Nodes[5].DeliveryOld = durationpb.New(72*time.Second), true
	// By the torus, in numbers only.
	m.Nodes.Nodes[1].Delivery = &lofamov1.DeliveryStatus{State: lofamov1.PathState_REESTABLISHING, Logged: 1,
		OldestNs: uint64(2 * time.Second), Retries: 44}
	m.Nodes.Nodes[1].DeliveryAge = durationpb.New(120 * time.Millisecond)
	m.Reports.Senders = []*lofamov1.SenderStatus{
		{Node: "n0-0-0", Coord: "0,0,0", Delivery: two, Age: durationpb.New(800 * time.Millisecond)},
		{Node: "n1-0-1", Coord: "1,0,1", Delivery: none, Age: durationpb.New(72 * time.Second), Old: true},
		{Node: "n1-0-0", Coord: "1,0,0", Delivery: m.Nodes.Nodes[1].Delivery, Age: durationpb.New(120 * time.Millisecond)},
	}
	m.Reports.Reports = []*lofamov1.ReportStatus{
		{
			Node: "n1-0-1", Half: "dnp", Epoch: 2, Seq: 18, Path: lofamov1.Path_TORUS, From: "127.0.0.1:12000", Copies: 3,
			Hops: []*lofamov1.ReportHop{
				{Node: "n1-0-1", Half: "dnp", Held: durationpb.New(2 * time.Millisecond)},
				{Node: "n0-0-1", Half: "dnp", Held: durationpb.New(300 * time.Microsecond)},
				{Node: "n0-0-1", Half: "host", Held: durationpb.New(time.Millisecond)},
			},
			Latency: durationpb.New(143 * time.Millisecond), Age: durationpb.New(40 * time.Millisecond),
			Says: []string{"n1-0-1 host FAILED", "n1-0-1 link/X+ SICK", "n1-0-1 link/Y+ SICK", "n1-0-1 link/Z+ SICK"},
		},
		{
			Node: "n0-0-0", Half: "host", Epoch: 1, Seq: 4, Path: lofamov1.Path_DIRECT, From: "127.0.0.1:12010", Copies: 1, Committed: true,
			Latency: durationpb.New(12 * time.Millisecond), Age: durationpb.New(4 * time.Second), Commit: durationpb.New(3200 * time.Microsecond),
			Says: []string{"n0-0-0 link/X+ SICK"},
		},
		{Node: "n0-1-0", Half: "host", Epoch: 1, Seq: 2, Path: lofamov1.Path_GOSSIP, Copies: 1, Latency: durationpb.New(0),
			Age: durationpb.New(26 * time.Hour), Digest: true},
	}
}

// AuditLines is a chain of n decisions.
func AuditLines(t *testing.T, n int) []*lofamov1.AuditLine {
	t.Helper()
	var out []*lofamov1.AuditLine
	var last response.AuditLine
	for i := range n {
		d := response.Decision{At: Now.Add(time.Duration(i-n) * time.Minute), Act: response.Refuses, Response: "r7-1", Policy: "drain",
			Target: response.Target{Node: "n1-0-1", Component: fault.ComponentMemory}, Step: "drain", Kind: response.KubernetesDrain}
		switch i % 4 {
		case 0:
			d.Act, d.Step, d.Kind = response.Proposes, "", ""
		case 1:
			d.Reason, d.Detail = response.ReasonApproval, "0 of 2"
		case 2:
			d.Act, d.Subject, d.Detail = response.Approves, "approver/ann", "seen \x1b it"
		case 3:
			d.Act, d.Attempt = response.Starts, 2
		}
		l, err := response.ChainAudit(last, d)
		if err != nil {
			t.Fatal(err)
		}
		b, err := l.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		last = l
		line := &lofamov1.AuditLine{
			Seq: l.Seq, Line: string(b), At: timestamppb.New(d.At), Act: d.Act.String(), Response: d.Response, Policy: d.Policy,
			Target: d.Target.String(), Step: d.Step, Executor: string(d.Kind),
			Attempt: uint32(d.Attempt), Subject: d.Subject, Detail: d.Detail,
		}
		if d.Reason != 0 {
			line.Reason = d.Reason.String()
		}
		out = append(out, line)
	}
	return out
}

// targetsOf sets the answers about targets of notifications.
func targetsOf(s *clienttest.Responses) {
	s.Checked = &lofamov1.CheckPoliciesResponse{}
	chat := &lofamov1.NotifyTarget{Name: "chat", Format: lofamov1.NotifyFormat_NOTIFY_SLACK, Host: "hooks.slack.com", Fingerprint: "01234567",
		By: "operator/someone", At: Ago(time.Hour), Policies: []string{"notify-group.chat", "notify.chat"}}
	s.Targets = &lofamov1.ListNotifyTargetsResponse{Targets: []*lofamov1.NotifyTarget{chat, {Name: "desk",
		Format: lofamov1.NotifyFormat_NOTIFY_GENERIC, Host: "desk.example:8443", Fingerprint: "89abcdef", Signed: true, Configured: true}}}
	s.Added = &lofamov1.AddNotifyTargetResponse{Target: chat, Changes: []*lofamov1.PolicyChange{
		{Name: "notify.chat", Kind: lofamov1.PolicyChangeKind_POLICY_CREATED, Version: 1, To: lofamov1.PolicyMode_ENFORCE},
		{Name: "notify-group.chat", Kind: lofamov1.PolicyChangeKind_POLICY_CREATED, Version: 1, To: lofamov1.PolicyMode_ENFORCE}}}
	s.Removed = &lofamov1.RemoveNotifyTargetResponse{Changes: []*lofamov1.PolicyChange{{Name: "notify.chat",
		Kind: lofamov1.PolicyChangeKind_POLICY_DELETED, Version: 2, From: lofamov1.PolicyMode_ENFORCE}}}
}

// Responding is a fake cluster with policies and responses.
func Responding(t *testing.T) Remote {
	t.Helper()
	r := StartRemote(t, Healthy(t, "2x2x2"))
	s := &r.Server.Responses
	docs, err := policy.Default()
	if err != nil {
		t.Fatal(err)
	}
	drain := &lofamov1.ResponsePolicy{
		Name: "drain", Version: 3, By: "operator/someone", At: Ago(time.Hour), Digest: "0123456789abcdef", Mode: lofamov1.PolicyMode_ENFORCE,
		Match: `fault.component == "memory"`,
		Steps: []string{"kubernetes.cordon", "kubernetes.drain"}, Description: "Uncorrected errors.", Document: string(docs[0].JSON),
		Warnings: []string{"the policy starts no response: it requires condition KernelDeadlock, whose source (Kubernetes) is not configured: " +
			"set responses.executors.kubernetes.evidence: true"},
	}
	alert := &lofamov1.ResponsePolicy{Name: "alert-group", Version: 1, By: "operator/someone", At: Ago(48 * time.Hour),
		Digest: "fedcba9876543210", Mode: lofamov1.PolicyMode_OBSERVE_ONLY, Groups: true, Steps: []string{"alertmanager"}}
	s.Policies = &lofamov1.ListPoliciesResponse{Policies: []*lofamov1.ResponsePolicy{alert, drain}, Revision: 41}
	s.Policy = &lofamov1.GetPolicyResponse{Policy: drain, Former: []*lofamov1.ResponsePolicy{
		{Name: "drain", Version: 2, By: "operator/bob", At: Ago(2 * time.Hour), Deleted: true},
		{Name: "drain", Version: 1, By: "operator/ann", At: Ago(3 * time.Hour), Mode: lofamov1.PolicyMode_OBSERVE_ONLY,
			Digest: "aaaaaaaaaaaaaaaa"},
	}}
	s.Applied = &lofamov1.ApplyPoliciesResponse{Revision: 42, Changes: []*lofamov1.PolicyChange{
		{Name: "a", Kind: lofamov1.PolicyChangeKind_POLICY_CREATED, Version: 1, To: lofamov1.PolicyMode_OBSERVE_ONLY},
		{Name: "b", Kind: lofamov1.PolicyChangeKind_POLICY_REPLACED, Version: 4, From: lofamov1.PolicyMode_OBSERVE_ONLY,
			To: lofamov1.PolicyMode_ENFORCE, Open: 2},
		{Name: "c", Kind: lofamov1.PolicyChangeKind_POLICY_UNCHANGED, Version: 2, From: lofamov1.PolicyMode_ENFORCE,
			To: lofamov1.PolicyMode_ENFORCE},
		{Name: "d", Kind: lofamov1.PolicyChangeKind_POLICY_RELABELLED, Version: 9, From: lofamov1.PolicyMode_ENFORCE,
			To: lofamov1.PolicyMode_ENFORCE},
	}}
	s.Deleted = &lofamov1.DeletePoliciesResponse{Changes: []*lofamov1.PolicyChange{{Name: "a", Kind: lofamov1.PolicyChangeKind_POLICY_DELETED,
		Version: 2, From: lofamov1.PolicyMode_ENFORCE, Open: 1}}}
	targetsOf(s)
	s.Is = &lofamov1.Response{
		Id: "r7-12", Policy: "drain", Digest: "0123456789abcdef", Mode: lofamov1.PolicyMode_ENFORCE, Node: "n1-0-1", Component: "memory",
		FaultState: lofamov1.State_FAILED, FaultCause: lofamov1.Cause_MEMORY,
		FaultSince: Ago(10 * time.Minute), State: lofamov1.ResponseState_RESPONSE_WAITING, Reason: "approval", Detail: "1 of 2", Step: 1,
		ApprovalsWanted: 2, Proposed: Ago(9 * time.Minute), Asked: Ago(8 * time.Minute), Version: 5,
		Approvals: []*lofamov1.ResponseApproval{{Subject: "approver/ann", At: Ago(5 * time.Minute)}},
		Steps: []*lofamov1.ResponseStep{
			{Name: "cordon", Executor: "kubernetes.cordon", State: lofamov1.ResponseStepState_STEP_ACTED, Attempt: 1, Retries: 5,
				Started: Ago(8 * time.Minute), Ended: Ago(8 * time.Minute), Changed: true, Detail: "unschedulable"},
			{Name: "drain", Executor: "kubernetes.drain", Parameters: map[string]string{"gracePeriod": "5m", "force": "true"},
				State: lofamov1.ResponseStepState_STEP_PENDING, Retries: 1},
		},
	}
	s.List = &lofamov1.ListResponsesResponse{
		Breaker: &lofamov1.ResponseBreaker{Open: true, At: Ago(time.Minute), Detail: "13 of 64 nodes went bad within 5m0s"},
		Responses: []*lofamov1.Response{s.Is, {
			Id: "r7-13", Policy: "alert-group", Group: "label/rack=r7", State: lofamov1.ResponseState_RESPONSE_RUNNING, Undoing: true,
			Proposed: Ago(2 * time.Minute), Mode: lofamov1.PolicyMode_OBSERVE_ONLY,
			Steps: []*lofamov1.ResponseStep{{Name: "alert", Executor: "alertmanager", Attempt: 3}}, FaultState: lofamov1.State_FAILED,
		}, {
			Id: "r7-14", Policy: "drain", Node: "n0-0-0", Component: "memory", State: lofamov1.ResponseState_RESPONSE_DONE, Step: 1,
			Proposed: Ago(time.Hour), Closed: Ago(time.Minute), Steps: []*lofamov1.ResponseStep{{Name: "cordon"}},
		}},
	}
	s.Changes = []*lofamov1.WatchResponsesResponse{{Responses: s.List.GetResponses()[:1], Breaker: &lofamov1.ResponseBreaker{}}, {},
		{Responses: s.List.GetResponses()[1:2], Gone: []string{"r6-2"}}}
	s.Lines = AuditLines(t, 5)
	r.Map.Commit(42, &lofamov1.Event{Kind: lofamov1.EventKind_POLICY_CHANGED, Policy: "drain", Observer: "operator/someone",
		Reason: "policy drain put in force, enforce, version 3", Time: Ago(time.Hour)},
		&lofamov1.Event{Kind: lofamov1.EventKind_POLICY_CHANGED, Policy: "alert", Ended: true, Observer: "operator/someone",
			Reason: "policy alert withdrawn", Time: Ago(time.Hour)})
	return r
}

package ctl

import (
	"bytes"
	"context"
	"flag"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var update = flag.Bool("update", false, "write the golden files anew")

// testdata is found from whatever directory a test has gone to.
var testdata = func() string {
	dir, err := filepath.Abs("testdata")
	if err != nil {
		panic(err)
	}
	return dir
}()

// now is when every golden file was printed.
var now = time.Date(2024, 5, 6, 12, 0, 0, 0, time.UTC)

type result struct {
	code           int
	stdout, stderr string
}

// run runs one command line without a terminal, at the time now.
func run(t *testing.T, env map[string]string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	code := Run(ctx, args, Env{
		Stdout: &out, Stderr: &errOut,
		Getenv:   func(k string) string { return env[k] },
		Now:      func() time.Time { return now },
		Location: time.UTC,
	})
	return result{code, out.String(), errOut.String()}
}

func golden(t *testing.T, name, got string) {
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

// remote is a fake cluster and the flags that lead to it.
type remote struct {
	m      *clienttest.Map
	server *clienttest.Server
	dir    string
}

func startRemote(t *testing.T, m *clienttest.Map) remote {
	t.Helper()
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	return remote{m, clienttest.Serve(t, dir, m), dir}
}

func (r remote) flags(args ...string) []string {
	return append(args, "--server", r.server.Address, "--ca", filepath.Join(r.dir, "ca.pem"),
		"--cert", filepath.Join(r.dir, "viewer.pem"), "--key", filepath.Join(r.dir, "viewer.key"))
}

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }

// healthy is a fault map of a torus where everything is NORMAL.
func healthy(t *testing.T, dims string) *clienttest.Map {
	t.Helper()
	d, err := grid.ParseDims(dims)
	if err != nil {
		t.Fatal(err)
	}
	return healthyMap(d)
}

func healthyMap(d grid.Dims) *clienttest.Map {
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
			Since: ago(3 * time.Minute), Age: durationpb.New(120 * time.Millisecond), HostEpoch: 1, DnpEpoch: 1, Revision: 12, Platform: lofamov1.Platform_SHARED_KERNEL,
			Registers: &lofamov1.Registers{DnpWatchdog: 1, HostWatchdog: 1, Age: durationpb.New(130 * time.Millisecond)},
		}
		for _, c := range []string{"host", "dnp", "service-network", "memory", "temperature"} {
			n.Components = append(n.Components, &lofamov1.Component{Name: c, State: lofamov1.State_NORMAL, Since: ago(3 * time.Minute)})
		}
		for _, dir := range d.Links() {
			n.Components = append(n.Components, &lofamov1.Component{Name: "link/" + dir.String(), State: lofamov1.State_NORMAL, Since: ago(3 * time.Minute)})
			peer, _ := d.Neighbour(at, dir)
			m.Links.Links = append(m.Links.Links, &lofamov1.Link{
				Node: n.GetId(), Coord: n.GetCoord(), Direction: dir.String(), Peer: string(fault.DefaultNodeID(peer)), PeerCoord: peer.String(),
				State: lofamov1.State_NORMAL, Cause: lofamov1.Cause_NONE, Since: ago(3 * time.Minute),
			})
		}
		m.Nodes.Nodes = append(m.Nodes.Nodes, n)
	}
	m.Supervisors.Supervisors = []*lofamov1.Supervisor{
		{Id: "sup-0", Address: "127.0.0.1:11000", State: lofamov1.State_NORMAL, Pid: 4001, ReportAddress: "127.0.0.1:11002", HttpAddress: "127.0.0.1:11001"},
		{Id: "sup-1", Address: "127.0.0.1:11006", State: lofamov1.State_NORMAL, Leader: true, Pid: 4002},
		{Id: "sup-2", Address: "127.0.0.1:11012", State: lofamov1.State_FAILED},
	}
	return m
}

// harmed is a 2x2x2 map in which n1-0-1 has lost its host half, n0-1-0 is dead, and the cable X+ of
// n0-0-0 loses what it sends.
func harmed(t *testing.T) *clienttest.Map {
	t.Helper()
	m := healthy(t, "2x2x2")
	n := m.Nodes.Nodes[5]
	n.State, n.Cause, n.Since, n.Revision = lofamov1.State_SICK, lofamov1.Cause_HOST, ago(12*time.Second), 40
	n.Components[0].State, n.Components[0].Since = lofamov1.State_FAILED, ago(12*time.Second)
	n.Components[0].Evidence = []*lofamov1.Evidence{
		{Kind: "CHALLENGE", Observer: "supervisor/sup-1", Age: durationpb.New(11900 * time.Millisecond), State: lofamov1.State_FAILED, Detail: "no answer within 20ms"},
		{Kind: "WATCHDOG", Observer: "n1-0-1/dnp", Path: lofamov1.Path_TORUS, Age: durationpb.New(12100 * time.Millisecond), State: lofamov1.State_FAILED, Detail: "Valid still 0, twice\x1b[2J"},
	}
	n.Components[2].State = lofamov1.State_UNKNOWN
	n.Registers.DnpWatchdog = 1 | 1<<6 | 1<<25

	dead := m.Nodes.Nodes[2]
	dead.State, dead.Cause, dead.Since, dead.Age, dead.Registers, dead.SingleWitness = lofamov1.State_FAILED, lofamov1.Cause_NODE, ago(75*time.Minute), nil, nil, true
	for _, c := range dead.Components {
		c.State = lofamov1.State_UNKNOWN
	}
	link := m.Links.Links[0]
	link.State, link.Cause, link.Since = lofamov1.State_SICK, lofamov1.Cause_LINK, ago(4*time.Second)
	link.Evidence = []*lofamov1.Evidence{{Kind: "ERROR_RATIO", Observer: "n0-0-0/host", Path: lofamov1.Path_DIRECT, Age: durationpb.New(4 * time.Second), State: lofamov1.State_SICK, Detail: "17 of 100 frames"}}
	link = m.Links.Links[7]
	link.State, link.Cause, link.Since, link.Reason = lofamov1.State_SICK, lofamov1.Cause_DNP, ago(time.Second), "peer-restarting"
	for _, l := range m.Links.Links {
		if l.GetPeer() == "n0-1-0" {
			l.State, l.Cause = lofamov1.State_FAILED, lofamov1.Cause_NODE
		}
	}
	deliveries(m)
	health(m)
	m.Commit(40, &lofamov1.Event{
		Node: "n1-0-1", Coord: "1,0,1", Component: "host", From: lofamov1.State_NORMAL, To: lofamov1.State_FAILED, Cause: lofamov1.Cause_HOST,
		Path: lofamov1.Path_TORUS, AwarenessLatency: durationpb.New(143 * time.Millisecond), Time: ago(12 * time.Second), Observer: "n1-0-1/dnp", Reason: "watchdog, and no answer to a challenge",
	}, &lofamov1.Event{
		Node: "n1-0-1", Coord: "1,0,1", Component: "node", From: lofamov1.State_NORMAL, To: lofamov1.State_SICK, Cause: lofamov1.Cause_HOST,
		Path: lofamov1.Path_TORUS, AwarenessLatency: durationpb.New(143 * time.Millisecond), Time: ago(12 * time.Second), Observer: "n1-0-1/dnp",
	})
	m.Commit(41, &lofamov1.Event{
		Node: "n0-1-0", Coord: "0,1,0", Component: "node", From: lofamov1.State_NORMAL, To: lofamov1.State_FAILED, Cause: lofamov1.Cause_NODE,
		Time: ago(25 * time.Hour), SingleWitness: true,
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
			State: lofamov1.RecoveryState_RUNNING, Restarts: 7, InWindow: 1, Budget: 5, WindowMs: 60_000, Cause: "ended by signal 9", AgeNs: uint64(42 * time.Second),
			GoneUs: 1, StartedUs: 3200, ServingUs: 43_000, ProvenUs: 61_000, Resumption: lofamov1.Resumption_RESUMED,
		},
		Tests: []*lofamov1.SelfTest{
			{Number: 1, Module: "link/X+", State: lofamov1.TestState_FAILING, AgeMs: 300, LatencyUs: 88_000, LearnedUs: 900, Tests: 40, Lost: 2, Altered: 1, Late: 4, Why: "altered: 1 of 3\x1b[2J"},
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
		Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_GIVEN_UP, Restarts: 6, InWindow: 5, Budget: 5, WindowMs: 60_000, Cause: "ended with code 1",
			AgeNs: uint64(12 * time.Second), GoneUs: 1, Resumption: lofamov1.Resumption_COLD, Cold: "of another kernel boot",
			Reason: "not started again: 5 restarts within 1m0s, the last ended with code 1"},
		AgeNs: uint64(72 * time.Second), Old: true,
	}
}

// deliveries adds reports on their way: n0-0-0 goes by its second interface, n1-0-1 reaches nobody.
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
	m.Nodes.Nodes[1].Delivery = &lofamov1.DeliveryStatus{State: lofamov1.PathState_REESTABLISHING, Logged: 1, OldestNs: uint64(2 * time.Second), Retries: 44}
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
		{Node: "n0-1-0", Half: "host", Epoch: 1, Seq: 2, Path: lofamov1.Path_GOSSIP, Copies: 1, Latency: durationpb.New(0), Age: durationpb.New(26 * time.Hour), Digest: true},
	}
}

func TestGolden(t *testing.T) {
	bad, good := startRemote(t, harmed(t)), startRemote(t, healthy(t, "2x2x2"))
	for _, tc := range []struct {
		name string
		r    remote
		args string
	}{
		{"get-nodes.txt", bad, "get nodes"},
		{"get-nodes-wide.txt", bad, "get nodes -o wide"},
		{"get-nodes.json", bad, "get nodes --state SICK -o json"},
		{"get-nodes.yaml", bad, "get nodes --state failed -o yaml"},
		{"get-node.txt", bad, "get node 1,0,1"},
		{"get-node-dead.txt", bad, "get node n0-1-0"},
		{"get-node.json", bad, "get node 1,0,1 -o json"},
		{"get-links.txt", bad, "get links --state SICK,FAILED"},
		{"get-links-wide.txt", bad, "get links n0-0-0 -o wide"},
		{"get-links.json", bad, "get links 0,0,0 --state SICK -o json"},
		{"get-events.txt", bad, "get events"},
		{"get-events-wide.txt", bad, "get events 1,0,1 -o wide"},
		{"get-events.json", bad, "get events --limit 1 -o json"},
		{"get-reports.txt", bad, "get reports"},
		{"get-reports-wide.txt", bad, "get reports -o wide --digests"},
		{"get-reports-one.txt", bad, "get reports n1-0-1 --limit 1"},
		{"get-reports-none.txt", good, "get reports"},
		{"get-reports.json", bad, "get reports n0-0-0 -o json"},
		{"get-node-delivery.txt", bad, "get node n0-0-0"},
		{"get-node-delivery-torus.txt", bad, "get node n1-0-0"},
		{"get-supervisors.txt", bad, "get supervisors"},
		{"get-supervisors-wide.txt", bad, "get supervisors -o wide"},
		{"get-supervisors.json", bad, "get supervisors -o json"},
		{"map.txt", bad, "map"},
		{"map-colour.txt", bad, "map --" + colorFlag + " always"},
		{"map-healthy.txt", good, "map"},
		{"watch.txt", bad, "watch --after-revision 1 --count 3"},
		{"watch-wide.txt", bad, "watch --after-revision 1 --count 3 -o wide"},
		{"watch.json", bad, "watch --after-revision 1 --count 1 -o json"},
		{"regs-remote.txt", bad, "regs 1,0,1"},
		{"regs-decode.txt", bad, "regs decode 0xec0 0x00000041"},
		{"regs-decode.json", bad, "regs decode 0xf40 173 -o json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := run(t, nil, tc.r.flags(strings.Fields(tc.args)...)...)
			if got.code != 0 || got.stderr != "" {
				t.Fatalf("exit code %d, stderr %q", got.code, got.stderr)
			}
			golden(t, tc.name, got.stdout)
		})
	}
}

func TestMapOfManyShapes(t *testing.T) {
	for _, tc := range []struct{ name, dims, width string }{
		{"map-4.txt", "4", "100"},
		{"map-1x1x3.txt", "1x1x3", "100"},
		{"map-1x3.txt", "1x3", "100"},
		{"map-3x3.txt", "3x3", "100"},
		{"map-10x10.txt", "10x10", "120"},
		{"map-10x10-narrow.txt", "10x10", "100"},
		{"map-10x2-tiny.txt", "10x2", "40"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := healthy(t, tc.dims)
			m.Nodes.Nodes[1].State = lofamov1.State_SICK
			m.Links.Links[len(m.Links.Links)-1].State = lofamov1.State_FAILED
			r := startRemote(t, m)
			got := run(t, nil, r.flags("map", "--width", tc.width)...)
			if got.code != 0 {
				t.Fatalf("exit code %d: %s", got.code, got.stderr)
			}
			golden(t, tc.name, got.stdout)
		})
	}
}

func TestUsageErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "nothing")
	for _, tc := range []struct{ args, want string }{
		{"frobnicate", `unknown command "frobnicate"`},
		{"ups", `did you mean "up"?`},
		{"get", "get what? want nodes"},
		{"get answers", "get answers: want nodes, node NODE, links, masks, groups, events, reports, supervisors, topology, diagnosis, procedure, responses, response ID or breaker"},
		{"get nodes extra", `argument "extra": none is wanted`},
		{"get nodes -o xml", "want one of table, wide, json, yaml"},
		{"get nodes --state WELL", "want NORMAL, SICK, FAILED or UNKNOWN"},
		{"get node", "NODE (an id such as n1-0-1, or coordinates such as 1,0,1) is missing"},
		{"get node a b", `argument "b": nothing more`},
		{"get reports --limit 4097", "--limit 4097: want 1 to 4096"},
		{"get reports --limit 0", "want 1 to 4096"},
		{"get reports a b", `argument "b": nothing more`},
		{"history", "NODE (an id such as n1-0-1"},
		{"history a b c", `argument "c": nothing more`},
		{"history a --since -1h", "want a positive time"},
		{"history a --limit 10001", "want 1 to 10000"},
		{"explain", "NODE (an id such as n1-0-1"},
		{"explain a b c", `argument "c": nothing more`},
		{"explain label/rack=r1 host", `argument "host": a group fault has no components`},
		{"summary a", "none is wanted"},
		{"policy apply p.yaml", "files are given with -f p.yaml"},
		{"summary -o wide", "want one of table, json, yaml"},
		{"get groups a b", `argument "b": nothing more`},
		{"get nodes --limit -1", "invalid argument"},
		{"watch --initial --after-revision 3", "want one of them"},
		{"get events --limit 10001", "want 1 to 10000"},
		{"get events --limit 0", "want 1 to 10000"},
		{"get events --after-revision -1", "invalid argument"},
		{"get nodes --nonsense", "unknown flag"},
		{"map --width 5", "want 20 to 1000"},
		{"map --" + colorFlag + " pink", "want auto, always or never"},
		{"top --width 59", "want 60 to 1000"},
		{"top --height 1001", "want 16 to 1000"},
		{"top --" + colorFlag + " pink", "want auto, always or never"},
		{"watch --for -1s", "want a positive time"},
		{"watch -o yaml", "want one of table, wide, json"},
		{"up --dims 2xx2", `dims "2xx2"`},
		{"up --dims 0x2", "want 1 to 65536"},
		{"up --dims 1", "1 nodes: want 2 to 1000"},
		{"up --dims 99x99", "9801 nodes: want 2 to 1000"},
		{"up --dims 2x2x2x2", "one to three sizes"},
		{"up --supervisors 2", "want 1, 3 or 5"},
		{"up --service-interfaces 3", "want 1 to 2"},
		{"up --spares -1", "--spares -1: want 0 to 1000"},
		{"up --spares 1 --regions 2", "none with --regions"},
		{"up --restart sometimes", "want never or always"},
		{"up --preset warp", `--preset: given "warp": want one of default, fast, relaxed`},
		{"up --log-level loud", "want debug, info, warn or error"},
		{"up --timeout -5s", "want a positive time"},
		{"up --server h:1", "--server names another one"},
		{"inject", "NODE (an id such as n1-0-1, or coordinates such as 1,0,1) is missing"},
		{"inject 0,0,0", "FAULT (one of kill-host"},
		{"inject 0,0,0 explode", `"explode": want one of kill-host`},
		{"inject 0,0,0 cut-link", "want cut-link DIR"},
		{"inject 0,0,0 cut-interface", "want cut-interface NUMBER"},
		{"inject 0,0,0 cut-interface one", "want a service interface's, 0 or 1"},
		{"inject 0,0,0 cut-interface 2", "number 2: want 0 or 1"},
		{"inject 0,0,0 cut-link W+", "want one of X+ X- Y+ Y- Z+ Z-"},
		{"inject 0,0,0 corrupt-link X+ 2", "want above 0, up to 1"},
		{"inject 0,0,0 sensor temperature -300", "want -70 to 127"},
		{"inject 0,0,0 kill-host --one-way", "--one-way is for cut-link only"},
		{"inject 0,0,0 kill-host --for 0s", "want a positive time"},
		{"inject 0,0,0 heal --for 3s", "heal takes neither"},
		{"inject 0,0,0 heal now", "nothing more is wanted"},
		{"inject all kill-host", "only heal takes all"},
		{"inject 0,0,0 kill-host --server h:1", "works only on a local cluster"},
		{"bundle", "NODE (an id"},
		{"bundle a b", `argument "b": nothing more`},
		{"bundle 0,0,0 --half both", `--half "both": want host or dnp`},
		{"bundle 0,0,0 --max-bytes 65535", "--max-bytes 65535: want 65536 to 67108864"},
		{"bundle 0,0,0 --max-bytes 67108865", "want 65536 to 67108864"},
		{"regs", "NODE (an id"},
		{"regs decode 0xec0", "VALUE (such as 0x00000041) is missing"},
		{"regs decode zero 1", `ADDRESS "zero": want a number`},
		{"regs decode 0xec0 0x100000000", "want a number from 0 to 0xffffffff"},
		{"regs decode 0x4 1", "ADDRESS 0x4: no register there"},
		{"down extra", "none is wanted"},
		{"get nodes --ca x", "go with --server"},
		{"get nodes --server h:1", "--server also wants --ca, --cert, --key"},
		{"get nodes --server h:1 --dir d", "two clusters"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			got := run(t, map[string]string{"LOFAMO_DIR": missing}, strings.Fields(tc.args)...)
			if got.code != 2 || !strings.Contains(got.stderr, tc.want) {
				t.Errorf("exit code %d, stderr %q: want 2 and %q", got.code, got.stderr, tc.want)
			}
			if !strings.Contains(got.stderr, "--help'") {
				t.Errorf("stderr %q does not point to the help", got.stderr)
			}
		})
	}
}

// TestArgumentsThatCannotBe: what only the cluster or a file can tell to be wrong is wrong usage too.
func TestArgumentsThatCannotBe(t *testing.T) {
	r := startRemote(t, healthy(t, "2"))
	bin, dir := pretend(t)
	d, err := grid.ParseDims("2")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Create(cluster.Options{Dir: dir, Dims: d}); err != nil {
		t.Fatal(err)
	}
	keyless := r
	keyless.dir = t.TempDir()
	long := filepath.Join(t.TempDir(), strings.Repeat("long", 25))
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{r.flags("get", "node", "9,9,9"), []string{"get node 9,9,9", "no such node"}},
		{[]string{"inject", "9,9,9", "kill-host"}, []string{"9,9,9", "outside the 2x1x1 torus", "want 0,0,0 to 1,0,0"}},
		{[]string{"inject", "nobody", "heal"}, []string{`"nobody"`, "coordinates x,y,z"}},
		{[]string{"inject", "0,0,0", "cut-link", "Z+"}, []string{"Z+", "2x1x1", "size there is 1"}},
		{[]string{"regs", "9,9,9"}, []string{"9,9,9", "want 0,0,0 to 1,0,0"}},
		{keyless.flags("get", "nodes"), []string{"--cert", "viewer.pem", "no such file"}},
		{[]string{"up", "--bin-dir", bin, "--dir", long}, []string{"--dir: path too long", "want at most"}},
	} {
		got := run(t, map[string]string{"LOFAMO_DIR": dir}, tc.args...)
		if got.code != 2 {
			t.Errorf("%v: exit code %d, want 2", tc.args, got.code)
		}
		for _, w := range tc.want {
			if !strings.Contains(got.stderr, w) {
				t.Errorf("%v: stderr %q does not say %q", tc.args, got.stderr, w)
			}
		}
	}
}

func TestFailures(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "nothing")
	r := startRemote(t, healthy(t, "2"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := l.Addr().String()
	_ = l.Close()
	away := r
	away.server = &clienttest.Server{Address: dead}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	bin, _ := pretend(t)
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"no cluster", []string{"get", "nodes"}, []string{"no local cluster in " + missing, "($LOFAMO_DIR)", "lofamoctl up"}},
		{"no cluster at --dir", []string{"down", "--dir", missing + "2"}, []string{missing + "2", "(--dir)"}},
		{"inject without a cluster", []string{"inject", "0,0,0", "kill-host"}, []string{"no local cluster"}},
		{"regs without a cluster", []string{"regs", "0,0,0"}, []string{"no local cluster"}},
		{"nobody answers", away.flags("get", "nodes"), []string{dead, "connection refused", "no supervisor answered"}},
		{"nobody answers a watch", away.flags("watch"), []string{dead, "connection refused"}},
		{"up in a file", []string{"up", "--bin-dir", bin, "--dir", file}, []string{file, "not a directory"}},
		{"register that cannot be", []string{"regs", "decode", "0xec4", "0x6"}, []string{"0x00000ec4", "field", "3 (11)"}},
		{"no programs", []string{"up", "--bin-dir", t.TempDir()}, []string{"lofamo-agent", "make build"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := run(t, map[string]string{"LOFAMO_DIR": missing}, tc.args...)
			if got.code != 1 {
				t.Errorf("exit code %d", got.code)
			}
			for _, w := range tc.want {
				if !strings.Contains(got.stderr, w) {
					t.Errorf("stderr %q does not say %q", got.stderr, w)
				}
			}
			if strings.Contains(got.stderr, "rpc error") {
				t.Errorf("stderr %q speaks gRPC", got.stderr)
			}
		})
	}
}

func TestWatchAsSeenAndItsEnds(t *testing.T) {
	m := healthy(t, "2")
	m.See(&lofamov1.Event{Node: "n1-0-0", Component: "host", From: lofamov1.State_NORMAL, To: lofamov1.State_FAILED, Time: ago(0)})
	r := startRemote(t, m)
	got := run(t, nil, r.flags("watch", "--as-seen", "--count", "1")...)
	if got.code != 0 || !strings.Contains(got.stdout, "as seen") || !strings.Contains(got.stdout, "NORMAL → FAILED") {
		t.Errorf("%+v", got)
	}
	if got := run(t, nil, r.flags("watch", "--for", "50ms")...); got.code != 0 || got.stdout != "" || got.stderr != "" {
		t.Errorf("a watch that ends by --for: %+v", got)
	}
}

func TestStaleAnswersAreCalledSo(t *testing.T) {
	m := healthy(t, "2")
	m.Nodes.Cluster.Stale = true
	r := startRemote(t, m)
	if got := run(t, nil, r.flags("get", "nodes")...); got.code != 0 || !strings.Contains(got.stderr, "reaches no leader") {
		t.Errorf("%+v", got)
	}
}

// TestRegionsThatAreCutOff: whatever is printed of a parent's map, it says of which regions nothing is heard.
func TestRegionsThatAreCutOff(t *testing.T) {
	m := healthy(t, "2")
	m.Nodes.Nodes[0].Region = "west"
	m.Nodes.Nodes[1].Region = "east"
	m.Nodes.Cluster.Regions = []*lofamov1.Region{
		{Name: "west", State: lofamov1.State_NORMAL, Nodes: 1},
		{Name: "east", State: lofamov1.State_UNKNOWN, Nodes: 1, Age: durationpb.New(5 * time.Second)},
		{Name: "north", State: lofamov1.State_UNKNOWN, Nodes: 2},
	}
	r := startRemote(t, m)
	want := "lofamoctl: CUT OFF: region east is not heard since 5s: its 1 node is shown as UNKNOWN, what was last is kept until it is back\n" +
		"lofamoctl: CUT OFF: region north is not heard: its 2 nodes are shown as UNKNOWN, what was last is kept until it is back\n"
	for _, args := range [][]string{{"get", "nodes"}, {"map"}} {
		if got := run(t, nil, r.flags(args...)...); got.code != 0 || got.stderr != want {
			t.Errorf("%s: %+v", args, got)
		}
	}
	got := run(t, nil, r.flags("get", "nodes", "-o", "wide")...)
	for i, want := range []string{"REGION", "west", "east"} {
		if line := strings.Split(got.stdout, "\n")[i]; !slices.Contains(strings.Fields(line), want) {
			t.Errorf("line %d: %q, want %s in it", i+1, line, want)
		}
	}
}

func TestNoColorIsObeyed(t *testing.T) {
	a := &app{env: Env{Terminal: true, Getenv: func(k string) string { return map[string]string{envNoColor: "1"}[k] }}}
	if p, err := a.painter("auto"); err != nil || p.on {
		t.Errorf("auto when refused: %v, %v", p, err)
	}
	if p, err := a.painter("always"); err != nil || !p.on {
		t.Errorf("always: %v, %v", p, err)
	}
	a.env.Getenv = func(string) string { return "" }
	if p, err := a.painter("auto"); err != nil || !p.on {
		t.Errorf("auto on a terminal: %v, %v", p, err)
	}
}

func TestDuration(t *testing.T) {
	for _, tc := range []struct {
		d    time.Duration
		want string
	}{
		{-time.Second, "0s"}, {0, "0s"}, {85123 * time.Microsecond, "85.1ms"}, {143456 * time.Microsecond, "143ms"}, {1254 * time.Millisecond, "1.25s"},
		{12 * time.Second, "12s"}, {time.Minute, "1m"}, {3*time.Minute + 5*time.Second, "3m5s"}, {10 * time.Minute, "10m"}, {75 * time.Minute, "1h15m"},
		{52 * time.Hour, "2d4h"},
	} {
		if got := duration(tc.d); got != tc.want {
			t.Errorf("duration(%d) = %q, want %q", tc.d, got, tc.want)
		}
	}
}

func TestVersionAndCompletion(t *testing.T) {
	if got := run(t, nil, "version"); got.code != 0 || !strings.HasPrefix(got.stdout, "lofamoctl ") {
		t.Errorf("version: %+v", got)
	}
	if got := run(t, nil, "version", "-o", "json"); got.code != 0 || !strings.Contains(got.stdout, `"go": "go1.`) {
		t.Errorf("version -o json: %+v", got)
	}
	if got := run(t, nil, "completion", "bash"); got.code != 0 || !strings.Contains(got.stdout, "lofamoctl") {
		t.Errorf("completion: code %d", got.code)
	}
	r := startRemote(t, healthy(t, "2x2"))
	got := run(t, nil, append([]string{"__complete"}, r.flags("get", "node", "n1")...)...)
	if got.code != 0 || strings.Contains(got.stdout, "n0-") {
		t.Errorf("completion of flags after a word: %+v", got)
	}
	args := append([]string{"__complete"}, r.flags()...)
	got = run(t, nil, append(args, "get", "node", "n1")...)
	if !strings.HasPrefix(got.stdout, "n1-0-0\nn1-1-0\n") {
		t.Errorf("completion of a node: %+v", got)
	}
	got = run(t, nil, "__complete", "inject", "0,0,0", "kill-")
	if !strings.HasPrefix(got.stdout, "kill-host\nkill-dnp\nkill-node\n") {
		t.Errorf("completion of a fault: %+v", got)
	}
}

func TestEveryCommandHelps(t *testing.T) {
	for _, args := range []string{"", "up", "down", "get", "get nodes", "get node", "get links", "get groups", "get events", "summary", "history", "explain", "get supervisors", "map", "watch", "inject", "regs", "regs decode", "version"} {
		got := run(t, nil, append(strings.Fields(args), "--help")...)
		if got.code != 0 || !strings.Contains(got.stdout, "Usage:") {
			t.Errorf("%s --help: %+v", args, got)
		}
	}
}

func TestNegativeValuesAreNoFlags(t *testing.T) {
	got := protectNegative(strings.Fields("inject 0,0,0 sensor temperature -3 --for 5s"))
	if strings.Join(got, " ") != "inject 0,0,0 sensor temperature --for 5s -- -3" {
		t.Errorf("%q", got)
	}
}

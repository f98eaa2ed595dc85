package ctl

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func someTopology() *lofamov1.Topology {
	return &lofamov1.Topology{
		Dims: "2x1x1", Revision: 41, DomainLabels: []string{"rack", "power"},
		Nodes: []*lofamov1.TopologyNode{
			{Id: "n0-0-0", Coord: "0,0,0", Labels: map[string]string{"rack": "r0", "gpu": ""}, Service: []string{"10.0.0.1:7000", "10.1.0.1:7000"}},
			{Id: "n1-0-0", Coord: "1,0,0", Service: []string{"10.0.0.2:7000"}},
			{Id: "x", Labels: map[string]string{"rack": "r1"}},
		},
	}
}

// operated is a fake cluster that answers operators.
func operated(t *testing.T) ctltest.Remote {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2x2x2"))
	o := &r.Server.Operators
	o.Topology = someTopology()
	o.Applied = &lofamov1.ApplyTopologyResponse{
		Topology: &lofamov1.Topology{Revision: 42}, Changes: []string{"node n1-0-0: label rack=r0 is new",
			"node x: the spare takes 0,0,0 in place of n0-0-0"},
	}
	o.Marked = &lofamov1.SetMaintenanceResponse{Maintenance: []*lofamov1.Maintenance{
		{Node: "n0-0-0", Reason: "new fan", By: "operator/someone", Since: ctltest.Ago(0), Until: timestamppb.New(ctltest.Now.Add(2 * 3600e9))},
		{Node: "n1-0-0", Reason: "new fan", By: "operator/someone", Since: ctltest.Ago(0)},
	}}
	return r
}

// placedIn is a fake cluster whose nodes, by rank, are in the named racks.
func placedIn(t *testing.T, dims, racks string) ctltest.Remote {
	d, err := grid.ParseDims(dims)
	if err != nil {
		t.Fatal(err)
	}
	top := &lofamov1.Topology{Dims: d.String(), Revision: 41, DomainLabels: fault.DomainLabels()}
	for c := range d.All() {
		i := len(top.GetNodes())
		top.Nodes = append(top.Nodes, &lofamov1.TopologyNode{Id: string(fault.DefaultNodeID(c)), Coord: c.String(),
			Labels: map[string]string{"rack": racks[i : i+1], "power": string("AB"[c.X%2])}})
	}
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2x2x2"))
	r.Server.Operators.Topology = top
	return r
}

// five is a fake cluster of five nodes, one of which has a single witness.
func five(t *testing.T) ctltest.Remote {
	r := placedIn(t, "4x2x1 without 1,1,0..3,1,0", "abcde")
	r.Server.Operators.Topology.SingleWitness = []*lofamov1.SingleWitness{fifth()}
	return r
}

// fifth is the node that has a single witness in a cluster of five.
func fifth() *lofamov1.SingleWitness {
	return &lofamov1.SingleWitness{Node: "n0-1-0", Witness: "n0-0-0",
		Reason: "one witness, n0-0-0: if both die at once, or the link between them is cut, only the service network notices the death of n0-1-0",
		Remedy: "one more node gives it a second witness, and so does `lofamoctl node move n1-0-0 --to 2,1,0`"}
}

func TestOperatorsOutput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "topology.yaml")
	if err := os.WriteFile(file, []byte("dims: 2x1x1\nrevision: \"41\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	marked := ctltest.Healthy(t, "2x1x1")
	for i, n := range marked.Nodes.GetNodes() {
		n.Maintenance = &lofamov1.Maintenance{Node: n.GetId(), Reason: "new fan", By: "operator/someone", Since: ctltest.Ago(0)}
		if i == 1 {
			n.Maintenance.Until, n.Spare, n.Coord = timestamppb.New(ctltest.Now.Add(2*3600e9)), true, ""
		}
	}
	none := ctltest.Healthy(t, "2x1x1")
	none.Nodes.Nodes = nil
	for _, tc := range []struct {
		name, args string
		r          ctltest.Remote
	}{
		{"get-topology.txt", "get topology", operated(t)},
		{"get-topology-separated.txt", "get topology", placedIn(t, "2x2x1", "abab")},
		{"get-topology-exposed.txt", "get topology", placedIn(t, "4x2x1", "ababbaba")},
		{"get-topology-improve.txt", "get topology --improve", placedIn(t, "4x2x1", "ababbaba")},
		{"get-topology-improve-none.txt", "get topology --improve", placedIn(t, "2x2x1", "abab")},
		{"get-topology-improve-move.txt", "get topology --improve", placedIn(t, "2x2x3 without 1,0,0 0,1,0 1,0,1 0,1,1", "abbcaaaa")},
		{"get-topology-five.txt", "get topology", five(t)},
		{"get-topology-five.json", "get topology -o json", five(t)},
		{"get-topology.yaml", "get topology -o yaml", operated(t)},
		{"get-topology.json", "get topology -o json", operated(t)},
		{"apply.txt", "apply -f " + file, operated(t)},
		{"apply-dry-run.txt", "apply --dry-run -f " + file, operated(t)},
		{"label.txt", "label 1,0,0 rack=r0 gpu-", operated(t)},
		{"maintenance-start.txt", "maintenance start n0-0-0 n1-0-0 --reason new-fan --for 2h", operated(t)},
		{"maintenance-end.txt", "maintenance end n0-0-0 n1-0-0", operated(t)},
		{"maintenance-list.txt", "maintenance list", ctltest.StartRemote(t, marked)},
		{"maintenance-list-none.txt", "maintenance list", ctltest.StartRemote(t, none)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := run(t, nil, tc.r.Flags(strings.Fields(tc.args)...)...)
			if got.code != 0 || got.stderr != "" {
				t.Fatalf("exit code %d, stderr %q", got.code, got.stderr)
			}
			ctltest.Golden(t, tc.name, got.stdout)
		})
	}
}

// TestPrintedTopologyIsTaken: apply accepts the output of get, at the revision at which it was printed.
func TestPrintedTopologyIsTaken(t *testing.T) {
	r := operated(t)
	file := filepath.Join(t.TempDir(), "topology")
	for _, format := range []string{"yaml", "json"} {
		printed := run(t, nil, r.Flags("get", "topology", "-o", format)...)
		if err := os.WriteFile(file, []byte(printed.stdout), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := run(t, nil, r.Flags("apply", "-f", file)...); got.code != 0 {
			t.Fatalf("%s: %+v", format, got)
		}
		sent := r.Server.Operators.Sent[len(r.Server.Operators.Sent)-1]
		if want := someTopology(); sent.GetIfRevision() != 41 || sent.GetDryRun() || sent.GetTopology().String() != want.String() {
			t.Errorf("%s: sent %v, want %v", format, sent, want)
		}
	}
}

func TestLabelSeesWhatOthersChange(t *testing.T) {
	r := operated(t)
	r.Server.Operators.Errs = []error{status.Error(codes.Aborted, "changed"), status.Error(codes.Aborted, "changed")}
	if got := run(t, nil, r.Flags("label", "x", "rack-", "example.com/power=b")...); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if n := len(r.Server.Operators.Sent); n != 3 {
		t.Errorf("%d attempts, want 3", n)
	}
	x := r.Server.Operators.Sent[2].GetTopology().GetNodes()[2]
	if x.GetId() != "x" || len(x.GetLabels()) != 1 || x.GetLabels()["example.com/power"] != "b" {
		t.Errorf("sent %v", x)
	}
	for range 5 {
		r.Server.Operators.Errs = append(r.Server.Operators.Errs, status.Error(codes.Aborted, "changed"))
	}
	if got := run(t, nil, r.Flags("label", "x", "rack-")...); got.code != 1 || !strings.Contains(got.stderr, "label x: changed") {
		t.Errorf("%+v", got)
	}
}

func TestLabelPausesLongerAfterEachConflict(t *testing.T) {
	r := conflicting(t, 4)
	began := time.Now()
	if got := run(t, nil, r.Flags("label", "x", "rack=r1")...); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if took := time.Since(began); took < 750*time.Millisecond { // half of 100, 200, 400 and 800 ms
		t.Errorf("four conflicts took %v", took)
	}
}

// conflicting is a fake cluster with the spare x, and answers each of the next changes with a conflict.
func conflicting(t *testing.T, conflicts int) ctltest.Remote {
	r := operated(t)
	o := &r.Server.Operators
	o.Topology = &lofamov1.Topology{Dims: "2x2x2", Revision: 41, Nodes: []*lofamov1.TopologyNode{{Id: "n0-0-0", Coord: "0,0,0"}, {Id: "x"}}}
	for range conflicts {
		o.Errs = append(o.Errs, status.Error(codes.Aborted, "changed"))
	}
	return r
}

func TestReplacePausesLongerAfterEachConflict(t *testing.T) {
	r := conflicting(t, 4)
	r.Server.Operators.Errs = append(r.Server.Operators.Errs, status.Error(codes.Internal, "enough"))
	began := time.Now()
	got := run(t, nil, r.Flags("node", "replace", "n0-0-0", "x")...)
	if got.code != command.ExitFailure || !strings.Contains(got.stderr, "replace n0-0-0: enough") {
		t.Errorf("%+v", got)
	}
	if took := time.Since(began); took < 750*time.Millisecond { // half of 100, 200, 400 and 800 ms
		t.Errorf("four conflicts took %v", took)
	}
	if asked := r.Server.Operators.Asked; len(asked) != 5 {
		t.Errorf("%d changes tried, want 5", len(asked))
	}
}

func TestReplaceGivesUpConflictsAtItsTimeLimit(t *testing.T) {
	r := conflicting(t, 1000)
	var out, errOut bytes.Buffer
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	code := Run(ctx, r.Flags("node", "replace", "n0-0-0", "x", "--wait", "300ms"), command.Env{
		Stdout: &out, Stderr: &errOut, Getenv: func(string) string { return "" }, Now: time.Now, Location: time.UTC,
	})
	want := "conflicts with other changes after 300ms: changed: run this command again"
	if code != command.ExitFailure || !strings.Contains(errOut.String(), want) {
		t.Errorf("exit code %d after %v, %s", code, time.Since(began), errOut.String())
	}
	if asked := r.Server.Operators.Asked; len(asked) > 10 {
		t.Errorf("%d changes tried", len(asked))
	}
}

// TestReplaceDrainsWhileLeaderIsDead: the leader commits the masks of a replacement and dies. A replica answers from its own copy, which
// names no ends that wait. The command waits for all ends, within the limit of --drain.
func TestReplaceDrainsWhileLeaderIsDead(t *testing.T) {
	const reason = "x is put in the place of n0-0-0"
	m := ctltest.Healthy(t, "2x2x2")
	m.Nodes.Nodes = append(m.Nodes.Nodes, &lofamov1.Node{Id: "x", Spare: true, State: lofamov1.State_UNKNOWN})
	for _, n := range m.Nodes.GetNodes() {
		if n.GetId() == "n0-0-0" || n.GetId() == "x" {
			n.Maintenance = &lofamov1.Maintenance{Node: n.GetId(), Reason: reason}
		}
	}
	r := ctltest.StartRemote(t, m)
	o := &r.Server.Operators
	o.Topology = someTopology()
	o.Masks = &lofamov1.ListMasksResponse{Stale: true, Masks: []*lofamov1.LinkMask{
		{Node: "n0-0-0", Coord: "0,0,0", Direction: "X+", Peer: "n1-0-0", PeerCoord: "1,0,0", Reason: reason},
		{Node: "n1-0-0", Coord: "1,0,0", Direction: "X+", Peer: "n0-0-0", PeerCoord: "0,0,0", Reason: reason},
	}}
	o.Errs = []error{status.Error(codes.Internal, "enough")}
	var out, errOut bytes.Buffer
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	code := Run(ctx, r.Flags("node", "replace", "n0-0-0", "x", "--drain", "1500ms"), command.Env{
		Stdout: &out, Stderr: &errOut, Getenv: func(string) string { return "" }, Now: time.Now, Location: time.UTC,
	})
	want := "waiting until nothing waits at the ends of n0-0-0 n1-0-0\n" +
		"n0-0-0 n1-0-0 has not said that its mask is in force: going on; x gets the place of n0-0-0\n"
	if code != command.ExitFailure || out.String() != want || !strings.Contains(errOut.String(), "replace n0-0-0: enough") {
		t.Errorf("exit code %d, %s%s", code, out.String(), errOut.String())
	}
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("the spare gets the place after %v", took)
	}
}

func TestReplaceTakesCoordinates(t *testing.T) {
	r := conflicting(t, 0)
	r.Server.Operators.Errs = []error{status.Error(codes.Internal, "enough")}
	got := run(t, nil, r.Flags("node", "replace", "0,0", "x")...)
	if asked := r.Server.Operators.Asked; len(asked) != 1 || !strings.Contains(asked[0], `nodes:"n0-0-0"`) {
		t.Errorf("asked for %q, %+v", asked, got)
	}
	for _, tc := range []struct{ broken, spare, want string }{
		{"nobody", "x", `BROKEN "nobody": want a node of the topology, or its coordinates`},
		{"9,9,9", "x", `BROKEN "9,9,9": want`},
		{"n0-0-0", "nobody", `SPARE "nobody": want`},
		{"0,0,0", "n0-0-0", "BROKEN 0,0,0 names the spare n0-0-0 itself: want the id of the broken node"},
	} {
		if got := run(t, nil, r.Flags("node", "replace", tc.broken, tc.spare)...); got.code != 2 || !strings.Contains(got.stderr, tc.want) {
			t.Errorf("replace %s %s: %+v, want %q", tc.broken, tc.spare, got, tc.want)
		}
	}
}

func TestOperatorsRefusals(t *testing.T) {
	r := operated(t)
	write := func(text string) string {
		file := filepath.Join(t.TempDir(), "t.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for _, tc := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"apply"}, 2, "-f is missing"},
		{[]string{"apply", "-f", "/no/such"}, 2, "no such file"},
		{[]string{"apply", "-f", write("a: [")}, 2, "not YAML"},
		{[]string{"apply", "-f", write("dims: 1\ndims: 2\n")}, 2, `key "dims" already set`},
		{[]string{"apply", "-f", write("dims: 2x2\nrank: 1\n")}, 2, `not a topology: unknown field "rank"`},
		{[]string{"apply", "-f", write("nodes: [{id: 3}]")}, 2, "not a topology: invalid value"},
		{[]string{"apply", "-f", "x", "y"}, 2, `argument "y"`},
		{[]string{"label", "x"}, 2, "want NODE and at least one of"},
		{[]string{"label", "x", "rack"}, 2, `label "rack": want KEY=VALUE or KEY-`},
		{[]string{"label", "x", "rack=a", "rack-"}, 2, `label "rack": want each key once`},
		{[]string{"label", "x", "=v"}, 2, `label key ""`},
		{[]string{"label", "x", "rack=a b"}, 2, `label value "a b"`},
		{[]string{"label", "nobody", "rack=a"}, 2, "label nobody: no node has that id or place"},
		{[]string{"maintenance"}, 2, "want start, end or list"},
		{[]string{"maintenance", "stop"}, 2, "maintenance stop: want start, end or list"},
		{[]string{"maintenance", "start", "--reason", "x"}, 2, "NODE is missing"},
		{[]string{"maintenance", "start", "x"}, 2, "--reason is missing"},
		{[]string{"maintenance", "end"}, 2, "NODE is missing"},
	} {
		if got := run(t, nil, r.Flags(tc.args...)...); got.code != tc.code || !strings.Contains(got.stderr, tc.text) {
			t.Errorf("%v: %+v, want %d with %q", tc.args, got, tc.code, tc.text)
		}
	}
	if len(r.Server.Operators.Asked) != 0 {
		t.Errorf("asked all the same: %v", r.Server.Operators.Asked)
	}
	for _, tc := range []struct {
		err  error
		args []string
		code int
		text string
	}{
		{status.Error(codes.Aborted, "at revision 43"), []string{"apply", "-f", write("dims: 2x2")}, 1, "apply: at revision 43"},
		{status.Error(codes.InvalidArgument, "nodes[0].id: bad"), []string{"apply", "-f", write("dims: 2x2")}, 2, "apply: nodes[0].id: bad"},
		{status.Error(codes.NotFound, "node x: not under maintenance"), []string{"maintenance", "end", "x"}, 2,
			"end maintenance: node x: not under maintenance"},
		{status.Error(codes.Unavailable, "no leader"), []string{"maintenance", "start", "x", "--reason", "y"}, 1,
			"did not confirm the change (no leader): it may have been made"},
		{status.Error(codes.PermissionDenied, "role viewer"), []string{"maintenance", "start", "x", "--reason", "y"}, 1, "role viewer"},
	} {
		r.Server.Operators.Errs = []error{tc.err}
		before := len(r.Server.Operators.Asked)
		if got := run(t, nil, r.Flags(tc.args...)...); got.code != tc.code || !strings.Contains(got.stderr, tc.text) {
			t.Errorf("%v: %+v, want %d with %q", tc.args, got, tc.code, tc.text)
		}
		if n := len(r.Server.Operators.Asked) - before; n != 1 {
			t.Errorf("%v: asked %d times", tc.args, n)
		}
	}
}

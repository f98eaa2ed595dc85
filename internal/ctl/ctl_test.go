package ctl

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

type result struct {
	code           int
	stdout, stderr string
}

// tryTimeout is far longer than even a busy machine needs for a read.
const tryTimeout = time.Minute

// run runs one command line without a terminal, at the time now.
func run(t *testing.T, env map[string]string, args ...string) result {
	t.Helper()
	return runAt(t, ctltest.Now, env, args...)
}

// runAt is run at another time.
func runAt(t *testing.T, at time.Time, env map[string]string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	code := Run(ctx, args, command.Env{
		Stdout: &out, Stderr: &errOut,
		Getenv:   func(k string) string { return env[k] },
		Now:      func() time.Time { return at },
		Location: time.UTC, TryTimeout: tryTimeout,
	})
	return result{code, out.String(), errOut.String()}
}

// fullDisk takes no byte.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestLostOutputIsFailure: the output may be the only copy of a token.
func TestLostOutputIsFailure(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2x2x2"))
	for _, args := range [][]string{{"get", "nodes"}, {"get", "nodes", "-o", "json"}, {"map"}} {
		var errOut bytes.Buffer
		code := Run(t.Context(), r.Flags(args...), command.Env{Stdout: fullDisk{}, Stderr: &errOut, Getenv: func(string) string { return "" },
			Now: func() time.Time { return ctltest.Now }, Location: time.UTC})
		if code != command.ExitFailure || !strings.Contains(errOut.String(), "no space left on device") {
			t.Errorf("%v: exit code %d, %s", args, code, errOut.String())
		}
	}
}

func TestGolden(t *testing.T) {
	bad, good := ctltest.StartRemote(t, ctltest.Harmed(t)), ctltest.StartRemote(t, ctltest.Healthy(t, "2x2x2"))
	lacking := ctltest.Healthy(t, "2")
	parts := lacking.Nodes.Nodes[0].Components
	parts[0].State, parts[3].State, parts[4].State, parts[5].State = lofamov1.State_UNKNOWN, lofamov1.State_ABSENT,
		lofamov1.State_ABSENT, lofamov1.State_FAILED
	absent := ctltest.StartRemote(t, lacking)
	waiting := ctltest.Healthy(t, "2")
	waiting.Nodes.Nodes = append(waiting.Nodes.Nodes, &lofamov1.Node{Id: "spare-0", Spare: true, State: lofamov1.State_UNKNOWN})
	spare := ctltest.StartRemote(t, waiting)
	for _, tc := range []struct {
		name string
		r    ctltest.Remote
		args string
	}{
		{"get-nodes.txt", bad, "get nodes"},
		{"get-nodes-wide.txt", bad, "get nodes -o wide"},
		{"get-nodes.json", bad, "get nodes --state SICK -o json"},
		{"get-nodes.yaml", bad, "get nodes --state failed -o yaml"},
		{"get-node.txt", bad, "get node 1,0,1"},
		{"get-node-dead.txt", bad, "get node n0-1-0"},
		{"get-node-spare.txt", spare, "get node spare-0"},
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
		{"get-nodes-not-normal.txt", bad, "get no --not-normal"},
		{"get-node-absent.txt", absent, "get node 0,0,0"},
		{"get-node-absent-wide.txt", absent, "get node 0,0,0 -o wide"},
		{"get-node-absent.json", absent, "get node 0,0,0 -o jsonpath={.components[?(@.state==\"ABSENT\")].name}"},
		{"names.txt", bad, "get nodes --not-normal -o name"},
		{"names-links.txt", bad, "get li --state SICK -o name"},
		{"names-events.txt", bad, "get ev -o name"},
		{"names-reports.txt", bad, "get reports -o name"},
		{"names-supervisors.txt", bad, "get sup -o name"},
		{"jsonpath.txt", bad, "get nodes -o jsonpath={range.nodes[*]}{.id}{\"\\t\"}{.state}{\"\\n\"}{end}"},
		{"jsonpath-bare.txt", bad, "get nodes -o jsonpath=nodes[0].id"},
		{"map.txt", bad, "map"},
		{"map-colour.txt", bad, "map --" + "color" + " always"},
		{"map-healthy.txt", good, "map"},
		{"watch.txt", bad, "watch --after-revision 1 --count 3"},
		{"watch-wide.txt", bad, "watch --after-revision 1 --count 3 -o wide"},
		{"watch.json", bad, "watch --after-revision 1 --count 1 -o json"},
		{"regs-remote.txt", bad, "regs 1,0,1"},
		{"regs-decode.txt", bad, "regs decode 0xec0 0x00000041"},
		{"regs-decode.json", bad, "regs decode 0xf40 173 -o json"},
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
			m := ctltest.Healthy(t, tc.dims)
			m.Nodes.Nodes[1].State = lofamov1.State_SICK
			m.Links.Links[len(m.Links.Links)-1].State = lofamov1.State_FAILED
			r := ctltest.StartRemote(t, m)
			got := run(t, nil, r.Flags("map", "--width", tc.width)...)
			if got.code != 0 {
				t.Fatalf("exit code %d: %s", got.code, got.stderr)
			}
			ctltest.Golden(t, tc.name, got.stdout)
		})
	}
}

func TestUsageErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "nothing")
	for _, tc := range []struct{ args, want string }{
		{"frobnicate", `unknown command "frobnicate"`},
		{"ups", `did you mean "up"?`},
		{"get", "get what? want nodes"},
		{"get answers", "get answers: want nodes, node NODE, incidents, links, masks, groups, events, reports, supervisors, topology, " +
			"diagnosis, procedure, policies, responses, response ID or breaker"},
		{"get nodes -o xml", "want one of table, wide, json, yaml"},
		{"get nodes --state WELL", "want NORMAL, SICK, FAILED or UNKNOWN"},
		{"get node", "NODE (an id such as n1-0-1, or coordinates such as 1,0,1) is missing"},
		{"get node a b", `argument "b": want nothing more`},
		{"get reports --limit 4097", "--limit 4097: want 1 to 4096"},
		{"get reports --limit 0", "want 1 to 4096"},
		{"get reports a b", `argument "b": want nothing more`},
		{"history", "NODE (an id such as n1-0-1"},
		{"history a b c", `argument "c": want nothing more`},
		{"history a --since -1h", "want a positive time"},
		{"history a --limit 10001", "want 1 to 10000"},
		{"explain", "NODE (an id such as n1-0-1"},
		{"explain a b c", `argument "c": want nothing more`},
		{"explain label/rack=r1 host", `argument "host": a group fault has no components`},
		{"summary a", "want none"},
		{"policy apply p.yaml", "-f p.yaml names a file"},
		{"summary -o wide", "want one of table, json, yaml"},
		{"get groups a b", `argument "b": want nothing more`},
		{"get nodes --limit -1", "invalid argument"},
		{"watch --initial --after-revision 3", "want only one"},
		{"get events --limit 10001", "want 1 to 10000"},
		{"get events --limit 0", "want 1 to 10000"},
		{"get events --after-revision -1", "invalid argument"},
		{"get nodes --nonsense", "unknown flag"},
		{"map --width 5", "want 20 to 1000"},
		{"map --" + "color" + " pink", "want auto, always or never"},
		{"top --width 59", "want 60 to 1000"},
		{"top --height 1001", "want 16 to 1000"},
		{"top --" + "color" + " pink", "want auto, always or never"},
		{"watch --for -1s", "want a positive time"},
		{"watch -o yaml", "want one of table, wide, json"},
		{"up --dims 2xx2", `dims "2xx2"`},
		{"up --dims 0x2", "want 1 to 65536"},
		{"up --dims 1", "1 node: want 2 to 1000"},
		{"up --dims 99x99", "9801 nodes: want 2 to 1000"},
		{"up --dims 2x2x2x2", "one to three sizes"},
		{"up --supervisors 2", "want 1, 3 or 5"},
		{"up --service-interfaces 3", "want 1 to 2"},
		{"up --nodes 1", "--nodes 1: want 2 to"},
		{"up --nodes 3 --dims 2x2", "--nodes 3 and --dims 2x2: want one"},
		{"up --spares -1", "--spares -1: want 0 to 1000"},
		{"up --spares 1 --regions 2", "none with --regions"},
		{"up --restart sometimes", "want never or always"},
		{"up --preset warp", `--preset: given "warp": want one of default, fast, relaxed`},
		{"up --log-level loud", "want debug, info, warn or error"},
		{"up --timeout -5s", "want a positive time"},
		{"up --server h:1", "--server names another one"},
		{"up --context hall7", "--context names another one"},
		{"inject", "NODE (an id such as n1-0-1, or coordinates such as 1,0,1) is missing"},
		{"inject 0,0,0", "FAULT (one of kill-host"},
		{"inject 0,0,0 explode", `"explode": want one of kill-host`},
		{"inject 0,0,0 cut-link", "want cut-link DIR"},
		{"inject 0,0,0 cut-interface", "want cut-interface NUMBER"},
		{"inject 0,0,0 cut-interface one", "want a service interface's, 0 or 1"},
		{"inject 0,0,0 cut-interface 2", "number 2: want 0 or 1"},
		{"inject 0,0,0 cut-link W+", "want one of X+ X- Y+ Y- Z+ Z-"},
		{"inject 0,0,0 corrupt-link X+ 2", "want above 0, up to 1"},
		{"inject 0,0,0 sensor temperature -300", "want -39 to 126"},
		{"inject 0,0,0 kill-host --one-way", "--one-way is for cut-link only"},
		{"inject 0,0,0 kill-host --for 0s", "want a positive time"},
		{"inject 0,0,0 heal --for 3s", "heal takes neither"},
		{"inject 0,0,0 heal now", "want nothing more"},
		{"inject all kill-host", "only heal takes all"},
		{"inject 0,0,0 kill-host --server h:1", "works only on a local cluster"},
		{"bundle", "NODE (an id"},
		{"bundle a b", `argument "b": want nothing more`},
		{"bundle 0,0,0 --half both", `--half "both": want host or dnp`},
		{"bundle 0,0,0 --max-bytes 65535", "--max-bytes 65535: want 65536 to 67108864"},
		{"bundle 0,0,0 --max-bytes 67108865", "want 65536 to 67108864"},
		{"regs", "NODE (an id"},
		{"regs decode 0xec0", "VALUE (such as 0x00000041) is missing"},
		{"regs decode zero 1", `ADDRESS "zero": want a number`},
		{"regs decode 0xec0 0x100000000", "want a number from 0 to 0xffffffff"},
		{"regs decode 0x4 1", "ADDRESS 0x4: no register there"},
		{"down extra", "want none"},
		{"get nodes --not-normal --state NORMAL", "no node is both"},
		{"get nodes --with-parts", "--with-parts goes with --not-normal"},
		{"get links --not-normal --state normal", "no link end is both"},
		{"get nodes -o jsonpath={.nodes[", "jsonpath"},
		{"get nodes -o jsonpath=", "given no template"},
		{"history a -o name", "want one of table, wide, json, yaml, jsonpath=TEMPLATE"},
		{"watch -o jsonpath={.node}", "want one of table, wide, json"},
		{"get events --tail 0", "--tail 0: want 1 to 10000"},
		{"get events --tail 10001", "want 1 to 10000"},
		{"get events --since tomorrow", `--since "tomorrow": want`},
		{"get events --since -5m", "yet to come"},
		{"get events --since 5m --since-revision 3", "want only one"},
		{"get events --limit x", `"--limit" flag: want a whole number, 0 or more`},
		{"watch --for 5", `"--for" flag: want a time with a unit, such as 10s`},
		{"map --width x", `"--width" flag: want a whole number`},
		{"up --dims 2 --detach=maybe", `"--detach" flag: want true or false`},
		{"inject 0,0,0 kill-host --for -5s", "--for -5s: want a positive time"},
		{"inject 0,0,0 kill-host --for -5", `invalid argument "-5" for "--for" flag: want a time with a unit`},
		{"config", "want get-contexts"},
		{"config frobnicate", "config frobnicate: want get-contexts"},
		{"get nodes --context x --server h:1", `--context "x": not in`},
		{"get nodes --ca x", "go with --server"},
		{"get nodes --server h:1", "--server also needs --ca, --cert, --key (or LOFAMO_CA, LOFAMO_CERT, LOFAMO_KEY)"},
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

// TestArgumentsThatCannotBe: arguments that only the cluster or a file can disprove are wrong usage too.
func TestArgumentsThatCannotBe(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2"))
	bin, dir := pretend(t)
	d, err := grid.ParseDims("2")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Create(cluster.Options{Dir: dir, Dims: d}); err != nil {
		t.Fatal(err)
	}
	keyless := r
	keyless.Dir = t.TempDir()
	long := filepath.Join(t.TempDir(), strings.Repeat("long", 25))
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{r.Flags("get", "node", "9,9,9"), []string{"get node 9,9,9", "no such node"}},
		{[]string{"inject", "9,9,9", "kill-host"}, []string{"9,9,9", "outside the 2x1x1 torus", "want 0,0,0 to 1,0,0"}},
		{[]string{"inject", "nobody", "heal"}, []string{`"nobody"`, "coordinates x,y,z"}},
		{[]string{"inject", "0,0,0", "cut-link", "Z+"}, []string{"Z+", "2x1x1", "size there is 1"}},
		{[]string{"regs", "9,9,9"}, []string{"9,9,9", "want 0,0,0 to 1,0,0"}},
		{[]string{"get", "nodes", "--region", "region-0"}, []string{`"region-0"`, "has no regions: leave --region out"}},
		{[]string{"token", "create", "--uses", "0"}, []string{"--uses 0: want 1 to 500"}},
		{[]string{"token", "create", "--ttl", "0s"}, []string{"--ttl 0s: want 1m to 168h"}},
		{keyless.Flags("get", "nodes"), []string{"--cert", "viewer.pem", "no such file"}},
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
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2"))
	dead := freeport.Addr(t).String()
	away := r
	away.Server = &clienttest.Server{Address: dead}
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
		{"nobody answers", away.Flags("get", "nodes"), []string{dead, "connection refused", "no supervisor answered"}},
		{"nobody answers a watch", away.Flags("watch"), []string{dead, "connection refused"}},
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
	m := ctltest.Healthy(t, "2")
	m.See(&lofamov1.Event{Node: "n1-0-0", Component: "host", From: lofamov1.State_NORMAL, To: lofamov1.State_FAILED, Time: ctltest.Ago(0)})
	r := ctltest.StartRemote(t, m)
	got := run(t, nil, r.Flags("watch", "--as-seen", "--count", "1")...)
	if got.code != 0 || !strings.Contains(got.stdout, "as seen") || !strings.Contains(got.stdout, "NORMAL → FAILED") {
		t.Errorf("%+v", got)
	}
	r.Server.Stop()
	if got := run(t, nil, r.Flags("watch", "--timeout", "50ms")...); got.code != command.ExitFailure ||
		!strings.Contains(got.stderr, "no supervisor answered") {
		t.Errorf("a watch that ends by --timeout: %+v", got)
	}
	got = run(t, nil, r.Flags("watch", "--timeout", "-1s")...)
	if got.code != command.ExitUsage || !strings.Contains(got.stderr, "--timeout -1s") {
		t.Errorf("a negative --timeout: %+v", got)
	}
	r = ctltest.StartRemote(t, m)
	// Longer than a connection takes on a busy machine: a watch without any answer by then fails.
	if got := run(t, nil, r.Flags("watch", "--for", "2s")...); got.code != 0 || got.stdout != "" || got.stderr != "" {
		t.Errorf("a watch that ends by --for: %+v", got)
	}
}

func TestStaleAnswersAreCalledSo(t *testing.T) {
	m := ctltest.Healthy(t, "2")
	m.Nodes.Cluster.Stale = true
	r := ctltest.StartRemote(t, m)
	if got := run(t, nil, r.Flags("get", "nodes")...); got.code != 0 || !strings.Contains(got.stderr, "reaches no leader") {
		t.Errorf("%+v", got)
	}
}

// TestRegionsThatAreCutOff: all output about a parent's map names the regions that are cut off.
func TestRegionsThatAreCutOff(t *testing.T) {
	m := ctltest.Healthy(t, "2")
	m.Nodes.Nodes[0].Region = "west"
	m.Nodes.Nodes[1].Region = "east"
	m.Nodes.Cluster.Regions = []*lofamov1.Region{
		{Name: "west", State: lofamov1.State_NORMAL, Nodes: 1},
		{Name: "east", State: lofamov1.State_UNKNOWN, Nodes: 1, Age: durationpb.New(5 * time.Second)},
		{Name: "north", State: lofamov1.State_UNKNOWN, Nodes: 2},
	}
	r := ctltest.StartRemote(t, m)
	want := "lofamoctl: CUT OFF: region east has been silent for 5s: its 1 node is shown as UNKNOWN, the last states are kept " +
		"until it is back\n" +
		"lofamoctl: CUT OFF: region north has been silent: its 2 nodes are shown as UNKNOWN, the last states are kept until it is back\n"
	for _, args := range [][]string{{"get", "nodes"}, {"map"}} {
		if got := run(t, nil, r.Flags(args...)...); got.code != 0 || got.stderr != want {
			t.Errorf("%s: %+v", args, got)
		}
	}
	got := run(t, nil, r.Flags("get", "nodes", "-o", "wide")...)
	for i, want := range []string{"REGION", "west", "east"} {
		if line := strings.Split(got.stdout, "\n")[i]; !slices.Contains(strings.Fields(line), want) {
			t.Errorf("line %d: %q, want %s in it", i+1, line, want)
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
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2x2"))
	got := run(t, nil, append([]string{"__complete"}, r.Flags("get", "node", "n1")...)...)
	if got.code != 0 || strings.Contains(got.stdout, "n0-") {
		t.Errorf("completion of flags after a word: %+v", got)
	}
	args := append([]string{"__complete"}, r.Flags()...)
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
	for _, args := range []string{"", "up", "down", "get", "get nodes", "get node", "get links", "get groups", "get events", "status",
		"summary", "history", "explain", "get supervisors", "map", "watch", "inject", "regs", "regs decode", "version"} {
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
	got = protectNegative(strings.Fields("inject 0,0,0 kill-host --for -5s"))
	if strings.Join(got, " ") != "inject 0,0,0 kill-host --for -5s" {
		t.Errorf("the value of --for was moved: %q", got)
	}
}

// TestMissingNodesAreUsageErrors: scripts tell a wrong command line from a failure by the exit code.
func TestMissingNodesAreUsageErrors(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2x2x2"))
	for want, args := range map[string][]string{
		"NODE is missing":                        {"node", "leave"},
		"--drain -1s: want 0 or a positive time": {"node", "replace", "n1-0-1", "spare-0", "--drain", "-1s"},
		"--wait -1s: want 0 or a positive time":  {"node", "replace", "n1-0-1", "spare-0", "--wait", "-1s"},
	} {
		if got := run(t, nil, r.Flags(args...)...); got.code != command.ExitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("%v: exit code %d, %s", args, got.code, got.stderr)
		}
	}
}

// TestErrorsCannotCommandTheTerminal: errors quote other machines. Their lines stay.
func TestErrorsCannotCommandTheTerminal(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2"))
	r.Server.Refuse(status.Error(codes.FailedPrecondition, "the node says \x1b[2J\rall is well\nand more \u009b"))
	got := run(t, nil, r.Flags("get", "nodes")...)
	if got.code != command.ExitFailure || !strings.Contains(got.stderr, "the node says ·[2J·all is well\nand more ·\n") {
		t.Errorf("%d, %q", got.code, got.stderr)
	}
}

// TestWatchWithoutAnswerIsFailure: the end of --for is a success only if some supervisor has served the watch.
func TestWatchWithoutAnswerIsFailure(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2"))
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, and no process answers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = deaf.Close() }()
	for _, more := range [][]string{nil, {"--initial"}, {"--timeout", "1m"}} {
		args := r.Flags(append([]string{"watch", "--for", "300ms"}, more...)...)
		args[slices.Index(args, "--server")+1] = deaf.Addr().String()
		got := run(t, nil, args...)
		if got.code != command.ExitFailure || !strings.Contains(got.stderr, "no supervisor has answered within 300ms") {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

// TestAuditExportRefusesPipes: an export reads the file that it continues, and a pipe never ends.
func TestAuditExportRefusesPipes(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2"))
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan result, 1)
	go func() { done <- run(t, nil, r.Flags("audit", "export", "-f", pipe)...) }()
	select {
	case got := <-done:
		if got.code != command.ExitUsage || !strings.Contains(got.stderr, "want a regular file") {
			t.Errorf("%+v", got)
		}
	case <-time.After(20 * time.Second):
		t.Error("it reads the pipe for ever")
	}
}

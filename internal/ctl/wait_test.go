package ctl

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// sick makes one node of a healthy map SICK.
func sick(t *testing.T) (*clienttest.Map, *lofamov1.Node) {
	t.Helper()
	m := ctltest.Healthy(t, "2x2x2")
	m.Nodes.Nodes[1].State = lofamov1.State_SICK
	return m, m.Nodes.Nodes[1]
}

func TestWaitLooksOnce(t *testing.T) {
	m, bad := sick(t)
	m.Incidents = []*lofamov1.Incident{{Id: "a", State: lofamov1.IncidentState_OPEN}, {Id: "b", State: lofamov1.IncidentState_CLOSED}}
	r := ctltest.StartRemote(t, m)
	good := m.Nodes.Nodes[0].GetId()
	for _, tc := range []struct {
		args string
		code int
		text string
	}{
		{"node/" + good + " --for state=NORMAL", 0, "node/" + good + " is NORMAL"},
		{"node/" + bad.GetCoord() + " --for state=sick", 0, "node/" + bad.GetId() + " is SICK"},
		{"node/" + good + " node/" + bad.GetId() + " --for state=NORMAL", 1, "not met within 0s: node/" + bad.GetId() + " is SICK"},
		{"nodes --for state=NORMAL", 1, "node/" + bad.GetId() + " is SICK"},
		{"--for incidents=1", 0, "incidents open or recovering: 1"},
		{"--for incidents=0", 1, "not met within 0s: incidents open or recovering: 1"},
		{"node/nobody --for state=NORMAL", 2, `node "nobody": there is none`},
		{good + " --for state=NORMAL", 2, `want node/NODE, or nodes`},
		{"--for state=NORMAL", 2, "want node/NODE or nodes"},
		{"nodes --for state=WELL", 2, `--for "state=WELL": want state=NORMAL`},
		{"nodes --for state=ABSENT", 2, `want state=NORMAL`},
		{"nodes", 2, `--for "": want state=STATE or incidents=N`},
		{"--for incidents=-1", 2, `--for "incidents=-1": want incidents=N`},
		{"nodes --for incidents=0", 2, "want no argument"},
		{"node/" + good + " -l rack=r7 --for state=NORMAL", 2, "--selector rack=r7: goes with nodes"},
		{"nodes --for state=NORMAL --timeout -1d", 2, "--timeout -24h0m0s: want 0 or a positive time"},
	} {
		args := append([]string{"wait"}, strings.Fields(tc.args)...)
		if !strings.Contains(tc.args, "--timeout") {
			args = append(args, "--timeout", "0")
		}
		got := run(t, nil, r.Flags(args...)...)
		if got.code != tc.code || !strings.Contains(got.stdout+got.stderr, tc.text) {
			t.Errorf("wait %s: exit code %d, want %d and %q:\n%s%s", tc.args, got.code, tc.code, tc.text, got.stdout, got.stderr)
		}
	}
}

func TestWaitEndsAtTheChange(t *testing.T) {
	m, bad := sick(t)
	r := ctltest.StartRemote(t, m)
	done := make(chan result, 1)
	go func() {
		done <- run(t, nil, r.Flags("wait", "node/"+bad.GetId(), "--for", "state=NORMAL", "--timeout", "1d")...)
	}()
	for r.Server.Watches() == 0 { // the watch has begun; the change comes after it
		time.Sleep(time.Millisecond)
	}
	m.Edit(func(m *clienttest.Map) {
		nodes := proto.CloneOf(m.Nodes)
		nodes.Nodes[1].State = lofamov1.State_NORMAL
		m.Nodes = nodes
	})
	m.Commit(42, &lofamov1.Event{Node: bad.GetId(), Component: "node"})
	if got := <-done; got.code != 0 || got.stdout != "node/"+bad.GetId()+" is NORMAL\n" {
		t.Errorf("exit code %d: %s%s", got.code, got.stdout, got.stderr)
	}
}

func TestWaitMeetsNothingByStaleAnswer(t *testing.T) {
	m := ctltest.Healthy(t, "2x2x2")
	m.Nodes.Cluster.Stale = true
	r := ctltest.StartRemote(t, m)
	got := run(t, nil, r.Flags("wait", "nodes", "--for", "state=NORMAL", "--timeout", "0")...)
	if got.code != 1 || !strings.Contains(got.stderr, "no quorum of supervisors answers") {
		t.Errorf("exit code %d: %s%s", got.code, got.stdout, got.stderr)
	}
	r.Server.Stop()
	if got := run(t, nil, r.Flags("wait", "nodes", "--for", "state=NORMAL", "--timeout", "0")...); got.code != 1 {
		t.Errorf("without a supervisor: exit code %d: %s%s", got.code, got.stdout, got.stderr)
	}
}

func TestStatusCheckHasAnExitCode(t *testing.T) {
	closed := &lofamov1.ListResponsesResponse{Breaker: &lofamov1.ResponseBreaker{}}
	good, stopped, silent, bad := ctltest.StartRemote(t, well(t)), well(t), well(t), ctltest.StartRemote(t, broken(t))
	stopped.Summary.Nodes, stopped.Summary.Stopped = &lofamov1.Count{Normal: 7, Unknown: 1}, 1
	silent.Summary.Nodes = &lofamov1.Count{Normal: 7, Unknown: 1}
	cut := well(t)
	cut.MissingRegions = map[string][]string{"": {"r3"}}
	quiet, unknown, partial := ctltest.StartRemote(t, stopped), ctltest.StartRemote(t, silent), ctltest.StartRemote(t, cut)
	for _, r := range []ctltest.Remote{good, quiet, unknown, partial} {
		r.Server.Responses.List = closed
	}
	for _, tc := range []struct {
		name string
		r    ctltest.Remote
		code int
		text string
	}{
		{"well", good, 0, ""}, {"stopped as announced", quiet, 0, ""},
		{"broken", acting(bad), 1, "status: not well: "}, {"silent", unknown, 1, "status: not well: 1 node UNKNOWN"},
		{"region without answer", partial, 1, "status: not well: incidents of region r3: none of its supervisors answers"},
	} {
		got := run(t, nil, tc.r.Flags("status", "--check")...)
		if got.code != tc.code || !strings.Contains(got.stderr, tc.text) || got.stdout == "" {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s%s", tc.name, got.code, tc.code, tc.text, got.stdout, got.stderr)
		}
	}
	if got := run(t, nil, bad.Flags("status", "--check", "-w")...); got.code != 2 {
		t.Errorf("--check -w: exit code %d: %s", got.code, got.stderr)
	}
	good.Server.Stop()
	if got := run(t, nil, good.Flags("status", "--check")...); got.code != 1 {
		t.Errorf("no supervisor: exit code %d: %s", got.code, got.stderr)
	}
}

func TestGetNodesByName(t *testing.T) {
	m := ctltest.Healthy(t, "2x2x2")
	r := ctltest.StartRemote(t, m)
	first, last := m.Nodes.Nodes[0], m.Nodes.Nodes[7]
	got := run(t, nil, r.Flags("get", "nodes", last.GetId(), first.GetCoord(), last.GetId(), "-o", "name")...)
	if want := "node/" + last.GetId() + "\nnode/" + first.GetId() + "\n"; got.code != 0 || got.stdout != want {
		t.Errorf("exit code %d: %s%s, want %s", got.code, got.stdout, got.stderr, want)
	}
	got = run(t, nil, r.Flags("get", "nodes", "nobody")...)
	if got.code != 2 || !strings.Contains(got.stderr, `node "nobody": there is none`) {
		t.Errorf("unknown name: exit code %d: %s", got.code, got.stderr)
	}
	if got := run(t, nil, r.Flags("get", "nodes", first.GetId(), "-l", "a=b")...); got.code != 2 {
		t.Errorf("name with selector: exit code %d: %s", got.code, got.stderr)
	}
}

func TestNothingMatchesIsSaid(t *testing.T) {
	m := ctltest.Healthy(t, "2x2x2")
	m.Nodes.Nodes, m.Links.Links = nil, nil
	r := ctltest.StartRemote(t, m)
	for _, what := range []string{"nodes", "links", "events"} {
		got := run(t, nil, r.Flags("get", what, "-l", "rack=none")...)
		if got.code != 0 || got.stdout != "" || got.stderr != "no "+what+" match\n" {
			t.Errorf("get %s: exit code %d, stdout %q, stderr %q", what, got.code, got.stdout, got.stderr)
		}
		if got := run(t, nil, r.Flags("get", what, "-l", "rack=none", "-o", "json")...); got.code != 0 || !strings.Contains(got.stdout, "[]") {
			t.Errorf("get %s -o json: exit code %d, %q", what, got.code, got.stdout)
		}
	}
}

func TestTablesFitTheTerminal(t *testing.T) {
	m := ctltest.Harmed(t)
	m.Nodes.Nodes[3].Warnings = nil
	for i := range m.Links.Links {
		m.Links.Links[i].Reason = strings.Repeat("long reason ", 30)
	}
	r := ctltest.StartRemote(t, m)
	in := func(width int, terminal bool) string {
		var out, errOut bytes.Buffer
		code := Run(t.Context(), r.Flags("get", "links", "-o", "wide"), command.Env{Stdout: &out, Stderr: &errOut, Terminal: terminal,
			Width: width, Getenv: func(string) string { return "" },
			Now: func() time.Time { return ctltest.Now }, Location: time.UTC, TryTimeout: tryTimeout})
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, errOut.String())
		}
		return out.String()
	}
	text := in(160, true)
	for line := range strings.Lines(text) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 160 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if !strings.Contains(text, "long reason lo") || !strings.Contains(text, "…") {
		t.Errorf("want reasons that are cut:\n%s", text)
	}
	whole := strings.Repeat("long reason ", 30)
	if text := in(160, false); !strings.Contains(text, strings.TrimSpace(whole)) {
		t.Error("a pipe gets cut cells")
	}
	if text := in(600, true); !strings.Contains(text, strings.TrimSpace(whole)) {
		t.Error("a wide terminal gets cut cells")
	}
}

func TestEveryCommandHasAGroup(t *testing.T) {
	root := newRoot(command.Env{})
	for _, c := range root.Commands() {
		if c.GroupID == "" && !c.Hidden {
			t.Errorf("%s: want a group in the help", c.Name())
		}
	}
	help := run(t, nil, "--help").stdout
	for _, title := range []string{"\nLook:\n", "\nAct:\n", "\nChange the cluster:\n"} {
		if !strings.Contains(help, title) {
			t.Errorf("help has no %q", title)
		}
	}
	if strings.Contains(help, "Additional Commands") {
		t.Errorf("help has commands without a group:\n%s", help)
	}
}

func TestVersionFlag(t *testing.T) {
	if got := run(t, nil, "--version"); got.code != 0 || got.stdout != "lofamoctl "+program.Build().String()+"\n" {
		t.Errorf("exit code %d: %q", got.code, got.stdout)
	}
}

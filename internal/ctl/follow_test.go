package ctl

import (
	"bytes"
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// stream is the standard output of a command that runs until the test has seen enough.
type stream struct {
	mu      sync.Mutex
	b       bytes.Buffer
	changed chan struct{}
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
	return s.b.Write(p)
}

// until waits until the output has a text, and returns the output.
func (s *stream) until(t *testing.T, want string) string {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		s.mu.Lock()
		text, changed := s.b.String(), s.changed
		s.mu.Unlock()
		if strings.Contains(text, want) {
			return text
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("no %q within a minute in:\n%s", want, text)
		}
	}
}

// follow runs a command in the background; stop ends it as Ctrl-C does, and returns the exit code.
func follow(t *testing.T, args ...string) (out *stream, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out = &stream{changed: make(chan struct{})}
	code := make(chan int, 1)
	go func() {
		code <- Run(ctx, args, command.Env{Stdout: out, Stderr: io.Discard, Getenv: func(string) string { return "" },
			Now: func() time.Time { return ctltest.Now }, Location: time.UTC, TryTimeout: tryTimeout})
	}()
	return out, func() int { cancel(); return <-code }
}

func TestWatchFlagPrintsChangedObjectsOnce(t *testing.T) {
	m := ctltest.Healthy(t, "2")
	r := ctltest.StartRemote(t, m)
	out, stop := follow(t, r.Flags("get", "nodes", "-w")...)
	first := out.until(t, "n1-0-0")
	if strings.Count(first, "COORD") != 1 || !strings.Contains(first, "n0-0-0") {
		t.Errorf("the list:\n%s", first)
	}
	change := func(revision uint64, edit func(*clienttest.Map)) {
		m.Edit(edit)
		m.Commit(revision, &lofamov1.Event{Node: "n1-0-0", Component: "node", Time: ctltest.Ago(0)})
	}
	change(50, func(m *clienttest.Map) {
		m.Nodes.Nodes[0].Age = durationpb.New(time.Hour) // a measurement
		m.Nodes.Nodes[1].State, m.Nodes.Nodes[1].Cause = lofamov1.State_FAILED, lofamov1.Cause_NODE
	})
	text := out.until(t, "FAILED")
	if strings.Count(text, "n0-0-0") != 1 || strings.Count(text, "COORD") != 1 {
		t.Errorf("more than the changed node is printed:\n%s", text)
	}
	change(51, func(m *clienttest.Map) { m.Nodes.Nodes = m.Nodes.Nodes[:1] })
	out.until(t, "node/n1-0-0 is no longer listed\n")
	if code := stop(); code != command.ExitOK {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
}

// everyGet has a call of each command below get, and of policy get. Want is in its table, name is a line of -o name, and path selects
// value.
var everyGet = map[string]struct{ args, want, name, path, value string }{
	"get nodes":       {"", "COORD", "node/n0-0-0", "{.nodes[0].id}", "n0-0-0"},
	"get node":        {"0,0,0", "Node ", "node/n0-0-0", "{.id}", "n0-0-0"},
	"get incidents":   {"", "k3f9-bbbbbbbb", "incident/k3f9-bbbbbbbb", "{.incidents[0].id}", "k3f9-bbbbbbbb"},
	"get links":       {"", "PEER", "link/n0-0-0/X+", "{.links[0].direction}", "X+"},
	"get groups":      {"", "plane/X=1", "group/plane/X=1", "{.groups[1].id}", "plane/X=1"},
	"get events":      {"", "REVISION", "event/42-0", "{.events[-1].revision}", "42"},
	"get reports":     {"", "SENDERS", "sender/n0-0-0", "{.senders[0].node}", "n0-0-0"},
	"get supervisors": {"", "sup-1", "supervisor/sup-1", "{.supervisors[1].id}", "sup-1"},
	"get topology":    {"", "failure domains ", "topology/2x2x2", "{.dims}", "2x2x2"},
	"get masks":       {"", "loses frames", "mask/n1-0-0/X+", "{.masks[0].direction}", "X+"},
	"get diagnosis":   {"", "it does not answer", "diagnosis/last", "{.faults[0].node}", "n0-0-0"},
	"get procedure":   {"", "NOT CLEAR", "procedure/last", "{.supervisor}", "sup-1"},
	"get policies":    {"", "alert-group", "policy/alert-group", "{.policies[0].name}", "alert-group"},
	"get responses":   {"", "r7-12", "response/r7-12", "{.responses[0].id}", "r7-12"},
	"get response":    {"r7-12", "r7-12", "response/r7-12", "{.id}", "r7-12"},
	"get breaker":     {"", "OPEN", "breaker/responses", "{.open}", "true"},
	"policy get":      {"drain", "Policy ", "policy/drain", "{.metadata.name}", "tell-kubernetes"},
}

// everything is a cluster with an answer to each command of everyGet.
func everything(t *testing.T) ctltest.Remote {
	t.Helper()
	r := ctltest.Responding(t)
	all := grouped(t)
	r.Map.Edit(func(m *clienttest.Map) {
		m.Nodes, m.Links, m.Groups, m.Incidents = all.Nodes, all.Links, all.Groups, troubled(t).Incidents
		m.Reports.Senders = []*lofamov1.SenderStatus{{Node: "n0-0-0", Coord: "0,0,0"}}
		r.Server.Operators.Masks = &lofamov1.ListMasksResponse{Masks: []*lofamov1.LinkMask{{Node: "n1-0-0", Direction: "X+",
			Since: ctltest.Ago(time.Hour), Reason: "loses frames"}}}
	})
	r.Server.Operators.Topology = &lofamov1.Topology{Dims: "2x2x2"}
	r.Server.Manage.Last, r.Server.Manage.LastOver = sampleReport(), sampleProcedure()
	return r
}

// TestWatchFlagOfEveryGet: every command below get, also one that is new, has -w, -o name and -o jsonpath.
func TestWatchFlagOfEveryGet(t *testing.T) {
	r := everything(t)
	root, untested := newRoot(command.Env{}), maps.Clone(everyGet)
	lists, _, err := root.Find([]string{"get"})
	if err != nil {
		t.Fatal(err)
	}
	get, _, err := root.Find([]string{"policy", "get"})
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range append(lists.Commands(), get) {
		path := strings.TrimPrefix(cmd.CommandPath(), "lofamoctl ")
		tc, ok := everyGet[path]
		if !ok {
			t.Errorf("%s is not in everyGet: want a call of each command", path)
			continue
		}
		delete(untested, path)
		if f := cmd.Flags().ShorthandLookup("w"); f == nil || f.Name != "watch" {
			t.Errorf("%s has no flag -w, --watch", path)
			continue
		}
		args := strings.Fields(path + " " + tc.args)
		for format, want := range map[string]string{"name": tc.name, "jsonpath=" + tc.path: tc.value} {
			got := run(t, nil, r.Flags(append(args, "-o", format)...)...)
			if got.code != command.ExitOK || !slices.Contains(strings.Split(got.stdout, "\n"), want) {
				t.Errorf("%s -o %s: want a line %q: %+v", path, format, want, got)
			}
		}
		for format, want := range map[string]string{"table": tc.want, "name": tc.name, "jsonpath=" + tc.path: tc.value} {
			out, stop := follow(t, r.Flags(append(args, "-w", "-o", format)...)...)
			out.until(t, want)
			stop()
		}
	}
	for path := range untested {
		t.Errorf("no command %s", path)
	}
}

// TestWatchedListsSeparateYAMLDocuments: "---" comes between two documents, and neither before the first nor after the last.
func TestWatchedListsSeparateYAMLDocuments(t *testing.T) {
	r := ctltest.Responding(t)
	got := run(t, nil, r.Flags("get", "responses", "-w", "-o", "yaml")...)
	docs := strings.Split(got.stdout, "---\n")
	if len(docs) != 3 || strings.Contains(docs[0], "r7-13") || !strings.Contains(docs[2], "r7-13") {
		t.Errorf("%d documents, want 3:\n%s", len(docs), got.stdout)
	}
	out, stop := follow(t, r.Flags("get", "events", "-w", "-o", "yaml", "--after-revision", "41")...)
	first := out.until(t, "POLICY_CHANGED")
	r.Map.Commit(43, &lofamov1.Event{Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: "n0-0-0", Component: "dnp", To: lofamov1.State_FAILED,
		Time: ctltest.Ago(0)})
	if text := out.until(t, "n0-0-0"); strings.Contains(first, "---") || strings.Count(text, "---\n") != 1 {
		t.Errorf("want two documents:\n%s", text)
	}
	stop()
}

// noisy has events of a start, a fault with a change of its cause alone, and its end.
func noisy(t *testing.T) *clienttest.Map {
	t.Helper()
	m := ctltest.Healthy(t, "2")
	e := func(component string, from, to lofamov1.State, ago time.Duration) *lofamov1.Event {
		return &lofamov1.Event{Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: "n0-0-0", Component: component, From: from, To: to,
			Time: ctltest.Ago(ago)}
	}
	const unknown, normal, failed = lofamov1.State_UNKNOWN, lofamov1.State_NORMAL, lofamov1.State_FAILED
	m.Commit(2, e("host", unknown, normal, time.Hour), e("node", unknown, normal, time.Hour))
	m.Commit(3, e("host", normal, failed, 10*time.Minute))
	m.Commit(4, e("host", failed, failed, 9*time.Minute))
	m.Commit(5, e("host", failed, unknown, 8*time.Minute))
	m.Commit(6, e("host", unknown, normal, 7*time.Minute))
	return m
}

func TestEventsWithoutNoise(t *testing.T) {
	r := ctltest.StartRemote(t, noisy(t))
	for args, want := range map[string]string{
		"get events":                        "3 5 6",
		"get events --all":                  "2 2 3 4 5 6",
		"get events --tail 2":               "5 6",
		"get events --tail 1 --all":         "6",
		"get events --since 8m30s":          "5 6",
		"get events --since 11:51:30 --all": "5 6", // of the last 24 hours
		"get events --since 30m -o jsonpath={.events[*].revision}": "3 4 5 6",
		"get events -o name": "event/2-0 event/2-0 event/3-0 event/4-0 event/5-0 event/6-0",
	} {
		got := run(t, nil, r.Flags(strings.Fields(args)...)...)
		var rows []string
		for line := range strings.Lines(got.stdout) {
			if f := strings.Fields(line); f[0] != "REVISION" {
				if strings.Contains(args, "jsonpath") {
					rows = append(rows, f...)
				} else {
					rows = append(rows, f[0])
				}
			}
		}
		if text := strings.Join(rows, " "); got.code != 0 || text != want {
			t.Errorf("%s: %q, want %q; %+v", args, text, want, got)
		}
	}
}

func TestEventsGoOnWithNewOnes(t *testing.T) {
	m := noisy(t)
	r := ctltest.StartRemote(t, m)
	out, stop := follow(t, r.Flags("get", "events", "-w", "--tail", "1")...)
	out.until(t, "6 ")
	e := func(from, to lofamov1.State) *lofamov1.Event {
		return &lofamov1.Event{Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: "n0-0-0", Component: "dnp", From: from, To: to,
			Time: ctltest.Ago(0)}
	}
	m.Commit(7, e(lofamov1.State_UNKNOWN, lofamov1.State_NORMAL)) // a first report
	m.Commit(8, e(lofamov1.State_NORMAL, lofamov1.State_UNKNOWN))
	m.Commit(9, e(lofamov1.State_UNKNOWN, lofamov1.State_NORMAL)) // it is back
	text := out.until(t, "\n9 ")
	if strings.Contains(text, "\n7 ") || !strings.Contains(text, "\n8 ") || strings.Count(text, "REVISION") != 1 {
		t.Errorf("got:\n%s", text)
	}
	if code := stop(); code != command.ExitOK {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
}

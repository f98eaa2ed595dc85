package ctl

import (
	"bytes"
	"context"
	"io"
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
			Now: func() time.Time { return ctltest.Now }, Location: time.UTC})
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

func TestWatchFlagOfEveryGet(t *testing.T) {
	m := grouped(t)
	r := ctltest.StartRemote(t, m)
	for args, want := range map[string]string{
		"get nodes -w -o json": `{"nodes":[{"id":"n0-0-0"`, "get node 0,0,0 -w": "Node ", "get links -w -o name": "link/n0-0-0/X+\n",
		"get groups -w": "plane/X=1", "get events -w": "plane/X=1", "get reports -w": "SENDERS", "get supervisors -w": "sup-1",
		"get topology -w": "dims ", "get responses -w -o name": "", "get breaker -w": "closed",
	} {
		out, stop := follow(t, r.Flags(strings.Fields(args)...)...)
		out.until(t, want)
		if code := stop(); code != command.ExitOK {
			t.Errorf("%s: exit code %d after Ctrl-C", args, code)
		}
	}
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

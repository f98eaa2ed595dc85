package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// saveSnapshot takes a snapshot from a replica into a file.
func saveSnapshot(t *testing.T, c *supervisortest.Cluster, cfg config.Supervisor, path string) {
	t.Helper()
	stream, err := lofamov1.NewSupervisorAdminClient(c.Conn(t, pki.RoleOperator, cfg.GRPC)).Snapshot(t.Context(), &lofamov1.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		file.Write(chunk.GetData())
	}
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// killAll kills processes without warning, like a power cut.
func killAll(procs []*exec.Cmd) {
	for _, p := range procs {
		_ = p.Process.Kill()
	}
	for _, p := range procs {
		_ = p.Wait()
	}
}

// restore runs the command for these replicas, passes the first one's token to the others, and returns the token.
func restore(t *testing.T, snap, token string, files ...string) string {
	t.Helper()
	for _, file := range files {
		args := []string{"restore", "--snapshot", snap, "--config", file}
		if token != "" {
			args = append(args, "--token", token)
		}
		var stdout, stderr bytes.Buffer
		if code := execute(args, nil, &stdout, &stderr); code != 0 {
			t.Fatalf("supervisor %s: exit code %d, %s%s", strings.Join(args, " "), code, &stdout, &stderr)
		}
		if token == "" {
			_, after, _ := strings.Cut(stdout.String(), "--token ")
			token = strings.TrimSpace(after)
		}
	}
	return token
}

func wantExit(t *testing.T, code int, text string, args ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	got := execute(args, nil, &stdout, &stderr)
	if out := stdout.String() + stderr.String(); got != code || !strings.Contains(out, text) {
		t.Errorf("supervisor %s: exit code %d, %q; want %d with %q", strings.Join(args, " "), got, out, code, text)
	}
}

// TestRestoredSnapshotKeepsLaterReportsAndTokens: two of three replicas lose their data, and an old snapshot is
// restored. The snapshot's contents are there. Later acknowledged reports are not, but return with the halves' next
// digests. Watchers must list again. A replica with the old data does not mix with the new ones.
func TestRestoredSnapshotKeepsLaterReportsAndTokens(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Replicas: 3, Preset: config.PresetRelaxed})
	var procs []*exec.Cmd
	for _, cfg := range c.Configs {
		procs = append(procs, process(t, c, cfg))
	}
	leader := c.AwaitLeader(t)
	a, silent := c.Agents["n0-0-0"], c.Agents["n1-1-0"]
	good := fault.Observation{Component: fault.ComponentMemory, State: fault.Normal, Kind: fault.KindSelf}
	id, b := silent.Report(t, fault.HalfHost, false, good)
	silent.Deliver(t, id, b, c.Configs[leader].Report)
	id, b = report(t, a, fault.ComponentMemory)
	a.Deliver(t, id, b, c.Configs[leader].Report)
	snap := filepath.Join(t.TempDir(), "snapshot.db")
	saveSnapshot(t, c, c.Configs[leader], snap)
	since, lateBytes := report(t, a, fault.ComponentPower)
	a.Deliver(t, since, lateBytes, c.Configs[leader].Report)
	events, err := c.Client(t, c.Configs[leader].GRPC).ListEvents(t.Context(), &lofamov1.ListEventsRequest{})
	if err != nil || !told(events.GetEvents(), "memory") || !told(events.GetEvents(), "power") {
		t.Fatal(events, err)
	}
	killAll(procs)

	// Two disks are lost; the third replica's data still exist.
	var files []string
	for i, cfg := range c.Configs {
		files = append(files, c.WriteConfig(t, cfg))
		if i < 2 {
			if err := os.RemoveAll(cfg.DataDir); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantExit(t, program.ExitFailure, "there are data of a member", "restore", "--snapshot", snap, "--config", files[2])
	token := restore(t, snap, "", files[:2]...)
	for i := range 2 {
		wantExit(t, program.ExitFailure, "there are data of a member", "restore", "--snapshot", snap, "--config", files[i])
	}
	for i, cfg := range c.Configs {
		procs[i] = process(t, c, cfg)
	}
	leader = c.AwaitLeader(t, 0, 1)
	client := c.Client(t, c.Configs[leader].GRPC)
	old := lofamov1.NewSupervisorAdminClient(c.Conn(t, pki.RoleOperator, c.Configs[2].GRPC))
	supervisortest.Eventually(t, "the replica with the old data to find itself without a quorum", func() bool {
		list, err := old.ListMembers(t.Context(), &lofamov1.ListMembersRequest{})
		return err == nil && list.GetStale()
	})

	now, err := client.ListEvents(t.Context(), &lofamov1.ListEventsRequest{})
	if err != nil || !told(now.GetEvents(), "memory") || told(now.GetEvents(), "power") {
		t.Errorf("after the restore: %v, %v", now, err)
	}
	if now.GetRevision() <= events.GetRevision() {
		t.Errorf("the revision went back from %d to %d", events.GetRevision(), now.GetRevision())
	}
	watch, err := client.Watch(t.Context(), &lofamov1.WatchRequest{AfterRevision: events.GetRevision()})
	if err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.OutOfRange || !strings.Contains(err.Error(), "was lost when the store was restored from a snapshot") {
		t.Errorf("a watch from before: %v", err)
	}
	// A copy of a report acknowledged after the snapshot counts as new, and the next digest restores the present
	// state. On a busy machine a digest may expire before the test reads the map, so the test repeats it.
	a.Deliver(t, since, lateBytes, c.Configs[leader].Report)
	supervisortest.Eventually(t, "what holds to be in the map", func() bool {
		_, b := a.Report(t, fault.HalfHost, true, fault.Observation{Component: fault.ComponentPower, State: fault.Sick, Kind: fault.KindSelf},
			fault.Observation{Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf})
		a.Send(t, c.Configs[leader].Report, b)
		n, err := client.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "n0-0-0"})
		return err == nil && stateOf(n, "power") == lofamov1.State_SICK && stateOf(n, "memory") == lofamov1.State_SICK
	})
	// A node that was NORMAL in the snapshot and has been silent since does not stay NORMAL for long.
	supervisortest.Eventually(t, "the silent node to be UNKNOWN", func() bool {
		n, err := client.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "n1-1-0"})
		return err == nil && n.GetState() == lofamov1.State_UNKNOWN && stateOf(n, "memory") == lofamov1.State_UNKNOWN
	})

	// The third joins from the same file once its old data are removed.
	killAll(procs[2:])
	if err := os.RemoveAll(c.Configs[2].DataDir); err != nil {
		t.Fatal(err)
	}
	restore(t, snap, token, files[2])
	procs[2] = process(t, c, c.Configs[2])
	c.AwaitLeader(t)
}

// TestSecondRestoreMakesReadersListAgain: the same old snapshot is restored a second time, without anything from the first restore.
// Readers of commits in between, which are lost, must list again, even if the store has by then made as many
// commits as there were in between.
func TestSecondRestoreMakesReadersListAgain(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Preset: config.PresetRelaxed})
	cfg, file := c.Configs[0], c.WriteConfig(t, c.Configs[0])
	a := c.Agents["n0-0-0"]
	life := func(comps ...fault.Component) uint64 {
		t.Helper()
		for _, comp := range comps {
			id, b := report(t, a, comp)
			a.Deliver(t, id, b, cfg.Report)
		}
		resp, err := c.Client(t, cfg.GRPC).ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetRevision()
	}
	again := func(p *exec.Cmd, snap string) *exec.Cmd {
		t.Helper()
		killAll([]*exec.Cmd{p})
		if err := os.RemoveAll(cfg.DataDir); err != nil {
			t.Fatal(err)
		}
		restore(t, snap, "", file)
		p = process(t, c, cfg)
		c.AwaitLeader(t)
		return p
	}
	p := process(t, c, cfg)
	c.AwaitLeader(t)
	first := life(fault.ComponentMemory)
	snap := filepath.Join(t.TempDir(), "snapshot.db")
	saveSnapshot(t, c, cfg, snap)
	p = again(p, snap)
	second := life(fault.ComponentPower)
	again(p, snap)
	third := life(fault.ComponentMemory, fault.ComponentPower, fault.ComponentTemperature)
	if first >= second || second >= third {
		t.Errorf("revisions %d, then %d, then %d: want them to rise", first, second, third)
	}
	for seen, want := range map[uint64]codes.Code{first + 1: codes.OutOfRange, second: codes.OutOfRange, third: codes.OK} {
		stream, err := c.Client(t, cfg.GRPC).Watch(t.Context(), &lofamov1.WatchRequest{AfterRevision: seen})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if status.Code(err) != want {
			t.Errorf("a watch after revision %d: %v, %v, want %s", seen, resp, err, want)
		}
	}
}

func told(events []*lofamov1.Event, component string) bool {
	return slices.ContainsFunc(events, func(ev *lofamov1.Event) bool {
		return ev.GetNode() == "n0-0-0" && ev.GetComponent() == component && ev.GetTo() == lofamov1.State_SICK
	})
}

func stateOf(n *lofamov1.Node, component string) lofamov1.State {
	for _, c := range n.GetComponents() {
		if c.GetName() == component {
			return c.GetState()
		}
	}
	return lofamov1.State_STATE_UNSPECIFIED
}

func TestRestoreRefusesUnusableSnapshots(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	cfg := c.Configs[0]
	p := process(t, c, cfg)
	c.AwaitLeader(t)
	dir := t.TempDir()
	snap := filepath.Join(dir, "good.db")
	saveSnapshot(t, c, cfg, snap)
	file := c.WriteConfig(t, cfg)
	wantExit(t, program.ExitFailure, "in use by another process", "restore", "--snapshot", snap, "--config", file)
	killAll([]*exec.Cmd{p})

	b, err := os.ReadFile(snap)
	if err != nil {
		t.Fatal(err)
	}
	spoil := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	flipped := slices.Clone(b)
	flipped[len(b)/2] ^= 1
	outside := cfg
	outside.ID, outside.Etcd.Endpoints = "s2", []string{"https://127.0.0.1:1"}
	outside.Replicas = append(slices.Clone(cfg.Replicas), config.ReplicaEntry{ID: "s2", GRPC: "127.0.0.1:1", Report: "127.0.0.1:1"})
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	empty := spoil("empty.yaml", bytes.ReplaceAll(text, []byte(cfg.DataDir), []byte(filepath.Join(dir, "empty"))))
	for _, tc := range []struct {
		code int
		text string
		args []string
	}{
		{0, "keys up to revision", []string{"check", "--snapshot", snap}},
		{program.ExitFailure, "cut off", []string{"check", "--snapshot", spoil("short.db", b[:len(b)-100])}},
		{program.ExitFailure, "cut off", []string{"check", "--snapshot", spoil("empty.db", nil)}},
		{program.ExitFailure, "damaged", []string{"check", "--snapshot", spoil("flipped.db", flipped)}},
		{program.ExitFailure, "no such file", []string{"check", "--snapshot", filepath.Join(dir, "none")}},
		{program.ExitUsage, "--snapshot is missing", []string{"check"}},
		{program.ExitUsage, "want both", []string{"restore", "--snapshot", snap}},
		{program.ExitUsage, "want both", []string{"restore", "--config", file}},
		{program.ExitUsage, "--token", []string{"restore", "--snapshot", snap, "--config", file, "--token", "mine"}},
		{program.ExitFailure, "clock", []string{"restore", "--snapshot", snap, "--config", empty, "--token", "20250101T000000Z"}},
		{program.ExitUsage, "none.yaml", []string{"restore", "--snapshot", snap, "--config", filepath.Join(dir, "none.yaml")}},
		{program.ExitUsage, "etcdutl", []string{"restore", "--snapshot", snap, "--config", c.WriteConfig(t, outside)}},
		{program.ExitFailure, "damaged", []string{"restore", "--snapshot", filepath.Join(dir, "flipped.db"), "--config", file}},
		{program.ExitFailure, "there are data of a member", []string{"restore", "--snapshot", snap, "--config", file}},
	} {
		wantExit(t, tc.code, tc.text, tc.args...)
	}
}

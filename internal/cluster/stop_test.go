package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lofamo/lofamo/internal/testing/deadline"
)

// TestMain lets the test program pretend to be a half that ignores SIGTERM.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == agentProgram {
		signal.Ignore(syscall.SIGTERM)
		fmt.Print("deaf")
		time.Sleep(time.Minute)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// script is a program that plays the role of an agent or a supervisor.
func script(t *testing.T, dir, name, body string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestStartSaysWhatFailedWithLog(t *testing.T) {
	bin := shortTempDir(t)
	script(t, bin, agentProgram, "exit 0\n")
	script(t, bin, supervisorProgram, "echo \"$@\"; echo the disk is on fire >&2; exit 3\n")
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1, BinDir: bin})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := c.Start(ctx, nil)
	if err == nil {
		t.Fatal("started")
	}
	for _, want := range []string{"supervisor sup-0", "exit status 3", "the disk is on fire", "run --config"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	if err := c.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestMissingProgramsErrorSaysHowToBuild(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1, BinDir: shortTempDir(t)})
	err := c.Start(context.Background(), nil)
	if err == nil || !strings.Contains(err.Error(), "make build") || !strings.Contains(err.Error(), "lofamo-agent") {
		t.Fatalf("error %v", err)
	}
}

func TestStartTimesOutWithReason(t *testing.T) {
	bin := shortTempDir(t)
	script(t, bin, agentProgram, "exit 0\n")
	script(t, bin, supervisorProgram, "echo still thinking; exec sleep 600\n")
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1, BinDir: bin})
	err := c.Start(deadline.When(t, func() bool {
		return strings.Contains(tail(c.path("supervisors", "sup-0", "log"), 1), "still thinking")
	}), nil)
	if err == nil || !strings.Contains(err.Error(), "wait for the supervisors") || !strings.Contains(err.Error(), "still thinking") {
		t.Fatalf("error %v", err)
	}
	if got := c.Running(); len(got) != 1 {
		t.Fatalf("running: %q", got)
	}
	if err := c.Start(context.Background(), nil); err == nil || !strings.Contains(err.Error(), "it is running") {
		t.Fatalf("a second start: %v", err)
	}
	if err := c.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := c.Running(); len(got) != 0 {
		t.Fatalf("running after Stop: %q", got)
	}
	if again, err := Load(c.dir); err != nil || again.info.Supervisors[0].PID != 0 {
		t.Fatalf("cluster.json after Stop: %+v, %v", again.info.Supervisors, err)
	}
}

func TestStopEndsDeafStoppedAndOrphanedProcesses(t *testing.T) {
	bin := shortTempDir(t)
	// The test program itself plays the role of a half that ignores SIGTERM: see TestMain.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(bin, agentProgram)); err != nil {
		t.Fatal(err)
	}
	script(t, bin, supervisorProgram, `trap "" TERM; echo ready; while :; do sleep 0.1; done`)
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1, BinDir: bin})
	c.ports.release()
	c.binDir = bin
	if err := c.startSupervisors(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the supervisor ignores SIGTERM",
		func() bool { return strings.Contains(tail(c.path("supervisors", "sup-0", "log"), 1), "ready") })
	orphan := exec.Command(filepath.Join(bin, agentProgram), "host", "--config", filepath.Join(c.nodeDir("n0-0-0"), "agent.yaml"))
	out, err := orphan.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = orphan.Process.Kill() })
	said := make([]byte, 4)
	if _, err := out.Read(said); err != nil || string(said) != "deaf" {
		t.Fatalf("the orphan says %q, %v", said, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- orphan.Wait() }()
	if err := c.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the orphan lives")
	}
	if got := c.Running(); len(got) != 0 {
		t.Fatalf("still running: %q", got)
	}
}

func TestStopLeavesReusedPidAlone(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	c.ports.release()
	other := exec.Command("sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	st, err := readStat(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	c.info.Nodes[0].RunPID, c.info.Nodes[0].Started = st.pid, st.started-1
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	if got := c.Running(); len(got) != 0 {
		t.Fatalf("a stranger counts as running: %q", got)
	}
	if err := c.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if st, err := readStat(other.Process.Pid); err != nil || st.state == 'Z' {
		t.Fatal("the stranger was signalled")
	}
}

func TestOwnProcessesAreRecognised(t *testing.T) {
	for _, tc := range []struct {
		dir, args string
		want      bool
	}{
		{"/tmp/c", "/bin/lofamo-agent host --config /tmp/c/nodes/n0-0-0/agent.yaml", true},
		{"/tmp/c", "/bin/lofamo-agent host --config=/tmp/c/nodes/n0-0-0/agent.yaml", true},
		{"/tmp/c", "/bin/lofamo-supervisor run --config /tmp/c/supervisors/sup-0/supervisor.yaml", true},
		{"/tmp/c", "/bin/supervisor run --config /tmp/c/supervisors/sup-0/supervisor.yaml", true}, // of an earlier version
		{"/tmp/c", "/bin/lofamo-agent host --config /tmp/c2/nodes/n0-0-0/agent.yaml", false},
		{"/tmp/c", "/bin/lofamo-agent host", false},
		{"/tmp/c", "/usr/bin/vi /tmp/c/nodes/n0-0-0/agent.yaml", false},
		{"/tmp/run=3/c", "/bin/lofamo-agent host --config /tmp/run=3/c/nodes/n0-0-0/agent.yaml", true},
		{"/tmp/run=3/c", "/bin/lofamo-agent host --config=/tmp/run=3/c/nodes/n0-0-0/agent.yaml", true},
		{"/tmp/c", "/bin/lofamo-agent host --config /tmp/run=/tmp/c/nodes/n0-0-0/agent.yaml", false},
	} {
		c := &Cluster{dir: tc.dir}
		if got := c.ownArguments(strings.Fields(tc.args)); got != tc.want {
			t.Errorf("cluster in %s: %s: %v", tc.dir, tc.args, got)
		}
	}
}

// TestKillRunEndsDaemonOfOthers: cluster.json does not know its process.
func TestKillRunEndsDaemonOfOthers(t *testing.T) {
	bin := shortTempDir(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(bin, agentProgram)); err != nil {
		t.Fatal(err)
	}
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	c.ports.release()
	n := c.info.Nodes[0]
	daemon := exec.Command(filepath.Join(bin, agentProgram), "run", "--config", filepath.Join(c.nodeDir(n.ID), "agent.yaml"))
	out, err := daemon.StdoutPipe() // TestMain speaks when it runs
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = daemon.Process.Kill(), daemon.Wait() })
	if _, err := out.Read(make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if err := c.KillRun(t.Context(), string(n.ID)); err != nil {
		t.Fatal(err)
	}
	if pid, _ := c.daemon(n); pid != 0 {
		t.Errorf("process %d still runs", pid)
	}
}

// TestPurgeLeavesBusyDirectoryAlone: another lofamoctl makes or starts a cluster there, after this one was stopped.
func TestPurgeLeavesBusyDirectoryAlone(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	c.ports.release()
	unlock, err := lockDir(c.dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := c.Purge(); !errors.Is(err, ErrBusy) {
		t.Errorf("Purge of a directory in use: %v", err)
	}
	if _, err := Load(c.dir); err != nil {
		t.Error(err)
	}
}

// TestRemovedLockIsNoLock: a program that waited for the lock of a purged directory must lock the new file, not the removed one.
func TestRemovedLockIsNoLock(t *testing.T) {
	dir := shortTempDir(t)
	unlock, err := lockDir(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan func(), 1)
	go func() {
		second, err := lockDir(dir, time.Minute)
		if err != nil {
			t.Error(err)
		}
		waiting <- second
	}()
	until(t, "the second one waits", func() bool { return openFiles(t, filepath.Join(dir, ".lock")) == 2 })
	if err := os.Remove(filepath.Join(dir, ".lock")); err != nil {
		t.Fatal(err)
	}
	unlock()
	second := <-waiting
	if third, err := lockDir(dir, 0); err == nil {
		third()
		t.Error("two hold one directory")
	}
	second()
}

// openFiles counts the descriptors of this process for a file.
func openFiles(t *testing.T, path string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && to == path {
			n++
		}
	}
	return n
}

// TestStopAfterPurgeWritesNoClusterFile: another lofamoctl has purged the cluster, and the directory holds somebody's file.
func TestStopAfterPurgeWritesNoClusterFile(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	c.ports.release()
	if err := os.WriteFile(filepath.Join(c.dir, "notes"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.Purge(); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v: want notes alone", entries, err)
	}
}

// TestStopSignalsNoProcessWithoutStartTime: nothing tells it from another process that has got the pid since.
func TestStopSignalsNoProcessWithoutStartTime(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	c.ports.release()
	other := exec.Command("sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	c.info.Nodes[0].RunPID = other.Process.Pid
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	_ = c.Stop(t.Context())
	if st, err := readStat(other.Process.Pid); err != nil || st.state == 'Z' {
		t.Fatal("the stranger was signalled")
	}
}

// TestTailReadsEndsOfLogsOnly: a debug log of days is larger than the memory, and holds texts of other machines.
func TestTailReadsEndsOfLogsOnly(t *testing.T) {
	log := filepath.Join(shortTempDir(t), "log")
	f, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("\nlast but one\n\x1b[2J"+strings.Repeat("…", 200)+"\n"), 1<<30); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := tail(log, 2)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes of memory", n)
	}
	if !strings.HasPrefix(got, "  last but one\n  ") || !utf8.ValidString(got) || strings.Contains(got, "\x1b") {
		t.Errorf("%q", got)
	}
}

// TestForgottenReplicaLeavesNoGroup: nothing else knows the cgroup of a replica that is removed.
func TestForgottenReplicaLeavesNoGroup(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 3})
	c.ports.release()
	group := filepath.Join(shortTempDir(t), "group")
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	c.info.Supervisors[1].Group = group
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	if err := c.ForgetSupervisor(t.Context(), "sup-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(group); !os.IsNotExist(err) {
		t.Errorf("the group: %v", err)
	}
}

// TestProcessOfEarlierBootIsAnother: after a reboot, another process may have the id and the start time of a process of the cluster. It is
// neither taken for the cluster's nor ended.
func TestProcessOfEarlierBootIsAnother(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	other := exec.Command("sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	t.Cleanup(func() { _ = other.Process.Kill() })
	s, err := readStat(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	c.info.Supervisors[0].PID, c.info.Supervisors[0].Started = s.pid, s.started
	c.info.Nodes[1].RunPID, c.info.Nodes[1].Started = s.pid, s.started
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	if same, err := Load(c.dir); err != nil || len(same.Running()) != 2 {
		t.Fatalf("within the boot: %v, %v", same.Running(), err)
	}
	b, err := os.ReadFile(c.path("cluster.json"))
	if err != nil {
		t.Fatal(err)
	}
	var raw map[string]any
	if err := json.Unmarshal(b, &raw); err != nil {
		t.Fatal(err)
	}
	raw["boot"] = "8f7b1c1e-0000-4000-8000-000000000000"
	if b, err = json.Marshal(raw); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.path("cluster.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	later, err := Load(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	if is := later.Running(); len(is) != 0 {
		t.Errorf("after a reboot: %v", is)
	}
	if err := later.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		t.Errorf("Stop has ended the process of somebody else: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
}

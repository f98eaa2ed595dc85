package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/executor/process/processtest"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/internal/sdnotify/sdnotifytest"
	"github.com/lofamo/lofamo/pkg/response"
)

// asExecutor makes this test binary the command itself.
const asExecutor = "LOFAMO_TEST_AS_EXECUTOR"

func TestMain(m *testing.M) {
	if os.Getenv(asExecutor) != "" {
		os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func write(t *testing.T, f *processtest.Fixture) string {
	t.Helper()
	js, err := json.Marshal(f.Config) // which is YAML
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(f.Dir, "executor.yaml")
	if err := os.WriteFile(path, js, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExitCodesOfExecutorCommands(t *testing.T) {
	f := processtest.New(t)
	f.Config.Commands = []process.Command{{Name: "true", Path: "/bin/true"}}
	good := write(t, f)
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("cluster: c\ncommand: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{nil, program.ExitUsage, "no command given"},
		{[]string{"fly"}, program.ExitUsage, "unknown command"},
		{[]string{"run"}, program.ExitUsage, "--config is missing"},
		{[]string{"run", "--config", bad}, program.ExitUsage, "command: unknown key"},
		{[]string{"config", "check", bad}, program.ExitUsage, "want one of atOnce, cluster, commands"},
		{[]string{"config", "check", good}, 0, "for command"},
		{[]string{"config", "check", "--config", good}, 0, "for command"},
		{[]string{"config", "check", good, "--config", good}, program.ExitUsage, "want only one"},
		{[]string{"config", "check", "--start", bad}, program.ExitUsage, "want one of atOnce, cluster, commands"},
		{[]string{"config", "check"}, program.ExitUsage, "FILE is missing"},
		{[]string{"config"}, program.ExitUsage, "want config check FILE"},
		{[]string{"check-config", good}, 0, "for command"},
		{[]string{"init", "--config", good}, program.ExitFailure, "want --forget"},
		{[]string{"init", "--config", good, "--forget"}, 0, "forgotten: token 0 and 0 attempts"},
		{[]string{"version"}, 0, "lofamo-executor"},
	} {
		var out bytes.Buffer
		if code := execute(tc.args, &out, &out); code != tc.code || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%v: code %d, %s: want %d, %q", tc.args, code, &out, tc.code, tc.want)
		}
	}
	f.Config.Commands[0].Path = "/nowhere/true"
	var out bytes.Buffer
	if code := execute([]string{"check-config", write(t, f)}, &out, &out); code != program.ExitUsage ||
		!strings.Contains(out.String(), "no such file") {
		t.Errorf("a program that is not there: code %d, %s", code, &out)
	}
}

// TestCheckRefusesInterpretersThatRunAccepts: an upgrade stops no process with a configuration that was accepted before, and a new
// configuration is refused before the process starts. The former check-config may be part of units, so it accepts the configuration, too.
func TestCheckRefusesInterpretersThatRunAccepts(t *testing.T) {
	manager := sdnotifytest.New(t, time.Minute)
	f := processtest.New(t)
	f.Config.Commands = []process.Command{{Name: "count", Path: "/usr/bin/awk", Args: []string{"BEGIN { print \"${node}\" }"},
		Parameters: map[string]string{"node": ".*"}}}
	file := write(t, f)
	const want = "commands[0].args: given placeholders: want none for /usr/bin/awk"
	var out bytes.Buffer
	if code := execute([]string{"config", "check", file}, &out, &out); code != program.ExitUsage || !strings.Contains(out.String(), want) {
		t.Errorf("config check: code %d, %s: want %d, %q", code, &out, program.ExitUsage, want)
	}
	for _, args := range [][]string{{"check-config", file}, {"config", "check", "--start", file}} {
		out.Reset()
		if code := execute(args, &out, &out); code != 0 || !strings.Contains(out.String(), want) {
			t.Errorf("%q: code %d, %s: want 0, %q", args, code, &out, want)
		}
	}
	var said bytes.Buffer
	cmd := started(t, file, &said)
	manager.Await(t, "READY=1")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended: %v", err)
	}
	if n := strings.Count(said.String(), want); n != 1 || !strings.Contains(said.String(), "level=WARN") {
		t.Errorf("%d warnings: want 1 in: %s", n, &said)
	}
}

// started is this program's run with a configuration, as a process; it is killed in the end if it has not ended.
func started(t *testing.T, file string, stderr io.Writer) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "run", "--config", file)
	cmd.Env, cmd.Stderr = append(os.Environ(), asExecutor+"=1"), stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// patient returns a supervisor's connection to the executor process, with enough time to connect to a separate program on a busy machine.
func patient(t *testing.T, f *processtest.Fixture) *executor.Remote {
	t.Helper()
	x, err := executor.NewRemote(config.ExecutorClient{Address: f.Config.Listen, DialTimeout: config.Duration(time.Minute)},
		processtest.Cluster, f.Certificate(t, pki.RoleSupervisor), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

// TestSignalEndsProcessWithCodeZero runs the process until a signal stops it, and expects exit code 0.
func TestSignalEndsProcessWithCodeZero(t *testing.T) {
	f := processtest.New(t)
	f.Config.Commands = []process.Command{{Name: "true", Path: "/bin/true"}}
	cmd := started(t, write(t, f), t.Output())
	x := patient(t, f)
	j := processtest.Job(response.Command, 3, "r3-1", 0, 1, map[string]string{"command": "true"})
	r := processtest.Do(t, x, j)
	for deadline := time.Now().Add(time.Minute); r.Outcome != response.Succeeded; r = processtest.Do(t, x, j) {
		if time.Now().After(deadline) || r.Outcome != response.Unchanged {
			t.Fatalf("%+v", r)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended: %v", err)
	}
}

// The service manager learns that the process serves, that it lives, that it ends, and how long its attempts may take until then.
func TestServiceManagerGetsStatesOfExecutor(t *testing.T) {
	manager := sdnotifytest.New(t, 100*time.Millisecond)
	f := processtest.New(t)
	f.Config.StopTimeout = config.Duration(10 * time.Minute)
	f.Config.Commands = []process.Command{{Name: "true", Path: "/bin/true"}}
	cmd := started(t, write(t, f), os.Stderr)
	manager.Await(t, "READY=1")
	manager.Await(t, "STATUS=attempts under way: 0")
	manager.Await(t, "WATCHDOG=1")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	manager.Await(t, "STOPPING=1")
	manager.Await(t, "EXTEND_TIMEOUT_USEC=630000000") // half a minute more than stopTimeout
}

// TestProcessEndsWhenItsLedgerCannotBeWritten checks that a process that could not write its ledger logs the cause and
// ends, so that its manager restarts it. The next one reads the existing ledger and continues.
func TestProcessEndsWhenItsLedgerCannotBeWritten(t *testing.T) {
	manager := sdnotifytest.New(t, time.Minute)
	f := processtest.New(t)
	f.Config.Commands = []process.Command{{Name: "true", Path: "/bin/true"}}
	file := write(t, f)
	var said bytes.Buffer
	first := started(t, file, &said)
	manager.Await(t, "READY=1")
	way := filepath.Join(f.Config.StateDir, "ledger.new")
	if err := os.Mkdir(way, 0o700); err != nil { // in the way of the new file
		t.Fatal(err)
	}
	x := patient(t, f)
	j := processtest.Job(response.Command, 3, "r3-1", 0, 1, map[string]string{"command": "true"})
	j.Timeout = time.Minute
	if r := processtest.Do(t, x, j); r.Outcome != response.Unchanged {
		t.Errorf("without a ledger: %+v", r)
	}
	manager.Await(t, "STOPPING=1")
	if err := first.Wait(); first.ProcessState.ExitCode() != program.ExitFailure ||
		!strings.Contains(said.String(), "the ledger cannot be written") {
		t.Errorf("ended with %v, and said: %s", err, &said)
	}
	if err := os.Remove(way); err != nil {
		t.Fatal(err)
	}
	started(t, file, &said)
	manager.Await(t, "READY=1")
	j.Attempt.Attempt = 2
	if r := processtest.Do(t, x, j); r.Outcome != response.Succeeded {
		t.Errorf("started anew: %+v", r)
	}
}

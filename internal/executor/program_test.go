package executor

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// script runs in a real shell, because these tests are about real behaviour of programs.
func script(text string) Program {
	return Program{Path: "/bin/sh", Args: []string{"-c", text}, MaxOutput: 100}
}

func TestProgramResultDescribesItsEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		spec Program
		want string
		code int
	}{
		"good":        {script("echo said; echo wrong >&2"), "exit code 0: wrong said", 0},
		"bad":         {script("exit 7"), "exit code 7", 7},
		"signal":      {script("kill -9 $$"), "ended by signal 9", -1},
		"none":        {Program{Path: "/nowhere/x"}, "not started", -1},
		"environment": {script("unset PWD OLDPWD SHLVL _; export -p | grep -o ' [A-Z_]*=' | sort | tr -d '\\n'"), "LC_ALL= PATH=", 0},
		"directory":   {script("pwd"), "exit code 0: /", 0},
		"given": {Program{Path: "/bin/sh", Args: []string{"-c", "echo $A; pwd"}, Env: []string{"A=b"}, Dir: "/tmp", MaxOutput: 100},
			"b /tmp", 0},
		"no input": {script("cat; echo end"), "exit code 0: end", 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := RunProgram(t.Context(), tc.spec)
			if !strings.Contains(e.String(), tc.want) || e.Code != tc.code || e.OK() != (tc.code == 0) {
				t.Errorf("%s (%+v): want %q, code %d", e, e, tc.want, tc.code)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if e := RunProgram(ctx, script("touch "+filepath.Join(t.TempDir(), "x"))); e.Started {
		t.Errorf("run after its time: %+v", e)
	}
}

// TestEndlessOutputIsCut: a program with endless output neither fills the memory nor blocks on a full pipe.
func TestEndlessOutputIsCut(t *testing.T) {
	e := RunProgram(t.Context(), script("head -c 10000000 /dev/zero | tr '\\0' x; head -c 50 /dev/zero | tr '\\0' y >&2"))
	if !e.OK() || len(e.Stdout) != 100 || len(e.Stderr) != 50 || !e.Cut {
		t.Errorf("%+v", e)
	}
}

// TestDeadlineEndsWholeProcessGroup: at the deadline the program ends with all processes that it has started, even those that ignore
// SIGTERM.
func TestDeadlineEndsWholeProcessGroup(t *testing.T) {
	for name, grace := range map[string]time.Duration{"at once": 0, "after a grace": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			pids := filepath.Join(t.TempDir(), "pids")
			s := script(`trap '' TERM; sh -c 'trap "" TERM; echo $$ >> ` + pids + `; while :; do sleep 1; done' & echo $$ >> ` + pids +
				`; wait; wait; while :; do sleep 1; done`)
			s.Grace = grace
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan ProgramResult, 1)
			go func() { done <- RunProgram(ctx, s) }()
			list := lines(t, pids, 2)
			cancel()
			e := <-done
			if !e.Started || !e.Killed || e.OK() || !strings.Contains(e.String(), "deadline") {
				t.Errorf("%+v", e)
			}
			for _, pid := range list {
				gone(t, pid)
			}
		})
	}
}

// TestProgramHasTimeToCleanUp: a program that handles SIGTERM has time to clean up.
func TestProgramHasTimeToCleanUp(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	s := script(`trap 'echo put right; exit 3' TERM; echo > ` + ready + `; while :; do sleep 0.01; done`)
	s.Grace = 20 * time.Second
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan ProgramResult, 1)
	go func() { done <- RunProgram(ctx, s) }()
	lines(t, ready, 1)
	cancel()
	if e := <-done; !e.Killed || e.Code != 3 || !strings.Contains(e.String(), "put right") {
		t.Errorf("%+v", e)
	}
}

// TestBackgroundProcessDelaysNoResult: a background process of a program does not delay the end of the run, and survives.
func TestBackgroundProcessDelaysNoResult(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	began := time.Now()
	e := RunProgram(t.Context(), script("sleep 60 & echo $! > "+pids))
	if !e.OK() || time.Since(began) > 30*time.Second {
		t.Errorf("%+v after %s", e, time.Since(began))
	}
	pid := lines(t, pids, 1)[0]
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("ended: %v", err)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

func TestProgramRunsAsConfiguredUser(t *testing.T) {
	if os.Getuid() != 0 {
		requirements.Missing(t, "only root may run as somebody else")
	}
	s := script("id -u; id -g; id -G")
	s.Credential = &ProgramUser{UID: 65534, GID: 65533}
	if e := RunProgram(t.Context(), s); string(e.Stdout) != "65534\n65533\n65533\n" {
		t.Errorf("%+v", e)
	}
}

// lines waits until the file has n lines, and returns their numbers; 0 for an empty line.
func lines(t *testing.T, path string, n int) []int {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		b, _ := os.ReadFile(path)
		if strings.Count(string(b), "\n") >= n {
			var out []int
			for l := range strings.Lines(string(b)) {
				pid, _ := strconv.Atoi(strings.TrimSpace(l))
				out = append(out, pid)
			}
			return out
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %q", path, b)
		}
	}
}

// gone waits until a process has ended or is a zombie.
func gone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(b), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d goes on: %s", pid, b)
		}
	}
}

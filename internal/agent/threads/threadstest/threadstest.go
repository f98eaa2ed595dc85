// Package threadstest starts processes that wait for a processor, for tests.
package threadstest

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// Start starts a process on the first processor that this one may use, and returns its id.
func Start(t *testing.T, args ...string) int {
	t.Helper()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	first := 0
	for !all.IsSet(first) {
		first++
	}
	cmd := exec.Command("taskset", append([]string{"-c", strconv.Itoa(first)}, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// Starved starts a process that hardly runs: it is of the idle class, beside a busy one of the ordinary class.
func Starved(t *testing.T) int {
	t.Helper()
	requirements.Program(t, "package util-linux", "taskset")
	requirements.Program(t, "package util-linux", "chrt")
	const spin = "while :; do :; done"
	Start(t, "sh", "-c", spin)
	return Start(t, "chrt", "--idle", "0", "sh", "-c", spin)
}

// Stopped starts a process, and stops it by a signal.
func Stopped(t *testing.T) int {
	t.Helper()
	pid := Start(t, "sleep", "1000")
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, pid, 'T')
	return pid
}

// Asleep starts a process that sleeps.
func Asleep(t *testing.T) int {
	t.Helper()
	pid := Start(t, "sleep", "1000")
	until(t, pid, 'S')
	return pid
}

// until waits for a process that runs sleep to be in a state of /proc/PID/stat.
func until(t *testing.T, pid int, state byte) {
	t.Helper()
	var b []byte
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		var err error
		if b, err = os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err != nil {
			t.Fatal(err)
		}
		name, rest, _ := bytes.Cut(b, []byte(") "))
		if len(rest) > 0 && rest[0] == state && (state == 'T' || bytes.HasSuffix(name, []byte("(sleep"))) {
			return
		}
	}
	t.Fatalf("not in state %c: %s", state, b)
}

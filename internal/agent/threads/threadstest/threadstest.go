// Package threadstest starts processes that wait for a processor, for tests.
package threadstest

import (
	"os/exec"
	"strconv"
	"testing"

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

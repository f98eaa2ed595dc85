// Package netnstest runs a test in its own network namespace, so that the test can create and break real interfaces,
// addresses and routes. It holds no tests itself, and creates no cables: tests do that with `ip`, by IP.
//
// The namespace belongs to a process of its own, the test binary executed again: a thread that moved into another
// namespace would take netlink sockets and goroutines of other tests along.
package netnstest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// inside is the environment variable that names the test which runs in the namespace.
const inside = "LOFAMO_TEST_IN_NETNS"

// patience bounds the process in the namespace.
const patience = 90 * time.Second

// Inside returns true in a fresh network namespace with only a loopback interface, which is up. The calling process
// waits for the verdict of that one, and returns false: then the test must end. Call it first in a top-level test.
// Without root or `ip` the test is skipped, and fails if $CI is set.
func Inside(t *testing.T) bool { t.Helper(); return enter(t, syscall.CLONE_NEWNET, patience) }

// InsideMachine is Inside in fresh mount and process namespaces as well, for tests whose programs mount file systems and start processes
// of their own: when the test's process ends, in whatever way, the kernel ends all of them and takes the mounts.
func InsideMachine(t *testing.T, patience time.Duration) bool {
	t.Helper()
	if !enter(t, syscall.CLONE_NEWNET|syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, patience) {
		return false
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatalf("separate the mounts: %v", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		t.Fatalf("mount /proc: %v", err)
	}
	return true
}

// enter runs the test again in namespaces of these kinds.
func enter(t *testing.T, kinds uintptr, patience time.Duration) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		IP(t, "link set lo up")
		return true
	}
	if why := missing(); why != "" {
		requirements.Missing(t, "%s", why)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1",
		"-test.timeout="+patience.String())
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: kinds, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("in a network namespace of its own: %v\n%s", err, out)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()+" "):
		t.Errorf("in a network namespace of its own the test did not pass:\n%s", out)
	default:
		t.Logf("in a network namespace of its own:\n%s", out)
	}
	return false
}

// missing names a missing requirement of network namespaces; empty when nothing is missing.
func missing() string {
	if os.Geteuid() != 0 {
		return "a network namespace needs root"
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return fmt.Sprintf("`ip` (package iproute2) is not here: %v", err)
	}
	return ""
}

// IP runs `ip` with the arguments, given as one line. The test ends when it fails.
func IP(t testing.TB, line string) {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", line, err, out)
	}
}

// Sysctl writes a value below /proc/sys; values below net belong to the namespace.
func Sysctl(t testing.TB, name string, value int) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/"+name, fmt.Append(nil, value), 0o600); err != nil {
		t.Fatal(err)
	}
}

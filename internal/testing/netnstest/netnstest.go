// Package netnstest runs a test in a network namespace of its own, so that it can make and break
// interfaces, addresses and routes for real. It holds no tests itself, and lays no cables: that is
// `ip`'s work, by IP.
//
// The namespace is that of a process of its own, the test binary executed again: a thread that moved
// into another namespace would take netlink sockets and goroutines of other tests with it.
package netnstest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/needs"
)

// inside is the environment variable that names the test which runs in the namespace.
const inside = "LOFAMO_TEST_IN_NETNS"

// patience bounds the process in the namespace.
const patience = 90 * time.Second

// Inside returns true in a fresh network namespace, where only the loopback interface is, and up. The
// calling process waits for that one's verdict, and returns false: the test has nothing more to do
// there. It must be the first thing in a top-level test. Without root or `ip` the test is skipped, and
// fails where $CI is set.
func Inside(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		IP(t, "link set lo up")
		return true
	}
	if why := missing(); why != "" {
		needs.Missing(t, "%s", why)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1",
		"-test.timeout="+patience.String())
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
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

// missing says what a network namespace needs and is not here; empty when nothing is missing.
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

// Sysctl writes a value below /proc/sys, which for what is net's own belongs to the namespace.
func Sysctl(t testing.TB, name string, value int) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/"+name, fmt.Append(nil, value), 0o600); err != nil {
		t.Fatal(err)
	}
}

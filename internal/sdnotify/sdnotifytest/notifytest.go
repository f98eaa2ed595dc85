// Package sdnotifytest is a service manager's end of sd_notify, for tests of the programs that it starts.
package sdnotifytest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// bound is how long a message may take.
const bound = time.Minute

// Manager hears what processes say that the test starts after it was made.
type Manager struct{ c *net.UnixConn }

// New makes the socket, and sets the environment of the processes that are started from now on: they are to give a sign of life
// within patience.
func New(t *testing.T, patience time.Duration) *Manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "lofamo-manager-") // not t.TempDir: its name is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", strconv.FormatInt(patience.Microseconds(), 10))
	return &Manager{c}
}

// Hears returns the next message within a time; empty: there is none.
func (m *Manager) Hears(t *testing.T, within time.Duration) string {
	t.Helper()
	if err := m.c.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := m.c.Read(b)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return string(b[:n])
}

// Await takes messages until one has the line.
func (m *Manager) Await(t *testing.T, line string) {
	t.Helper()
	var all []string
	for end := time.Now().Add(bound); time.Now().Before(end); {
		s := m.Hears(t, time.Until(end))
		if slices.Contains(strings.Split(s, "\n"), line) {
			return
		}
		all = append(all, s)
	}
	t.Fatalf("%q did not come within %s, after %q", line, bound, all)
}

package sdnotify

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// manager is a socket as systemd has it. Its queue is the kernel's.
func manager(t *testing.T) *net.UnixConn {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify-") // not t.TempDir: its name is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return c
}

func hear(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func TestMessagesArriveInOrder(t *testing.T) {
	c := manager(t)
	t.Setenv("WATCHDOG_USEC", "1000000")
	n := New(slog.New(slog.DiscardHandler))
	now := time.Unix(1000, 0)
	if n.Every() != 500*time.Millisecond {
		t.Errorf("a sign of life every %s", n.Every())
	}
	n.Status("host half\nis being started")
	n.Status("host half is  being started")
	n.Patience(time.Minute)
	n.Ready()
	for _, ms := range []int{0, 499, 500, 501, 999, 1100} {
		n.Round(now.Add(time.Duration(ms) * time.Millisecond))
	}
	n.Reloading(1_234_567_890)
	n.Stopping()
	for _, want := range []string{
		"STATUS=host half is being started", "EXTEND_TIMEOUT_USEC=60000000", "READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1",
		"RELOADING=1\nMONOTONIC_USEC=1234567", "STOPPING=1",
	} {
		if got := hear(t, c); got != want {
			t.Errorf("%q: want %q", got, want)
		}
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.Ready() // too late
	if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if size, err := c.Read(make([]byte, 4096)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes after Close, %v", size, err)
	}
	if err := n.Close(); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// A process of which no manager wants to hear, and one whose manager wants no signs of life.
func TestNotifierWithoutManagerIsSilent(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "1000000")
	n := New(slog.New(slog.DiscardHandler))
	if n != nil {
		t.Fatal("a notifier without a socket")
	}
	n.Ready()
	n.Status("x")
	n.Round(time.Unix(1000, 0))
	if err := n.Close(); err != nil || n.Every() != 0 {
		t.Errorf("%v, every %s", err, n.Every())
	}
	for _, other := range []struct{ usec, pid string }{{"", ""}, {"1000000", "1"}, {"x", ""}} {
		c := manager(t)
		t.Setenv("WATCHDOG_USEC", other.usec)
		t.Setenv("WATCHDOG_PID", other.pid) // not this process
		n := New(slog.New(slog.DiscardHandler))
		n.Round(time.Unix(1000, 0))
		n.Ready()
		if got := hear(t, c); got != "READY=1" {
			t.Errorf("%+v: %q", other, got)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A manager that does not read stops no process from continuing or ending.
func TestHangingManagerDelaysNobody(t *testing.T) {
	manager(t)
	full, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(full) }()
	to := &unix.SockaddrUnix{Name: os.Getenv("NOTIFY_SOCKET")}
	for err == nil || errors.Is(err, unix.EINTR) { // until the kernel takes no more
		err = unix.Sendto(full, []byte("X=1"), 0, to)
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	n := New(slog.New(slog.DiscardHandler))
	for range 2 * messages {
		n.Ready()
	}
	if err := n.Close(); err == nil {
		t.Error("it is said that the manager was told")
	}
}

// The halves, and the programs that check peripherals, are not who the manager has started.
func TestChildrenGetNoManagerVariables(t *testing.T) {
	env := []string{"PATH=/bin", "NOTIFY_SOCKET=/run/x", "WATCHDOG_USEC=1", "WATCHDOG_PID=2", "WATCHDOGS=3"}
	before := slices.Clone(env)
	if got, want := Environment(env), []string{"PATH=/bin", "WATCHDOGS=3"}; !slices.Equal(got, want) {
		t.Errorf("%q: want %q", got, want)
	}
	if !slices.Equal(env, before) {
		t.Error("the caller's was changed")
	}
}

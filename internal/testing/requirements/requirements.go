// Package requirements lets tests state their needs: a program, a right, a kernel feature. Where one is missing the test
// is skipped and listed in a file that `make test` prints at its end. If CI is set, the test fails instead, because the
// skip would go unnoticed.
package requirements

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// List is the environment variable that names the file to which each skipped test appends one line: folder, test, reason.
const List = "LOFAMO_SKIPPED"

// Missing ends a test that cannot run here, and gives the reason. Only the test's own goroutine may call it.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	why := "SKIPPED: " + fmt.Sprintf(format, args...)
	if os.Getenv("CI") != "" {
		t.Fatal(why + ": but in CI nothing is to be skipped")
		return
	}
	if path := os.Getenv(List); path != "" {
		if err := note(path, t.Name(), fmt.Sprintf(format, args...)); err != nil {
			t.Fatal(err)
			return
		}
	}
	t.Skip(why)
}

// note appends one line. Processes of several packages write at the same time, so each line is one appending write.
func note(path, test, why string) error {
	folder, err := os.Getwd() // go test runs a package's tests in its folder
	if err != nil {
		return fmt.Errorf("note the skipped test %s: %w", test, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("note the skipped test %s: %w", test, err)
	}
	if _, err := fmt.Fprintf(f, "%s/%s: %q\n", filepath.Base(folder), test, why); err != nil {
		_ = f.Close()
		return fmt.Errorf("note the skipped test %s: %w", test, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("note the skipped test %s: %w", test, err)
	}
	return nil
}

// ListenerFilter ends a test that cannot filter a TCP listener. Linux 6.18 refuses that without CAP_NET_ADMIN.
func ListenerFilter(t testing.TB) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	admit := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &admit}); err != nil {
		Missing(t, "a filter of a TCP socket: %v", err)
	}
}

// Program returns the path of a program: the first of these names that is in the PATH. from says where one gets it.
func Program(t testing.TB, from string, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	Missing(t, "none of the programs %q: %s", names, from)
	return ""
}

// Set returns an environment variable with the path of something that the test does not make itself. from names the command that
// makes it and sets the variable. The test is also skipped if the path does not exist.
func Set(t testing.TB, from, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		Missing(t, "%s is not set: %s", variable, from)
		return ""
	}
	if _, err := os.Stat(path); err != nil {
		Missing(t, "%s: %v: %s", variable, err, from)
		return ""
	}
	return path
}

// SmallDisk mounts a file system of so many bytes at a folder until the test ends.
func SmallDisk(t testing.TB, dir string, bytes int) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		Missing(t, "a small disk needs the right to mount one: %v", err)
		return
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}

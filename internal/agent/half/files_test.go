package half

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

func TestWritableStateDirectoryIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "state")
	if err := MakeStateDir(dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("made with %v, %v", info.Mode(), err)
	}
	if err := MakeStateDir(dir); err != nil {
		t.Errorf("its own: %v", err)
	}
	for _, m := range []os.FileMode{0o770, 0o707, 0o777} {
		if err := os.Chmod(dir, m); err != nil {
			t.Fatal(err)
		}
		if err := MakeStateDir(dir); err == nil || !strings.Contains(err.Error(), "others may write") {
			t.Errorf("mode %o: %v", m, err)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, 4711, -1); err != nil {
			t.Fatal(err)
		}
		if err := MakeStateDir(dir); err == nil || !strings.Contains(err.Error(), "belongs to user 4711") {
			t.Errorf("another's: %v", err)
		}
	}
}

// The control sockets are accessible to the owner alone. They replace the socket of a dead process, and no other
// file.
func TestControlSocketBelongsToOwnerAlone(t *testing.T) {
	dir := agenttest.Dir(t)
	path := filepath.Join(dir, RunSocket)
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ServeUnix(t.Context(), path, http.NotFoundHandler()); err == nil || !strings.Contains(err.Error(), "in the way") {
		t.Errorf("a file in the way: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- ServeUnix(ctx, path, http.NotFoundHandler()) }()
		agenttest.Await(t, "a socket that somebody serves", func() bool {
			c, err := net.Dial("unix", path)
			return err == nil && c.Close() == nil
		})
		if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("%v, %v: want a socket of mode 0600", info.Mode(), err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		leaveSocket(t, path)
	}
}

// leaveSocket leaves the socket of a process that was killed.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

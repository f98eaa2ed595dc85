package host

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
)

// The jobs socket gets its configured group and mode, and its directory is created.
func TestJobsSocketGetsGroupAndMode(t *testing.T) {
	cfg := config.DefaultAgent()
	cfg.Jobs.Socket, cfg.Jobs.Mode = filepath.Join(t.TempDir(), "run", "local.sock"), "0660"
	if os.Geteuid() == 0 {
		cfg.Jobs.Group = "4242"
	}
	l, err := listenJobs(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	info, err := os.Stat(cfg.Jobs.Socket)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info, err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || os.Geteuid() == 0 && st.Gid != 4242 {
		t.Errorf("of group %d", st.Gid)
	}
}

// A directory in which others may put their socket in its place is refused, and so is a group that does not exist.
func TestJobsSocketInUnsafeDirectoryIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	cfg := config.DefaultAgent()
	cfg.Jobs.Socket = filepath.Join(dir, "local.sock")
	if _, err := listenJobs(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "has mode 0777") {
		t.Errorf("a directory open to all: %v", err)
	}
	cfg.Jobs.Group = "no-such-group"
	if _, err := listenJobs(t.Context(), cfg); err == nil ||
		!strings.Contains(err.Error(), `jobs.group: given "no-such-group": want a group of this machine`) {
		t.Errorf("no such group: %v", err)
	}
	// The half runs without it: groups may come from a server that is away.
	h := &hostHalf{Common: half.Common{Config: cfg}}
	if s, err := h.newLocal(); err != nil || s == nil {
		t.Errorf("without the group: %v", err)
	}
}

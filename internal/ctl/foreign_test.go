package ctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestDirectoryOfAnotherUserIsNotObeyed: no command relies on a ./.lofamo that another user can write, whatever chose the directory. `down`
// ends no process that it lists.
func TestDirectoryOfAnotherUserIsNotObeyed(t *testing.T) {
	bin, dir := pretend(t)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	t.Setenv(cluster.EnvBinDir, bin)
	dims, err := grid.ParseDims("2")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Create(cluster.Options{Dims: dims, Supervisors: 1, Dir: cluster.DefaultDir}); err != nil {
		t.Fatal(err)
	}
	victim := exec.CommandContext(t.Context(), "sleep", "600")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	listed(t, filepath.Join(cluster.DefaultDir, "cluster.json"), victim.Process.Pid)
	if err := os.Chmod(cluster.DefaultDir, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"down", "down --purge", "up", "up --force-new", "inject n0 kill-host", "get nodes", "regs n0",
		"scale --nodes 3"} {
		for _, dir := range []string{"", "--dir .lofamo "} {
			r := run(t, nil, strings.Fields(dir+args)...)
			if r.code == 0 || !strings.Contains(r.stderr, "another user can change this cluster") {
				t.Errorf("%s%s: exit code %d, %s%s", dir, args, r.code, r.stdout, r.stderr)
			}
		}
	}
	if err := os.Chmod(cluster.DefaultDir, 0o755); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- victim.Wait() }()
	select {
	case err := <-ended:
		t.Fatalf("the process ended: %v", err)
	default:
	}
	// The list is believed in a directory of one's own: this control shows that the test's list is right.
	if r := run(t, nil, "down"); r.code != 0 {
		t.Errorf("down in an own directory: exit code %d, %s", r.code, r.stderr)
	}
	if err := <-ended; err == nil {
		t.Error("down in an own directory did not end the process")
	}
}

// listed writes a process into cluster.json, as that of the first node.
func listed(t *testing.T, file string, pid int) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	started, err := strconv.ParseUint(strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[19], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var info cluster.Info
	if err := json.Unmarshal(b, &info); err != nil {
		t.Fatal(err)
	}
	info.Nodes[0].RunPID, info.Nodes[0].Started = pid, started
	if b, err = json.Marshal(info); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

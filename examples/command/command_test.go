package command

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestFenceStorageRunsAsExecutorCommand runs the program as the executor process does, with the configuration beside it.
func TestFenceStorageRunsAsExecutorCommand(t *testing.T) {
	syscall.Umask(0o022) // a program that others may write is refused
	cfg, err := process.Load("executor.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("fence-storage")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	dir := filepath.Join(bin, "fenced")
	c := cfg.Commands[0]
	c.Path, c.Env = filepath.Join(bin, "fence-storage"), map[string]string{"FENCE_DIR": dir}
	if err := os.WriteFile(c.Path, text, 0o700); err != nil {
		t.Fatal(err)
	}
	x, err := process.NewCommands([]process.Command{c})
	if err != nil {
		t.Fatal(err)
	}
	do := func(node fault.NodeID, key string, want response.Outcome) {
		t.Helper()
		r := x.Do(t.Context(), executor.Job{Effect: response.Effect{
			Attempt: response.Attempt{Response: "r5-1-abcde", Attempt: 1}, Kind: response.Command, Parameters: map[string]string{"command": c.Name},
			Target: response.Target{Node: node, Component: fault.ComponentNode}, Token: 5, IdempotencyKey: key, Timeout: time.Minute,
		}})
		if r.Outcome != want {
			t.Errorf("%s, %s: outcome %d, %q: want %d", node, key, r.Outcome, r.Detail, want)
		}
	}
	do("n1-0-0", "hall7/r5-1-abcde/0", response.Unchanged) // the directory does not exist
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	do("n1-0-0", "hall7/r5-1-abcde/0", response.Succeeded)
	do("n1-0-0", "hall7/r5-1-abcde/0", response.Succeeded) // it is already fenced
	do("../n1", "hall7/r5-1-abcde/0", response.Unchanged)  // not a node's name: the program does not run
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 || files[0].Name() != "n1-0-0" {
		t.Errorf("%v, %v: want n1-0-0 alone", files, err)
	}
}

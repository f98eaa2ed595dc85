package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// asChild is the environment variable that turns this program into a leader's process with one attempt to make. Its
// value is the directory with the child's input.
const asChild = "LOFAMO_KUBERNETES_CHILD"

// Names of the child's files.
const (
	jobFile   = "job"   // executor.Job, as JSON
	fenceFile = "fence" // the highest token in the store
	endFile   = "end"   // executor.Result, as JSON, written at the end
)

// childSure is the maximum age of the leadership check in a child.
const childSure = 20 * time.Millisecond

// child makes the attempt and returns the process's exit status.
func child(dir string) int {
	if err := attemptIn(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func attemptIn(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, jobFile))
	if err != nil {
		return err
	}
	var j executor.Job
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	e, err := New(Config{Kubeconfig: filepath.Join(dir, "kubeconfig")}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	e.c.sure = childSure
	e.pacing.failure, e.pacing.drain = 20*time.Millisecond, 200*time.Millisecond
	if err := failpoint.ArmAtStart(dir, "kubernetes"); err != nil {
		return err
	}
	ctx := executor.WithFence(context.Background(), func(context.Context) error {
		b, err := os.ReadFile(filepath.Join(dir, fenceFile))
		if err != nil {
			return err
		}
		if highest, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err != nil || highest > j.Token {
			return fmt.Errorf("%w: the store has token %q", executor.ErrStale, b)
		}
		return nil
	})
	b, err = json.Marshal(e.Do(ctx, j))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, endFile), b, 0o600)
}

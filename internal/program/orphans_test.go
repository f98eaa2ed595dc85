package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

const insideEnv = "LOFAMO_TEST_ORPHANS"

// every is long compared to scheduling delays, so that the starter of a child has waited for it by then.
const every = 2 * time.Second

// In its own PID namespace this process becomes the parent of its children's orphans, and reaps them. The starter of a child
// waits for that child itself.
func TestInitProcessReapsOrphans(t *testing.T) {
	if os.Getenv(insideEnv) != "" {
		inside(t)
		return
	}
	if out, err := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "true").CombinedOutput(); err != nil {
		requirements.Missing(t, "no PID namespaces: %v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", os.Args[0], "-test.run",
		"^TestInitProcessReapsOrphans$", "-test.count", "1", "-test.v")
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestInitProcessReapsOrphans")) {
		t.Errorf("%v: %s", err, out)
	}
}

func inside(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// Two orphans: their parent ends before them.
	if err := exec.CommandContext(ctx, "sh", "-c", "(exit 3) & exec true").Run(); err != nil {
		t.Fatal(err)
	}
	if err := exec.CommandContext(ctx, "sh", "-c", "(read gone) & exec true").Run(); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	until := func(what string, is func() bool) {
		t.Helper()
		for !is() {
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatalf("not in time: %s: %v", what, dead())
			}
		}
	}
	until("two dead orphans that nobody waits for", func() bool { return len(dead()) == 2 })
	done := make(chan struct{})
	reaping, stop := context.WithCancel(ctx)
	go func() {
		defer close(done)
		reapOrphans(reaping, every)
	}()
	until("they are waited for", func() bool { return len(dead()) == 0 })
	// Over some looks.
	for i, begun := 0, time.Now(); time.Since(begun) < 3*every; i = (i + 1) % 20 {
		err := exec.CommandContext(ctx, "sh", "-c", fmt.Sprintf("exit %d", i+1)).Run()
		if status, ok := errors.AsType[*exec.ExitError](err); !ok || status.ExitCode() != i+1 {
			t.Errorf("a child of its own: %v: want exit status %d", err, i+1)
		}
	}
	stop()
	<-done
}

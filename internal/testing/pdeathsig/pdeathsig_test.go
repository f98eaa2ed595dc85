package pdeathsig

import (
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

const starting = "LOFAMO_TEST_TETHER" // set for the process that starts another

func TestMain(m *testing.M) {
	if os.Getenv(starting) == "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("sleep", "600") //nolint:noctx // its parent's end ends it
	cmd.Stdout = os.Stdout
	if err := Start(cmd, syscall.SIGTERM); err != nil {
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString(".")
	select {}
}

// A started process ends when its parent is killed.
func TestChildEndsWithItsParent(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	cmd := exec.Command(os.Args[0]) //nolint:noctx // killed below
	cmd.Env = append(os.Environ(), starting+"=1")
	cmd.Stdout = w
	if err := Start(cmd, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if err := r.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
		t.Fatalf("nothing was started: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	// The pipe ends when the last of both has ended that could write into it.
	if _, err := io.ReadAll(r); err != nil {
		t.Errorf("what a killed process had started goes on: %v", err)
	}
}

package script

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source/sourcetest"
)

// check writes a program and returns its source.
func check(t *testing.T, timeout time.Duration, body string, args ...string) *Source {
	t.Helper()
	path := filepath.Join(t.TempDir(), "check")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return New(Config{Component: fault.ComponentPeripheral0, Command: append([]string{path}, args...), Interval: time.Second,
		Timeout: timeout})
}

func TestStateFollowsExitCode(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		want       fault.State
		detail     string
		fails      bool
	}{
		{"normal", "echo all well; echo more", fault.Normal, "all well", false},
		{"silent", "exit 0", fault.Normal, "", false},
		{"sick", "echo worn; exit 1", fault.Sick, "worn", false},
		{"failed", "echo gone; exit 2", fault.Failed, "gone", false},
		{"complains on stderr", "echo no device >&2; exit 2", fault.Failed, "no device", false},
		{"other code", "echo hm; exit 3", fault.Unknown, "exit status 3, want exit code 0, 1 or 2: hm", true},
		{"killed", "kill -9 $$", fault.Unknown, "killed", true},
		{"arguments reach it as they are", `echo "$1|$2"`, fault.Normal, "a b|$HOME;exit 2", false},
		{"a flood of output", "i=0; while [ $i -lt 20000 ]; do echo 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'; i=$((i+1)); done; exit 1",
			fault.Sick, "xxxx", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			src := check(t, 2*time.Minute, tc.body, "a b", "$HOME;exit 2")
			r, err := src.Read(t.Context())
			if r.State != tc.want || !strings.Contains(r.Detail, tc.detail) || (err != nil) != tc.fails {
				t.Errorf("%+v, %v; want %s, %q, error %t", r, err, tc.want, tc.detail, tc.fails)
			}
			if r.Detail == "" {
				return // a check may print nothing
			}
			sourcetest.Check(t, src, r)
		})
	}
}

func TestNoSuchProgram(t *testing.T) {
	src := New(Config{Component: fault.ComponentPeripheral1, Command: []string{"/no/such/check"}, Timeout: time.Minute})
	r, err := src.Read(t.Context())
	if r.State != fault.Unknown || err == nil || !strings.Contains(r.Detail, "/no/such/check") {
		t.Errorf("%+v, %v", r, err)
	}
	sourcetest.Check(t, src, r)
}

// TestTimeoutKillsChildren runs a check that starts a child and hangs: both are gone afterwards.
func TestTimeoutKillsChildren(t *testing.T) {
	// On a busy machine a short timeout may end the check before it has started its child.
	for _, timeout := range []time.Duration{300 * time.Millisecond, 3 * time.Second, 30 * time.Second} {
		pidFile := filepath.Join(t.TempDir(), "pid")
		src := check(t, timeout, `sleep 1000 & echo $! > "$1"; echo still looking; wait`, pidFile)
		r, err := src.Read(t.Context())
		starved := r.State == fault.Unknown && strings.Contains(r.Detail, "for a processor")
		if errors.Is(err, context.DeadlineExceeded) { // the machine was too busy to start the check
			continue
		}
		if r.State != fault.Sick && !starved || err != nil || !strings.HasPrefix(r.Detail, "timed out after "+timeout.String()) {
			t.Errorf("%+v, %v", r, err)
		}
		sourcetest.Check(t, src, r)
		if strings.Contains(r.Detail, "still looking") {
			untilGone(t, pidFile)
			return
		}
	}
	t.Error("the check's output is never in the detail")
}

// readPID returns the number of the child, as the check wrote it.
func readPID(t *testing.T, pidFile string) int {
	t.Helper()
	b, err := os.ReadFile(pidFile)
	if err != nil {
		t.Skip("skipped: the machine was too busy for the check to start its child")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// untilGone waits for the death of the child whose number the check wrote.
func untilGone(t *testing.T, pidFile string) {
	t.Helper()
	pid := readPID(t, pidFile)
	gone := func() bool {
		// A zombie that its new parent has not reaped yet is dead too.
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	}
	for deadline := time.Now().Add(time.Minute); !gone(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("child %d still lives", pid)
		}
	}
}

// TestBackgroundChildDelaysNoCheck runs a check that ends well but leaves a child that holds its output open. With setsid the child is in
// a group of its own and survives; otherwise it is killed.
func TestBackgroundChildDelaysNoCheck(t *testing.T) {
	const apart = `setsid sh -c 'echo $$ > "$1"; exec sleep 1000' sh "$1" & until [ -s "$1" ]; do :; done;`
	for _, child := range []string{`sleep 1000 & echo $! > "$1";`, apart} {
		pidFile := filepath.Join(t.TempDir(), "pid")
		src := check(t, 2*time.Minute, child+" echo fine", pidFile)
		start := time.Now()
		r, err := src.Read(t.Context())
		if r.State != fault.Normal || err != nil || r.Detail != "fine" {
			t.Errorf("%+v, %v", r, err)
		}
		if took := time.Since(start); took > time.Minute { // a wait for the child would take two
			t.Errorf("waited %v for the child", took)
		}
		if !strings.HasPrefix(child, "setsid") {
			untilGone(t, pidFile)
			continue
		}
		pid := readPID(t, pidFile)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Errorf("child %d of a group of its own: %v", pid, err)
		}
	}
}

func TestCancelledCheckIsUnknown(t *testing.T) {
	src := check(t, time.Minute, "sleep 1000")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	r, err := src.Read(ctx)
	if r.State != fault.Unknown || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v: want UNKNOWN and canceled", r, err)
	}
}

// TestRunningCheckIsNotRepeated checks that no second check starts while the first survives its kill.
func TestRunningCheckIsNotRepeated(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "ran")
	src := check(t, time.Second, `: > "$1"`, marker)
	src.running = make(chan struct{})
	r, err := src.Read(t.Context())
	if r.State != fault.Sick || err != nil || !strings.Contains(r.Detail, "still runs") {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("a second check ran")
	}
}

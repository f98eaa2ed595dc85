package daemon

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

const checkBound = time.Minute

// checkWorld is a state directory with a starter whose peripheral 0 has a check.
type checkWorld struct {
	t    *testing.T
	dir  string
	stop func() // and waits
	l    net.Listener
	done chan error // the result of Serve
}

func serveCheckWorld(t *testing.T, body string) *checkWorld {
	t.Helper()
	dir := agenttest.Dir(t)
	program := filepath.Join(dir, "check")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := sensor.DefaultConfig()
	cfg.Peripherals[0] = sensor.PeripheralConfig{Kind: sensor.PeripheralScript, Command: []string{program, dir},
		Timeout: sensor.Duration(checkBound), Interval: sensor.Duration(checkBound)}
	l, err := net.Listen("unix", filepath.Join(dir, half.CheckSocket))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- newCheckStarter(cfg).Serve(ctx, l) }()
	w := &checkWorld{t: t, dir: dir, l: l, done: done}
	w.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		done <- nil
	}
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *checkWorld) ask(ctx context.Context) (sensor.Reading, error) {
	return half.CheckClient(w.dir)(ctx, fault.ComponentPeripheral0)
}

// await polls until the check has written its process number to the file, and returns it.
func (w *checkWorld) await(file string) int {
	w.t.Helper()
	for end := time.Now().Add(checkBound); time.Now().Before(end); time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(w.dir, file))
		if pid, perr := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && perr == nil {
			return pid
		}
	}
	w.t.Fatalf("no %s within %s", file, checkBound)
	return 0
}

func (w *checkWorld) untilGone(pid int) {
	w.t.Helper()
	for end := time.Now().Add(checkBound); syscall.Kill(pid, 0) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("check %d still lives", pid)
		}
	}
}

func TestNoChecks(t *testing.T) {
	if newCheckStarter(sensor.DefaultConfig()) != nil {
		t.Error("a starter without checks")
	}
}

// The answer of a check reaches the caller.
func TestCheckAnswerReachesCaller(t *testing.T) {
	for _, tc := range []struct {
		body   string
		want   fault.State
		detail string
		err    string
	}{
		{"echo all well", fault.Normal, "all well", ""},
		{"echo worn; exit 1", fault.Sick, "worn", ""},
		{"echo gone; exit 2", fault.Failed, "gone", ""},
		{"echo hm; exit 3", fault.Unknown, "check ended with exit status 3, want exit code 0, 1 or 2: hm", "exit status 3"},
	} {
		r, err := serveCheckWorld(t, tc.body).ask(t.Context())
		if r.State != tc.want || r.Detail != tc.detail || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %+v, %v", tc.body, r, err)
		}
	}
}

// A check must not reach the service manager: where the manager accepts notifications from all processes, it would
// mistake the check's for this process's.
func TestChecksDoNotReachManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/run/x")
	t.Setenv("LOFAMO_TEST", "kept")
	r, err := serveCheckWorld(t, `echo "$LOFAMO_TEST $NOTIFY_SOCKET"`).ask(t.Context())
	if err != nil || r.Detail != "kept" {
		t.Errorf("the check's environment: %q, %v", r.Detail, err)
	}
}

// The client sends a name, never a command, and only configured checks run.
func TestRefusals(t *testing.T) {
	w := serveCheckWorld(t, ": > $1/ran")
	for _, c := range []fault.Component{fault.ComponentPeripheral1, fault.ComponentMemory, 0} {
		r, err := half.CheckClient(w.dir)(t.Context(), c)
		if r.State != fault.Unknown || err == nil || !strings.Contains(err.Error(), "has no check in this process's configuration") {
			t.Errorf("%s: %+v, %v", c, r, err)
		}
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return net.Dial("unix", filepath.Join(w.dir, half.CheckSocket))
		}}}
	resp, err := client.Get("http://checks" + half.CheckPath + "?component=peripheral/0")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %s", resp.Status)
	}
	if _, err := os.Stat(filepath.Join(w.dir, "ran")); err == nil {
		t.Error("a check was run")
	}
}

// A starter whose socket fails also kills its checks, and reports the failure.
func TestStarterWithFailedSocketKillsItsChecks(t *testing.T) {
	w := serveCheckWorld(t, `echo $$ > $1/pid; sleep 1000`)
	got := make(chan error, 1)
	go func() {
		_, err := w.ask(t.Context())
		got <- err
	}()
	pid := w.await("pid")
	_ = w.l.Close()
	if err := <-w.done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v: want %v", err, net.ErrClosed)
	}
	w.done <- nil
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("check %d outlives its starter", pid)
	}
	if err := <-got; !errors.Is(err, sensor.ErrUnavailable) {
		t.Error(err)
	}
}

// When a half goes away, for instance because it was killed, its check is killed; the next check waits for that.
func TestClientGoesAway(t *testing.T) {
	w := serveCheckWorld(t, `test -e $1/pid && { echo again; exit; }; echo $$ > $1/pid; sleep 1000`)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := w.ask(ctx)
		gone <- err
	}()
	pid := w.await("pid")
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if r, err := w.ask(t.Context()); err != nil || r.State != fault.Normal || r.Detail != "again" {
		t.Errorf("the next: %+v, %v", r, err)
	}
	w.untilGone(pid)
}

// Checks that cannot be killed, however many, delay the end by stopWait in all.
func TestEndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &checkStarter{checks: map[fault.Component]*startedCheck{}}
		for _, c := range []fault.Component{fault.ComponentPeripheral0, fault.ComponentPeripheral1} {
			s.checks[c] = &startedCheck{turn: make(chan struct{}, 1)}
			s.checks[c].turn <- struct{}{}
		}
		start := time.Now()
		s.wait()
		if took := time.Since(start); took != checkStopWait {
			t.Errorf("waited %v: want %v", took, checkStopWait)
		}
	})
}

// A starter that ends kills its checks, and a waiting caller gets no reading.
func TestEndingStarterKillsItsChecks(t *testing.T) {
	w := serveCheckWorld(t, `echo $$ > $1/pid; sleep 1000`)
	type answer struct {
		sensor.Reading
		error
	}
	got := make(chan answer, 1)
	go func() {
		r, err := w.ask(t.Context())
		got <- answer{r, err}
	}()
	pid := w.await("pid")
	w.stop()
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("check %d outlives its starter", pid)
	}
	if a := <-got; a.State != fault.Unknown || !errors.Is(a.error, sensor.ErrUnavailable) {
		t.Errorf("%+v", a)
	}
	if r, err := w.ask(t.Context()); r.State != fault.Unknown || !errors.Is(err, half.ErrNoChecks) {
		t.Errorf("nobody there: %+v, %v", r, err)
	}
}

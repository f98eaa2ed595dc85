package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/sdnotify/sdnotifytest"
)

// patienceOfManager is WatchdogSec of the test's service manager: the longest time between two signs of life.
const patienceOfManager = 2 * time.Second

// manager is a service manager, as systemd is one, for the processes that the test starts from now on.
type manager struct {
	*sdnotifytest.Manager
	t *testing.T
}

func newManager(t *testing.T) *manager {
	t.Helper()
	return &manager{sdnotifytest.New(t, patienceOfManager), t}
}

// hears returns the next message within a time; empty: none came.
func (m *manager) hears(within time.Duration) string {
	m.t.Helper()
	return m.Hears(m.t, within)
}

// await reads messages until one has the prefix, and returns it. No earlier message may have a prefix of never.
func (m *manager) await(prefix string, never ...string) string {
	m.t.Helper()
	var all []string
	for end := time.Now().Add(bound); time.Now().Before(end); {
		s := m.hears(bound)
		if strings.HasPrefix(s, prefix) {
			return s
		}
		if slices.ContainsFunc(never, func(p string) bool { return strings.HasPrefix(s, p) }) {
			m.t.Fatalf("%q comes before %q", s, prefix)
		}
		all = append(all, s)
	}
	m.t.Fatalf("not within %s: %q; %q", bound, prefix, all)
	return ""
}

// awaitSigns waits for three signs of life in a row, each within the time that the manager allows. The daemon sends one
// after half of that time, but a busy machine may hold up the daemon or the test: then the count starts again.
func (m *manager) awaitSigns() {
	m.t.Helper()
	const signs = 3
	var took time.Duration
	for end := time.Now().Add(bound); time.Now().Before(end); {
		before := time.Now()
		for range signs {
			m.await("WATCHDOG=1", "READY=1")
		}
		if took = time.Since(before); took <= signs*patienceOfManager {
			return
		}
	}
	m.t.Fatalf("%d signs of life took %s: want one within each %s", signs, took, patienceOfManager)
}

// misses checks that no sign of life comes for as long as the manager waits for one. Earlier signs may still arrive.
func (m *manager) misses() {
	m.t.Helper()
	for m.hears(patienceOfManager/4) != "" { // less than the time between two signs of a daemon that does not hang
	}
	if s := m.hears(patienceOfManager); s != "" {
		m.t.Errorf("a daemon that hangs says %q", s)
	}
}

// The daemon tells its service manager when both halves serve, their health, that it lives, that it reloads and that
// it stops. The halves that it starts send the manager no messages.
func TestServiceManagerGetsStatesOfDaemon(t *testing.T) {
	m := newManager(t)
	c := node(t)
	d := startDaemon(t, c)
	m.await("READY=1")
	pids := map[fault.Half]int{}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		r := awaitRecord(t, c, h, "the record on disk says that the half runs", runs) // written beside the message to the manager
		pids[h] = r.PID
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", r.PID))
		if err != nil || len(env) == 0 || bytes.Contains(env, []byte("NOTIFY_SOCKET")) || bytes.Contains(env, []byte("WATCHDOG_USEC")) {
			t.Errorf("the environment of the %s half, which is no service: %q, %v", h, env, err)
		}
	}
	m.awaitSigns()
	signalTo(t, pids[fault.HalfDNP], syscall.SIGKILL)
	m.await("STATUS=host half serves; dnp half is being restarted: it ended by signal 9", "READY=1")
	m.await("STATUS=host half serves; dnp half serves (restarts: 1, at last because it ended by signal 9)", "READY=1")

	before := monotonic(t)
	signalTo(t, d.cmd.Process.Pid, syscall.SIGHUP)
	reload := m.await("RELOADING=1\n", "READY=1")
	var usec int64 // by which the manager knows the reload that it has asked for
	if _, err := fmt.Sscanf(reload, "RELOADING=1\nMONOTONIC_USEC=%d", &usec); err != nil || usec < before/1000 || usec > monotonic(t)/1000 {
		t.Errorf("%q: want a time after %d ns, %v", reload, before, err)
	}
	m.await("READY=1")

	// After a daemon that died without notice, the next one adopts the halves and reports that it is ready.
	d.kill()
	d = startDaemon(t, c)
	m.await("READY=1", "STOPPING=1")
	r := awaitRecord(t, c, fault.HalfHost, "it runs", runs)
	if r.PID != pids[fault.HalfHost] {
		t.Errorf("process %d was not adopted: %d runs", pids[fault.HalfHost], r.PID)
	}
	if code := d.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	m.await("STOPPING=1", "READY=1")
}

// A half that is given up is no reason for the manager to end the other one, as he does with a service that does not get ready in time.
func TestDaemonIsReadyWithoutHalf(t *testing.T) {
	m := newManager(t)
	c := node(t)
	c.Recovery.Window = longWindow
	mailbox := filepath.Join(c.StateDir, "dnp.mbox") // a file in place of its socket keeps the half from starting
	if err := errors.Join(os.Mkdir(c.StateDir, 0o700), os.Mkdir(mailbox, 0o700)); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, c)
	const reason = "next start after 1m0s: 5 restarts within 1h0m0s, the last ended with code 1"
	m.await("STATUS=host half serves; dnp half is given up: "+reason, "READY=1")
	m.await("READY=1")
	if err := os.Remove(mailbox); err != nil {
		t.Fatal(err)
	}
	signalTo(t, d.cmd.Process.Pid, syscall.SIGHUP)
	m.await("RELOADING=1", "READY=1")
	m.await("STATUS=host half serves; dnp half serves", "READY=1")
	m.await("READY=1")
}

// live repeats a kubelet's probe until its exit code and output are as expected: the daemon may need a while to notice what
// the test did, and a busy machine may delay its answer.
func live(t *testing.T, c string, code int, words []string, args ...string) {
	t.Helper()
	await(t, fmt.Sprintf("exit code %d and %q of status %v", code, words, args), 50*time.Millisecond, func() (any, bool) {
		out, err := askStatus(t, c, args...)
		var exit *exec.ExitError
		got := 0
		if errors.As(err, &exit) {
			got = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		missing := slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(out, w) })
		return fmt.Sprintf("exit code %d: %s", got, out), got == code && !missing
	})
}

// A daemon that hangs gives no signs of life, and the probe finds it: when all of it is stopped, and when one of its loops hangs.
func TestHungDaemonIsFound(t *testing.T) {
	m := newManager(t)
	c := node(t)
	file := filepath.Join(filepath.Dir(c.StateDir), "agent.yaml")
	d := startDaemon(t, c)
	lock := filepath.Join(c.StateDir, "registers.dnp")
	drain := sync.OnceFunc(func() {
		f, err := os.OpenFile(lock, os.O_RDWR, 0)
		if err := errors.Join(err, os.Remove(lock), f.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(drain)
	m.await("READY=1")
	live(t, file, 0, nil, "--live", "--ready")
	live(t, file, 0, nil, "--live", "--half", "dnp")
	live(t, file, 0, nil, "--ready", "--take-over") // returns at once
	live(t, file, 2, []string{"--take-over: given without --ready"}, "--take-over", "--live")

	signalTo(t, d.cmd.Process.Pid, syscall.SIGSTOP)
	m.misses()
	live(t, file, 1, []string{"host.live.sock", "dnp.live.sock", "no answer within"}, "--live")
	live(t, file, 0, nil, "--ready") // the halves do not need it
	signalTo(t, d.cmd.Process.Pid, syscall.SIGCONT)
	m.await("WATCHDOG=1")
	live(t, file, 0, nil, "--live")

	dnp := awaitRecord(t, c, fault.HalfDNP, "it runs", runs)
	if err := errors.Join(os.Remove(lock), unix.Mkfifo(lock, 0o600)); err != nil {
		t.Fatal(err)
	}
	signalTo(t, dnp.PID, syscall.SIGKILL) // the daemon reads who holds its lock, and that waits for a writer
	live(t, file, 1, []string{"the loop of the dnp half does not go round"}, "--live")
	m.misses()
	live(t, file, 1, []string{"dnp half: does not serve"}, "--ready")
	live(t, file, 0, nil, "--ready", "--half", "host")
	drain()
	m.await("WATCHDOG=1")
	awaitRecord(t, c, fault.HalfDNP, "it runs again", func(r halfcore.RecoveryRecord) bool { return runs(r) && r.PID != dnp.PID })
	live(t, file, 0, nil, "--live", "--ready")
	d.kill()
	live(t, file, 0, nil, "--live") // no daemon runs, and the halves do
	d = startDaemon(t, c)
	d.await("both halves run", func(h, n halfState) bool { return h.Running && n.Running })
}

// fill fills a pipe until it takes no more.
func fill(t *testing.T, pipe *os.File) {
	t.Helper()
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", pipe.Fd()), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	for _, n := range []int{4096, 1} {
		for err = nil; err == nil || errors.Is(err, unix.EINTR); {
			_, err = unix.Write(fd, make([]byte, n))
		}
		if !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
	}
}

// A half that is a service of its own tells the manager that it serves, but not that its self-test has passed.
func TestHalfRunsAsService(t *testing.T) {
	for _, half := range []string{"host", "dnp"} {
		t.Run(half, func(t *testing.T) {
			m := newManager(t)
			c := node(t)
			cmd := agentCommand(t, half, "--config", write(t, c, ""))
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}()
			m.await("READY=1")
			m.await("STATUS=" + half + " half serves")
			m.await("WATCHDOG=1", "READY=1")
			signalTo(t, cmd.Process.Pid, syscall.SIGSTOP)
			m.misses()
			signalTo(t, cmd.Process.Pid, syscall.SIGCONT)
			m.await("WATCHDOG=1", "READY=1")
			signalTo(t, cmd.Process.Pid, syscall.SIGTERM)
			m.await("STOPPING=1", "READY=1")
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

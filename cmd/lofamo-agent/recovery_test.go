package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/daemon"
	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// await polls until cond holds, or ends the test with what and the last state that cond returned.
func await(t *testing.T, what string, pause time.Duration, cond func() (state any, holds bool)) {
	t.Helper()
	for end := time.Now().Add(bound); ; time.Sleep(pause) {
		state, holds := cond()
		if holds {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s; %+v", bound, what, state)
		}
	}
}

// longWindow is the window of restarts for tests that count them: longer than a test takes on a busy machine.
const longWindow = config.Duration(time.Hour)

// awaitHistory waits until the daemon's record of a half fits.
func awaitHistory(t *testing.T, c config.Agent, h fault.Half, what string,
	fits func(halfcore.RecoveryHistory) bool) (got halfcore.RecoveryHistory) {
	t.Helper()
	await(t, what, 5*time.Millisecond, func() (any, bool) {
		last, err := daemon.ReadRecovery(c.StateDir, h)
		if err != nil {
			t.Fatal(err)
		}
		if last == nil {
			return "no record", false
		}
		got = *last
		return got, fits(got)
	})
	return got
}

func awaitRecord(t *testing.T, c config.Agent, h fault.Half, what string, fits func(halfcore.RecoveryRecord) bool) halfcore.RecoveryRecord {
	t.Helper()
	return awaitHistory(t, c, h, what, func(x halfcore.RecoveryHistory) bool { return fits(x.Record) }).Record
}

func signalTo(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatal(err)
	}
}

func runs(r halfcore.RecoveryRecord) bool { return r.State == halfcore.Running }

// A half that is killed, or stopped, is found within the bound and serves again, alone.
func TestHalvesAreRecovered(t *testing.T) {
	c := node(t)
	c.Recovery.Restarts, c.Recovery.Window = 100, longWindow
	startDaemon(t, c)
	p, err := c.Timing()
	if err != nil {
		t.Fatal(err)
	}
	hang := halfcore.HangBound(p.TRead, p.ReadMisses)
	halves := []fault.Half{fault.HalfHost, fault.HalfDNP}
	pids, totals := map[fault.Half]int{}, map[fault.Half]uint64{}
	for _, h := range halves {
		pids[h] = awaitRecord(t, c, h, "it runs", runs).PID
	}
	for _, tc := range []struct {
		signal syscall.Signal
		within time.Duration // until detection; 0: as soon as the kernel reports it
		kind   halfcore.CauseKind
	}{
		{syscall.SIGKILL, 0, halfcore.Killed},
		{syscall.SIGSTOP, hang, halfcore.Hung},
	} {
		for _, h := range halves {
			// A busy machine may hold up the test or the daemon, and each late check by the daemon restarts its count. One of several tries must be
			// in time.
			const tries = 5
			for try := 1; ; try++ {
				totals[h]++
				detected := recoverHalf(t, c, h, pids, totals[h], tc.signal, tc.kind)
				if detected <= tc.within+time.Second {
					break
				}
				if try == tries {
					t.Errorf("%s half, %v: detected after %s: want %s", h, tc.signal, detected, tc.within)
					break
				}
			}
		}
	}
}

// recoverHalf sends a signal to a half, checks its recovery, and returns the time until the daemon detected the end or the
// hang. total is the number of recoveries, including this one.
func recoverHalf(t *testing.T, c config.Agent, h fault.Half, pids map[fault.Half]int, total uint64, signal syscall.Signal,
	kind halfcore.CauseKind) time.Duration {
	t.Helper()
	before := time.Now()
	mono := monotonic(t)
	signalTo(t, pids[h], signal)
	r := awaitRecord(t, c, h, "it runs again", func(r halfcore.RecoveryRecord) bool { return runs(r) && r.PID != pids[h] })
	took := time.Since(before)
	l := r.Last
	detected := time.Duration(l.At - mono)
	t.Logf("%s half, %v: detected after %s, gone %s, started %s, serving %s; seen after %s", h, signal, detected, l.Gone, l.Started,
		l.Serving, took)
	if l.Cause.Kind != kind || r.Total != total || r.Restarts != int(total) || l.Attempt != 1 || l.Serving <= l.Started ||
		l.Started < l.Gone || l.Gone <= 0 {
		t.Errorf("%s half, %v: %+v, %+v", h, signal, r, l)
	}
	if !gone(pids[h]) {
		t.Errorf("process %d is still there", pids[h])
	}
	pids[h] = r.PID
	if other := h.Other(); awaitRecord(t, c, other, "it runs", runs).PID != pids[other] {
		t.Errorf("the %s half was restarted as well", other)
	}
	if l := awaitRecord(t, c, h, "it is proven",
		func(r halfcore.RecoveryRecord) bool { return r.Last.Proven > 0 }).Last; l.Proven < l.Serving {
		t.Errorf("proven before it served: %+v", l)
	}
	// Wait until the half has settled, so that the next restart is the first of its series.
	awaitHistory(t, c, h, "it has settled", func(x halfcore.RecoveryHistory) bool { return x.Failures == 0 })
	return detected
}

func monotonic(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano()
}

// kill ends the daemon alone, by surprise.
func (d *daemonProcess) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}

// When the daemon is killed, the halves keep running. The next daemon adopts them and continues the counts.
func TestDaemonDiesAndComesBack(t *testing.T) {
	c := node(t)
	c.Recovery.Window = longWindow
	d := startDaemon(t, c)
	host, dnp := awaitRecord(t, c, fault.HalfHost, "it runs", runs), awaitRecord(t, c, fault.HalfDNP, "it runs", runs)
	signalTo(t, host.PID, syscall.SIGKILL)
	host = awaitRecord(t, c, fault.HalfHost, "it runs again", func(r halfcore.RecoveryRecord) bool { return runs(r) && r.PID != host.PID })
	for round := range 2 {
		d.kill()
		d = startDaemon(t, c)
		h, n := d.await("both halves run", func(h, n halfState) bool { return h.Running && n.Running })
		if h.PID != host.PID || n.PID != dnp.PID {
			t.Fatalf("round %d: halves %d and %d were not adopted: %d and %d run", round, host.PID, dnp.PID, h.PID, n.PID)
		}
	}
	// Adopted halves are looked after: one that ends, and one that hangs.
	signalTo(t, host.PID, syscall.SIGKILL)
	r := awaitRecord(t, c, fault.HalfHost, "it runs again", func(r halfcore.RecoveryRecord) bool { return runs(r) && r.PID != host.PID })
	if r.Total != 2 || r.Restarts != 2 {
		t.Errorf("the new daemon does not count on: %+v", r)
	}
	if k := r.Last.Cause.Kind; k != halfcore.Killed && k != halfcore.Unseen { // its parent may be faster than we are
		t.Errorf("cause %s", r.Last.Cause)
	}
	signalTo(t, dnp.PID, syscall.SIGSTOP)
	awaitRecord(t, c, fault.HalfDNP, "it runs again", func(x halfcore.RecoveryRecord) bool {
		return runs(x) && x.PID != dnp.PID && x.Last.Cause.Kind == halfcore.Hung
	})
	// One that dies while there is no daemon is restarted by the next, and counted.
	d.kill()
	signalTo(t, r.PID, syscall.SIGKILL)
	for end := time.Now().Add(bound); !gone(r.PID) && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	d = startDaemon(t, c)
	r = awaitRecord(t, c, fault.HalfHost, "it runs again", func(x halfcore.RecoveryRecord) bool { return runs(x) && x.PID != r.PID })
	if r.Total != 3 || r.Last.Cause.Kind != halfcore.Unseen {
		t.Errorf("%+v, %+v", r, r.Last)
	}
	h, n := d.await("both halves run", func(h, n halfState) bool { return h.Running && n.Running })
	if code := d.stop(); code != 0 || !gone(h.PID) || !gone(n.PID) {
		t.Errorf("exit code %d; adopted halves are stopped as well: %t, %t", code, gone(h.PID), gone(n.PID))
	}
}

// A half that is stopped before it has taken its lock, and whose daemon dies, is ended by the next daemon: it has the sockets that
// another would need.
func TestStoppedBeforeItsLock(t *testing.T) {
	t.Parallel()
	for _, half := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		t.Run(half.String(), func(t *testing.T) {
			c := node(t)
			c.Recovery.StartWithin = config.Duration(time.Minute) // the first daemon leaves the half alone
			d := startDaemon(t, c)
			first := awaitRecord(t, c, half, "it runs", runs).PID
			awaitRecord(t, c, half.Other(), "it runs", runs) // it has read its configuration
			// An empty pipe in place of its configuration keeps the next one from reaching its lock.
			pipe, writer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = pipe.Close(), writer.Close() }()
			file := filepath.Join(filepath.Dir(c.StateDir), "agent.yaml")
			if err := errors.Join(os.Remove(file), os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), pipe.Fd()), file)); err != nil {
				t.Fatal(err)
			}
			signalTo(t, first, syscall.SIGKILL)
			pid := awaitRecord(t, c, half, "it is started again", func(r halfcore.RecoveryRecord) bool { return r.PID != 0 && r.PID != first }).PID
			awaitOpen(t, pid, file) // until a half reads its configuration, the death of its daemon ends it
			d.kill()                // first: the kernel ends (SIGHUP) a group that is stopped when its parent dies
			signalTo(t, pid, syscall.SIGSTOP)
			t.Cleanup(func() {
				if t.Failed() && !gone(pid) { // no other process ends it
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			})
			if _, held, err := regfile.HolderOf(filepath.Join(c.StateDir, "registers"), half); err != nil || held {
				t.Fatalf("its lock is held: %t, %v", held, err)
			}
			if err := errors.Join(os.Remove(file), writer.Close()); err != nil {
				t.Fatal(err)
			}
			c.Recovery.StartWithin = config.Duration(time.Second)
			d = startDaemon(t, c)
			r := awaitRecord(t, c, half, "it runs again", func(r halfcore.RecoveryRecord) bool { return runs(r) && r.PID != pid })
			if !gone(pid) || r.Last.Cause.Kind != halfcore.Hung {
				t.Errorf("%+v, %+v: want %d ended because it hung", r, r.Last, pid)
			}
			d.stop()
		})
	}
}

// awaitOpen waits until a process has opened the pipe that a link leads to.
func awaitOpen(t *testing.T, pid int, link string) {
	t.Helper()
	want, err := os.Stat(link)
	if err != nil {
		t.Fatal(err)
	}
	await(t, fmt.Sprintf("process %d reads %s", pid, link), time.Millisecond, func() (any, bool) {
		open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		return open, err == nil && slices.ContainsFunc(open, func(fd string) bool {
			is, err := os.Stat(fd)
			return err == nil && os.SameFile(is, want)
		})
	})
}

// The daemon gives up a half that ends at every start, with the reason, and starts it again when a person orders it.
func TestCrashLoopIsGivenUp(t *testing.T) {
	c := node(t)
	c.Recovery.Window = longWindow
	log := filepath.Join(t.TempDir(), "daemon.log")
	d := startDaemonLogging(t, c, log)
	r := awaitRecord(t, c, fault.HalfDNP, "it runs", runs)
	mailbox := filepath.Join(c.StateDir, "dnp.mbox") // a file in place of its socket keeps the half from starting
	if err := errors.Join(os.Remove(mailbox), os.Mkdir(mailbox, 0o700)); err != nil {
		t.Fatal(err)
	}
	signalTo(t, r.PID, syscall.SIGKILL)
	r = awaitRecord(t, c, fault.HalfDNP, "it is given up", func(r halfcore.RecoveryRecord) bool { return r.State == halfcore.GivenUp })
	want := "next start after 1m0s: 5 restarts within 1h0m0s, the last ended with code 1"
	if r.Reason != want || r.Restarts != 5 || r.Total != 5 || r.Count(halfcore.Exited) != 5 || r.Count(halfcore.Killed) != 1 {
		t.Errorf("%+v: want %q", r, want)
	}
	d.awaitLog(log, want)
	// A daemon that is killed and comes back leaves it so.
	d.kill()
	d = startDaemonLogging(t, c, log)
	d.awaitLog(log, "half stays given up")
	if err := os.Remove(mailbox); err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	r = awaitRecord(t, c, fault.HalfDNP, "it runs", runs)
	if r.Restarts != 0 || r.Total != 5 || r.Reason != "" {
		t.Errorf("%+v", r)
	}
	// A daemon that stops on request also keeps the counts for its successor.
	if code := d.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	r = awaitRecord(t, c, fault.HalfDNP, "it is stopped", func(r halfcore.RecoveryRecord) bool { return r.State == halfcore.Stopped })
	if r.Restarts != 0 || r.Total != 5 {
		t.Errorf("%+v", r)
	}
}

func startDaemonLogging(t *testing.T, c config.Agent, log string) *daemonProcess {
	t.Helper()
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	return startDaemonTo(t, c, f)
}

// While its disk hangs, the daemon restarts a half that ends and detects a half that hangs. Opening a pipe without a reader hangs like such
// a disk. Once the disk works again, the history is complete.
func TestHungDiskDelaysNoRecovery(t *testing.T) {
	c := node(t)
	logs := t.TempDir()
	d := startDaemon(t, c, "--log-dir", logs)
	pid := awaitRecord(t, c, fault.HalfHost, "it runs", runs).PID
	awaitRecord(t, c, fault.HalfDNP, "it runs", runs)
	file := filepath.Join(c.StateDir, daemon.RecoveryFile(fault.HalfHost)+".new")
	log := filepath.Join(logs, "host.log")
	if err := errors.Join(os.Remove(log), unix.Mkfifo(log, 0o600), unix.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // otherwise a daemon that waits would never end
		for _, f := range []string{log, file} {
			if w, err := os.OpenFile(f, os.O_RDWR|unix.O_NONBLOCK, 0); err == nil {
				t.Cleanup(func() { _ = w.Close() })
			}
		}
	})
	for _, s := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		signalTo(t, pid, s)
		host, _ := d.await("it runs again", func(host, _ halfState) bool { return host.Running && host.PID != pid })
		pid = host.PID
		d.await("it serves", func(host, _ halfState) bool { return runs(host.Recovery) })
	}
	reader, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // the disk works again
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	if code := d.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	awaitRecord(t, c, fault.HalfHost, "it is stopped", func(r halfcore.RecoveryRecord) bool {
		return r.State == halfcore.Stopped && r.Total == 2 && r.Count(halfcore.Killed) == 1 && r.Count(halfcore.Hung) == 1
	})
}

// Two halves that share a state directory have a daemon each, like two containers. Neither daemon takes the other's
// half, and a half gets no second daemon.
func TestDaemonOfOneHalf(t *testing.T) {
	c := node(t)
	startDaemon(t, c, "--half", "host")
	host := awaitRecord(t, c, fault.HalfHost, "it runs", runs)
	file := filepath.Join(filepath.Dir(c.StateDir), "agent.yaml")
	refusal(t, 1, []string{"host.run.lock", "another lofamo-agent run"}, "run", "--config", file, "--half", "host")
	refusal(t, 1, []string{"host.run.lock", "another lofamo-agent run"}, "run", "--config", file)
	refusal(t, 2, []string{"--half", "both"}, "run", "--config", file, "--half", "both")
	if got, err := daemon.ReadRecovery(c.StateDir, fault.HalfDNP); got != nil || err != nil {
		t.Errorf("it looks after the DNP half: %+v, %v", got, err)
	}
	other := startDaemon(t, c, "--half", "dnp")
	dnp := awaitRecord(t, c, fault.HalfDNP, "it runs", runs)
	signalTo(t, dnp.PID, syscall.SIGKILL)
	awaitRecord(t, c, fault.HalfDNP, "it runs again", func(r halfcore.RecoveryRecord) bool { return runs(r) && r.PID != dnp.PID })
	if code := other.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if gone(host.PID) {
		t.Error("the host half was stopped by the other's daemon")
	}
}

// A half that gets 5 % of a processor is slow, and the daemon leaves it alone; it ends one that then hangs.
func TestStarvedHalvesAreLeft(t *testing.T) {
	pids, err := quotaGroup(t)
	if err != nil {
		requirements.Missing(t, "no cgroup with a CPU quota here: %v", err)
	}
	c := node(t)
	c.Preset, c.Periods = config.PresetFast, nil // some 2 ms of each 16: more than the quota
	startDaemon(t, c, "--scheduling=default")
	r := awaitRecord(t, c, fault.HalfDNP, "it runs", runs)
	burn := exec.Command("sh", "-c", "while :; do :; done")
	if err := burn.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = burn.Process.Kill()
		_ = burn.Wait()
	})
	for _, pid := range []int{r.PID, burn.Process.Pid} {
		if err := os.WriteFile(pids, []byte(strconv.Itoa(pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	registers, err := regfile.OpenReadOnly(filepath.Join(c.StateDir, "registers"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = registers.Close() }()
	// The half is really starved: the gaps between its writes exceed the hang limit of a half that is not starved.
	longest, since, before := time.Duration(0), time.Now(), uint32(0)
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		n, err := registers.Progress(fault.HalfDNP)
		if err != nil {
			t.Fatal(err)
		}
		if n != before {
			longest, since, before = max(longest, time.Since(since)), time.Now(), n
		}
	}
	p, _ := c.Timing()
	t.Logf("longest gap %s; bound %s", longest, halfcore.HangBound(p.TRead, p.ReadMisses))
	if longest < halfcore.HangBound(p.TRead, p.ReadMisses) {
		requirements.Missing(t, "the quota does not starve it here")
	}
	if now := awaitRecord(t, c, fault.HalfDNP, "it runs", runs); now.PID != r.PID || now.Total != 0 {
		t.Errorf("it was restarted: %+v, %+v", now, now.Last)
	}
	signalTo(t, r.PID, syscall.SIGSTOP)
	awaitRecord(t, c, fault.HalfDNP, "it runs again", func(x halfcore.RecoveryRecord) bool {
		return runs(x) && x.PID != r.PID && x.Last.Cause.Kind == halfcore.Hung
	})
}

// quotaGroup makes a cgroup that gets 5 % of a processor, of version 2 if the machine has that, else of version 1. It
// returns the file that takes the ids of its processes.
func quotaGroup(t *testing.T) (pids string, err error) {
	t.Helper()
	root, limits := "/sys/fs/cgroup", [][2]string{{"cpu.max", "5000 100000"}}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		// It may be so already; where it cannot be there will be no cpu.max.
		_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+cpu"), 0)
	} else {
		root, limits = "/sys/fs/cgroup/cpu", [][2]string{{"cpu.cfs_period_us", "100000"}, {"cpu.cfs_quota_us", "5000"}}
	}
	dir, err := os.MkdirTemp(root, "lofamo-test-")
	if err != nil {
		return "", err
	}
	pids = filepath.Join(dir, "cgroup.procs")
	t.Cleanup(func() {
		if b, err := os.ReadFile(pids); err == nil {
			for pid := range strings.FieldsSeq(string(b)) {
				_ = os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(pid), 0)
			}
		}
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	for _, l := range limits {
		if err := os.WriteFile(filepath.Join(dir, l[0]), []byte(l[1]), 0); err != nil {
			return "", err
		}
	}
	return pids, nil
}

// Packets from neighbours while the DNP half is dead wait in the sockets of the links. Every process of the half uses
// the same sockets, even after a change of daemon.
func TestLinkSocketsAreHeld(t *testing.T) {
	c := node(t)
	d := startDaemon(t, c)
	r := awaitRecord(t, c, fault.HalfDNP, "it runs", runs)
	sockets := linkSockets(t, r.PID)
	restarted := func() {
		t.Helper()
		before := r.PID
		signalTo(t, before, syscall.SIGKILL)
		r = awaitRecord(t, c, fault.HalfDNP, "it runs again", func(r halfcore.RecoveryRecord) bool { return runs(r) && r.PID != before })
		if got := linkSockets(t, r.PID); got != sockets {
			t.Errorf("sockets %v: want those of before, %v", got, sockets)
		}
	}
	restarted()
	d.kill()
	d = startDaemon(t, c)
	d.await("both halves run", func(h, n halfState) bool { return h.Running && n.Running })
	restarted()
	// They are no other's.
	host := awaitRecord(t, c, fault.HalfHost, "it runs", runs)
	for fd := range 20 {
		name, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", host.PID, fd))
		if slices.Contains(sockets[:], name) {
			t.Errorf("the host half has %s", name)
		}
	}
}

// linkSockets names the two sockets that a DNP half was passed.
func linkSockets(t *testing.T, pid int) (names [2]string) {
	t.Helper()
	for i := range names {
		var err error
		if names[i], err = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, 3+i)); err != nil || !strings.HasPrefix(names[i], "socket:") {
			t.Fatalf("descriptor %d is %q, %v", 3+i, names[i], err)
		}
	}
	return names
}

// pair makes two nodes that are one another's only neighbours.
func pair(t *testing.T) [2]config.Agent {
	t.Helper()
	a := node(t)
	b := a
	dir := t.TempDir()
	b.Node, b.Coord, b.StateDir = "n1-0-0", "1,0,0", filepath.Join(dir, "state")
	b.Service.Listen = freeport.Addr(t).String()
	b.TLS.HostCert, b.TLS.HostKey = filepath.Join(dir, "host.pem"), filepath.Join(dir, "host.key")
	b.TLS.DNPCert, b.TLS.DNPKey = filepath.Join(dir, "dnp.pem"), filepath.Join(dir, "dnp.key")
	ca, err := pki.LoadCA(a.TLS.CA, filepath.Join(filepath.Dir(a.TLS.CA), "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		if err := ca.IssueTo(filepath.Join(dir, h.String()+".pem"), filepath.Join(dir, h.String()+".key"), pki.NodeIdentity("test", b.Node, h),
			nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	b.Links = map[string]config.LinkAddr{}
	for dir, l := range a.Links {
		d, err := grid.ParseDirection(dir)
		if err != nil {
			t.Fatal(err)
		}
		b.Links[d.Opposite().String()] = config.LinkAddr{Local: l.Peer, Peer: l.Local}
	}
	return [2]config.Agent{a, b}
}

// While a DNP half is restarted, and that takes several attempts, its neighbour's links to it are sick (restarting), and never
// broken; when it is back they are good, in the sessions of before.
func TestNeighboursKnowOfRestart(t *testing.T) {
	nodes := pair(t)
	// On a loaded machine daemon and half may need far more than the 75 ms after which a link is silent.
	period, misses := config.Duration(400*time.Millisecond), 64
	for i := range nodes {
		nodes[i].Periods.LinkPeriod, nodes[i].Periods.LinkMisses, nodes[i].Recovery.Restarts = &period, &misses, 100
	}
	startDaemon(t, nodes[1])
	startDaemon(t, nodes[0])
	var registers *regfile.File
	for end := time.Now().Add(bound); registers == nil; time.Sleep(5 * time.Millisecond) {
		registers, _ = regfile.OpenReadOnly(filepath.Join(nodes[1].StateDir, "registers"))
		if time.Now().After(end) {
			t.Fatal("no register file")
		}
	}
	defer func() { _ = registers.Close() }()
	details := func() (out [2]torus.Detail) {
		for i, dir := range []grid.Direction{grid.XPlus, grid.XMinus} {
			out[i], _ = torus.DecodeDetail(registers.LinkDetail(dir))
		}
		return out
	}
	await := func(what string, never torus.LinkState, fits func(torus.Detail) bool) {
		t.Helper()
		for end := time.Now().Add(bound); ; time.Sleep(time.Millisecond) {
			now := details()
			if slices.ContainsFunc(now[:], func(d torus.Detail) bool { return never != 0 && d.State() == never }) {
				t.Fatalf("%s: a link is %s: %+v", what, never, now)
			}
			if fits(now[0]) && fits(now[1]) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("not within %s: %s: %+v", bound, what, now)
			}
		}
	}
	good := func(d torus.Detail) bool { return d.State() == torus.LinkNormal }
	await("links are good", 0, good)
	dnp := awaitRecord(t, nodes[0], fault.HalfDNP, "it runs", runs)
	mailbox := filepath.Join(nodes[0].StateDir, "dnp.mbox") // a file here keeps the half from starting
	if err := errors.Join(os.Remove(mailbox), os.Mkdir(mailbox, 0o700)); err != nil {
		t.Fatal(err)
	}
	signalTo(t, dnp.PID, syscall.SIGKILL)
	await("links are restarting", torus.LinkBroken, func(d torus.Detail) bool { return d.Restarting && d.State() == torus.LinkSick })
	for awaitRecord(t, nodes[0], fault.HalfDNP, "it is tried", func(halfcore.RecoveryRecord) bool { return true }).Total < 3 {
		await("links are restarting", torus.LinkBroken, func(d torus.Detail) bool { return d.Restarting })
	}
	if err := os.Remove(mailbox); err != nil {
		t.Fatal(err)
	}
	await("links are good again", torus.LinkBroken, good)
}

// The daemon ends and restarts a half that reports a failed self-test.
func TestFailedSelfTestIsRecovered(t *testing.T) {
	c := node(t)
	startDaemon(t, c)
	r := awaitRecord(t, c, fault.HalfHost, "it runs", runs)
	start, err := regfile.StartTime(r.PID)
	if err != nil {
		t.Fatal(err)
	}
	// As the half writes it (NoteTests), once it has sent its own reports.
	registers := filepath.Join(c.StateDir, "registers")
	for end := time.Now().Add(bound); ; time.Sleep(5 * time.Millisecond) {
		if h, err := regfile.LastHolder(registers, fault.HalfHost); err == nil && h.Tests == regfile.Proven {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("not within %s: the host half says that it is well", bound)
		}
	}
	lock := registers + ".host"
	if err := os.WriteFile(lock, fmt.Appendf(nil, "%d %d report path: altered\n", r.PID, start), 0o600); err != nil {
		t.Fatal(err)
	}
	again := awaitRecord(t, c, fault.HalfHost, "it is proven again", func(x halfcore.RecoveryRecord) bool {
		return runs(x) && x.PID != r.PID && x.Last.Proven > 0
	})
	if got, want := again.Last.Cause.String(), "failed its self-test (report path: altered)"; got != want ||
		again.Count(halfcore.FailedTest) != 1 {
		t.Errorf("%q, %+v: want %q", got, again, want)
	}
}

// An unlinked, replaced or truncated register file is no hang: each half recreates it when it checks the file, and
// the daemon looks at the current one.
func TestSpoiltRegisterFileIsNoHang(t *testing.T) {
	c := node(t)
	startDaemon(t, c)
	host, dnp := awaitRecord(t, c, fault.HalfHost, "it runs", runs), awaitRecord(t, c, fault.HalfDNP, "it runs", runs)
	path := filepath.Join(c.StateDir, "registers")
	for what, spoil := range map[string]func() error{
		"unlinked":  func() error { return os.Remove(path) },
		"truncated": func() error { return os.Truncate(path, 100) },
		"replaced":  func() error { return errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, nil, 0o600)) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		// Both halves write into the file of that name again.
		for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
			end, first := time.Now().Add(bound), uint32(0)
			for moved := false; !moved; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%s: the %s half does not write any more", what, h)
				}
				f, err := regfile.OpenReadOnly(path)
				if err != nil {
					continue
				}
				n, err := f.Progress(h)
				_ = f.Close()
				moved = err == nil && first != 0 && n != first
				if err == nil && first == 0 {
					first = n
				}
			}
		}
	}
	time.Sleep(2 * time.Second) // the daemon has looked at the last one, for long enough to find it still
	for _, was := range []halfcore.RecoveryRecord{host, dnp} {
		if r := awaitRecord(t, c, was.Half, "it runs", runs); r.PID != was.PID || r.Total != 0 {
			t.Errorf("the %s half was restarted: %+v, %+v", was.Half, r, r.Last)
		}
	}
}

// A process that holds the lock of a half and is no half, such as this test, is neither adopted nor ended. The daemon
// starts no half against it: the half waits until the process ends.
func TestForeignLockHolderIsNotAdopted(t *testing.T) {
	c := node(t)
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := regfile.Open(filepath.Join(c.StateDir, "registers"), fault.HalfDNP)
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "daemon.log")
	d := startDaemonLogging(t, c, log)
	awaitRecord(t, c, fault.HalfDNP, "it is known to be served", func(r halfcore.RecoveryRecord) bool { return runs(r) && r.PID == 0 })
	d.awaitLog(log, "half is served by another process")
	time.Sleep(3 * recovery.ServedWait)                          // it checks again, without effect
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil { // a person's order has no effect either
		t.Fatal(err)
	}
	time.Sleep(3 * recovery.ServedWait)
	if b, err := os.ReadFile(log); err != nil || bytes.Contains(b, []byte("half ended")) ||
		bytes.Count(b, []byte("served by another process, and")) != 1 {
		t.Errorf("%v: want one warning and no start:\n%s", err, b)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if r := awaitRecord(t, c, fault.HalfDNP, "it runs", func(r halfcore.RecoveryRecord) bool { return runs(r) && r.PID != 0 }); r.Total != 0 ||
		r.Last != nil {
		t.Errorf("%+v, %+v: want no restart", r, r.Last)
	}
}

// The next daemon leaves a half alone whose lock does not name its holder (the disk was full), and reports nothing
// false about it.
func TestLockWithoutHolder(t *testing.T) {
	c := node(t)
	d := startDaemon(t, c)
	r := awaitRecord(t, c, fault.HalfDNP, "it runs", runs)
	lock := filepath.Join(c.StateDir, "registers.dnp")
	for end := time.Now().Add(bound); ; time.Sleep(5 * time.Millisecond) { // it writes there again
		if h, err := regfile.LastHolder(filepath.Join(c.StateDir, "registers"), fault.HalfDNP); err == nil && h.Tests == regfile.Proven {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("not within %s: the half says that it is well", bound)
		}
	}
	d.kill()
	if err := os.Truncate(lock, 0); err != nil {
		t.Fatal(err)
	}
	startDaemon(t, c)
	awaitRecord(t, c, fault.HalfDNP, "it is known to be served", func(r halfcore.RecoveryRecord) bool { return runs(r) && r.PID == 0 })
	signalTo(t, r.PID, syscall.SIGKILL)
	again := awaitRecord(t, c, fault.HalfDNP, "it runs",
		func(x halfcore.RecoveryRecord) bool { return runs(x) && x.PID != 0 && x.PID != r.PID })
	if again.Total != 0 || again.Last != nil {
		t.Errorf("%+v, %+v: want no restart", again, again.Last)
	}
}

// Halves are killed and stopped, and daemons killed, at random moments. In the end all halves run under a daemon, in
// their first boot epochs, and the links between the nodes are good.
func TestKilledAtRandomMoments(t *testing.T) {
	t.Parallel()
	nodes := pair(t)
	daemons := [2]*daemonProcess{}
	halves := []fault.Half{fault.HalfHost, fault.HalfDNP}
	epochs := func() (out []fault.Epoch) {
		for _, n := range nodes {
			f, err := regfile.OpenReadOnly(filepath.Join(n.StateDir, "registers"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			out = append(out, f.Epoch(fault.HalfHost), f.Epoch(fault.HalfDNP))
		}
		return out
	}
	for i := range nodes {
		nodes[i].Recovery.Restarts, nodes[i].Periods = 100, nil // those of the preset: more halves are found to hang in time
		daemons[i] = startDaemon(t, nodes[i])
		for _, h := range halves {
			awaitRecord(t, nodes[i], h, "it runs", runs)
		}
	}
	began := epochs()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); {
		n := rng.IntN(2)
		signal := []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP}[rng.IntN(2)]
		if rng.IntN(4) == 0 {
			daemons[n].kill()
		}
		for _, h := range halves {
			if r, err := daemon.ReadRecovery(nodes[n].StateDir, h); err == nil && r != nil && r.Record.PID > 1 && rng.IntN(2) == 0 {
				_ = syscall.Kill(r.Record.PID, signal) // it may have ended meanwhile
			}
		}
		time.Sleep(time.Duration(rng.IntN(50)) * time.Millisecond)
		if daemons[n].cmd.ProcessState != nil {
			daemons[n] = startDaemon(t, nodes[n])
		}
		time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
	}
	for _, n := range nodes {
		for _, h := range halves {
			r := awaitRecord(t, n, h, "it runs", func(r halfcore.RecoveryRecord) bool { return runs(r) && !gone(r.PID) })
			t.Logf("%s half of %s: %d restarts", h, n.Node, r.Total)
		}
	}
	for _, n := range nodes {
		f, err := regfile.OpenReadOnly(filepath.Join(n.StateDir, "registers"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		for _, dir := range []grid.Direction{grid.XPlus, grid.XMinus} {
			var d torus.Detail
			for end := time.Now().Add(bound); d.State() != torus.LinkNormal; time.Sleep(5 * time.Millisecond) {
				d, _ = torus.DecodeDetail(f.LinkDetail(dir))
				if time.Now().After(end) {
					t.Fatalf("link %s of %s is %s: %+v", dir, n.Node, d.State(), d)
				}
			}
		}
	}
	if now := epochs(); !slices.Equal(now, began) {
		t.Errorf("boot epochs %v: want those of the beginning, %v", now, began)
	}
}

// The daemon restarts a half, and ends when it should, although its log is a full pipe, for example to a log collector that hangs.
func TestHalvesAreRecoveredWithoutReaderOfTheLog(t *testing.T) {
	c := node(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d := startDaemonTo(t, c, w)
	_ = w.Close()
	t.Cleanup(func() { // before the daemon is stopped, which would wait too
		go func() {
			_, _ = io.Copy(io.Discard, r)
			_ = r.Close()
		}()
	})
	before := awaitRecord(t, c, fault.HalfDNP, "it runs", runs)
	fill(t, r)
	signalTo(t, before.PID, syscall.SIGKILL)
	awaitRecord(t, c, fault.HalfDNP, "it runs again", func(r halfcore.RecoveryRecord) bool { return runs(r) && r.PID != before.PID })
	if code := d.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

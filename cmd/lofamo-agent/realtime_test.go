package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// TestHalvesAreRealtimeThroughout: where SCHED_FIFO is permitted, every thread of both halves has that class (a
// process with two classes can spin for ever). They began with one Go thread regardless of the environment (of two,
// one can spin for the other), and none may run for ever without blocking.
func TestHalvesAreRealtimeThroughout(t *testing.T) {
	if err := mayBeRealtime(); errors.Is(err, unix.EPERM) {
		requirements.Missing(t, "SCHED_FIFO is not permitted here")
	} else if err != nil {
		t.Fatal(err)
	}
	logs := t.TempDir()
	t.Setenv("GOMAXPROCS", "4")
	d := startDaemon(t, node(t), "--log-dir", logs)
	host, dnp := d.await("both halves run", func(host, dnp halfState) bool { return host.Running && dnp.Running })
	for name, pid := range map[string]int{"host": host.PID, "dnp": dnp.PID} {
		d.awaitLog(filepath.Join(logs, name+".log"), "half runs")
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			tid, err := strconv.Atoi(task.Name())
			if err != nil {
				t.Fatal(err)
			}
			attr, err := unix.SchedGetAttr(tid, 0)
			if errors.Is(err, unix.ESRCH) {
				continue
			}
			if err != nil || attr.Policy != unix.SCHED_FIFO {
				t.Errorf("thread %d of the %s half: policy %+v, %v; want SCHED_FIFO", tid, name, attr, err)
			}
		}
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)) // as it began
		if err != nil || strings.Count("\x00"+string(env), "\x00GOMAXPROCS=") != 1 ||
			!strings.Contains("\x00"+string(env), "\x00GOMAXPROCS=1\x00") {
			t.Errorf("the %s half began with the environment %q, %v; want GOMAXPROCS=1", name, env, err)
		}
		var limit unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_RTTIME, nil, &limit); err != nil || limit.Max > 2_000_000 {
			t.Errorf("real-time limit of the %s half: %d µs, %v; want at most two seconds", name, limit.Max, err)
		}
	}
}

// TestHalvesOutliveFlood: a sender without a key floods every socket at full speed. No real-time half runs into its
// limit, which would kill it, and no half reports the other dead.
func TestHalvesOutliveFlood(t *testing.T) {
	if err := mayBeRealtime(); err != nil {
		requirements.Missing(t, "SCHED_FIFO is not permitted here: %v", err)
	}
	c := node(t)
	c.Service.GossipListen, c.Service.GossipKeyFile = freeport.Addr(t).String(), filepath.Join(filepath.Dir(c.StateDir), "gossip.key")
	if err := pki.NewGossipKey(c.Service.GossipKeyFile); err != nil {
		t.Fatal(err)
	}
	logs := t.TempDir()
	d := startDaemon(t, c, "--log-dir", logs)
	host, dnp := d.await("both halves run", func(host, dnp halfState) bool { return host.Running && dnp.Running })
	for _, name := range []string{"host.log", "dnp.log"} {
		d.awaitLog(filepath.Join(logs, name), "half is alive")
	}
	for _, f := range []struct {
		addr string
		pid  int
	}{{c.Service.Listen, host.PID}, {c.Service.GossipListen, host.PID}, {c.Links["X+"].Local, dnp.PID}} {
		const length = 3 * realtimeLimit / 2
		before, begun := cpuTime(t, f.pid), time.Now()
		flood(t, f.addr, length)
		if used, took := cpuTime(t, f.pid)-before, time.Since(begun); used > took/2 { // not of length, because the test itself may have stalled
			t.Errorf("flood to %s: the half ran for %s of %s: want at most half of it", f.addr, used, took)
		}
	}
	hostNow, dnpNow := d.await("both halves run", func(host, dnp halfState) bool { return host.Running && dnp.Running })
	if hostNow.PID != host.PID || dnpNow.PID != dnp.PID {
		t.Errorf("halves %d and %d before, %d and %d after: want the same", host.PID, dnp.PID, hostNow.PID, dnpNow.PID)
	}
}

// realtimeLimit is how long a half may run without a pause.
const realtimeLimit = time.Second

func flood(t *testing.T, addr string, length time.Duration) {
	t.Helper()
	conn, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	b := make([]byte, 300)
	for end := time.Now().Add(length); time.Now().Before(end); {
		_, _ = conn.Write(b) // drops do not matter
	}
}

// cpuTime returns the processor time of a process, in steps of 10 ms; 0 when it has ended.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // from the third on: proc(5)
	var ticks int64
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100
}

// mayBeRealtime tries it on a thread that ends at once.
func mayBeRealtime() error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		result <- unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	}()
	return <-result
}

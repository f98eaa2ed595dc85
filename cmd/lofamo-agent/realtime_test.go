package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHalvesAreRealtimeThroughout: where SCHED_FIFO is permitted, every thread of both halves is of it
// (a process of two classes can spin for ever), and none may run for ever without blocking.
func TestHalvesAreRealtimeThroughout(t *testing.T) {
	if err := mayBeRealtime(); errors.Is(err, unix.EPERM) {
		t.Skip("SKIPPED: SCHED_FIFO is not permitted here")
	} else if err != nil {
		t.Fatal(err)
	}
	logs := t.TempDir()
	d := startDaemon(t, node(t), "--log-dir", logs)
	host, dnp := d.await("both halves run", func(host, dnp half) bool { return host.Running && dnp.Running })
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
		var limit unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_RTTIME, nil, &limit); err != nil || limit.Max > 2_000_000 {
			t.Errorf("real-time limit of the %s half: %d µs, %v; want at most two seconds", name, limit.Max, err)
		}
	}
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

package half

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/threads/threadstest"
)

// lockedBy makes a process the last one that took the host half's lock, and returns the register file.
func lockedBy(t *testing.T, pid int, space uint64) string {
	t.Helper()
	start, err := regfile.StartTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), RegisterFile)
	holds(t, path, pid, start, space)
	return path
}

// holds writes the entry of a process that takes the host half's lock.
func holds(t *testing.T, path string, pid int, start, space uint64) {
	t.Helper()
	entry := fmt.Sprintf("%d %d\n%d %d in %d\n", pid, start, pid, start, space)
	if err := os.WriteFile(path+".host", []byte(entry), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A half whose process waits for a processor is starved as soon as the kernel's account covers the time between two reads.
func TestHalfThatWaitsForProcessorIsStarved(t *testing.T) {
	path := lockedBy(t, threadstest.Starved(t), regfile.PIDNamespace())
	var s starvation
	s.look(time.Now(), path, fault.HalfHost, true)
	if s.look(time.Now(), path, fault.HalfHost, false) {
		t.Error("starved at the first empty read, before which the kernel was not asked")
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); ; {
		now := <-tick.C
		if s.look(now, path, fault.HalfHost, false) {
			break
		}
		if now.After(end) {
			t.Fatal("not starved")
		}
		s.empty = 1 // the test may ask as often as it must
	}
	if s.look(time.Now(), path, fault.HalfHost, true) {
		t.Error("starved, though the word is valid")
	}
	if s.look(time.Now(), path, fault.HalfHost, false) {
		t.Error("starved at the first empty read after a valid one")
	}
}

// A half may be restarted so fast that no read finds its word empty. The new process can be starved, too.
func TestRestartBetweenTwoReadsIsSeen(t *testing.T) {
	earlier := exec.Command("sleep", "1000")
	if err := earlier.Start(); err != nil {
		t.Fatal(err)
	}
	path := lockedBy(t, earlier.Process.Pid, regfile.PIDNamespace())
	var s starvation
	now := time.Now()
	s.look(now, path, fault.HalfHost, true)
	_ = earlier.Process.Kill()
	_ = earlier.Wait()

	pid := threadstest.Starved(t)
	start, err := regfile.StartTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	holds(t, path, pid, start, regfile.PIDNamespace())
	s.look(now, path, fault.HalfHost, true)
	s.look(now, path, fault.HalfHost, false)
	for end := time.Now().Add(20 * time.Second); !s.look(time.Now(), path, fault.HalfHost, false); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not starved")
		}
		s.empty = 1 // the test may ask as often as it must
	}
}

// No process but one that waits in this PID namespace is starved, and so none that hangs or has ended.
func TestOtherProcessesAreNotStarved(t *testing.T) {
	stopped := threadstest.Stopped(t)
	elsewhere := lockedBy(t, threadstest.Starved(t), regfile.PIDNamespace()+1)
	for name, path := range map[string]string{
		"stopped": lockedBy(t, stopped, regfile.PIDNamespace()), "of another namespace": elsewhere,
		"never there": filepath.Join(t.TempDir(), RegisterFile),
	} {
		var s starvation
		s.look(time.Now(), path, fault.HalfHost, true)
		tick := time.NewTicker(20 * time.Millisecond)
		for range 5 {
			if s.look(<-tick.C, path, fault.HalfHost, false) {
				t.Errorf("%s: starved", name)
			}
		}
		tick.Stop()
	}
}

// A thread that spins beside this one is ready to run.
func TestOtherThreadWaits(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
		}
	}()
	for end := time.Now().Add(20 * time.Second); !otherThreadWaits(); {
		if time.Now().After(end) {
			t.Error("a thread that spins is not seen")
			break
		}
	}
	stop.Store(true)
	<-done
	for end := time.Now().Add(20 * time.Second); otherThreadWaits(); {
		if time.Now().After(end) {
			t.Error("a thread is seen that no longer runs")
			break
		}
	}
}

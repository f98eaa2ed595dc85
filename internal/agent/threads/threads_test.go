package threads

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/threads/threadstest"
)

func read(t *testing.T, pid int) Account {
	t.Helper()
	a, err := Read(pid)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// starvedWithin takes accounts every 50 ms until one says starved, for 20 s at most.
func starvedWithin(t *testing.T, pid int) bool {
	t.Helper()
	last, at := read(t, pid), time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := at.Add(20 * time.Second); at.Before(end); {
		now := <-tick.C
		a := read(t, pid)
		if a.Starved(last, now.Sub(at)) {
			return true
		}
		last, at = a, now
	}
	return false
}

func TestProcessThatGetsNoProcessorIsStarved(t *testing.T) {
	if pid := threadstest.Starved(t); !starvedWithin(t, pid) {
		t.Errorf("a process that waits for a processor is not called starved: %+v", read(t, pid))
	}
}

// A process that sleeps, one that is stopped, and one that runs are not starved.
func TestStatesOfProcesses(t *testing.T) {
	asleep, stopped := threadstest.Asleep(t), threadstest.Stopped(t)
	for _, pid := range []int{asleep, stopped} {
		before := read(t, pid)
		if a := read(t, pid); a.Starved(before, time.Hour) {
			t.Errorf("process %d is starved: %+v", pid, a)
		}
	}
	if a := read(t, asleep); a.Stopped || a.OnDisk || a.Ready() > 0 {
		t.Errorf("a sleeping process: %+v", a)
	}
	if a := read(t, stopped); !a.Stopped || a.Ready() > 0 {
		t.Errorf("a stopped process: %+v", a)
	}
	if a := read(t, os.Getpid()); a.Ready() == 0 || a.Ran == 0 || a.Runs == 0 {
		t.Errorf("this process, which runs: %+v", a)
	}
}

func TestProcessThatHasEndedHasNoAccount(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if a, err := Read(cmd.Process.Pid); err == nil {
		t.Errorf("process %d has ended: %+v", cmd.Process.Pid, a)
	}
}

func TestStarved(t *testing.T) {
	const ms = time.Millisecond
	main, other := ready{"1", 3}, ready{"2", 4}
	for name, tt := range map[string]struct {
		earlier, now Account
		want         bool
	}{
		"waits all along": {Account{Runs: 7, ready: []ready{main}}, Account{Runs: 7, ready: []ready{main}}, true},
		"waits, while another runs": {Account{Runs: 7, ready: []ready{other, main}},
			Account{Runs: 8, Waited: 2 * ms, ready: []ready{main}}, true},
		"began to wait in between":    {Account{Runs: 7}, Account{Runs: 7, ready: []ready{main}}, false},
		"ran in between":              {Account{Runs: 7, ready: []ready{main}}, Account{Runs: 8, ready: []ready{{"1", 4}}}, false},
		"another waits now":           {Account{Runs: 7, ready: []ready{main}}, Account{Runs: 7, ready: []ready{other}}, false},
		"runs all along":              {Account{Runs: 7, ready: []ready{main}}, Account{Runs: 7, Ran: 50 * ms, ready: []ready{main}}, false},
		"waited for most of the time": {Account{Runs: 7}, Account{Runs: 9, Waited: 30 * ms}, true},
		"waited, but ran for most":    {Account{Runs: 7}, Account{Runs: 9, Waited: 30 * ms, Ran: 30 * ms}, false},
		"waited a little":             {Account{Runs: 7}, Account{Runs: 9, Waited: 20 * ms}, false},
		"a thread has ended":          {Account{Runs: 9, Waited: 90 * ms}, Account{Runs: 8, Waited: 20 * ms}, false},
		"the kernel does not count":   {Account{ready: []ready{{"1", 0}}}, Account{ready: []ready{{"1", 0}}}, false},
	} {
		if got := tt.now.Starved(tt.earlier, 50*ms); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

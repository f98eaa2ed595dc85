// Package threads reads the kernel's account of a process's threads. It tells a half that waits for a processor from one
// that hangs.
package threads

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"
)

// Account is the kernel's account of the threads that a process has. A sum may fall, because threads that have ended no
// longer count. A kernel without CONFIG_SCHED_INFO leaves all sums at 0.
type Account struct {
	Ran     time.Duration // processor time
	Waited  time.Duration // for a processor; a wait counts when it is over
	Runs    uint64        // how many times a thread got a processor
	OnDisk  bool          // a thread waits for a disk (state D)
	Stopped bool          // all threads are stopped by a signal, or traced (states T and t)
	ready   []ready
}

// ready is a thread that runs or waits for a processor (state R).
type ready struct {
	id   string
	runs uint64
}

// Ready returns the number of threads that run or wait for a processor (state R).
func (a Account) Ready() int { return len(a.ready) }

// Read returns the account of a process.
func Read(pid int) (Account, error) {
	tasks, err := os.Open("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return Account{}, fmt.Errorf("threads of process %d: %w", pid, err)
	}
	defer func() { _ = tasks.Close() }()
	ids, err := tasks.Readdirnames(-1)
	if err != nil {
		return Account{}, fmt.Errorf("threads of process %d: %w", pid, err)
	}
	a := Account{Stopped: len(ids) > 0}
	for _, id := range ids {
		a.add(tasks.Name(), id)
	}
	return a, nil
}

// add adds a thread, unless it has just ended.
func (a *Account) add(tasks, id string) {
	dir := tasks + "/" + id
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return
	}
	state := byte(0)
	if f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]); len(f) > 0 {
		state = f[0][0]
	}
	a.OnDisk = a.OnDisk || state == 'D'
	a.Stopped = a.Stopped && (state == 'T' || state == 't')

	var ran, waited, runs uint64 // the first two in nanoseconds
	if b, err = os.ReadFile(dir + "/schedstat"); err == nil {
		_, _ = fmt.Sscan(string(b), &ran, &waited, &runs) // a missing number stays 0
	}
	a.Ran += time.Duration(ran)
	a.Waited += time.Duration(waited)
	a.Runs += runs
	if state == 'R' {
		a.ready = append(a.ready, ready{id, runs})
	}
}

// Starved reports whether the process mostly waited for a processor in the time since an earlier account. It ran for less than
// half of that time, and one of its threads waited throughout, or the waits that ended in that time make up at least half.
func (a Account) Starved(earlier Account, since time.Duration) bool {
	if a.Runs == 0 || a.Ran-earlier.Ran >= since/2 {
		return false
	}
	lasts := slices.ContainsFunc(a.ready, func(r ready) bool { return slices.Contains(earlier.ready, r) })
	return lasts || a.Waited-earlier.Waited >= since/2
}

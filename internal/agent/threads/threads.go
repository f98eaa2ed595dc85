// Package threads reads the kernel's account of a process's threads. It tells a half that waits for a processor from one
// that hangs.
package threads

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// Account is the kernel's account of the threads that a process has. A sum may fall, because threads that have ended no
// longer count. A kernel without CONFIG_SCHED_INFO leaves all sums at 0.
type Account struct {
	Ran     time.Duration // processor time
	Waited  time.Duration // for a processor; a wait counts when it is over
	Runs    uint64        // how many times a thread got a processor
	Ready   int           // threads that run or wait for a processor (state R)
	OnDisk  bool          // a thread waits for a disk (state D)
	Stopped bool          // all threads are stopped by a signal, or traced (states T and t)
}

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
		a.add(tasks.Name() + "/" + id)
	}
	return a, nil
}

// add adds a thread, unless it has just ended.
func (a *Account) add(dir string) {
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return
	}
	state := byte(0)
	if f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]); len(f) > 0 {
		state = f[0][0]
	}
	if state == 'R' {
		a.Ready++
	}
	a.OnDisk = a.OnDisk || state == 'D'
	a.Stopped = a.Stopped && (state == 'T' || state == 't')

	if b, err = os.ReadFile(dir + "/schedstat"); err != nil {
		return
	}
	var ran, waited, runs uint64 // the first two in nanoseconds
	if _, err := fmt.Sscan(string(b), &ran, &waited, &runs); err == nil {
		a.Ran += time.Duration(ran)
		a.Waited += time.Duration(waited)
		a.Runs += runs
	}
}

// Starved reports whether the process, in the time since an earlier account, mostly waited for a processor.
func (a Account) Starved(earlier Account, since time.Duration) bool {
	switch {
	case a.Runs == 0, a.Ran-earlier.Ran >= since/2:
		return false
	case a.Runs == earlier.Runs:
		return a.Ready > 0 && earlier.Ready > 0 // one wait lasts since then
	}
	return a.Waited-earlier.Waited >= since/2
}

package script

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// A check that does not end in time proves nothing about its subject if it hardly got a processor. This file measures the
// time that the processes of a check wait for one.

const (
	// samples is how often a check is sampled within its timeout.
	samples = 20
	// fewest is the minimum number of samples of a check. With fewer, this process itself got no processor.
	fewest = samples / 4
	// maxProcesses limits the processes that one sample reads. Processes of a check beyond this number are not counted.
	maxProcesses = 256
	// maxThreads limits the threads of one process that a sample reads.
	maxThreads = 256
	// tick is the unit of processor times in /proc/PID/stat.
	tick = 10 * time.Millisecond
)

// usage is one sample of a check's processes.
type usage struct {
	runnable bool          // at least one thread runs or waits for a processor
	cpu      time.Duration // processor time so far, of ended processes too
}

// waits adds up the samples of one check.
type waits struct {
	taken, runnable int
	last            usage
	lasted          time.Duration // from the check's start to the last sample
	sampling        time.Duration // processor time of this process for the samples
}

func (w *waits) add(lasted time.Duration, u usage) {
	w.taken++
	if u.runnable {
		w.runnable++
	}
	w.last, w.lasted = u, lasted
}

// waited estimates for how long the check wanted a processor and had none: the time in which it was runnable, less the
// processor time that it got. Threads that run at the same time make the estimate too small.
func (w *waits) waited() time.Duration {
	if w.taken == 0 {
		return 0
	}
	return max(0, w.lasted*time.Duration(w.runnable)/time.Duration(w.taken)-w.last.cpu)
}

// excuse says why a check that did not end within its timeout proves nothing about its subject, or returns "". Few samples are no excuse if
// each of them took long, because the check has many processes.
func (w *waits) excuse(timeout time.Duration) string {
	switch {
	case w.taken < fewest && w.sampling < timeout/4:
		return "while the agent itself waited for a processor"
	case w.lasted > 0 && w.waited() >= w.lasted/2:
		return fmt.Sprintf("of which it waited %v for a processor", w.waited().Round(tick))
	}
	return ""
}

// threadTime returns the processor time of the calling thread.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // 0 where it is not known
	return time.Duration(t.Nano())
}

// sample reads the process pid and its descendants. It misses those whose parent has ended without waiting for them.
func sample(root string, pid int) (usage, error) {
	var u usage
	proc, err := procfs.NewFS(root)
	if err != nil {
		return u, err
	}
	queue := []int{pid}
	for i := 0; i < len(queue) && i < maxProcesses; i++ {
		children, err := u.addProcess(proc, root, queue[i])
		if err != nil && i == 0 {
			return u, err
		} // otherwise a descendant has just ended
		queue = append(queue, children...)
	}
	return u, nil
}

// addProcess adds one process to u and returns its children.
func (u *usage) addProcess(proc procfs.FS, root string, pid int) (children []int, err error) {
	p, err := proc.Proc(pid)
	if err != nil {
		return nil, err
	}
	s, err := p.Stat()
	if err != nil {
		return nil, err
	}
	u.cpu += tick * (time.Duration(s.UTime) + time.Duration(s.STime) + time.Duration(s.CUTime) + time.Duration(s.CSTime))
	threads, err := proc.AllThreads(pid)
	if err != nil {
		return nil, err
	}
	for _, t := range threads[:min(len(threads), maxThreads)] {
		if s, err := t.Stat(); err == nil && s.State == "R" {
			u.runnable = true
		}
		list, err := os.ReadFile(filepath.Join(root, strconv.Itoa(pid), "task", strconv.Itoa(t.PID), "children"))
		if err != nil {
			continue // the thread has just ended, or this kernel does not have the file
		}
		for field := range strings.FieldsSeq(string(list)) {
			if child, err := strconv.Atoi(field); err == nil {
				children = append(children, child)
			}
		}
	}
	return children, nil
}

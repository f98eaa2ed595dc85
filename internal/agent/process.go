package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Scheduling says whether a half asks the kernel to be run promptly.
type Scheduling string

// The choices.
const (
	SchedulingPrompt  Scheduling = "prompt"  // ask; go on without where the kernel cannot
	SchedulingDefault Scheduling = "default" // as any process
)

// ParseScheduling reads prompt or default.
func ParseScheduling(s string) (Scheduling, error) {
	if v := Scheduling(s); v == SchedulingPrompt || v == SchedulingDefault {
		return v, nil
	}
	return "", fmt.Errorf("scheduling: given %q: want prompt or default", s)
}

// memoryLimit makes the garbage collector keep a half small. It is a soft limit, in bytes, far above
// what a half uses.
const memoryLimit = 40 << 20

// TuneProcess fits the process to a half: a small heap, one thread of Go, and a short slice of CPU time,
// for a half that does not run in time is taken for dead.
//
// Not SCHED_FIFO, which was tried: threads of the Go runtime spin for one another, and under load
// one FIFO thread was seen to spin for ever on a core while those it waited for stood behind it.
// Where more is needed than a short slice gives, a cgroup weight does it. Nor is all memory locked:
// that costs a Go process some 75 MB; the register file locks its own pages.
func TuneProcess(s Scheduling, log *slog.Logger) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	// Two or more would wake one another's threads for every packet: measured, a third of the DNP
	// half's cost. What blocks in the kernel gets a thread of its own regardless.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	if s != SchedulingPrompt {
		return
	}
	if err := setSlice(); err != nil {
		log.Info("no short slice: a loaded machine may delay this half", "err", err)
	}
}

// slice is what a half asks for at a time. The kernel's scheduler (EEVDF, with slices by task from
// Linux 6.12 on) runs who asks for little the sooner; older kernels ignore it. It gives nobody a
// larger share and needs no privilege.
const slice = 100 * time.Microsecond

// setSlice sets the slice of all threads; those made later inherit it.
func setSlice() error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list own threads: %w", err)
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		attr, err := unix.SchedGetAttr(tid, 0)
		if err == nil {
			attr.Runtime = uint64(slice.Nanoseconds())
			err = unix.SchedSetAttr(tid, attr, 0)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("set the slice of thread %d: %w", tid, err)
		}
	}
	return nil
}

package half

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
)

// Scheduling selects a half's scheduling class. Watchdogs report a half dead that does not run in time.
type Scheduling string

// The choices.
const (
	SchedulingAuto    Scheduling = "auto"    // SCHED_FIFO where permitted, else as prompt
	SchedulingPrompt  Scheduling = "prompt"  // short slices of CPU time, where the kernel has them
	SchedulingDefault Scheduling = "default" // as any process
)

// ParseScheduling reads auto, prompt or default.
func ParseScheduling(s string) (Scheduling, error) {
	if v := Scheduling(s); v == SchedulingAuto || v == SchedulingPrompt || v == SchedulingDefault {
		return v, nil
	}
	return "", fmt.Errorf("scheduling: given %q: want auto, prompt or default", s)
}

// memoryLimit makes the garbage collector keep a half small. It is a soft limit, in bytes, far above a half's usual
// consumption.
const memoryLimit = 40 << 20

// Garbage collections of a half: at a start, which lasts startTime, and afterwards. The values are percentages as in GOGC.
const (
	startGC   = 200
	steadyGC  = 50
	startTime = 10 * time.Second
)

// TuneProcess adapts the process to a half: a small heap, one thread of Go, and a scheduling class. It must run
// first, because it may replace the process by itself (beRealtime). It does not lock memory: that costs a Go process
// some 75 MB; the register file locks its own pages.
func TuneProcess(s Scheduling, preset string, log *slog.Logger) {
	if os.Getenv("GOGC") == "" {
		// A start allocates some megabytes of which little stays: three to four collections, a tenth of its cost.
		debug.SetGCPercent(startGC)
		time.AfterFunc(startTime, func() { debug.SetGCPercent(steadyGC) })
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	if s == SchedulingAuto {
		err := beRealtime()
		if err == nil {
			return
		}
		logNoRealtime(log, preset, err)
	}
	// Two or more would wake one another's threads for every packet: measured, a third of the DNP half's cost. Calls
	// that block in the kernel get a thread of their own regardless.
	if os.Getenv(goThreads) == "" {
		runtime.GOMAXPROCS(1)
	}
	if s == SchedulingAuto || s == SchedulingPrompt {
		if err := SetSlice(); err != nil {
			log.Info("no short slice: a loaded machine may delay this half", "err", err)
		}
	}
}

// logNoRealtime logs that the process gets no real-time scheduling: a warning, unless the preset allows for the delays.
func logNoRealtime(log *slog.Logger, preset string, err error) {
	if preset == config.PresetRelaxed {
		log.Info("no real-time scheduling: preset relaxed allows for the delays", "err", err)
		return
	}
	log.Warn("no real-time scheduling: a loaded machine may delay this half", "err", err,
		"remedy", "LimitRTPRIO=1 in the unit, agents.realtime in the Helm values, or CAP_SYS_NICE; "+
			"else preset relaxed on all nodes and supervisors")
}

// LacksRealtime reports whether this process runs without real-time scheduling although its preset needs that and its
// user did not choose another class. The periods of preset relaxed allow for the delays.
func LacksRealtime(s Scheduling, preset string) bool {
	if s != SchedulingAuto || preset == config.PresetRelaxed {
		return false
	}
	attr, err := unix.SchedGetAttr(0, 0)
	return err == nil && attr.Policy != unix.SCHED_FIFO
}

// TuneDaemon limits a recovery daemon to one thread that runs Go code, because two would wake each other at each check of the halves,
// and to a heap as small as that of a half.
func TuneDaemon() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(steadyGC)
	}
	if os.Getenv(goThreads) == "" {
		runtime.GOMAXPROCS(1)
	}
}

// OutliveDaemon ends the tie that startRealtime makes between a half's first thread and the daemon, if environ is that of a half that
// a daemon started. Call it from the initializer of a package variable: only then is the first thread certain to run it.
func OutliveDaemon(environ []string) error {
	if !StartedByDaemon(environ) {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("clear the parent-death signal: %w", err)
	}
	return nil
}

// Bounds of a real-time half. Priority 1 is the lowest; the kernel keeps 5 % of the time for others.
const (
	realtimePriority = 1
	// realtimeLimit is how long a thread may run without ever blocking before the kernel kills the half, in
	// microseconds: a spinning half must not stop the machine. Its longest work takes some tens of
	// milliseconds.
	realtimeLimit = 1_000_000
)

// goThreads is the environment's variable for the number of threads that run Go at once.
const goThreads = "GOMAXPROCS"

// beRealtime puts the process under SCHED_FIFO, or returns why not.
//
// All threads must be of that class from the start. In a process with two classes, a real-time thread of the Go
// runtime was seen to spin for ever for an ordinary thread that it kept from running. So beRealtime sets the class of
// one thread and executes the program again on it; every thread then inherits the class.
//
// Even in a single class there must be only one Go thread, also while packages initialise. The runtime's background
// sweeper was seen to spin, and never to yield, for a sweeping thread that waited for the same core
// (runtime.bgsweep). So the new program begins with one thread, regardless of the environment. On success beRealtime
// returns only in the new program, which detects its class. Children of the new program do not inherit the number of
// threads.
func beRealtime() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return fmt.Errorf("get scheduling class: %w", err)
	}
	realtime := attr.Policy == unix.SCHED_FIFO // perhaps set by its parent
	if realtime && os.Getenv(goThreads) == "1" {
		return os.Unsetenv(goThreads)
	}
	ordinary := *attr
	if !realtime {
		if err := MakeRealtime(0); err != nil {
			return err
		}
	}
	// Of two values of one name the first counts, so there must be one.
	env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, goThreads+"=") })
	err = syscall.Exec("/proc/self/exe", os.Args, append(env, goThreads+"=1"))
	return errors.Join(fmt.Errorf("execute this program again: %w", err), unix.SchedSetAttr(0, &ordinary, 0))
}

// MakeRealtime puts one thread, and all threads that it creates later, under SCHED_FIFO. 0 is the calling thread.
func MakeRealtime(tid int) error {
	limit := unix.Rlimit{Cur: realtimeLimit, Max: realtimeLimit}
	if err := unix.Prlimit(tid, unix.RLIMIT_RTTIME, &limit, nil); err != nil {
		return fmt.Errorf("limit real-time CPU time: %w", err)
	}
	attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: realtimePriority}
	if err := unix.SchedSetAttr(tid, attr, 0); err != nil {
		return fmt.Errorf("set SCHED_FIFO: %w", err)
	}
	return nil
}

// ProcessorTime returns the processor time that this process has used since its start, in all threads and in the kernel.
func ProcessorTime() time.Duration {
	return time.Duration(storage.Clock(unix.CLOCK_PROCESS_CPUTIME_ID))
}

// slice is a half's requested time slice. The kernel's scheduler (EEVDF, with slices by task from Linux 6.12 on) runs
// tasks with short slices sooner; older kernels ignore the request. It gives a task no larger share and needs no
// privilege.
const slice = 100 * time.Microsecond

// SetSlice sets the slice of all threads; those made later inherit it.
func SetSlice() error {
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

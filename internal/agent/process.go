package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Realtime says whether a half asks for a real-time priority.
type Realtime string

// The choices.
const (
	RealtimeAuto Realtime = "auto" // ask; go on without where it is not permitted
	RealtimeOff  Realtime = "off"
)

// ParseRealtime reads auto or off.
func ParseRealtime(s string) (Realtime, error) {
	if r := Realtime(s); r == RealtimeAuto || r == RealtimeOff {
		return r, nil
	}
	return "", fmt.Errorf("realtime: given %q: want auto or off", s)
}

// memoryLimit makes the garbage collector keep a half small. It is a soft limit, in bytes, far above
// what a half uses.
const memoryLimit = 40 << 20

// TuneProcess fits the process to a half: a small heap, and the lowest real-time priority, for a
// half that does not run in time is taken for dead. All memory is not locked: that would cost a Go
// process some 75 MB; the register file locks its own pages.
func TuneProcess(ctx context.Context, rt Realtime, log *slog.Logger) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	if rt != RealtimeAuto {
		return
	}
	if err := setFIFO(); err != nil {
		log.Info("no real-time priority: a loaded machine may delay this half", "err", err)
		return
	}
	log.Debug("real-time priority set")
	go keepFIFO(ctx)
}

// keepFIFO gives the priority to threads that the runtime has made since. It ends with ctx.
func keepFIFO(ctx context.Context) {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		if setFIFO() != nil {
			return
		}
	}
}

// setFIFO gives all threads of the process SCHED_FIFO at priority 1. What they fork, check scripts
// among it, is reset to the ordinary scheduler by the kernel; so are new threads, until the next
// call.
func setFIFO() error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list own threads: %w", err)
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		attr := unix.SchedAttr{
			Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
		}
		if err := unix.SchedSetAttr(tid, &attr, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("set SCHED_FIFO: %w", err)
		}
	}
	return nil
}

package measure

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// clockTick is the unit of the times in /proc/PID/stat: USER_HZ, 100 a second on Linux.
const clockTick = 10 * time.Millisecond

// Usage is a process's consumption.
type Usage struct {
	CPU      time.Duration // user and system, since its start
	Resident int64         // bytes now
}

// Process reads /proc/PID.
func Process(pid int) (Usage, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, err
	}
	_, rest, ok := strings.Cut(string(b), ") ") // the name may hold spaces
	f := strings.Fields(rest)
	if !ok || len(f) < 22 {
		return Usage{}, fmt.Errorf("/proc/%d/stat: %q is not such a file", pid, b)
	}
	var v [3]int64
	for i, field := range []int{11, 12, 21} { // utime, stime, rss
		if v[i], err = strconv.ParseInt(f[field], 10, 64); err != nil {
			return Usage{}, fmt.Errorf("/proc/%d/stat field %d: %w", pid, field+3, err)
		}
	}
	return Usage{CPU: time.Duration(v[0]+v[1]) * clockTick, Resident: v[2] * int64(os.Getpagesize())}, nil
}

// threadTime is the processor time of the calling thread.
func threadTime() time.Duration { return clock(unix.CLOCK_THREAD_CPUTIME_ID) }

// ProcessorTime returns the processor time of this process so far, all threads and the kernel's part included.
func ProcessorTime() time.Duration { return clock(unix.CLOCK_PROCESS_CPUTIME_ID) }

func clock(id int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		panic("measure: clock: " + err.Error()) // every Linux has these
	}
	return time.Duration(t.Nano())
}

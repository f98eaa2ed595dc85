// Package orphans waits for children that nobody else waits for. The first process of a PID namespace, as a container's is, gets
// those whose parents have ended, such as what a check program leaves behind; dead ones that nobody waits for hold their ids for
// ever, of which a container has few. It is for no other process: elsewhere init does this.
package orphans

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/watchdog/regfile"
)

// Every is how often Reap looks. What is dead at two looks is nobody's: who has started a child of this process waits for it all the time.
const Every = 10 * time.Second

// Reap waits for dead orphans until ctx ends, where this process is the first of its PID namespace; elsewhere it returns at once.
func Reap(ctx context.Context, every time.Duration) {
	if os.Getpid() != 1 {
		return
	}
	t := time.NewTimer(every)
	defer t.Stop()
	var before map[int]uint64
	for {
		now := dead()
		t.Reset(every) // from here on, late or not: two looks nearer than that could find the same child before its own has waited for it
		for pid, start := range now {
			if was, ok := before[pid]; ok && was == start {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // else it is somebody's after all
			}
		}
		before = now
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// dead are the children that have ended, and when they were started.
func dead() map[int]uint64 {
	out := map[int]uint64{}
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return out
	}
	for _, name := range lists {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // a thread that has just ended
		}
		for child := range strings.FieldsSeq(string(b)) {
			pid, err := strconv.Atoi(child)
			if err != nil {
				continue
			}
			fields, err := regfile.StatFields(pid)
			if err != nil || len(fields) == 0 || fields[0] != "Z" {
				continue
			}
			if start, err := regfile.StartTime(pid); err == nil {
				out[pid] = start
			}
		}
	}
	return out
}

package program

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

// reapEvery is the interval between checks for orphans. A child that is dead at two checks is an orphan: whoever started a child
// here waits for it continuously.
const reapEvery = 10 * time.Second

// ReapOrphans waits for dead orphans until ctx ends if this process is the first of its PID namespace; otherwise it returns at
// once. The first process of a PID namespace, such as a container's, becomes the parent of processes whose parents have ended, for
// example those that a check program leaves behind. Zombies without a wait keep their process ids, and a container has few.
// Elsewhere init does it.
func ReapOrphans(ctx context.Context) { reapOrphans(ctx, reapEvery) }

func reapOrphans(ctx context.Context, every time.Duration) {
	if os.Getpid() != 1 {
		return
	}
	t := time.NewTimer(every)
	defer t.Stop()
	var before map[int]uint64
	for {
		now := dead()
		t.Reset(every) // from now on, even if late: two closer checks could find a child before its starter has waited for it
		for pid, start := range now {
			if was, ok := before[pid]; ok && was == start {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // otherwise its starter has waited for it
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

// dead returns the children that have ended, with their start times.
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

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// supervisorNice is the nice value of supervisors, 9 times the weight of an ordinary process. Halves may have real-time
// priority: supervisors on the same machine then compete with all other processes for the rest.
const supervisorNice = -10

// raiseTries bounds the passes over the threads of a process that starts threads meanwhile.
const raiseTries = 5

// groupRest is a little more than the time for which the kernel refuses the next nice value of a scheduling group, after
// one that was set without CAP_SYS_ADMIN.
// Any process on the machine may have set that value, so groupTries bounds the attempts.
const (
	groupRest  = 110 * time.Millisecond
	groupTries = 10
)

// raise gives supervisorNice to a process and to its scheduling group, which a session has where the kernel groups by session.
// Threads that the process starts later inherit it.
func raise(pid int) error {
	if err := raiseThreads(pid); err != nil {
		return err
	}
	group := filepath.Join("/proc", strconv.Itoa(pid), "autogroup")
	set := func() error { return os.WriteFile(group, []byte(strconv.Itoa(supervisorNice)), 0o644) }
	err := set()
	for try := 1; errors.Is(err, unix.EAGAIN) && try < groupTries; try++ {
		time.Sleep(groupRest)
		err = set()
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("set nice %d of scheduling group: %w", supervisorNice, errors.Unwrap(err))
	}
	return nil
}

func raiseThreads(pid int) error {
	raised := map[int]bool{}
	for range raiseTries {
		tasks, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
		if err != nil {
			return fmt.Errorf("list threads: %w", err)
		}
		fresh := false
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil || raised[tid] {
				continue
			}
			if err := unix.Setpriority(unix.PRIO_PROCESS, tid, supervisorNice); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("set nice %d: %w", supervisorNice, err)
			}
			raised[tid], fresh = true, true
		}
		if !fresh {
			return nil
		}
	}
	return nil
}

// Unweighted returns which weight the supervisors that this Cluster started lack, and why; nil: they have both a nice
// value and a cgroup weight.
func (c *Cluster) Unweighted() error {
	switch {
	case c.unweighted == nil && c.ungrouped == nil:
		return nil
	case c.unweighted == nil:
		return fmt.Errorf("supervisors have nice %d, but no cgroup weight (%w): processes in other cgroups may delay them; "+
			"the packaged units set CPUWeight", supervisorNice, c.ungrouped)
	case c.ungrouped == nil:
		return fmt.Errorf("supervisors have cgroup weight %d, but not nice %d (%w)", supervisorWeight, supervisorNice, c.unweighted)
	}
	return fmt.Errorf("supervisors have the weight of ordinary processes (%w; %w): under overload, elections and commits may be late; "+
		"run lofamoctl with CAP_SYS_NICE or `ulimit -e %d`, or use the packaged units, which set CPUWeight", c.unweighted, c.ungrouped,
		20-supervisorNice)
}

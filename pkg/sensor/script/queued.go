package script

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// maxQueued limits the number of processes and threads that queued reads: a check may have started many.
const maxQueued = 1000

// queued returns for how long a process, or one of its living descendants, was runnable without a processor: the longest time of any of
// their threads since its start. It is 0 where the kernel does not say. Ended descendants do not count.
func queued(pid int) (longest time.Duration) {
	left := maxQueued
	for todo := []int{pid}; len(todo) > 0; todo = todo[1:] {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", todo[0])) // the pattern is valid
		for _, thread := range threads {
			if left--; left < 0 {
				return longest
			}
			var ran, waited uint64 // in nanoseconds
			b, _ := os.ReadFile(filepath.Join(thread, "schedstat"))
			if _, err := fmt.Sscan(string(b), &ran, &waited); err == nil {
				longest = max(longest, time.Duration(min(waited, 1<<62)))
			}
			b, _ = os.ReadFile(filepath.Join(thread, "children")) // the thread has ended, or the kernel lacks the file
			for _, child := range bytes.Fields(b) {
				if n, err := strconv.Atoi(string(child)); err == nil {
					todo = append(todo, n)
				}
			}
		}
	}
	return longest
}

// Package leaks fails a package's tests if goroutines remain after them.
package leaks

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// Main runs a package's tests and returns the exit code for TestMain: theirs, or 1 if goroutines remain a minute after
// the tests. goleak itself waits half a second, which is too short for a busy machine.
func Main(run func() int, options ...goleak.Option) int {
	if code := run(); code != 0 {
		return code
	}
	if err := find(time.Minute, options); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// find waits until all goroutines have ended, and returns an error if some have not within the bound.
func find(bound time.Duration, options []goleak.Option) error {
	for end := time.Now().Add(bound); ; {
		if err := goleak.Find(options...); err == nil || time.Now().After(end) {
			return err
		}
	}
}

package daemon

import (
	"os"
	"path/filepath"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/durable"
)

// This file keeps the loop of a half from blocking on a disk that hangs. Other goroutines write the half's history and open its log file.
// On a disk that works, the history must precede the action. So the loop waits for these goroutines, but not for long.

const (
	// diskWait bounds the loop's wait for the disk. After a timeout, the loop does not wait again until the disk has answered.
	diskWait = 100 * time.Millisecond
	// longDiskWait bounds the wait while no recovery is under way. It applies to the log file of a first start, and to the history of a
	// half that the daemon has stopped. Without that history, the next daemon would count the stop as a failure.
	longDiskWait = time.Second
)

// keepHistory writes the history of the half. If the disk does not answer in time, it logs that, at most once a minute. If last is set, it
// waits longer.
func (c *child) keepHistory(h halfcore.RecoveryHistory, last bool) {
	kept := c.history.Write(h, diskWait)
	if !kept && last {
		kept = c.history.Flush(longDiskWait)
	}
	if !kept {
		c.slow.Do(func() { c.log.Warn("history of restarts not kept yet: the disk has not answered in time") })
	}
}

// logOpening is the opening of a log file, in its own goroutine.
type logOpening struct {
	done chan struct{} // closed when the attempt has ended
	file *os.File      // valid once done is closed, like err
	err  error
}

// openLog opens the half's log file; nil: its log goes to standard error. A disk that fails, is full or hangs does not keep a half
// from running.
func (c *child) openLog() *os.File {
	if c.d.cfg.LogDir == "" {
		return nil
	}
	o, wait := c.opening, time.Duration(0)
	if o == nil {
		o, wait = &logOpening{done: make(chan struct{})}, diskWait
		if c.first {
			wait = longDiskWait
		}
		go func() {
			defer close(o.done)
			path := filepath.Join(c.d.cfg.LogDir, c.half.String()+".log")
			o.file, o.err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		}()
	}
	if !durable.Within(o.done, wait) {
		c.opening = o // the next start takes its file
		c.log.Warn("half logs to standard error: the disk has not opened its log file in time", "within", wait.String())
		return nil
	}
	c.opening = nil
	if o.err != nil {
		c.log.Warn("half logs to standard error: its log file cannot be opened", "err", o.err)
		return nil
	}
	return o.file
}

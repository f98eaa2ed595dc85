package daemon

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// This file keeps the loop of a half from waiting for a disk that hangs: other goroutines write its history and open its log file. The
// loop waits for them because the history must precede the action on a disk that works, but not for long.

const (
	// diskWait bounds the loop's wait for the disk. It does not wait again until the disk has answered.
	diskWait = 100 * time.Millisecond
	// longDiskWait bounds the wait where no recovery is under way: for the log file of a first start, and for the history of a half that
	// the daemon has stopped, whose end the next daemon would otherwise count as a failure.
	longDiskWait = time.Second
)

// historyWriter writes the newest history of a half in its own goroutine, one at a time.
type historyWriter struct {
	write func(halfcore.RecoveryHistory)

	mu   sync.Mutex
	next *halfcore.RecoveryHistory // to be written after the present one; nil: none
	done chan struct{}             // closed when all is written; nil: nothing is being written
	late bool                      // an earlier call has not waited for the end
}

// keep writes a history. It reports whether that has happened within diskWait or, for the last one, longDiskWait. After
// false it does not wait again before the writer has caught up.
func (w *historyWriter) keep(h halfcore.RecoveryHistory, last bool) bool {
	w.mu.Lock()
	w.next = &h
	if w.done == nil {
		w.done, w.late = make(chan struct{}), false
		go w.run(w.done)
	}
	done, wait := w.done, diskWait
	if w.late {
		wait = 0
	}
	w.mu.Unlock()
	if last {
		wait = longDiskWait
	}
	if within(done, wait) {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.late = true
	return false
}

// run writes until there is nothing left to write.
func (w *historyWriter) run(done chan struct{}) {
	for {
		w.mu.Lock()
		h := w.next
		w.next = nil
		if h == nil {
			w.done = nil
			close(done)
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		w.write(*h)
	}
}

// within waits for done, for a time at most, and reports whether it is closed.
func within(done <-chan struct{}, wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		select { // a starved process finds both at once
		case <-done:
		default:
			return false
		}
	}
	return true
}

// logOpening is the opening of a log file, in its own goroutine.
type logOpening struct {
	done chan struct{} // closed at the end
	file *os.File      // then valid, like err
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
	if !within(o.done, wait) {
		c.opening = o // the next start takes its file
		c.log.Warn("half logs to standard error: the disk has not opened its log file in time", "within", diskWait.String())
		return nil
	}
	c.opening = nil
	if o.err != nil {
		c.log.Warn("half logs to standard error: its log file cannot be opened", "err", o.err)
		return nil
	}
	return o.file
}

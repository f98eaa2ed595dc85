package program

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// This file keeps a program from waiting for its own log. A pipe without a reader, or a disk that hangs, would stop a half under its
// mutex, and so its watchdog word: the other half would call it dead. A recovery daemon would restart no half, and an elected supervisor
// would not begin to lead. The queue is a writer between a logger and a file; it formats nothing.

const (
	// logLines is how many lines wait at most, some 200 bytes each.
	logLines = 512
	// logCloseWait bounds Close's wait for the remaining lines.
	logCloseWait = time.Second
)

// LogQueue is a writer that never waits: a separate goroutine passes its lines to another writer. Its queue is bounded. When the
// queue is full, it drops the newest line, and later writes a line with the number of dropped ones.
type LogQueue struct {
	to    io.Writer
	queue chan []byte
	done  chan struct{}

	mu      sync.Mutex // guards the fields below, and prevents queueing after Close
	closed  bool
	dropped int
}

// NewLogQueue starts a queue in front of to. Close it.
func NewLogQueue(to io.Writer) *LogQueue {
	w := &LogQueue{to: to, queue: make(chan []byte, logLines), done: make(chan struct{})}
	go w.run()
	return w
}

// Write queues a copy of a line, and never waits. It returns no error, because no caller could handle one.
func (w *LogQueue) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return len(line), nil
	}
	out := append([]byte(nil), line...)
	if w.dropped > 0 {
		out = append(fmt.Appendf(nil, "%d lines of this log were dropped: it was not written in time\n", w.dropped), out...)
	}
	select {
	case w.queue <- out:
		w.dropped = 0
	default:
		w.dropped++
	}
	return len(line), nil
}

func (w *LogQueue) run() {
	defer close(w.done)
	for line := range w.queue {
		_, _ = w.to.Write(line) // a log cannot report its own write errors
	}
}

// Close writes the queued lines, and gives up after logCloseWait.
func (w *LogQueue) Close() error {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.queue)
	}
	w.mu.Unlock()
	t := time.NewTimer(logCloseWait)
	defer t.Stop()
	select {
	case <-w.done:
		return nil
	case <-t.C:
		return fmt.Errorf("close log: not written within %s", logCloseWait)
	}
}

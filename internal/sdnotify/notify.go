// Package sdnotify reports the status of a process of the agent to the service manager that started it: systemd, by the protocol of
// sd_notify(3). It decides nothing: its callers say when they are ready and when their loops have completed a round.
package sdnotify

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

const (
	// messages is the maximum number of waiting messages.
	messages = 32
	// closeWait is the maximum wait of Close for the remaining messages.
	closeWait = time.Second
)

// Notifier sends messages to the manager. A nil Notifier sends nothing: no manager expects messages from this process.
//
// It never waits for the manager, which may hang: its own goroutine sends the messages in order. A message that finds the queue full is
// dropped; the manager learns the status with the next change, and misses signs of life as it should.
type Notifier struct {
	log   *slog.Logger
	every time.Duration // between two signs of life; 0: none are expected
	due   time.Time     // of the next one; only Round uses it
	queue chan string
	done  chan struct{}

	mu     sync.Mutex // guards status and the queue, so that no message follows Close
	status string     // as last sent
	closed bool
}

// New returns the Notifier of this process, by its environment; nil if no manager expects messages. Close it.
func New(log *slog.Logger) *Notifier {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil
	}
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the service manager gets no signs of life", "err", err)
	}
	n := &Notifier{log: log, every: every / 2, queue: make(chan string, messages), done: make(chan struct{})}
	go n.run()
	return n
}

// Environment returns the environment for child processes, without the manager's variables for this process.
func Environment(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		return strings.HasPrefix(kv, "NOTIFY_SOCKET=") || strings.HasPrefix(kv, "WATCHDOG_USEC=") || strings.HasPrefix(kv, "WATCHDOG_PID=")
	})
}

func (n *Notifier) run() {
	defer close(n.done)
	failing := false
	for s := range n.queue {
		_, err := daemon.SdNotify(false, s)
		if err != nil && !failing {
			n.log.Warn("cannot notify the service manager", "err", err)
		}
		failing = err != nil
	}
}

// Close sends the remaining messages, and gives up after closeWait.
func (n *Notifier) Close() error {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	if !n.closed {
		n.closed = true
		close(n.queue)
	}
	n.mu.Unlock()
	t := time.NewTimer(closeWait)
	defer t.Stop()
	select {
	case <-n.done:
		return nil
	case <-t.C:
		return fmt.Errorf("service manager: no notification within %s", closeWait)
	}
}

// say queues a message, whose lines are assignments.
func (n *Notifier) say(lines ...string) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queueLocked(lines...)
}

func (n *Notifier) queueLocked(lines ...string) {
	if n.closed {
		return
	}
	select {
	case n.queue <- strings.Join(lines, "\n"):
	default:
	}
}

// Ready reports that the process serves, or that a reload is done.
func (n *Notifier) Ready() { n.say(daemon.SdNotifyReady) }

// Status sends a status text for people, unless it is the last one sent.
func (n *Notifier) Status(words string) {
	if n == nil {
		return
	}
	words = strings.Join(strings.Fields(words), " ") // one line
	n.mu.Lock()
	defer n.mu.Unlock()
	if words != n.status {
		n.status = words
		n.queueLocked("STATUS=" + words)
	}
}

// Patience requests more time before the manager considers the start, or the current reload, failed.
func (n *Notifier) Patience(d time.Duration) {
	n.say(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", d.Microseconds()))
}

// Reloading reports that a reload has begun, at a time of CLOCK_MONOTONIC in ns. Ready ends it.
func (n *Notifier) Reloading(mono int64) {
	n.say(daemon.SdNotifyReloading, fmt.Sprintf("MONOTONIC_USEC=%d", mono/int64(time.Microsecond)))
}

// Stopping reports that the process is about to end on request.
func (n *Notifier) Stopping() { n.say(daemon.SdNotifyStopping) }

// Every returns the time between two signs of life, half of the manager's time limit; 0: the manager expects none.
func (n *Notifier) Every() time.Duration {
	if n == nil {
		return 0
	}
	return n.every
}

// Alive sends a sign of life.
func (n *Notifier) Alive() { n.say(daemon.SdNotifyWatchdog) }

// Round is Alive for a loop with rounds much shorter than Every, for one goroutine: it sends one sign of life in Every, and otherwise
// costs a comparison of times.
func (n *Notifier) Round(now time.Time) {
	if n == nil || n.every == 0 || now.Before(n.due) {
		return
	}
	n.due = now.Add(n.every)
	n.Alive()
}

// Package sdnotify tells the service manager that has started a process of the agent how it fares: systemd, by the protocol of
// sd_notify(3). It decides nothing: who says that he is ready, and that his loop goes round, is who knows.
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
	// messages is how many wait at most.
	messages = 32
	// closeWait is how long Close waits for what is left.
	closeWait = time.Second
)

// Notifier tells the manager. A nil Notifier is that of a process of which no manager wants to hear: it says nothing.
//
// It never waits for the manager, who may hang: what is said goes out from a goroutine of its own, in order. When messages wait
// the next one drops; the manager learns the status with the next change, and misses signs of life as it should.
type Notifier struct {
	log   *slog.Logger
	every time.Duration // between two signs of life; 0: none are wanted
	due   time.Time     // of the next one: Round's alone
	queue chan string
	done  chan struct{}

	mu     sync.Mutex // guards what follows, and that nothing is queued after Close
	status string     // as last said
	closed bool
}

// New returns the Notifier of this process, as its environment says; nil: no manager wants to hear. Close it.
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

// Environment returns an environment without what is the manager's word to this process alone, for processes that this one starts.
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
			n.log.Warn("the service manager cannot be told", "err", err)
		}
		failing = err != nil
	}
}

// Close says what is left to be said, and gives up when that takes too long.
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
		return fmt.Errorf("service manager: not told within %s", closeWait)
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

// Ready says that the process serves, or that a reload is done.
func (n *Notifier) Ready() { n.say(daemon.SdNotifyReady) }

// Status says in words for people how it fares, unless it has said so already.
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

// Patience asks for so much more time before the start, or the reload that is under way, is taken for failed.
func (n *Notifier) Patience(d time.Duration) {
	n.say(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", d.Microseconds()))
}

// Reloading says that a reload has begun, at a time of CLOCK_MONOTONIC in ns. Ready ends it.
func (n *Notifier) Reloading(mono int64) {
	n.say(daemon.SdNotifyReloading, fmt.Sprintf("MONOTONIC_USEC=%d", mono/int64(time.Microsecond)))
}

// Stopping says that the process is about to end because it was asked to.
func (n *Notifier) Stopping() { n.say(daemon.SdNotifyStopping) }

// Every is the time between two signs of life, half of what the manager waits for one; 0: it waits for none.
func (n *Notifier) Every() time.Duration {
	if n == nil {
		return 0
	}
	return n.every
}

// Alive is a sign of life.
func (n *Notifier) Alive() { n.say(daemon.SdNotifyWatchdog) }

// Round is Alive for a loop that goes round much more often than every Every, from that goroutine alone: it passes on one in
// Every, and costs a comparison of times else.
func (n *Notifier) Round(now time.Time) {
	if n == nil || n.every == 0 || now.Before(n.due) {
		return
	}
	n.due = now.Add(n.every)
	n.Alive()
}

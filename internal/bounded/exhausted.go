package bounded

import (
	"errors"
	"math"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// While there are no file descriptors, a listener tries again with pauses that double, and logs once in exhaustedEvery.
const (
	exhaustedFirst = 5 * time.Millisecond
	exhaustedPause = time.Second
	exhaustedEvery = time.Minute
)

// exhaustion is the lack of file descriptors, as one accepting goroutine sees it.
type exhaustion struct {
	pause    time.Duration // before the next attempt
	loggedAt time.Time
}

// wait handles an error of Accept. If file descriptors ran out, it waits, and reports whether to try again: the
// connection stays in the kernel's queue. It returns early when the listener closes.
func (l *Listener) wait(err error) bool {
	x := &l.exhausted
	if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) {
		return false
	}
	if now := time.Now(); l.opts.Log != nil && now.Sub(x.loggedAt) >= exhaustedEvery {
		x.loggedAt = now
		limit, raise := descriptorLimit(err)
		l.opts.Log.Error("out of file descriptors: new connections wait", "listener", l.Addr().String(), "limit", limit, "raise", raise)
	}
	x.pause = min(max(2*x.pause, exhaustedFirst), exhaustedPause)
	select {
	case <-time.After(x.pause):
		return true
	case <-l.closed:
		return false
	}
}

// descriptorLimit returns the limit that was reached, and how to raise it.
func descriptorLimit(err error) (limit, raise string) {
	if errors.Is(err, unix.ENFILE) {
		return "of the whole machine", "sysctl fs.file-max"
	}
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil || r.Cur == math.MaxUint64 {
		return "of this process", "LimitNOFILE= in the systemd unit, or ulimit -n"
	}
	return strconv.FormatUint(r.Cur, 10), "LimitNOFILE= in the systemd unit, or ulimit -n"
}

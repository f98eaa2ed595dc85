package agent

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
)

// A daemon may be there before the one whose place it takes has ended, as the pod of a new version is: it waits for the other's locks, and says so by one of its own, so that the
// other one, when it is asked to end, tells the neighbours that its DNP half will be back. The halves that the new one starts go on from the old ones' copies.

const (
	// takeOverEvery is how often a daemon that waits looks whether the other one has ended. Neither half runs from then on.
	takeOverEvery = 5 * time.Millisecond
	// takeOverTime is within what time the neighbours are told that the half is back: that in which a new process serves on a busy machine, and some more.
	takeOverTime = 2 * time.Second
)

// errOther says that another process has the lock.
var errOther = errors.New("serves this state directory")

// awaitedLock is what the daemon that waits to look after a half holds.
func awaitedLock(h fault.Half) string { return h.String() + ".run.next" }

// lock is lockAlone for this daemon; of one that waits it returns when it has the lock, or nil when ctx ends before.
func (d *daemon) lock(ctx context.Context, path string) (*os.File, error) {
	f, err := lockAlone(path, "run")
	if !d.cfg.Wait || !errors.Is(err, errOther) {
		return f, err
	}
	for _, h := range d.cfg.halves() {
		next, err := lockAlone(d.statePath(awaitedLock(h)), "run")
		if err != nil {
			d.log.Warn("the neighbours will not be told that the half is to be back", "half", h.String(), "err", err)
			continue
		}
		defer func() { _ = next.Close() }()
	}
	d.log.Info("another daemon is at work: this one takes over when it ends", "lock", path)
	t := time.NewTicker(takeOverEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case <-t.C:
		}
		if f, err = lockAlone(path, "run"); !errors.Is(err, errOther) {
			return f, err
		}
	}
}

// handOver tells the neighbours of a DNP half that was stopped that it will be back, if another daemon waits to start it.
func (c *child) handOver() {
	if c.links == nil || !c.d.awaited(c.half) {
		return
	}
	c.log.Info("another daemon takes over")
	c.links.open()
	c.readStores() // the register file as it is now
	if err := c.links.announce(c.registers, takeOverTime, 1, false); err != nil {
		c.log.Info("restart not announced to the neighbours", "err", err)
	}
}

// awaited says whether a daemon waits to look after the half.
func (d *daemon) awaited(h fault.Half) bool {
	f, err := os.OpenFile(d.statePath(awaitedLock(h)), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false // nobody ever has
	}
	defer func() { _ = f.Close() }()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

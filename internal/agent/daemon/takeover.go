package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
)

// A daemon may be there before the one whose place it takes has ended, as the pod of a new version is: it waits for the other's locks, and says so by one of its own, so that the
// other one, when it is asked to end, tells the neighbours that its DNP half will be back. The halves that the new one starts go on from the old ones' copies.

const (
	// takeOverEvery is how often a daemon that waits looks whether the other one has ended. Neither half runs from then on.
	takeOverEvery = 5 * time.Millisecond
	// takeOverTime is within what time the neighbours are told that the half is back: that in which a new process serves on a busy machine, and some more.
	takeOverTime = 2 * time.Second
	// settleTime is how long a daemon waits at least: in that time the links of a node that was taken over just before, and did not come back, are broken. takeOverTime and
	// 1 s, after which links are silent at preset relaxed; and for the old daemon to be asked to end, and the new one to fail.
	settleTime = takeOverTime + 3*time.Second
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
		if err := noteWaiter(next); err != nil {
			d.log.Warn("this daemon's readiness does not tell that it waits", "half", h.String(), "err", err)
		}
		defer func() { _ = errors.Join(next.Truncate(0), next.Close()) }()
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

// pidNamespace names the processes among which this one is: all of a container, and no other's.
const pidNamespace = "/proc/self/ns/pid"

// noteWaiter writes into the lock of a daemon that waits where it runs, and since when: CLOCK_MONOTONIC in ns.
func noteWaiter(lock *os.File) error {
	where, err := os.Readlink(pidNamespace)
	if err != nil {
		return err
	}
	if err := lock.Truncate(0); err != nil {
		return err
	}
	_, err = lock.WriteAt(fmt.Appendf(nil, "%s %d\n", where, half.Monotonic()), 0)
	return err
}

// waits says for how long a daemon of this container has waited to look after the half; false: none does. The one before it, whose container has the same state directory, is
// not spoken of: a DaemonSet ends a pod at once that is not ready while another one is there.
func waits(stateDir string, h fault.Half) (time.Duration, bool) {
	f, err := os.OpenFile(filepath.Join(stateDir, awaitedLock(h)), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, false // nobody ever has
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, 128))
	if err != nil {
		return 0, false
	}
	here, err := os.Readlink(pidNamespace)
	if err != nil {
		return 0, false
	}
	where, at, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	var since int64
	if _, err := fmt.Sscan(at, &since); err != nil || where != here {
		return 0, false
	}
	// Only now, for it would be in the way of one that begins to wait.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return 0, false
	}
	return time.Duration(half.Monotonic() - since), true
}

// MayTakeOver says why the daemon of this container that waits to look after a half, or both where of is 0, had better not take over yet; nil: it may, or none waits. A neighbour
// that is gone may be one that was taken over just before and did not come back: so a version that does not work comes to some nodes, and not to all.
func MayTakeOver(cfg config.Agent, of fault.Half) error {
	return half.EachHalf(of, func(h fault.Half) error {
		waited, is := waits(cfg.StateDir, h)
		switch {
		case !is:
			return nil
		case waited < settleTime:
			return fmt.Errorf("%s half: its daemon has waited for %s: want %s, in which a neighbour that does not come back is found", h, waited.Round(time.Millisecond), settleTime)
		}
		f, err := regfile.OpenReadOnly(filepath.Join(cfg.StateDir, half.RegisterFile))
		if err != nil {
			return fmt.Errorf("%s half: %w", h, err)
		}
		defer func() { _ = f.Close() }()
		return neighboursServe(f)
	})
}

// neighboursServe says which neighbours do not serve, or their hosts; nil: all do, but for those behind masked links, whose fault is known.
func neighboursServe(f *regfile.File) error {
	w, _, err := f.LoadDNP()
	if err != nil {
		return err
	}
	d, _, err := f.LoadDescriptor()
	if err != nil {
		return err
	}
	mask, err := f.Load(watchdog.AddrChannelMask)
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range grid.Directions() {
		switch {
		case !chanmask.Mask(mask).Usable(dir):
		case w.Links[dir.Index()] == watchdog.HealthBroken:
			errs = append(errs, fmt.Errorf("the link %s is broken: no node is taken over beside one that is gone: mask the link if that is known", dir))
		case w.NeighbourHostFailed[dir.Index()] && !d.Neighbours[dir.Index()].Any(): // with parts in the descriptor it lives
			errs = append(errs, fmt.Errorf("the host half at the end of link %s is dead: no node is taken over beside one that is gone: mask the link if that is known", dir))
		}
	}
	return errors.Join(errs...)
}

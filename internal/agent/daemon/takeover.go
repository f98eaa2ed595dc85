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

// A daemon may start before its predecessor has ended, like the pod of a new version. It waits for the other's locks,
// and shows that by a lock of its own. So the other daemon, on a request to end, tells the neighbours that its DNP half
// will return. The halves that the new daemon starts resume from the old ones' copies.

const (
	// takeOverEvery is the interval at which a waiting daemon checks whether the other one has ended. From then on
	// neither half runs.
	takeOverEvery = 5 * time.Millisecond
	// takeOverTime is the announced time until the half is back: the time in which a new process serves on a busy
	// machine, and a margin.
	takeOverTime = 2 * time.Second
	// settleTime is the least time that a daemon waits. In that time, the links of a node whose takeover came just
	// before and failed are broken. It is takeOverTime and 1 s, after which links are silent at preset relaxed, plus
	// time for the old daemon to receive the request to end, and for the new one to fail.
	settleTime = takeOverTime + 3*time.Second
	// leaveTime is the announced time of a spare that leaves its place: the supervisors' orders reach its former neighbours
	// within 10 s.
	leaveTime = 15 * time.Second
)

// errOther says that another process has the lock.
var errOther = errors.New("serves this state directory")

// awaitedLock is the lock of the daemon that waits to look after a half.
func awaitedLock(h fault.Half) string { return h.String() + ".run.next" }

// lock is lockAlone for this daemon. A waiting daemon gets the lock when it is free, or nil when ctx ends first.
func (d *daemon) lock(ctx context.Context, path string) (*os.File, error) {
	f, err := lockAlone(path, "run")
	if !d.cfg.Wait || !errors.Is(err, errOther) {
		return f, err
	}
	for _, h := range d.cfg.halves() {
		next, err := lockAlone(d.statePath(awaitedLock(h)), "run")
		if err != nil {
			d.log.Warn("cannot announce the restart of the half to the neighbours", "half", h.String(), "err", err)
			continue
		}
		if err := noteWaiter(next); err != nil {
			d.log.Warn("cannot record for the readiness probe that this daemon waits", "half", h.String(), "err", err)
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

// handOver tells the neighbours of a stopped DNP half that it will return, if another daemon waits to start it. Former
// neighbours of a spare that leaves its place may not have their orders yet: they are to wait for those.
func (c *child) handOver() {
	if c.links == nil {
		return
	}
	back, left := takeOverTime, c.d.left.Load()
	switch {
	case left != nil:
		back, c.links.left = leaveTime, left
		c.log.Info("place left: the former neighbours are notified", "was", left.Place())
	case c.d.awaited(c.half):
		c.log.Info("another daemon takes over")
	default:
		return
	}
	c.links.open()
	c.readStores() // from the present register file
	if err := c.links.announce(c.registers, back, 1, false); err != nil {
		c.log.Info("restart not announced to the neighbours", "err", err)
	}
}

// awaited reports whether a daemon waits to look after the half.
func (d *daemon) awaited(h fault.Half) bool { return d.held(awaitedLock(h)) }

// held reports whether a process holds the lock of that name in the state directory. It asks for a shared lock, so that two processes
// that ask at once do not take each other for a holder.
func (d *daemon) held(name string) bool {
	f, err := os.OpenFile(d.statePath(name), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false // no process has ever held it
	}
	defer func() { _ = f.Close() }()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// pidNamespace identifies the processes in this process's namespace: all of a container, and no other's.
const pidNamespace = "/proc/self/ns/pid"

// noteWaiter writes into a waiting daemon's lock where it runs, and since when: CLOCK_MONOTONIC in ns.
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

// waits returns how long a daemon of this container has waited to look after the half; false: none waits. Its
// predecessor, in another container with the same state directory, does not count: a DaemonSet immediately ends a pod
// that is not ready while another one is there.
func waits(stateDir string, h fault.Half) (time.Duration, bool) {
	f, err := os.OpenFile(filepath.Join(stateDir, awaitedLock(h)), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, false // no daemon has ever waited
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
	// Only now, because this lock would obstruct a daemon that begins to wait.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return 0, false
	}
	return time.Duration(half.Monotonic() - since), true
}

// MayTakeOver returns the reason why the daemon of this container, for a half or for both if of is 0, should not take over
// yet; nil: it may, or has already done so. A daemon that still enrols does not wait yet. A missing neighbour may be one
// whose takeover has just failed: it did not return. So a version that does not work reaches some nodes, but not all.
func MayTakeOver(cfg config.Agent, of fault.Half) error {
	return half.EachHalf(of, func(h fault.Half) error {
		waited, is := waits(cfg.StateDir, h)
		switch {
		case !is:
			holder, held, err := regfile.HolderOf(filepath.Join(cfg.StateDir, half.RegisterFile), h)
			if err == nil && held && holder.Elsewhere(regfile.PIDNamespace()) {
				return fmt.Errorf("%s half: runs in another container, and the daemon of this one does not wait for it yet", h)
			}
			return nil
		case waited < settleTime:
			return fmt.Errorf("%s half: its daemon has waited for %s: want %s, in which a neighbour that does not come back is found",
				h, waited.Round(time.Millisecond), settleTime)
		}
		f, err := regfile.OpenReadOnly(filepath.Join(cfg.StateDir, half.RegisterFile))
		if err != nil {
			return fmt.Errorf("%s half: %w", h, err)
		}
		defer func() { _ = f.Close() }()
		return neighboursServe(f)
	})
}

// neighboursServe returns an error that names the neighbours, or their hosts, that do not serve; nil: all do, except
// those behind masked links, whose fault is known.
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
			errs = append(errs, fmt.Errorf("the link %s is broken: no takeover beside a node that is gone: mask the link if that "+
				"is known",
				dir))
		case w.NeighbourHostFailed[dir.Index()] && !d.Neighbours[dir.Index()].Any(): // listed parts mean that it lives
			errs = append(errs, fmt.Errorf("the host half at the end of link %s is dead: no takeover beside a node that is gone: "+
				"mask the "+
				"link if that is known", dir))
		}
	}
	return errors.Join(errs...)
}

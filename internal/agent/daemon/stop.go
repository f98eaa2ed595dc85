package daemon

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/local"
)

// A daemon that is told to end announces that to the supervisors before it ends the halves, and announces the return when
// the halves of the next start have passed their self-tests. See docs/adr/0070-announced-stops.md.

const (
	// returnLook is the interval of looking at halves that are starting.
	returnLook = 20 * time.Millisecond
	// returnRetry is the time between two tries to announce the return.
	returnRetry = time.Second
	// returnWithin bounds one try, and so the delay of a stop that is announced meanwhile. The host half answers at once. A try through
	// a window may take longer: see tellReturn.
	returnWithin = 250 * time.Millisecond
	// returnFor is how long the daemon tries. By then the supervisors know of the return by the new boot epochs.
	returnFor = time.Minute
	// togetherWithin is how long the daemon of one half waits for the other half's daemon to stop as well.
	togetherWithin = 500 * time.Millisecond
)

// ending orders the notices of one daemon: after the notice of a stop, it announces no return.
type ending struct {
	mu    sync.Mutex // held while the return is announced
	begun bool
}

// begin suppresses later announcements of the return. It first waits until a running announcement has ended, with or without success.
func (e *ending) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.begun = true
}

func (e *ending) hasBegun() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.begun
}

// tellReturn announces the return. While the other half is about to end, it only announces the end of this half's restart: the return would
// also end the notice of the other half's restart. Once the daemon is ending, it does nothing and returns nil.
func (d *daemon) tellReturn(ctx context.Context) error {
	d.ending.mu.Lock()
	defer d.ending.mu.Unlock()
	if d.ending.begun {
		return nil
	}
	if d.beyondWindow() { // the daemon there announces the node's return
		return d.announceThroughWindow(ctx, 0, returnWithin+throughNotices*throughEvery+min(d.periods.TWrite, 500*time.Millisecond))
	}
	ctx, cancel := context.WithTimeout(ctx, returnWithin)
	defer cancel()
	if d.otherRestarts() {
		return local.AnnounceRestart(ctx, d.cfg.Agent.StateDir, fault.RestartNotice{Half: d.cfg.Half})
	}
	return local.AnnounceStop(ctx, d.cfg.Agent.StateDir, fault.StopOver)
}

// untilAnnounced returns a context that ends after ctx, when the stop has been announced. Call end to release it: if ctx has ended, end
// waits until the stop is on disk, too, and returns true.
func (d *daemon) untilAnnounced(ctx context.Context) (serving context.Context, end func() bool) {
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		d.stopping()
		ctx := context.WithoutCancel(ctx)
		reason := stopReason(ctx, shutdownSigns, d.cfg.Agent.LeaveOnShutdown)
		recorded := make(chan struct{})
		go func() { // a slow disk delays no announcement
			defer close(recorded)
			d.boots.end(reason)
		}()
		d.announceStop(ctx, reason)
		cancel()
		<-recorded
	})
	return serving, func() bool {
		stopped := !stop()
		if stopped {
			<-done
		}
		cancel()
		return stopped
	}
}

// announceStop makes the host half notify the supervisors that this node stops. If another daemon waits to take over, the
// notice is about restarts of the halves, which change no state. The stop goes on even without the supervisors.
func (d *daemon) announceStop(ctx context.Context, reason fault.Stop) {
	d.ending.begin()
	if reason == fault.StopDaemon && d.announceTakeover(ctx) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, announceWithin)
	defer cancel()
	if d.beyondWindow() { // the host half has another kernel, and stays: for the supervisors, the DNP half restarts
		d.announce(ctx, d.cfg.Half, announceWithin)
		return
	}
	if !d.nodeStops(ctx, reason) {
		d.announced.Store(d.announce(ctx, d.cfg.Half, announceWithin))
		return
	}
	began := time.Now()
	if err := local.AnnounceStop(ctx, d.cfg.Agent.StateDir, reason); err != nil {
		d.log.Info("stop not announced to the supervisors: they will see a node that died", "reason", reason.String(), "err", err)
		return
	}
	d.announced.Store(true)
	d.log.Info("stop announced to the supervisors", "reason", reason.String(), "took", time.Since(began).Round(time.Millisecond).String())
}

// announceTakeover announces restarts of the halves that other daemons wait to take over. It returns false if no daemon waits.
func (d *daemon) announceTakeover(ctx context.Context) bool {
	awaited := slices.DeleteFunc(d.cfg.halves(), func(h fault.Half) bool { return !d.awaited(h) })
	if len(awaited) == 0 {
		return false
	}
	var all sync.WaitGroup
	committed := make([]bool, len(awaited))
	for i, h := range awaited {
		all.Go(func() { committed[i] = d.announce(ctx, h, takeOverWithin) })
	}
	all.Wait()
	d.announced.Store(!slices.Contains(committed, false))
	return true
}

// stopLock is the lock that a half's daemon holds while it stops.
func stopLock(h fault.Half) string { return h.String() + ".run.stop" }

// nodeStops reports whether the whole node stops, and not only this daemon's half: the machine goes down, or the daemon of the
// other half stops too.
func (d *daemon) nodeStops(ctx context.Context, reason fault.Stop) bool {
	switch {
	case d.cfg.Half == 0 || reason != fault.StopDaemon:
		return true
	case !d.cfg.Agent.Window.Zero():
		return false // the other half has another kernel
	}
	lock, err := lockAlone(d.statePath(stopLock(d.cfg.Half)), "run")
	if err != nil {
		d.log.Warn("cannot show the other daemon that this one stops", "err", err)
	} else {
		d.stopLock = lock // until this process ends
	}
	ctx, cancel := context.WithTimeout(ctx, togetherWithin)
	defer cancel()
	t := time.NewTicker(returnLook)
	defer t.Stop()
	for !d.held(stopLock(d.cfg.Half.Other())) {
		select {
		case <-ctx.Done():
			return false
		case <-t.C:
		}
	}
	return true
}

// announceReturn makes the host half notify the supervisors that this node is back, when this daemon's halves have passed
// their self-tests. After restartWithin it does so in any case, and the supervisors judge by the evidence. It checks the self-tests again
// before each try, because a half may restart between two tries.
func (d *daemon) announceReturn(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, returnFor)
	defer cancel()
	for end := time.Now().Add(restartWithin); ; {
		pause := returnLook
		if d.proven() || time.Now().After(end) {
			err := d.tellReturn(ctx)
			if err == nil {
				return
			}
			d.log.Debug("return not announced yet", "err", err)
			pause = returnRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// proven reports whether both halves have passed their self-tests; of two kernels, the half on this one.
func (d *daemon) proven() bool {
	for _, c := range d.halves {
		r, known := c.known()
		if p := c.holder(); !known || r.State != halfcore.Running || p.PID == 0 || !c.proven(p) {
			return false
		}
	}
	return d.cfg.Half == 0 || !d.cfg.Agent.Window.Zero() || d.otherProven()
}

// otherRestarts reports whether the node's other half is about to end: a daemon waits to take it over, or its daemon stops. It is false if
// this daemon runs both halves.
func (d *daemon) otherRestarts() bool {
	if d.cfg.Half == 0 {
		return false
	}
	other := d.cfg.Half.Other()
	return d.awaited(other) || d.held(stopLock(other))
}

// otherProven reports whether the node's other half, which another daemon runs, has passed its self-tests. A half that is about to end does
// not count: its restart is announced as well, and the return would end that notice too.
func (d *daemon) otherProven() bool {
	path, other := d.statePath(half.RegisterFile), d.cfg.Half.Other()
	if d.otherRestarts() {
		return false
	}
	_, held, err := regfile.HolderOf(path, other)
	if err != nil || !held {
		return false
	}
	h, err := regfile.LastHolder(path, other)
	return err == nil && h.Tests == regfile.Proven
}

// shutdownAt names the files that show a shutdown.
type shutdownAt struct {
	scheduled string // has MODE=reboot, poweroff, halt or kexec, and its time in USEC
	noLogin   string // present during a shutdown, and before a scheduled one
	systemd   string // present where systemd is the first process
}

var shutdownSigns = shutdownAt{scheduled: "/run/systemd/shutdown/scheduled", noLogin: "/run/nologin", systemd: "/run/systemd/system"}

// stateWithin bounds the question to systemd for its jobs.
const stateWithin = time.Second

// maxScheduled is how many bytes of the scheduled file are read.
const maxScheduled = 4096

// stopReason returns the reason for a stop as far as the files and systemd show it. In a container without them it is a stop
// of the agent. With leave, a node whose machine certainly shuts down, and does not reboot, leaves the cluster.
func stopReason(ctx context.Context, at shutdownAt, leave bool) fault.Stop {
	switch mode := shutdownMode(ctx, at); {
	case mode == fault.StopShutdown && leave:
		return fault.StopLeave
	case mode != 0:
		return mode
	}
	if _, err := os.Stat(at.noLogin); err == nil {
		return fault.StopShutdown
	}
	return fault.StopDaemon
}

// dueMode returns the mode of a scheduled shutdown whose time has come; 0 if there is none. An agent that stops earlier does so for another
// reason.
func dueMode(file string) fault.Stop {
	f, err := os.Open(file)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	set := make(map[string]string)
	for lines := bufio.NewScanner(io.LimitReader(f, maxScheduled)); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), "=")
		set[key] = value
	}
	usec, err := strconv.ParseInt(set["USEC"], 10, 64)
	if err != nil || time.Now().Before(time.UnixMicro(usec)) {
		return 0
	}
	return stopBy(set["MODE"])
}

// shutdownMode returns the mode of a shutdown that is due, or under way; 0 if none is, or if the mode is unknown.
func shutdownMode(ctx context.Context, at shutdownAt) fault.Stop {
	if mode := dueMode(at.scheduled); mode != 0 {
		return mode
	}
	if _, err := os.Stat(at.systemd); err != nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, stateWithin)
	defer cancel()
	// Its lines are "123 reboot.target start waiting". `systemctl reboot` ends the agent before the files show a shutdown.
	out, _ := exec.CommandContext(ctx, "systemctl", "list-jobs", "--no-legend", "--no-pager").Output()
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) >= 3 && f[2] == "start" {
			if stop := stopBy(strings.TrimSuffix(f[1], ".target")); stop != 0 {
				return stop
			}
		}
	}
	return 0
}

// stopBy returns the stop of a mode of shutdown, which is also the name of systemd's target.
func stopBy(mode string) fault.Stop {
	switch mode {
	case "reboot", "soft-reboot", "kexec":
		return fault.StopReboot
	case "poweroff", "halt":
		return fault.StopShutdown
	default:
		return 0
	}
}

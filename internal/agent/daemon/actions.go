package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/sdnotify"
)

// The daemon carries out the responses' acts on this node: it may start programs and wait for the disk, and it outlives
// the halves.

// serveActs handles orders to act, at the sockets of the halves that this daemon looks after, until ctx ends. The
// halves do not need it.
func (d *daemon) serveActs(ctx context.Context) {
	who := NewActionRunner(ctx, ActionRunnerConfig{
		Node: d.cfg.Agent.Node, StateDir: d.cfg.Agent.StateDir, Allowed: d.cfg.Agent.Responses, Sysfs: d.cfg.Agent.Sensors.Sysfs,
		Env: sdnotify.Environment(os.Environ()), Restart: d.restartHalf, Log: d.log,
	})
	defer who.Wait()
	d.setRunner(who)
	defer d.setRunner(nil)
	done := make(chan struct{}, len(d.halves))
	for h := range d.halves {
		go func() {
			defer func() { done <- struct{}{} }()
			if err := who.Begin(h); err != nil {
				d.log.Error("cannot read which acts were under way", "half", h.String(), "err", err)
			}
			if err := half.ServeUnix(ctx, d.statePath(actions.Socket(h)), who.Handler(h)); err != nil {
				d.log.Warn("no response will have this node do anything", "half", h.String(), "err", err)
			}
		}()
	}
	for range d.halves {
		<-done
	}
}

// restartLock is held while a response restarts a half: never both halves at once, whichever daemons look after them.
const restartLock = "restart.lock"

// restartLook is the interval of looking at a half that is being restarted.
const restartLook = 10 * time.Millisecond

// restarted is the note stored before a half is ended: its process at that time.
type restarted struct {
	PID   int    `json:"pid"`                     // 0: it was given up, and no process ran
	Start uint64 `json:"start_ticks,omitempty"`   // regfile.StartTime of the process; 0: not known
	Space uint64 `json:"pid_namespace,omitempty"` // regfile.PIDNamespace of PID; 0: not known
}

// restartHalf ends a half, and the loop that looks after it starts it again, as if it had been killed: the restart
// counts against its budget, and neighbours are notified. It begins only while the other half serves, and succeeds when
// the new process has passed its self-test.
func (d *daemon) restartHalf(ctx context.Context, half fault.Half, earlier string, note func(string) error) actions.Result {
	c := d.halves[half]
	if c == nil {
		return resultUnchanged("the %s half is another daemon's", half)
	}
	lock, err := lockAlone(d.statePath(restartLock), "run that restarts a half for a response")
	if err != nil {
		return resultUnchanged("a half of this node is being restarted already: %v", err)
	}
	defer func() { _ = lock.Close() }()
	if earlier != "" {
		var was restarted
		if err := json.Unmarshal([]byte(earlier), &was); err != nil {
			return resultUnchanged("the values that an earlier attempt stored: %v", err)
		}
		before := regfile.Holder{PID: was.PID, Start: was.Start, Space: was.Space}
		if now := c.holder(); now.PID != 0 && !now.Same(before) {
			defer d.endNotice(ctx, half)
			return c.awaitProven(ctx, before)
		}
	}
	other := half.Other()
	if err := d.otherServes(ctx, other); err != nil {
		return resultUnchanged("both halves are never down at once: %v", err)
	}
	pid, why := c.mayRestart(d.cfg.Restart)
	if why != "" {
		return resultUnchanged("%s", why)
	}
	before := regfile.Holder{PID: pid}
	if now := c.holder(); now.PID == pid {
		before = now
	}
	b, err := json.Marshal(restarted{PID: before.PID, Start: before.Start, Space: before.Space})
	if err == nil {
		err = note(string(b))
	}
	if err != nil {
		return resultUnchanged("%v", err)
	}
	failpoint.Hit(failpoint.ActNoted)
	defer d.endNotice(ctx, half)
	if pid == 0 {
		c.ask()
	} else {
		d.announce(ctx, half, announceWithin)
		c.log.Warn("half is ended for a restart that a response or a person requested", "pid", pid)
		if err := c.kill(pid); err != nil {
			return resultUnchanged("%v", err)
		}
	}
	return c.awaitProven(ctx, before)
}

const (
	// announceWithin bounds the wait for the supervisors to commit a notice. The half is restarted even without them.
	announceWithin = 2 * time.Second
	// takeOverWithin bounds that wait if another daemon waits to take over. An upgrade often replaces the supervisors too, so the commit
	// takes longer. The old halves serve meanwhile. The chart's terminationGracePeriodSeconds (20 s) and the unit's TimeoutStopSec
	// (20 s) must exceed the sum of takeOverWithin, an attempt to announce the return, a query of systemd (1 s), stopWait, longDiskWait,
	// and the last lines of a log that hangs (1 s).
	takeOverWithin = 8 * time.Second
)

// announceRetry is the time between two tries to reach a host half that does not run.
const announceRetry = 20 * time.Millisecond

// announce makes the host half notify the supervisors that a half is about to be restarted. Until it is back, they keep
// the states that the restart explains. wait bounds the wait for the commit. The notice lasts for restartWithin, plus the time
// by which wait exceeds announceWithin.
func (d *daemon) announce(ctx context.Context, half fault.Half, wait time.Duration) (committed bool) {
	if d.beyondWindow() {
		if err := d.announceThroughWindow(ctx, restartWithin+wait-announceWithin, wait); err != nil {
			d.log.Info("restart not announced through the window: the map may show a half that died", "err", err)
		}
		return false // no commit is confirmed
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	notice := fault.RestartNotice{Half: half, Within: restartWithin + wait - announceWithin}
	err := local.AnnounceRestart(ctx, d.cfg.Agent.StateDir, notice)
	for errors.Is(err, local.ErrNotRunning) && ctx.Err() == nil { // its own daemon may replace the host half: the next one announces
		select {
		case <-ctx.Done():
		case <-time.After(announceRetry):
			err = local.AnnounceRestart(ctx, d.cfg.Agent.StateDir, notice)
		}
	}
	if err != nil {
		d.log.Info("restart not announced to the supervisors: they will see a half that died", "half", half.String(), "err", err)
	}
	return err == nil
}

// endNotice makes the host half notify the supervisors that the restart is over, with any outcome. Once the daemon is ending, the
// halves end too, and the notice of that stands.
func (d *daemon) endNotice(ctx context.Context, half fault.Half) {
	if d.ending.hasBegun() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), announceWithin)
	defer cancel()
	var err error
	if d.beyondWindow() {
		err = d.tellReturn(ctx) // which is the same notice there
	} else {
		err = local.AnnounceRestart(ctx, d.cfg.Agent.StateDir, fault.RestartNotice{Half: half})
	}
	if err != nil {
		d.log.Debug("end of a restart not announced: the notice ends by itself", "half", half.String(), "err", err)
	}
}

// beyondWindow reports whether the host half, which informs the supervisors, has another kernel.
func (d *daemon) beyondWindow() bool {
	return d.halves[fault.HalfHost] == nil && !d.cfg.Agent.Window.Zero()
}

// The daemon sends a notice through the window throughNotices times to a serving host half, throughEvery apart, because the window may lose
// a message. The host half then still has time to report before its watchdog judges.
const (
	throughNotices = 3
	throughEvery   = 100 * time.Millisecond
)

// announceThroughWindow puts a restart notice of the DNP half into the host half's mailbox. The DNP half forwards it through the window.
// While the host half is away, announceThroughWindow repeats the notice, for wait at most. The host half counts repeated notices as one,
// and a host half of an earlier version ignores them. The host half never answers. Progress of its watchdog word shows that it serves.
// An error means that the host half did not serve for the time of wait, or that the register file or the last send failed. If wait is too
// short to see the word's progress, the host half counts as serving.
func (d *daemon) announceThroughWindow(ctx context.Context, within, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	m := mailbox.Message{Type: mailbox.Restart, Payload: half.AppendRestart(nil, within)}
	f, err := regfile.OpenReadOnly(d.statePath(half.RegisterFile))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	before, err := f.Progress(fault.HalfHost)
	for serves, sent := false, 0; err == nil; {
		told := mailbox.Tell(d.cfg.Agent.StateDir, fault.HalfHost, m)
		sent++
		select {
		case <-ctx.Done():
			if serves || d.periods.TWrite >= wait {
				return told
			}
			return errors.Join(fmt.Errorf("the host half did not serve for %s", wait), told)
		case <-time.After(throughEvery):
		}
		var now uint32
		if now, err = f.Progress(fault.HalfHost); now != before && !serves {
			serves, sent = true, 1 // the host half may have missed the earlier notices
		}
		if serves && sent >= throughNotices {
			return told
		}
	}
	return err
}

// otherServes returns an error if the other half does not serve: by its record, which another daemon may keep, and by
// its watchdog word, which must move. The record of a half with another kernel is not here: its word comes through the window.
func (d *daemon) otherServes(ctx context.Context, other fault.Half) error {
	state := halfcore.Stopped
	if !d.cfg.Agent.Window.Zero() {
		state = halfcore.Running
	} else if c := d.halves[other]; c != nil {
		r, _ := c.known()
		state = r.State
	} else if h, err := ReadRecovery(d.cfg.Agent.StateDir, other); err == nil && h != nil {
		state = h.Record.State
	}
	if state != halfcore.Running {
		return fmt.Errorf("the %s half is %s", other, state)
	}
	return half.Serves(ctx, d.cfg.Agent, other)
}

// mayRestart returns the process to end, 0 if the half was given up, or the reason why it is not restarted.
func (c *child) mayRestart(policy Restart) (pid int, why string) {
	r, known := c.known()
	switch {
	case policy == RestartNever:
		return 0, "this daemon restarts no half: it runs with --restart never"
	case known && r.State == halfcore.GivenUp:
		return 0, ""
	case !known || r.State != halfcore.Running || r.PID == 0:
		return 0, fmt.Sprintf("the %s half is %s, or served by another process", c.half, r.State)
	case r.Restarts >= r.Budget:
		return 0, fmt.Sprintf("restarts of the %s half within %s: %d: one more and it would be given up", c.half, r.Window, r.Restarts)
	}
	return r.PID, ""
}

// kill ends a process of the half, if it is the running one.
func (c *child) kill(pid int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil || c.process.pid != pid {
		return nil // it has just ended by itself: it is being restarted
	}
	c.process.requested.Store(true)
	if err := c.process.signal(syscall.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end the %s half: %w", c.half, err)
	}
	return nil
}

// awaitProven waits until a process other than before serves the half and has passed its self-test.
func (c *child) awaitProven(ctx context.Context, before regfile.Holder) actions.Result {
	t := time.NewTicker(restartLook)
	defer t.Stop()
	asked := before.PID == 0
	for {
		r, _ := c.known()
		now := c.holder()
		switch {
		case r.State == halfcore.Running && now.PID != 0 && !now.Same(before) && c.proven(now):
			return actions.Result{State: actions.Done, Detail: fmt.Sprintf("the %s half serves and has passed its self-test: process %d after %d",
				c.half, now.PID, before.PID)}
		case r.State == halfcore.GivenUp && !asked:
			return actions.Result{State: actions.Partly, Detail: r.Reason}
		case r.State != halfcore.GivenUp:
			asked = false
		}
		select {
		case <-ctx.Done():
			return actions.Result{State: actions.Partly,
				Detail: fmt.Sprintf("the %s half was ended, is %s, and has not passed its self-test in time", c.half, r.State)}
		case <-t.C:
		}
	}
}

// proven reports whether a process of the half has passed its self-test.
func (c *child) proven(p regfile.Holder) bool {
	h, err := regfile.LastHolder(c.d.statePath(half.RegisterFile), c.half)
	return err == nil && h.Same(p) && h.Tests == regfile.Proven
}

// holder returns the running process as it identifies itself in its lock file; the zero Holder: none runs.
func (c *child) holder() regfile.Holder {
	if p := c.running(); p != nil {
		return p.holder()
	}
	return regfile.Holder{}
}

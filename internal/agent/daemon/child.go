package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/sdnotify"
)

// child is one half as the daemon sees it. Its goroutine (lookAfter) owns the machine and the process; the mutex guards the
// fields that other goroutines read.
type child struct {
	d     *daemon
	half  fault.Half
	log   *slog.Logger
	asked chan struct{} // requests to run the half
	round chan struct{} // accepts a value whenever the loop goes round

	machine   *recovery.Machine
	registers *regfile.File // read-only; nil while there is none
	// doubtUntil: the register file was damaged, and the half may use another one.
	doubtUntil time.Time
	stores     uint32    // as last read
	testsAt    time.Time // when to check for the half's self-test result
	served     string    // the last warning about an unknown process that serves the half
	first      bool      // no process has worked yet: one that does not even start ends the daemon
	again      bool      // a refusal at the first start has led to a second start
	// earlier is the last process that the previous daemon started: it may not have taken its lock yet.
	earlier regfile.Holder
	alarm   *half.Alarm // nil before lookAfterUntil
	links   *links      // of a DNP half with restarts; nil: none are held
	// checked is the configuration that a person's restart has checked; nil: none, or the half has started since.
	checked atomic.Pointer[config.Agent]
	history *durable.Newest[halfcore.RecoveryHistory]
	slow    rate.Sometimes // logs that the disk delays the history
	opening *logOpening    // the opening of the log file that the disk has not completed; nil: none
	// ended is the last process, if it ended without a request; nil while a process runs.
	ended *halfcore.EndedProcess

	mu      sync.Mutex
	process *process // nil while none runs
	since   int64    // CLOCK_MONOTONIC of the last start or end, in ns
	record  halfcore.RecoveryRecord
	begun   bool  // record is valid: the daemon knows whether the half runs already
	silent  int64 // CLOCK_MONOTONIC since which it has not served, in ns; 0: it serves
}

func newChild(d *daemon, h fault.Half) *child {
	c := &child{
		d: d, half: h, log: d.log.With("half", h.String()), asked: make(chan struct{}, 1), round: make(chan struct{}), first: true,
		slow:  rate.Sometimes{Interval: time.Minute},
		since: half.Monotonic(), record: halfcore.RecoveryRecord{Half: h, State: halfcore.Stopped},
	}
	c.history = durable.NewNewest(func(x halfcore.RecoveryHistory) { d.noteKept(d.writeHistory(h, x)) })
	if h == fault.HalfDNP && d.cfg.Restart != RestartNever {
		c.links = newLinks(d.cfg.Agent, c.log)
	}
	return c
}

// lookAfter looks after one half until ctx ends, and then stops it.
func (c *child) lookAfter(ctx context.Context) error {
	err := c.lookAfterUntil(ctx)
	if c.alarm == nil {
		return err // nothing began
	}
	c.d.stopping()
	// Not deferred: a daemon that panics leaves the half, and its history, to the next one.
	c.stop()
	c.handOver()
	_ = c.step(recovery.Closed{}) // starts nothing
	if c.registers != nil {
		_ = c.registers.Close()
	}
	if c.links != nil {
		c.links.close()
	}
	return err
}

// hasBegun reports whether the half runs under this daemon, which has then replaced any earlier one.
func (c *child) hasBegun() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.begun
}

func (c *child) lookAfterUntil(ctx context.Context) error {
	rang, stop, err := c.openAlarm()
	if err != nil {
		return err
	}
	defer stop()
	if err := c.begin(); err != nil {
		return err
	}
	c.mu.Lock()
	c.record, c.begun = c.withMachine(c.machine.Record()), true // a half that stays given up has published nothing
	c.mu.Unlock()
	c.d.tellManager()
	for {
		var ended <-chan halfcore.Cause
		if p := c.running(); p != nil {
			ended = p.ended
		}
		var err error
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-rang:
			if !ok {
				return errAlarm
			}
			err = c.step(c.look())
			if ev := c.tests(); err == nil && ev != nil {
				err = c.step(ev)
			}
		case cause := <-ended:
			err = c.gone(cause)
		case <-c.asked:
			err = c.step(recovery.Asked{})
		case <-c.round:
		}
		if err != nil {
			return err
		}
	}
}

// begin creates the machine, and adopts a half that runs already.
func (c *child) begin() error {
	old, err := c.d.loadHistory(c.half)
	if err != nil {
		c.log.Warn("the record of earlier restarts is lost", "err", err)
	}
	if old != nil {
		c.earlier = regfile.Holder{PID: old.Record.PID, Start: old.Start, Space: old.Space}
	}
	p, served := c.adopt()
	cfg := c.d.cfg.Agent.Recovery
	c.machine = recovery.New(recovery.Config{
		Half: c.half, TRead: c.d.periods.TRead, Misses: c.d.periods.ReadMisses, StartWithin: cfg.StartWithin.D(),
		Budget: cfg.Restarts, Window: cfg.Window.D(), Leave: c.d.cfg.Restart == RestartNever,
	}, time.Now(), half.Monotonic(), old, p != nil || served)
	switch {
	case p != nil:
		c.first = false
		return c.began(p, true)
	case served:
		return c.step(recovery.Served{})
	}
	if r := c.machine.Record(); r.State == halfcore.GivenUp {
		c.log.Error("half stays given up: SIGHUP to this daemon starts it now", "reason", r.Reason)
	}
	return c.step(c.look())
}

// adopt takes over the process that already serves the half, or returns nil; then it reports whether another process
// serves the half that it cannot take over.
func (c *child) adopt() (*process, bool) {
	p, err := adopt(c.d.statePath(half.RegisterFile), c.half)
	if p == nil && err == nil && c.earlier.Start != 0 { // one that hangs before its lock has the sockets already
		p, _ = adoptHolder(c.earlier, c.half, nil)
	}
	served, why := errors.Is(err, errServed), ""
	if err != nil {
		why = err.Error()
	}
	switch {
	case why == c.served: // unchanged
	case served:
		c.log.Warn("half is served by another process, and left alone until that ends", "err", err)
	case err != nil:
		c.log.Warn("cannot determine whether the half runs already", "err", err)
	}
	c.served = why
	if p != nil {
		c.log.Info("half adopted", "pid", p.pid)
		if c.links != nil {
			c.links.adopt(p)
		}
	}
	return p, served
}

// step gives the machine an event, and carries out its output.
func (c *child) step(ev recovery.Event) error {
	now := time.Now()
	out := c.machine.Step(now, ev)
	var adopted *process
	if out.Start { // a daemon that was killed may just have started it
		p, served := c.adopt()
		if served {
			return c.step(recovery.Served{})
		}
		adopted = p
	}
	c.setAlarm(now, out.Wake)
	r := c.machine.Record()
	if out.Kill {
		c.log.Error("half is ended", "cause", r.Last.Cause.String())
		failpoint.Hit(failpoint.DaemonDetected)
		if p := c.running(); p != nil {
			_ = p.signal(syscall.SIGKILL)
		}
	}
	if out.Recovered {
		l := r.Last
		c.log.Warn("half serves again", "cause", l.Cause.String(), "attempt", l.Attempt, "detected_ns", l.At, "gone", micros(l.Gone), "started",
			micros(l.Started),
			"serving", micros(l.Serving), "restarts", r.Restarts, "total", r.Total)
	}
	if _, ok := ev.(recovery.Proven); ok && out.Tell {
		c.log.Info("half has passed its self-test", "proven", micros(r.Last.Proven))
	}
	if r.State == halfcore.Running {
		c.first = false
	}
	if out.Tell {
		c.publish(r)
	}
	if out.Announce > 0 && adopted == nil {
		c.announce(out.Announce, r)
	}
	switch {
	case adopted != nil:
		return c.began(adopted, true)
	case out.Start:
		return c.start()
	}
	return nil
}

// announce tells the neighbours of a DNP half's restart.
func (c *child) announce(back time.Duration, r halfcore.RecoveryRecord) {
	if c.links == nil || c.running() != nil || failpoint.Hit(failpoint.DaemonAnnounced) == failpoint.Drop {
		return
	}
	host := c.d.halves[fault.HalfHost]
	hostDead := host != nil && host.dead(half.Monotonic())
	c.links.open()
	c.readStores() // from the present register file
	if err := c.links.announce(c.registers, back, r.Last.Attempt, hostDead); err != nil {
		c.log.Info("restart not announced to the neighbours", "err", err)
	}
}

// dead reports whether the neighbours should consider the half dead, at a time of CLOCK_MONOTONIC: it is left or given
// up, or has not served for as long as makes a word stale. A half that is about to be adopted, or that is back soon, is
// not dead.
func (c *child) dead(now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.begun || c.record.State == halfcore.Running:
		return false
	case c.record.State == halfcore.GivenUp || c.record.State == halfcore.Stopped:
		return true
	}
	return time.Duration(now-c.silent) > watchdog.StaleBound(c.d.periods.TRead, c.d.periods.ReadMisses)
}

func micros(d time.Duration) string { return d.Round(time.Microsecond).String() }

// publish stores the half's record and sends it to the halves.
func (c *child) publish(r halfcore.RecoveryRecord) {
	if r.State == halfcore.Stopped || r.State == halfcore.GivenUp {
		r.Ended = c.ended
	}
	c.mu.Lock()
	r = c.withMachine(r)
	before := c.record.State
	c.record = r
	if r.State == halfcore.Running {
		c.silent = 0
	} else if c.silent == 0 {
		c.silent = half.Monotonic()
	}
	c.mu.Unlock()
	if r.State == halfcore.GivenUp && before != halfcore.GivenUp {
		c.log.Error("half is given up: SIGHUP to this daemon starts it now", "reason", r.Reason)
		if c.links != nil {
			c.links.close() // so that a person can start it by hand
		}
	}
	if r.State != before {
		select {
		case c.d.changed <- struct{}{}:
		default: // not handled yet, or in a test without a daemon
		}
	}
	h := c.machine.History()
	if p := c.running(); p != nil && p.pid == r.PID {
		h.Start, h.Space = p.start, regfile.PIDNamespace()
	}
	if r.Ended != nil {
		c.d.tell() // before the disk: the other half states the death
	}
	c.keepHistory(h, r.State == halfcore.Stopped)
	if r.Ended == nil {
		c.d.tell()
	}
	c.d.tellManager()
}

// start starts the half.
func (c *child) start() error {
	c.reread()
	if c.links != nil {
		c.links.open()
	}
	p, err := c.launch()
	if err != nil {
		if c.first && c.d.cfg.Restart == RestartNever {
			return fmt.Errorf("start the %s half: %w", c.half, err)
		}
		c.log.Error("half cannot be started", "err", err)
		return c.step(recovery.Ended{Cause: halfcore.Cause{Kind: halfcore.NotStarted, Detail: err.Error()}})
	}
	c.log.Info("half started", "pid", p.pid)
	failpoint.Hit(failpoint.DaemonStarted)
	return c.began(p, false)
}

func (c *child) began(p *process, adopted bool) error {
	c.set(p)
	c.ended = nil
	c.look() // for the present number of its word
	return c.step(recovery.Began{PID: p.pid, Stores: c.stores, Adopted: adopted})
}

// gone handles the end of the half's process.
func (c *child) gone(cause halfcore.Cause) error {
	failpoint.Hit(failpoint.DaemonGone)
	p := c.running()
	if p.requested.Load() {
		cause = cause.ByRequest()
	}
	ran := time.Duration(half.Monotonic() - c.set(nil))
	c.ended = endedProcess(p, cause)
	p.close() // no other goroutine uses it any more
	c.log.Warn("half ended", "after", ran.Round(time.Millisecond).String(), "cause", cause.String())
	refused := half.Refused(cause.Code) // however long the start of the half took
	failed := c.first && cause.Kind == halfcore.Exited && cause.Code != 0 && (refused || ran < settled)
	never := c.d.cfg.Restart == RestartNever
	switch {
	case failed && cause.Code == half.ExitRefused && !never && !c.again:
		c.again = true // the half may have read a file that was being rewritten
	case failed && (never || refused):
		return c.refused(cause)
	default:
		c.first = false
	}
	if r, _ := c.known(); cause.Kind == halfcore.Exited && cause.Code == half.ExitShortage && r.State != halfcore.Running {
		cause = halfcore.Cause{Kind: halfcore.NotStarted, Detail: "the machine lacks something that it needs: see the half's log"}
	}
	return c.step(recovery.Ended{Cause: cause})
}

// endedProcess identifies a process for the other half, which states the death at once. nil: the process is not known
// well enough, or it ended in good order, as on a request to stop: then the watchdog judges.
func endedProcess(p *process, cause halfcore.Cause) *halfcore.EndedProcess {
	orderly := cause.Kind == halfcore.Exited && cause.Code == 0
	space := regfile.PIDNamespace()
	if orderly || p.start == 0 || space == 0 {
		return nil
	}
	return &halfcore.EndedProcess{PID: p.pid, Start: p.start, Space: space}
}

// launch starts the half's process.
func (c *child) launch() (*process, error) {
	cmd := exec.Command(c.d.cfg.Program, append([]string{c.half.String()}, c.d.cfg.Args...)...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if f := c.openLog(); f != nil {
		defer func() { _ = f.Close() }()
		cmd.Stdout, cmd.Stderr = f, f
	}
	cmd.Env = slices.DeleteFunc(sdnotify.Environment(c.d.cfg.environ()), func(kv string) bool {
		return slices.ContainsFunc([]string{half.RecoveryEnv, half.LinksEnv, half.PeriodsEnv}, func(name string) bool {
			return strings.HasPrefix(kv, name+"=")
		})
	})
	if c.links != nil {
		files, env := c.links.pass()
		cmd.ExtraFiles, cmd.Env = files, append(cmd.Env, half.LinksEnv+"="+env)
		defer func() {
			for _, f := range files {
				_ = f.Close()
			}
		}()
	}
	if s, err := half.FormatPeriods(c.d.cfg.Agent); err == nil {
		cmd.Env = append(cmd.Env, half.PeriodsEnv+"="+s)
	}
	if b, err := c.machine.Record().Encode(); err == nil {
		cmd.Env = append(cmd.Env, half.RecoveryEnv+"="+string(b))
	}
	return startProcess(cmd, c.d.cfg.Realtime)
}

// stop ends the half's process, if there is one: by request, and after stopWait by force.
func (c *child) stop() {
	p := c.running()
	if p == nil {
		return
	}
	_ = p.signal(syscall.SIGTERM)
	_ = p.signal(syscall.SIGCONT) // a stopped process cannot obey
	t := time.NewTimer(stopWait)
	defer t.Stop()
	select {
	case <-p.ended:
	case <-t.C:
		_ = p.signal(syscall.SIGKILL)
		<-p.ended
	}
	c.set(nil)
	p.close()
}

// running returns the running process, or nil.
func (c *child) running() *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.process
}

// set sets the running process, or nil, and returns the start of the previous state.
func (c *child) set(p *process) (since int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since = c.since
	c.process, c.since = p, half.Monotonic()
	return since
}

// ask requests the start of a half that does not run. For a running half it has no effect.
func (c *child) ask() {
	select {
	case c.asked <- struct{}{}:
	default: // requested already
	}
}

func (c *child) status() halfStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := halfStatus{SinceNS: c.since, Recovery: c.record}
	if c.process != nil {
		s.PID, s.Running = c.process.pid, true
	}
	return s
}

func (c *child) signal(sig syscall.Signal) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return nil, errors.New("the " + c.half.String() + " half does not run")
	}
	t := half.Monotonic()
	if err := c.process.signal(sig); err != nil {
		return nil, fmt.Errorf("signal the %s half: %w", c.half, err)
	}
	return killAnswer{t}, nil
}

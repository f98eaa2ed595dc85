// Package daemon is the recovery daemon of a node: it starts the halves, watches them, restarts one that ended or
// hangs, and adopts the halves of a daemon that was killed. It runs the check programs of peripherals, because halves
// start no processes. Start reading at Run.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/internal/sdnotify"
)

// Restart is the daemon's policy when a half ends.
type Restart string

// The policies.
const (
	RestartAlways Restart = "always" // start it again, with back-off
	RestartNever  Restart = "never"  // leave it, until a request by the control socket
)

// ParseRestart reads always or never.
func ParseRestart(s string) (Restart, error) {
	if r := Restart(s); r == RestartAlways || r == RestartNever {
		return r, nil
	}
	return "", fmt.Errorf("restart: given %q: want always or never", s)
}

// Times of the daemon.
const (
	// settled is how long a half must have run for its end not to count as a failed start.
	settled = time.Second
	// stopWait is how long the halves may take to stop on request.
	stopWait = 5 * time.Second
	// checksRetry is the time between two tries to run the checks.
	checksRetry = 3 * time.Second
)

// RunConfig configures the daemon.
type RunConfig struct {
	Agent   config.Agent
	Program string   // path of the program with the halves as its subcommands host and dnp
	Args    []string // of both halves, after the subcommand
	Restart Restart
	// LogDir is the directory of host.log and dnp.log, which are appended to; empty: the halves write to the daemon's
	// stderr.
	LogDir string
	// Realtime starts the halves with real-time scheduling, where permitted.
	Realtime bool
	// Half is the only half to look after; 0: both.
	Half fault.Half
	// Wait makes the daemon wait for another running daemon to end instead of failing, so that a new version is ready
	// and takes over at once.
	Wait bool
	// Environ is the environment of the halves; nil: that of this process.
	Environ []string
	// Refresh gets the present settings of a node that has enrolled, before a person restarts a half; nil: nothing does.
	Refresh func(context.Context) error
	// Reread loads the configuration file again, with the same flags and environment as a starting half; nil: Agent stays in force.
	Reread func() (config.Agent, error)
	// Own takes the settings of the node's own configuration into the file that Reread loads; nil: they are the same file. It refuses a
	// file that the daemon does not read.
	Own func(ctx context.Context, file string) error
	// Readdress returns nil when the node has another address, which Reread returns; nil: its address never changes.
	Readdress func(context.Context) error
	// Again signals that a person wants the halves that were given up to start; nil: never.
	Again <-chan os.Signal
}

func (c RunConfig) refresh(ctx context.Context) error {
	if c.Refresh == nil {
		return nil
	}
	return c.Refresh(ctx)
}

// environ returns the environment of the halves.
func (c RunConfig) environ() []string {
	if c.Environ == nil {
		return os.Environ()
	}
	return c.Environ
}

// halves lists the halves to look after.
func (c RunConfig) halves() []fault.Half {
	if c.Half != 0 {
		return []fault.Half{c.Half}
	}
	return []fault.Half{fault.HalfHost, fault.HalfDNP}
}

// daemon starts the halves as separate processes, looks after them, and runs the host half's checks: the recovery
// daemon (seed 000 §4.2). The package internal/agent/daemon/recovery decides about each half. The halves do not need
// the daemon: they continue when it dies, the next daemon adopts them, and peripherals with a check program are UNKNOWN
// until it, or `lofamo-agent checks`, runs again.
type daemon struct {
	cfg     RunConfig
	periods config.Periods
	log     *slog.Logger
	halves  map[fault.Half]*child

	locked  *os.File      // one of the daemon's locks
	round   chan struct{} // accepts a value whenever remind goes round
	manager managed
	left    atomic.Pointer[peers.State] // the order of the place that a spare has left; nil: it has not
	// stopLock is held while this daemon of one half stops; nil: it does not stop.
	stopLock *os.File
	boots    *boots                                    // nil: this daemon does not look at them
	watchdog atomic.Pointer[halfcore.HardwareWatchdog] // the statement of the host half; nil: the daemon feeds none
	// announced: the supervisors have committed that this node stops, that its halves restart, or that it has no place.
	announced atomic.Bool
	telling   sync.Mutex // held while tell sends
	ending    ending
	changed   chan struct{}  // capacity 1: the state of a half has changed
	givenUp   []byte         // the sealed report that both are; nil: not both, or not sealed yet. Of remind, as is:
	untold    half.Condition // it cannot be sealed

	// reread is cfg.Agent with the newest responses and peripheral checks; nil: they have not changed.
	reread    atomic.Pointer[config.Agent]
	taking    sync.Mutex    // guards runner and changes of reread
	runner    *ActionRunner // nil while none serves
	rechecked chan struct{} // capacity 1: the checks have changed
	reading   chan struct{} // capacity 1: full while the configuration is read again

	mu     sync.Mutex
	unkept half.Condition // histories cannot be written
	start  time.Time      // origin of the grid of periods on which the daemon checks both halves
}

// Run runs the daemon until ctx ends, and then stops the halves. It fails when a half refuses its configuration at its first two starts, or
// a file at the first one.
func Run(ctx context.Context, cfg RunConfig, log *slog.Logger) error {
	for {
		switch err := run(ctx, cfg, log); {
		case errors.Is(err, errMoved):
		case errors.Is(err, errGone) && ctx.Err() == nil:
			log.Error("state directory deleted or replaced while the halves ran: they start again in a new one", "node", string(cfg.Agent.Node),
				"state_dir", cfg.Agent.StateDir)
		case errors.Is(err, errReaddressed) && ctx.Err() == nil:
			if cfg.Agent, err = cfg.Reread(); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// run is Run, for one place of a spare.
func run(ctx context.Context, cfg RunConfig, log *slog.Logger) error {
	if err := cfg.Agent.Validate(); err != nil {
		return half.InvalidConfig(err)
	}
	periods, err := cfg.Agent.Timing()
	if err != nil {
		return half.InvalidConfig(err)
	}
	if err := preflight(cfg.Agent); err != nil {
		return err
	}
	d := &daemon{cfg: cfg, periods: periods, log: log.With("node", string(cfg.Agent.Node)), halves: map[fault.Half]*child{},
		round: make(chan struct{}), rechecked: make(chan struct{}, 1), reading: make(chan struct{}, 1),
		changed: make(chan struct{}, 1), start: time.Now()}
	var locks []string
	if cfg.Half == 0 {
		locks = append(locks, "run.lock") // the only lock that versions before --half took
	}
	for _, h := range cfg.halves() {
		locks = append(locks, h.String()+".run.lock")
		d.halves[h] = newChild(d, h)
	}
	for _, name := range locks {
		lock, err := d.lock(ctx, d.statePath(name))
		if err != nil || lock == nil {
			return err
		}
		defer func() { _ = lock.Close() }()
		d.locked = lock
	}
	d.keepPeriods()
	if goesOn(cfg.Agent.StateDir, cfg.halves()) {
		for _, c := range d.halves {
			c.first = false
		}
	}
	// Files opened before this program began are not for the halves.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err := half.SetSlice(); err != nil {
		d.log.Debug("no short slice: a loaded machine may delay this daemon", "err", err)
	}
	half.ArmFailpoints(cfg.Agent, "run", d.log)
	d.manager.to = sdnotify.New(d.log)
	defer func() { _ = d.manager.to.Close() }() // a manager that hangs must not keep the daemon from ending
	d.disarmUnplaced()                          // before the halves take their time to stop
	d.leaveFormerPlace()
	d.boots = d.lookAtBoots()
	if err := d.addressed(ctx, d.awaitPlace); err != nil || ctx.Err() != nil {
		d.ends(err, stopReason(context.WithoutCancel(ctx), shutdownSigns, false))
		return err
	}
	d.log.Info("recovery daemon runs", "halves", len(d.halves), "hangs_found_within",
		halfcore.HangBound(d.periods.TRead, d.periods.ReadMisses).String(),
		"restarts", cfg.Agent.Recovery.Restarts, "window", cfg.Agent.Recovery.Window.D().String())
	serving, end := d.untilAnnounced(ctx)
	err = d.addressed(serving, func(ctx context.Context) error { return d.inPlace(ctx, d.serve) })
	if recorded := end(); !recorded {
		d.ends(err, fault.StopDaemon)
	}
	return err
}

// ends records the end of the agent, unless Run goes on after err.
func (d *daemon) ends(err error, reason fault.Stop) {
	if !errors.Is(err, errMoved) && !errors.Is(err, errGone) && !errors.Is(err, errReaddressed) {
		d.boots.end(reason)
	}
}

// errReaddressed: the node has another address, and its halves have been stopped.
var errReaddressed = errors.New("this node's address has changed")

// addressed runs serve while the node keeps its address. When the node has another one, addressed stops serve, because the halves are
// bound to the former one.
func (d *daemon) addressed(ctx context.Context, serve func(context.Context) error) error {
	if d.cfg.Readdress == nil {
		return serve(ctx)
	}
	ctx, stop := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if d.cfg.Readdress(ctx) == nil {
			d.manager.goesOn()
			stop(errReaddressed)
		}
	})
	err := serve(ctx)
	stop(nil)
	wg.Wait()
	if err == nil && errors.Is(context.Cause(ctx), errReaddressed) {
		return errReaddressed
	}
	return err
}

// Final reports whether a daemon that ended with err should stay down until a person starts it. That is so if its configuration is
// refused, no file that it names is the reason, and no half runs that the next daemon would adopt. A file may be replaced, so a restart
// may help. only is the half that the daemon looks after; 0 means both.
func Final(err error, stateDir string, only fault.Half) bool {
	_, refused := errors.AsType[*half.ConfigError](err)
	return refused && !half.InFile(err) && !goesOn(stateDir, RunConfig{Half: only}.halves())
}

// refused returns the error with which the daemon ends if a half ends soon after its first start, or after the second one that followed a
// refusal. The daemon has accepted the configuration, so only a second refusal in a row is Final.
func (c *child) refused(cause halfcore.Cause) error {
	err := fmt.Errorf("start the %s half: it %s", c.half, cause)
	switch cause.Code {
	case half.ExitRefused:
		err = errors.Join(fmt.Errorf("%w: it refused its configuration: see the half's log", err),
			half.Check(c.d.cfg.Agent), half.CheckHalf(c.d.cfg.Agent, c.d.cfg.Half))
		if !c.again {
			return half.RefusedFile(err)
		}
		return &half.ConfigError{Err: err}
	case half.ExitRefusedFile:
		return half.RefusedFile(errors.Join(fmt.Errorf("%w: it refused a file: see the half's log", err), half.Check(c.d.cfg.Agent)))
	}
	return err
}

// goesOn reports whether the daemon of these halves replaces one that was not asked to stop, or finds a half that another process
// started. Then a half that refuses its configuration is no reason to stop the other half.
func goesOn(stateDir string, halves []fault.Half) bool {
	for _, h := range halves {
		if old, err := ReadRecovery(stateDir, h); err == nil && old != nil && old.Record.State != halfcore.Stopped {
			return true
		}
		if _, held, _ := regfile.HolderOf(filepath.Join(stateDir, half.RegisterFile), h); held {
			return true
		}
	}
	return false
}

func (d *daemon) serve(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	var halves sync.WaitGroup
	for _, c := range d.halves {
		halves.Add(1)
		g.Go(func() error {
			defer halves.Done()
			return c.lookAfter(ctx)
		})
	}
	stopped := make(chan struct{})
	g.Go(func() error {
		defer close(stopped)
		halves.Wait()
		return nil
	})
	g.Go(func() error { return d.watchStateDir(ctx) })
	g.Go(func() error { d.remind(ctx); return nil })
	g.Go(func() error { d.giveSigns(ctx); return nil })
	g.Go(func() error { program.ReapOrphans(ctx); return nil })
	for _, h := range d.cfg.halves() {
		g.Go(func() error { d.serveLive(ctx, h); return nil })
	}
	g.Go(func() error { d.serveActs(ctx); return nil })
	if d.cfg.Agent.HardwareWatchdog.Device != "" && d.halves[fault.HalfHost] != nil {
		g.Go(func() error { d.feedHardware(ctx, stopped); return nil })
	}
	g.Go(func() error { d.announceReturn(ctx); return nil })
	if d.halves[fault.HalfHost] != nil {
		g.Go(func() error { d.serveChecks(ctx, serveChecks); return nil })
	}
	if d.cfg.Agent.Injection {
		name := half.RunSocket
		if d.cfg.Half != 0 {
			name = d.cfg.Half.String() + "." + half.RunSocket
		}
		g.Go(func() error { return half.ServeUnix(ctx, d.statePath(name), d.control()) })
	}
	return g.Wait()
}

// remind sends the records to the halves periodically. It tells the supervisors when it has given up both, and starts such halves when a
// person requests it.
func (d *daemon) remind(ctx context.Context) {
	t := time.NewTicker(tellEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			d.tell()
			d.tellGivenUp()
		case <-d.changed:
			d.givenUp = nil // a half that has served since has a later epoch
			d.tellGivenUp()
		case <-d.round:
		case <-d.cfg.Again:
			d.reload(ctx)
		}
	}
}

func (d *daemon) statePath(name string) string { return filepath.Join(d.cfg.Agent.StateDir, name) }

// lockAlone keeps a second process of command away from the same state directory.
func lockAlone(path, command string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of lofamo-agent %s: %w", command, err)
	}
	if err := regfile.TryLock(f); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("another lofamo-agent %s %w", command, errOther)
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// serveUntilRechecked runs the present checks until ctx ends or the checks change.
func (d *daemon) serveUntilRechecked(ctx context.Context, serve func(context.Context, config.Agent) error) error {
	ctx, end := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer end()
	waiting.Go(func() {
		select {
		case <-d.rechecked:
			end()
		case <-ctx.Done():
		}
	})
	return serve(ctx, d.present())
}

// serveChecks runs the host half's checks until ctx ends. On failure the halves continue, and it tries again, because a
// `lofamo-agent checks` in the way may end. It warns of each reason once, not of each attempt.
func (d *daemon) serveChecks(ctx context.Context, serve func(context.Context, config.Agent) error) {
	warned := ""
	for {
		err := d.serveUntilRechecked(ctx, serve)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			continue
		}
		if err.Error() != warned {
			warned = err.Error()
			d.log.Warn("peripherals with a check program are UNKNOWN unless another process runs their checks", "err", err, "try_again",
				checksRetry.String())
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(checksRetry):
		}
	}
}

// RunChecks runs the checks of a host half that the daemon does not start, until ctx ends.
func RunChecks(ctx context.Context, cfg config.Agent, log *slog.Logger) error {
	if err := cfg.Validate(); err != nil {
		return half.InvalidConfig(err)
	}
	if err := half.MakeStateDir(cfg.StateDir); err != nil {
		return err
	}
	log.Info("checks are run", "node", string(cfg.Node))
	return serveChecks(ctx, cfg)
}

func serveChecks(ctx context.Context, cfg config.Agent) error {
	s := newCheckStarter(cfg.Sensors)
	if s == nil {
		<-ctx.Done()
		return nil
	}
	lock, err := lockAlone(filepath.Join(cfg.StateDir, "checks.lock"), "run or checks")
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	l, err := half.ListenUnix(ctx, filepath.Join(cfg.StateDir, half.CheckSocket))
	if err != nil {
		return err
	}
	return s.Serve(ctx, l)
}

// RefusalCode returns the exit code for a configuration or command line that is refused with err.
func RefusalCode(environ []string, err error) int {
	switch {
	case !half.StartedByDaemon(environ):
		return half.ExitConfig
	case half.InFile(err):
		return half.ExitRefusedFile
	}
	return half.ExitRefused
}

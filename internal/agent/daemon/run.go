// Package daemon is the recovery daemon of a node: it starts the halves, watches them, restarts one that ended or hangs, and adopts those of a
// daemon that was killed. It runs the check programs of peripherals, as halves start no processes. Start reading at Run.
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
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/local/checks"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/orphans"
	"github.com/lofamo/lofamo/internal/sdnotify"
)

// Restart is what the daemon does when a half ends.
type Restart string

// The policies.
const (
	RestartAlways Restart = "always" // start it again, with back-off
	RestartNever  Restart = "never"  // leave it, until somebody asks by the control socket
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
	// settled is how long a half must have run for its end to be an end and not a failed start.
	settled = time.Second
	// stopWait is how long the halves may take to stop when asked.
	stopWait = 5 * time.Second
	// checksRetry is the time between two tries to run the checks.
	checksRetry = 3 * time.Second
)

// RunConfig is what the daemon is given.
type RunConfig struct {
	Agent   config.Agent
	Program string   // path of the program that serves the halves as its subcommands host and dnp
	Args    []string // of both halves, after the subcommand
	Restart Restart
	// LogDir gets host.log and dnp.log, appended to; empty: the halves write to our own stderr.
	LogDir string
	// Realtime starts the halves in real time, where that is permitted.
	Realtime bool
	// Half is the one half that is looked after; 0: both.
	Half fault.Half
	// Wait has a daemon that finds another one at work wait until that ends, in the place of failing: a new version is ready, and then takes over at once.
	Wait bool
	// Again says that a person wants the halves that were given up to be started; nil: never.
	Again <-chan os.Signal
}

// halves lists the halves that are looked after.
func (c RunConfig) halves() []fault.Half {
	if c.Half != 0 {
		return []fault.Half{c.Half}
	}
	return []fault.Half{fault.HalfHost, fault.HalfDNP}
}

// daemon starts the halves as processes of their own and looks after them, and runs the host half's checks: the recovery
// daemon (seed 000 §4.2). What it does about a half is internal/agent/daemon/recovery's. The halves
// do not need it: they go on when it dies, the next daemon adopts them, and peripherals with a check program are UNKNOWN
// until it, or `lofamo-agent checks`, is there again.
type daemon struct {
	cfg     RunConfig
	periods config.Periods
	log     *slog.Logger
	halves  map[fault.Half]*child

	round   chan struct{} // takes one whenever remind goes round
	manager managed

	mu     sync.Mutex
	unkept half.Condition // histories cannot be written
}

// Run runs the daemon until ctx ends; then it stops the halves. It fails when a half refuses its configuration at the
// first start of all.
func Run(ctx context.Context, cfg RunConfig, log *slog.Logger) error {
	for {
		if err := run(ctx, cfg, log); !errors.Is(err, errMoved) {
			return err
		}
	}
}

// run is Run for a spare in one place.
func run(ctx context.Context, cfg RunConfig, log *slog.Logger) error {
	if err := cfg.Agent.Validate(); err != nil {
		return half.InvalidConfig(err)
	}
	periods, err := cfg.Agent.Timing()
	if err != nil {
		return half.InvalidConfig(err)
	}
	if err := half.MakeStateDir(cfg.Agent.StateDir); err != nil {
		return err
	}
	d := &daemon{cfg: cfg, periods: periods, log: log.With("node", string(cfg.Agent.Node)), halves: map[fault.Half]*child{}, round: make(chan struct{})}
	var locks []string
	if cfg.Half == 0 {
		locks = append(locks, "run.lock") // which is all that versions before --half took
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
	}
	if d.goesOn() {
		for _, c := range d.halves {
			c.first = false
		}
	}
	// What was opened before this program began is not for the halves.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err := half.SetSlice(); err != nil {
		d.log.Debug("no short slice: a loaded machine may delay this daemon", "err", err)
	}
	half.ArmFailpoints(cfg.Agent, "run", d.log)
	d.manager.to = sdnotify.New(d.log)
	defer func() { _ = d.manager.to.Close() }() // a manager that hangs does not keep the daemon from ending
	if err := d.awaitPlace(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	d.log.Info("recovery daemon runs", "halves", len(d.halves), "hangs_found_within", recovery.HangBound(periods.TRead, periods.ReadMisses).String(),
		"restarts", cfg.Agent.Recovery.Restarts, "window", cfg.Agent.Recovery.Window.D().String())
	return d.inPlace(ctx, d.serve)
}

// goesOn says whether this daemon takes the place of one that was not asked to stop, or of whoever has started a half: a half that
// refuses its configuration then is no reason to stop the other.
func (d *daemon) goesOn() bool {
	for h := range d.halves {
		if old, err := d.loadHistory(h); err == nil && old != nil && old.Record.State != recovery.Stopped {
			return true
		}
		if _, held, _ := regfile.HolderOf(d.statePath(half.RegisterFile), h); held {
			return true
		}
	}
	return false
}

func (d *daemon) serve(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range d.halves {
		g.Go(func() error { return c.tend(ctx) })
	}
	g.Go(func() error { d.remind(ctx); return nil })
	g.Go(func() error { d.giveSigns(ctx); return nil })
	g.Go(func() error { orphans.Reap(ctx, orphans.Every); return nil })
	for _, h := range d.cfg.halves() {
		g.Go(func() error { d.serveLive(ctx, h); return nil })
	}
	g.Go(func() error { d.serveActs(ctx); return nil })
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

// remind tells the halves every now and then, and starts those that were given up when a person asks for it.
func (d *daemon) remind(ctx context.Context) {
	t := time.NewTicker(tellEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			d.tell()
		case <-d.round:
		case <-d.cfg.Again:
			d.reload(ctx)
		}
	}
}

func (d *daemon) statePath(name string) string { return filepath.Join(d.cfg.Agent.StateDir, name) }

// lockAlone keeps a second process that runs command off the same state directory.
func lockAlone(path, command string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of lofamo-agent %s: %w", command, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("another lofamo-agent %s %w", command, errOther)
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// serveChecks runs the host half's checks until ctx ends. The halves go on where it cannot; it tries again, for a
// `lofamo-agent checks` that is in the way may end. It warns of each reason once, not of each try.
func (d *daemon) serveChecks(ctx context.Context, serve func(context.Context, config.Agent) error) {
	warned := ""
	for {
		err := serve(ctx, d.cfg.Agent)
		if err == nil || ctx.Err() != nil {
			return
		}
		if err.Error() != warned {
			warned = err.Error()
			d.log.Warn("peripherals with a check program are UNKNOWN while nobody else runs their checks", "err", err, "try_again", checksRetry.String())
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(checksRetry):
		}
	}
}

// RunChecks runs the checks of a host half that is not started by the daemon, until ctx ends.
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
	l, err := half.ListenUnix(ctx, filepath.Join(cfg.StateDir, checks.Socket))
	if err != nil {
		return err
	}
	return s.Serve(ctx, l)
}

// RefusalCode returns the exit code for a configuration or command line that is refused.
func RefusalCode(environ []string) int {
	if half.StartedByDaemon(environ) {
		return half.ExitRefused
	}
	return half.ExitConfig
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/checks"
	"github.com/lofamo/lofamo/internal/agent/checks/starter"
	"github.com/lofamo/lofamo/internal/config"
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
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
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
}

// daemon starts both halves as processes of their own and looks after them, and runs the host half's checks. The halves
// do not need it: they go on when it dies, and peripherals with a check program are UNKNOWN
// until it, or `lofamo-agent checks`, is there again.
type daemon struct {
	cfg    RunConfig
	log    *slog.Logger
	halves map[fault.Half]*child
}

// child is one half as the daemon sees it. Its goroutine (tend) owns the process; the mutex guards
// what the control socket asks for.
type child struct {
	half  fault.Half
	start chan struct{} // asks a half that has ended to be started

	mu      sync.Mutex
	process *os.Process // nil while none runs
	since   int64       // CLOCK_MONOTONIC of the last start or end, in ns
}

// Run runs the daemon until ctx ends; then it stops both halves. It fails when a half cannot be
// started the first time.
func Run(ctx context.Context, cfg RunConfig, log *slog.Logger) error {
	if err := cfg.Agent.Validate(); err != nil {
		return invalid(err)
	}
	if err := makeStateDir(cfg.Agent.StateDir); err != nil {
		return err
	}
	lock, err := lockAlone(filepath.Join(cfg.Agent.StateDir, "run.lock"), "run")
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	d := &daemon{cfg: cfg, log: log.With("node", string(cfg.Agent.Node)), halves: map[fault.Half]*child{}}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		d.halves[h] = &child{half: h, start: make(chan struct{}, 1), since: monotonic()}
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range d.halves {
		g.Go(func() error { return d.tend(ctx, c) })
	}
	g.Go(func() error { d.serveChecks(ctx, serveChecks); return nil })
	if cfg.Agent.Injection {
		g.Go(func() error { return serveUnix(ctx, filepath.Join(cfg.Agent.StateDir, RunSocket), d.control()) })
	}
	return g.Wait()
}

// lockAlone keeps a second process that runs command off the same state directory.
func lockAlone(path, command string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of lofamo-agent %s: %w", command, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("another lofamo-agent %s serves this state directory", command)
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
		return invalid(err)
	}
	if err := makeStateDir(cfg.StateDir); err != nil {
		return err
	}
	log.Info("checks are run", "node", string(cfg.Node))
	return serveChecks(ctx, cfg)
}

func serveChecks(ctx context.Context, cfg config.Agent) error {
	s := starter.New(cfg.Sensors)
	if s == nil {
		<-ctx.Done()
		return nil
	}
	lock, err := lockAlone(filepath.Join(cfg.StateDir, "checks.lock"), "run or checks")
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	l, err := listenUnix(ctx, filepath.Join(cfg.StateDir, checks.Socket))
	if err != nil {
		return err
	}
	return s.Serve(ctx, l)
}

// tend keeps one half as the policy wants it, until ctx ends.
func (d *daemon) tend(ctx context.Context, c *child) error {
	backoff := minBackoff
	for first := true; ; first = false {
		began := time.Now()
		err := d.runOnce(ctx, c)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // asked to stop: how the half took that is its own log's matter
		}
		ran := time.Since(began)
		d.log.Warn("half ended", "half", c.half.String(), "after", ran.Round(time.Millisecond).String(), "err", err)
		var exit *exec.ExitError
		failed := err != nil && (!errors.As(err, &exit) || exit.Exited())
		if first && failed && ran < settled && (d.cfg.Restart == RestartNever || exit != nil && exit.ExitCode() == ExitConfig) {
			return fmt.Errorf("start the %s half: %w", c.half, err)
		}
		if ran >= settled {
			backoff = minBackoff
		}
		if !d.pause(ctx, c, backoff) {
			return nil
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// pause waits until the half is to be started again, and says whether it is.
func (d *daemon) pause(ctx context.Context, c *child, backoff time.Duration) bool {
	var retry <-chan time.Time
	if d.cfg.Restart == RestartAlways {
		t := time.NewTimer(backoff)
		defer t.Stop()
		retry = t.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-retry:
	case <-c.start:
	}
	return true
}

// runOnce starts a half and waits for its end. When ctx ends it asks the half to stop.
func (d *daemon) runOnce(ctx context.Context, c *child) error {
	cmd := exec.Command(d.cfg.Program, append([]string{c.half.String()}, d.cfg.Args...)...)
	// A group of its own: Ctrl-C is for the daemon, which passes it on. Nothing ties the half's life
	// to the daemon's.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if f := d.openLog(c); f != nil {
		defer func() { _ = f.Close() }()
		cmd.Stdout, cmd.Stderr = f, f
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.set(cmd.Process)
	d.log.Info("half started", "half", c.half.String(), "pid", cmd.Process.Pid)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the process
	select {
	case err := <-ended:
		c.set(nil)
		return err
	case <-ctx.Done():
	}
	err := stop(cmd.Process, ended)
	c.set(nil)
	return err
}

// openLog opens the half's log file; nil: its log goes to standard error. A disk that fails, or is full,
// keeps no half from running.
func (d *daemon) openLog(c *child) *os.File {
	if d.cfg.LogDir == "" {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(d.cfg.LogDir, c.half.String()+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		d.log.Warn("half logs to standard error: its log file cannot be opened", "half", c.half.String(), "err", err)
		return nil
	}
	return f
}

// stop ends a process: asked first, by force after stopWait.
func stop(p *os.Process, ended <-chan error) error {
	_ = p.Signal(syscall.SIGTERM)
	_ = p.Signal(syscall.SIGCONT) // a stopped process cannot obey
	t := time.NewTimer(stopWait)
	defer t.Stop()
	select {
	case err := <-ended:
		return err
	case <-t.C:
		_ = p.Kill()
		return <-ended
	}
}

// set notes the process that runs, or nil. One that runs is what was asked for, by however many: a
// request left over would start the half again after its next end.
func (c *child) set(p *os.Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.process, c.since = p, monotonic()
	if p == nil {
		return
	}
	select {
	case <-c.start:
	default:
	}
}

// monotonic returns CLOCK_MONOTONIC in nanoseconds, which all processes of a machine share.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // cannot fail for this clock
	}
	return ts.Nano()
}

// ExitConfig is the exit code for a configuration or command line that is refused.
const ExitConfig = 2

// ConfigError is the error for a configuration that is refused.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }

func invalid(err error) error { return &ConfigError{fmt.Errorf("configuration: %w", err)} }

// Unwrap returns the reason.
func (e *ConfigError) Unwrap() error { return e.Err }

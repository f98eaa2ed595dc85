// Package script judges a component by a check program's exit code: 0 is NORMAL, 1 SICK, 2 FAILED. The first line of
// its output is the detail.
//
// No shell is involved. When a check ends, the remaining processes in its group are killed. A check that exceeds its
// time is killed with its whole process group and is SICK: the check or its subject is faulty. But if the check waited
// for a processor for at least half of that time, it proves nothing about its subject and the component is UNKNOWN. So it
// is after any other exit code, after a signal, and if the program does not start.
//
// Do not use it in a real-time process with deadlines. Starting a program occupies Go's only processor until the new
// process, of the ordinary class, has been scheduled and has executed its program. On a loaded machine that took 70 ms.
package script

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// Exit codes of a check.
const (
	ExitNormal = 0
	ExitSick   = 1
	ExitFailed = 2
)

// drain is how long to wait for a killed check's output and death.
const drain = 500 * time.Millisecond

// maxOutput limits the stored output of a check, in bytes. The rest is read and dropped, so that the check does not
// block.
const maxOutput = 4096

// Config defines the check to run.
type Config struct {
	Component fault.Component
	Command   []string // the program's absolute path, then its arguments
	Env       []string // its environment; nil: that of this process
	Interval  time.Duration
	Timeout   time.Duration
}

// Source is one check.
type Source struct {
	cfg Config
	// running is closed when the last check's process has been reaped; nil before the first. While a process survives
	// even SIGKILL (it waits in the kernel), no second one starts.
	running chan struct{}
}

// New returns the source.
func New(cfg Config) *Source { return &Source{cfg: cfg} }

// Name returns "script:" and the component's name.
func (s *Source) Name() string { return "script:" + s.cfg.Component.String() }

// Component returns the configured component.
func (s *Source) Component() fault.Component { return s.cfg.Component }

// Interval returns the time between two checks.
func (s *Source) Interval() time.Duration { return s.cfg.Interval }

// Read runs the check to its end or its timeout.
func (s *Source) Read(ctx context.Context) (source.Reading, error) {
	r := source.Reading{Component: s.cfg.Component, Source: s.Name(), State: fault.Unknown}
	if s.running != nil {
		select {
		case <-s.running:
		default:
			r.State, r.Detail = fault.Sick, "timed out: the last check still runs and cannot be killed"
			return r, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var stdout, stderr output
	cmd := s.command(ctx, &stdout, &stderr)
	started, c := make(chan error, 1), &run{ended: make(chan struct{})}
	go func() { // ends with the process; running tells the next Read
		release, err := ownThread()
		defer release()
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err != nil {
			return
		}
		killRest(cmd.Process.Pid)
		c.err = cmd.Wait()
		close(c.ended)
	}()
	if err := <-started; err != nil {
		err = fmt.Errorf("start check: %w", err) // names the program itself
		r.Detail = source.Detail(err.Error())
		return r, err
	}
	s.running = c.ended
	c.await(ctx, cmd.Process.Pid, s.cfg.Timeout/samples)
	return s.judge(ctx, r, c, firstLine(&stdout, &stderr))
}

// run is one run of a check.
type run struct {
	ended chan struct{} // closed when the process has been reaped
	err   error         // how it ended; valid once ended is closed
	waits waits
}

// await returns when the check has ended, or 2*drain after ctx has ended if the check still runs. It takes a sample every period.
func (c *run) await(ctx context.Context, pid int, period time.Duration) {
	start, t := time.Now(), time.NewTicker(max(period, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-c.ended:
			return
		case <-ctx.Done():
			select {
			case <-c.ended:
			case <-time.After(2 * drain):
			}
			return
		case <-t.C:
			runtime.LockOSThread()
			before := threadTime()
			u, err := sample("/proc", pid)
			c.waits.sampling += threadTime() - before
			runtime.UnlockOSThread()
			if err == nil { // else the check has just ended
				c.waits.add(time.Since(start), u)
			}
		}
	}
}

func (s *Source) command(ctx context.Context, stdout, stderr *output) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.cfg.Command[0], s.cfg.Command[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.cfg.Env, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // if its starting thread ends
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = drain
	return cmd
}

// ownThread keeps the goroutine on one thread while a check runs, because the check dies with the thread that started
// it, and therefore with this process. The check always gets the ordinary scheduling class: a check that loops must not
// do so in real time. A thread with the reset-on-fork flag is useless to other goroutines. It ends with the goroutine,
// and the returned function does nothing.
func ownThread() (release func(), err error) {
	runtime.LockOSThread()
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil || attr.Policy == unix.SCHED_NORMAL {
		return runtime.UnlockOSThread, nil //nolint:nilerr // a kernel that does not know the call knows no class to leave
	}
	attr.Flags |= unix.SCHED_FLAG_RESET_ON_FORK
	if err := unix.SchedSetAttr(0, attr, 0); err != nil {
		return runtime.UnlockOSThread, fmt.Errorf("leave the real-time class: %w", err)
	}
	return func() {}, nil
}

// killRest waits until the check has ended and kills the remaining processes in its group; otherwise every check could
// leave one more process behind. The check is not reaped yet, so the group's number is still its own.
func killRest(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL) // fails if none remains
}

// judge gets ctx in its state at the end of the check.
func (s *Source) judge(ctx context.Context, r source.Reading, c *run, line string) (source.Reading, error) {
	select {
	case <-c.ended:
	default:
		return s.late(ctx, r, c, line)
	}
	var exit *exec.ExitError
	switch err := c.err; {
	case err == nil:
		r.State = fault.Normal
	case errors.Is(err, exec.ErrWaitDelay):
		// It ended by itself, but left a child in a group of its own that holds its output open.
		r.State = fault.Normal
	case errors.As(err, &exit) && exit.ExitCode() == ExitSick:
		r.State = fault.Sick
	case errors.As(err, &exit) && exit.ExitCode() == ExitFailed:
		r.State = fault.Failed
	case ctx.Err() != nil:
		return s.late(ctx, r, c, line)
	default:
		r.Detail = source.Detail(fmt.Sprintf("check ended with %v, want exit code 0, 1 or 2: %s", err, line))
		return r, fmt.Errorf("check %s: %w", s.cfg.Command[0], err)
	}
	r.Detail = source.Detail(line)
	return r, nil
}

// late distinguishes a check that took too long from one that the caller stopped.
func (s *Source) late(ctx context.Context, r source.Reading, c *run, line string) (source.Reading, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		r.Detail = "check stopped"
		return r, ctx.Err()
	}
	r.State, r.Detail = fault.Sick, fmt.Sprintf("timed out after %v", s.cfg.Timeout)
	if excuse := c.waits.excuse(s.cfg.Timeout); excuse != "" { // the subject may be well
		r.State = fault.Unknown
		r.Detail += ", " + excuse
	}
	if line != "" {
		r.Detail += ": " + line
	}
	r.Detail = source.Detail(r.Detail)
	return r, nil
}

// firstLine prefers standard output to standard error.
func firstLine(stdout, stderr *output) string {
	if l := source.Detail(stdout.String()); l != "" {
		return l
	}
	return source.Detail(stderr.String())
}

// output keeps the beginning of the written data. It is safe for concurrent use, because a check that survives
// its kill may still write while the caller reads the output.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if room := maxOutput - o.buf.Len(); room > 0 {
		o.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// Package program runs a program for an executor: no shell, a clean environment, bounded output, and an end at the deadline for
// the program and all that it has started in its process group.
//
// It is not for programs that go on after they have answered: what stays in the group is left alone only when the program has
// ended by itself.
package program

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Spec is what is run.
type Spec struct {
	Path       string   // absolute
	Args       []string // without the name
	Env        []string // "NAME=value", besides those that all have
	Dir        string   // empty: "/"
	Credential *Credential
	Grace      time.Duration // from the signal TERM at the deadline to KILL; 0: KILL at once
	MaxOutput  int           // bytes of stdout and of stderr that are kept; what is more is read and dropped
}

// Credential is the user and group that it runs as, with no supplementary groups.
type Credential struct{ UID, GID uint32 }

// Ended is how a run ended.
type Ended struct {
	Started bool // false: nothing was run, and Err says why
	Code    int  // exit code; -1: it did not exit by itself
	Killed  bool // it was ended at its deadline
	Signal  syscall.Signal
	Stdout  []byte
	Stderr  []byte
	Cut     bool // there was more output
	Err     error
}

// OK says whether it exited by itself, with 0.
func (e Ended) OK() bool { return e.Started && e.Code == 0 && !e.Killed }

// String says how it ended, with the beginning of what it wrote, for people.
func (e Ended) String() string {
	var how string
	switch {
	case !e.Started:
		return fmt.Sprintf("not started: %v", e.Err)
	case e.Killed:
		how = "ended at its deadline"
	case e.Code >= 0:
		how = fmt.Sprintf("exit code %d", e.Code)
	default:
		how = fmt.Sprintf("ended by signal %d", int(e.Signal))
	}
	said := strings.Join(strings.Fields(string(e.Stderr)+" "+string(e.Stdout)), " ")
	if said == "" {
		return how
	}
	return how + ": " + said
}

// drain is how long what a program's children still write is waited for once it has ended.
const drain = time.Second

// Run runs a program until it ends, or until its context does: then its whole process group is ended.
func Run(ctx context.Context, s Spec) Ended {
	if err := ctx.Err(); err != nil {
		return Ended{Code: -1, Err: err}
	}
	cmd := exec.CommandContext(ctx, s.Path, s.Args...)
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}, s.Env...)
	cmd.Dir = s.Dir
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	stdout, stderr := &head{most: s.MaxOutput}, &head{most: s.MaxOutput}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// It does not outlive this process: nobody would end it at its deadline.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if c := s.Credential; c != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: c.UID, Gid: c.GID}
	}
	var killed bool
	var kill *time.Timer
	group := func(sig syscall.Signal) error { return syscall.Kill(-cmd.Process.Pid, sig) }
	cmd.Cancel = func() error { // called before the program is reaped: its number is no other's
		killed = true
		if s.Grace <= 0 {
			return group(syscall.SIGKILL)
		}
		kill = time.AfterFunc(s.Grace, func() { _ = group(syscall.SIGKILL) })
		return group(syscall.SIGTERM)
	}
	cmd.WaitDelay = s.Grace + drain

	// The kernel sends Pdeathsig when the thread ends that has started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return Ended{Code: -1, Err: err}
	}
	err := cmd.Wait()
	if killed {
		if kill != nil {
			kill.Stop()
		}
		_ = group(syscall.SIGKILL) // children that did not heed TERM
	}
	if cmd.ProcessState == nil { // who else has waited for it
		return Ended{Started: true, Code: -1, Err: err}
	}
	e := Ended{Started: true, Code: cmd.ProcessState.ExitCode(), Killed: killed, Stdout: stdout.b, Stderr: stderr.b, Cut: stdout.cut ||
		stderr.cut}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signal() > 0 {
		e.Signal = ws.Signal()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) && !killed {
		e.Err = err
	}
	return e
}

// head keeps the beginning of what is written.
type head struct {
	b    []byte
	most int
	cut  bool
}

func (h *head) Write(p []byte) (int, error) {
	keep := p[:min(len(p), h.most-len(h.b))]
	h.b = append(h.b, keep...)
	h.cut = h.cut || len(keep) < len(p)
	return len(p), nil
}

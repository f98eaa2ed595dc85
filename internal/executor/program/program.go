// Package program runs a program for an executor: without a shell, with a clean environment and bounded output. At the
// deadline it ends the program and all processes in its process group.
//
// It is not for programs that continue in the background after their answer: processes left in the group survive only
// if the program has ended by itself.
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

// Spec describes a run.
type Spec struct {
	Path       string   // absolute
	Args       []string // without the program name
	Env        []string // "NAME=value", in addition to PATH and LC_ALL
	Dir        string   // empty: "/"
	Credential *Credential
	Grace      time.Duration // from SIGTERM at the deadline to SIGKILL; 0: SIGKILL at once
	MaxOutput  int           // maximum number of bytes to keep of stdout and of stderr; the rest is read and dropped
}

// Credential is the user and group of a program, without supplementary groups.
type Credential struct{ UID, GID uint32 }

// Ended is the outcome of a run.
type Ended struct {
	Started bool // false if nothing ran; then Err holds the reason
	Code    int  // exit code; -1 if it did not exit by itself
	Killed  bool // it was ended at its deadline
	Signal  syscall.Signal
	Stdout  []byte
	Stderr  []byte
	Cut     bool // there was more output
	Err     error
}

// OK reports whether it exited by itself with code 0.
func (e Ended) OK() bool { return e.Started && e.Code == 0 && !e.Killed }

// String describes the outcome, with the beginning of the output.
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

// drain is how long Run waits, after the end of a program, for output of its children.
const drain = time.Second

// Run runs a program until it ends or ctx ends. In the second case Run ends its whole process group.
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
	// The program must not outlive this process, since it would have no deadline.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if c := s.Credential; c != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: c.UID, Gid: c.GID}
	}
	var killed bool
	var kill *time.Timer
	group := func(sig syscall.Signal) error { return syscall.Kill(-cmd.Process.Pid, sig) }
	cmd.Cancel = func() error { // called before the program is reaped, so its pid is still its own
		killed = true
		if s.Grace <= 0 {
			return group(syscall.SIGKILL)
		}
		kill = time.AfterFunc(s.Grace, func() { _ = group(syscall.SIGKILL) })
		return group(syscall.SIGTERM)
	}
	cmd.WaitDelay = s.Grace + drain

	// The kernel sends Pdeathsig at the end of the thread that has started the child.
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
		_ = group(syscall.SIGKILL) // children that ignored SIGTERM
	}
	if cmd.ProcessState == nil { // another goroutine has waited for the program
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

// head keeps the beginning of the output.
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

package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Program describes a run of a program.
type Program struct {
	Path       string   // absolute
	Args       []string // without the program name
	Env        []string // "NAME=value", in addition to PATH and LC_ALL
	Dir        string   // empty: "/"
	Credential *ProgramUser
	Grace      time.Duration // from SIGTERM at the deadline to SIGKILL; 0: SIGKILL at once
	MaxOutput  int           // maximum number of bytes to keep of stdout and of stderr; the rest is read and dropped
}

// ProgramUser is the user and group of a program, without supplementary groups or inherited capabilities.
type ProgramUser struct{ UID, GID uint32 }

// ProgramResult is the outcome of a run.
type ProgramResult struct {
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
func (e ProgramResult) OK() bool { return e.Started && e.Code == 0 && !e.Killed }

// String describes the outcome, with the beginning of the output.
func (e ProgramResult) String() string {
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

// drainTime is how long RunProgram waits, after the end of a program, for output of its children.
const drainTime = time.Second

// RunProgram runs a program without a shell, with a clean environment and bounded output, until it ends or ctx ends. In
// the second case RunProgram ends the program's whole process group.
//
// It is not for programs that continue in the background after their answer: processes left in the group survive only
// if the program has ended by itself.
func RunProgram(ctx context.Context, s Program) ProgramResult {
	if err := ctx.Err(); err != nil {
		return ProgramResult{Code: -1, Err: err}
	}
	done := make(chan ProgramResult, 1)
	go func() {
		// The kernel sends Pdeathsig at the end of the thread that has started the child.
		runtime.LockOSThread()
		if s.Credential == nil {
			defer runtime.UnlockOSThread()
		} else if err := dropInherited(); err != nil { // no unlock: the thread without capabilities must end with this goroutine
			done <- ProgramResult{Code: -1, Err: err}
			return
		}
		done <- runOnThread(ctx, s)
	}()
	return <-done
}

// dropInherited clears the inheritable capabilities of the calling thread, and with them the ambient ones. The programs that the thread
// starts then inherit none. A change of the user alone clears ambient capabilities only if the process is root.
func dropInherited() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&head, &sets[0]); err != nil {
		return fmt.Errorf("read the capabilities: %w", err)
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0
	if err := unix.Capset(&head, &sets[0]); err != nil { // a capability that is not inheritable is not ambient either
		return fmt.Errorf("drop the inheritable capabilities: %w", err)
	}
	return nil
}

// runOnThread runs a program from the calling goroutine, which is locked to its thread.
func runOnThread(ctx context.Context, s Program) ProgramResult {
	cmd := exec.CommandContext(ctx, s.Path, s.Args...)
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}, s.Env...)
	cmd.Dir = s.Dir
	cmd.Dir = cmp.Or(cmd.Dir, "/")
	stdout, stderr := &outputHead{most: s.MaxOutput}, &outputHead{most: s.MaxOutput}
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
	cmd.WaitDelay = s.Grace + drainTime

	if err := cmd.Start(); err != nil {
		return ProgramResult{Code: -1, Err: err}
	}
	err := cmd.Wait()
	if killed {
		if kill != nil {
			kill.Stop()
		}
		_ = group(syscall.SIGKILL) // children that ignored SIGTERM
	}
	if cmd.ProcessState == nil { // another goroutine has waited for the program
		return ProgramResult{Started: true, Code: -1, Err: err}
	}
	e := ProgramResult{Started: true, Code: cmd.ProcessState.ExitCode(), Killed: killed, Stdout: stdout.b, Stderr: stderr.b, Cut: stdout.cut ||
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

// outputHead keeps the beginning of the output.
type outputHead struct {
	b    []byte
	most int
	cut  bool
}

func (h *outputHead) Write(p []byte) (int, error) {
	keep := p[:min(len(p), h.most-len(h.b))]
	h.b = append(h.b, keep...)
	h.cut = h.cut || len(keep) < len(p)
	return len(p), nil
}

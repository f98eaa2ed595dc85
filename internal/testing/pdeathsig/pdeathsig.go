// Package pdeathsig is for tests that start programs: these end with the test's process, even if that is killed or times
// out, and so skips its cleanup.
package pdeathsig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start starts a command that gets this signal when the process ends that has called Start.
func Start(cmd *exec.Cmd, sig syscall.Signal) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = sig
	result := make(chan error)
	starter() <- func() { result <- cmd.Start() }
	return <-result
}

// StartIn starts a command in the PID namespace of a process. The command gets no signal when this process
// dies. The kernel kills it when the first process of the namespace ends, which Start must have started.
func StartIn(cmd *exec.Cmd, pid int) error {
	result := make(chan error)
	starter() <- func() { result <- startIn(cmd, pid) }
	return <-result
}

func startIn(cmd *exec.Cmd, pid int) error {
	own, err := os.Open("/proc/thread-self/ns/pid")
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return err
	}
	defer func() { _ = space.Close() }()
	// The namespace of the thread's next children, not of the thread.
	if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWPID); err != nil {
		return fmt.Errorf("enter PID namespace of process %d: %w", pid, err)
	}
	return errors.Join(cmd.Start(), unix.Setns(int(own.Fd()), unix.CLONE_NEWPID))
}

// starter is the queue of the one thread that starts all children: the kernel signals a child when the thread that
// started it ends, and this thread ends only with the process.
var starter = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

// Package pdeathsig is for tests that start programs: these end with the test's process, even if that is killed or times
// out, and so skips its cleanup.
package pdeathsig

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
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

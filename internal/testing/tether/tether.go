// Package tether is for tests that start programs: these end with the test's process, even where it is killed or its time is
// over, so that no cleanup is done.
package tether

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

// starter is of one thread that starts all: the kernel sends the signal when the thread ends that has started the child, and this
// one ends with the process.
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

package agent

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/agent/recovery"
	"github.com/lofamo/lofamo/internal/needs"
)

// A program that is not there is given as the reason, however the half was to be started.
func TestNoProgram(t *testing.T) {
	for _, realtime := range []bool{false, true} {
		if p, err := startProcess(exec.Command(filepath.Join(t.TempDir(), "absent"), "dnp"), realtime); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("realtime %t: %v, %v: want %v", realtime, p, err, os.ErrNotExist)
		}
	}
}

// Where nobody may trace (Yama, seccomp, SELinux) a half is started all the same.
func TestStartedWhereTracingIsRefused(t *testing.T) {
	type result struct {
		p                *process
		forbidden, start error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		var r result
		if r.forbidden = forbidTracing(); r.forbidden == nil {
			r.p, r.start = startProcess(exec.Command("true"), true)
		}
		done <- r
	}()
	r := <-done
	if r.forbidden != nil {
		needs.Missing(t, "no seccomp: %v", r.forbidden)
	}
	if r.start != nil {
		t.Fatal(r.start)
	}
	defer r.p.close()
	if cause := <-r.p.ended; cause != (recovery.Cause{Kind: recovery.Exited}) {
		t.Errorf("it %s", cause)
	}
}

// forbidTracing makes ptrace fail with EPERM in the calling thread and all that it starts.
func forbidTracing() error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PTRACE, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
}

package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/recovery"
	"github.com/lofamo/lofamo/internal/config"
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

// A holder of another PID namespace is left alone, though here its PID is a half's, started in the same tick of the clock; and what it said of its self-test is not
// taken for what that one says.
func TestHolderOfAnotherNamespace(t *testing.T) {
	cmd := exec.Command("sh", "-c", "read gone", "dnp") // as long as its input
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	own, err := startProcess(cmd, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		<-own.ended
		own.close()
	}()
	here := own.holder()
	if here.Space == 0 || here.Start == 0 {
		t.Fatalf("%+v", here)
	}
	there := here
	there.Space++
	if p, err := adoptHolder(there, fault.HalfDNP, nil); p != nil || err == nil || !strings.Contains(err.Error(), "another PID namespace") {
		t.Errorf("of another namespace: %v, %v", p, err)
	}
	p, err := adoptHolder(here, fault.HalfDNP, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		<-p.ended
		p.close()
	}()
	d := &daemon{cfg: RunConfig{Agent: config.Agent{StateDir: t.TempDir()}}}
	c := &child{d: d, half: fault.HalfDNP, process: p}
	for _, tc := range []struct {
		space uint64
		want  bool
	}{{there.Space, false}, {here.Space, true}} {
		said := fmt.Sprintf("%d %d proven\n%d %d in %d\n", here.PID, here.Start, here.PID, here.Start, tc.space)
		if err := os.WriteFile(d.statePath(RegisterFile)+".dnp", []byte(said), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := c.proven(c.holder()); got != tc.want {
			t.Errorf("proven as said in namespace %d: %t: want %t", tc.space, got, tc.want)
		}
	}
}

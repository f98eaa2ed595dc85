package daemon

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// If the program is missing, that is the reason given, however the half was to be started.
func TestMissingProgramIsNamedAsReason(t *testing.T) {
	for _, realtime := range []bool{false, true} {
		if p, err := startProcess(exec.Command(filepath.Join(t.TempDir(), "absent"), "dnp"), realtime); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("realtime %t: %v, %v: want %v", realtime, p, err, os.ErrNotExist)
		}
	}
}

// A half starts even where tracing is forbidden (Yama, seccomp, SELinux).
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
		requirements.Missing(t, "no seccomp: %v", r.forbidden)
	}
	if r.start != nil {
		t.Fatal(r.start)
	}
	defer r.p.close()
	if cause := <-r.p.ended; cause != (halfcore.Cause{Kind: halfcore.Exited}) {
		t.Errorf("it %s", cause)
	}
}

// forbidTracing makes ptrace fail with EPERM in the calling thread and its children.
func forbidTracing() error {
	_, err := filterTracing(unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM), 0)
	return err
}

// filterTracing sets the kernel's action when the calling thread, or a process that it starts, calls ptrace.
func filterTracing(action uint32, flags uintptr) (listener uintptr, err error) {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PTRACE, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: action},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return 0, errno
	}
	return listener, nil
}

// starterEnv makes TestHalfEndsWithDaemonKilledDuringItsStart the daemon.
const starterEnv = "LOFAMO_TEST_STARTER"

// A daemon is killed when the new process exists but has not yet asked to be traced. Traced by init instead, the
// process would stay stopped before its first instruction for ever and hold the links' sockets: it must end.
func TestHalfEndsWithDaemonKilledDuringItsStart(t *testing.T) {
	if os.Getenv(starterEnv) != "" {
		fmt.Println(killedDuringTheStart())
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), starterEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	_ = cmd.Wait()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		requirements.Missing(t, "no seccomp listener: %s", line)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &process{pid: pid, fd: fd, ended: make(chan halfcore.Cause, 1)}
	defer p.close()
	go func() { p.ended <- p.await() }()
	select {
	case <-p.ended:
	case <-time.After(checkBound):
		t.Errorf("the process still exists %s after the daemon's end: %v", checkBound, p.signal(unix.SIGKILL))
		<-p.ended
	}
}

// killedDuringTheStart starts a process, prints its PID when it wants to be traced, and kills this one. It returns the
// error that stops it.
func killedDuringTheStart() error {
	runtime.GOMAXPROCS(2) // a thread that starts a process keeps its processor
	runtime.LockOSThread()
	listener, err := filterTracing(unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	if err != nil {
		return err
	}
	go func() {
		var held [80]byte // struct seccomp_notif: id, PID, flags and the call
		if _, _, err := unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&held))); err == 0 {
			fmt.Println(binary.NativeEndian.Uint32(held[8:]))
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}()
	_, err = startProcess(exec.Command("true"), true)
	return fmt.Errorf("it was started: %w", err)
}

// A holder of another PID namespace is left alone, though its PID here belongs to a half started in the same clock
// tick. Its self-test result does not count for that half.
func TestHolderOfAnotherNamespace(t *testing.T) {
	cmd := exec.Command("sh", "-c", "echo; read gone", "dnp") // lives as long as its input
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
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
	// Before that, /proc/PID/cmdline may be empty: the kernel may not have finished exec when Start returns.
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
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
		if err := os.WriteFile(d.statePath(half.RegisterFile)+".dnp", []byte(said), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := c.proven(c.holder()); got != tc.want {
			t.Errorf("proven as said in namespace %d: %t: want %t", tc.space, got, tc.want)
		}
	}
}

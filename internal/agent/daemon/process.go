package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/agent/threads"
)

// process is a half's process, held by a process descriptor. Even if its id is reused, a signal reaches this process or
// none, and its end is seen at once, even if it is not a child of the daemon.
type process struct {
	pid   int
	start uint64 // by regfile.StartTime; 0: not known
	fd    int
	ended chan halfcore.Cause // gets one value, when the process is certainly gone
	// requested: the daemon ends it because a response or a person requested a restart.
	requested atomic.Bool
}

// startProcess starts the command of a half. Its life does not depend on the daemon's: the daemon may die, and Ctrl-C,
// which is for the daemon, does not reach its group.
func startProcess(cmd *exec.Cmd, realtime bool) (*process, error) {
	fd := -1
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, PidFD: &fd}
	cmd, err := start(cmd, realtime)
	if err != nil {
		return nil, err
	}
	if fd < 0 {
		err := errors.New("the kernel has no process descriptors: want Linux 5.4 or later")
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	p := &process{pid: cmd.Process.Pid, fd: fd, ended: make(chan halfcore.Cause, 1)}
	p.start, _ = regfile.StartTime(p.pid) // not waited for yet, so the id is still its own
	go func() {                           // ends with the process
		_ = cmd.Wait()
		p.ended <- causeOf(cmd.ProcessState)
	}()
	return p, nil
}

// start starts a command, in real time if requested and permitted. It returns the command that runs, because a second
// attempt needs a new command.
func start(cmd *exec.Cmd, realtime bool) (*exec.Cmd, error) {
	if !realtime {
		return cmd, cmd.Start()
	}
	again := unstarted(cmd)
	err := startRealtime(cmd)
	if err == nil || again.Start() != nil {
		return cmd, err
	}
	return again, nil
}

// unstarted returns an unstarted copy of a command that may have been started.
func unstarted(cmd *exec.Cmd) *exec.Cmd {
	attr := *cmd.SysProcAttr
	return &exec.Cmd{
		Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, Stdin: cmd.Stdin, Stdout: cmd.Stdout, Stderr: cmd.Stderr,
		ExtraFiles: cmd.ExtraFiles, SysProcAttr: &attr, Err: cmd.Err,
	}
}

// startRealtime starts a half that is real-time from its first instruction on, where permitted. Then the half need not
// execute itself again (beRealtime), and a loaded machine does not delay its start. The kernel stops a traced process
// right after it has executed its program, when it has one thread. At that point this function sets the scheduling
// class and releases the process. The daemon itself stays an ordinary process (ADR 15). Where tracing is not permitted
// the function fails. Where the class is not permitted, the half handles that itself.
//
// If the daemon ended before the process asks to be traced, init would trace the process and never release it.
// Therefore the process ends with the daemon until its own packages initialise (OutliveDaemon), and the next daemon
// starts another.
func startRealtime(cmd *exec.Cmd) error {
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr.Ptrace, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if info.Code == cldTrapped {
		_ = half.MakeRealtime(pid)
		_ = unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED, nil)
		_ = unix.PtraceDetach(pid)
	}
	return nil
}

// cldTrapped is CLD_TRAPPED: a traced process has stopped.
const cldTrapped = 4

func causeOf(s *os.ProcessState) halfcore.Cause {
	if s != nil {
		if ws, ok := s.Sys().(syscall.WaitStatus); ok {
			return causeOfStatus(ws)
		}
	}
	return halfcore.Cause{Kind: halfcore.Unseen}
}

func causeOfStatus(ws syscall.WaitStatus) halfcore.Cause {
	if ws.Exited() {
		return halfcore.Cause{Kind: halfcore.Exited, Code: ws.ExitStatus()}
	}
	return halfcore.Cause{Kind: halfcore.Killed, Code: int(ws.Signal())}
}

// errServed is wrapped when the process that serves a half does not count as the half's, or is not known.
var errServed = errors.New("is served by another process")

// adopt takes over the process that already serves a half, started by an earlier daemon or by hand. nil: there is none.
// An error that does not wrap errServed: it cannot be determined.
func adopt(registers string, half fault.Half) (*process, error) {
	h, held, err := regfile.HolderOf(registers, half)
	if !held {
		return nil, err
	}
	p, err := adoptHolder(h, half, err)
	if errors.Is(err, unix.ESRCH) {
		if _, held, err := regfile.HolderOf(registers, half); !held {
			return nil, err // it has ended just now
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the %s half %w: %w", half, errServed, err)
	}
	return p, nil
}

// adoptHolder takes over the holder of a half's lock, unless err says that the holder is not known.
func adoptHolder(h regfile.Holder, half fault.Half, err error) (*process, error) {
	if err != nil {
		return nil, err
	}
	if h.Elsewhere(regfile.PIDNamespace()) { // here that id belongs to no process, or to an unrelated one
		return nil, fmt.Errorf("adopt the %s half, process %d: is of another PID namespace, as a container's are", half, h.PID)
	}
	fd, err := unix.PidfdOpen(h.PID, 0)
	if err != nil {
		return nil, fmt.Errorf("adopt the %s half, process %d: %w", half, h.PID, err)
	}
	// From here on the id belongs to this process as long as it lives, so facts about the id are facts about fd's
	// process.
	start, err := regfile.StartTime(h.PID)
	if err == nil && (h.Start != start || h.PID == os.Getpid()) {
		err = errors.New("is another than the one that took the lock")
	}
	if err == nil && !isHalf(h.PID, half) {
		err = errors.New("is not lofamo-agent " + half.String())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("adopt the %s half, process %d: %w", half, h.PID, err), unix.Close(fd))
	}
	p := &process{pid: h.PID, start: start, fd: fd, ended: make(chan halfcore.Cause, 1)}
	go func() { // ends with the process
		p.ended <- p.await()
	}()
	return p, nil
}

// isHalf reports whether a process was started as that half, by its command line: a test that holds the lock must never
// be killed.
func isHalf(pid int, half fault.Half) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	args := bytes.Split(b, []byte{0})
	return err == nil && slices.ContainsFunc(args[min(1, len(args)):], func(a []byte) bool { return string(a) == half.String() })
}

// await waits for the end of a process that is not our child.
func (p *process) await() halfcore.Cause {
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return halfcore.Cause{Kind: halfcore.Unseen, Detail: err.Error()}
		}
		if fds[0].Revents != 0 {
			break
		}
	}
	return p.howEnded()
}

// howEnded returns how a process that is not a child ended. Until its parent has reaped it /proc says so, and then,
// from Linux 6.15 on, the descriptor.
func (p *process) howEnded() halfcore.Cause {
	const exitCode = 52 - 3 // the field, of those from the third on
	if f, err := regfile.StatFields(p.pid); err == nil && len(f) > exitCode && f[0] == "Z" {
		if n, err := strconv.ParseUint(f[exitCode], 10, 32); err == nil {
			return causeOfStatus(syscall.WaitStatus(n))
		}
	}
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if err := unix.IoctlPidfdInfo(p.fd, &info); err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return halfcore.Cause{Kind: halfcore.Unseen}
	}
	return causeOfStatus(syscall.WaitStatus(uint32(info.Exit_code)))
}

// holder returns the process as it identifies itself in its lock file.
func (p *process) holder() regfile.Holder {
	return regfile.Holder{PID: p.pid, Start: p.start, Space: regfile.PIDNamespace()}
}

func (p *process) signal(s syscall.Signal) error { return unix.PidfdSendSignal(p.fd, s, nil, 0) }

// close releases the descriptor of a process that has ended.
func (p *process) close() { _ = unix.Close(p.fd) }

// ranFor returns the CPU time of all threads of a process.
func (p *process) ranFor() time.Duration {
	// The clock of another process, as clock_getcpuclockid(3) makes it.
	return time.Duration(storage.Clock(int32(^p.pid<<3 | 2)))
}

// moment is the time between two looks at threads: a thread that waits for a processor at both was not just woken.
const moment = 2 * time.Millisecond

// look returns the kernel's view of the process. With withThreads, it also reads the states of the threads, from several
// files in /proc.
func (p *process) look(withThreads bool) recovery.Process {
	out := recovery.Process{}
	if withThreads {
		a, _ := threads.Read(p.pid) // an error means that the process has ended
		if a.Ready() > 0 || a.OnDisk {
			time.Sleep(moment)
			a, _ = threads.Read(p.pid)
		}
		out.Waits, out.Stopped, out.Waited = a.Ready() > 0 || a.OnDisk, a.Stopped, a.Waited
	}
	out.Ran = p.ranFor()
	return out
}

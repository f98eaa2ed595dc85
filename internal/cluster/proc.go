package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// procStat is the used content of /proc/PID/stat.
type procStat struct {
	pid, ppid, session int
	state              byte // R, S, D, T (stopped), Z (dead, not yet reaped) …
	started            uint64
	args               []string // only Cluster.own sets them
}

// readStat reads one process. The second field, the name, may contain anything; the other fields follow the last
// parenthesis.
func readStat(pid int) (procStat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	i := bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 20 {
		return procStat{}, fmt.Errorf("process %d: /proc/%d/stat has an unknown form", pid, pid)
	}
	s := procStat{pid: pid, state: f[0][0]}
	if s.ppid, err = strconv.Atoi(f[1]); err != nil {
		return procStat{}, fmt.Errorf("process %d: parent: %w", pid, err)
	}
	if s.session, err = strconv.Atoi(f[3]); err != nil {
		return procStat{}, fmt.Errorf("process %d: session: %w", pid, err)
	}
	if s.started, err = strconv.ParseUint(f[19], 10, 64); err != nil {
		return procStat{}, fmt.Errorf("process %d: start time: %w", pid, err)
	}
	return s, nil
}

// bootID returns the machine's boot id, or "" if it is unknown.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// forgetProcesses clears the ids and start times of all processes, after a stop or a reboot. Other processes may have them now.
func (i *Info) forgetProcesses() {
	for k := range i.Supervisors {
		i.Supervisors[k].PID, i.Supervisors[k].Started = 0, 0
	}
	for k := range i.Nodes {
		i.Nodes[k].RunPID, i.Nodes[k].Started = 0, 0
	}
	for k := range i.Spares {
		i.Spares[k].RunPID, i.Spares[k].Started = 0, 0
	}
}

// alive reports whether pid is still the process that started at that time, and not a zombie.
func alive(pid int, started uint64) bool {
	if pid <= 0 {
		return false
	}
	s, err := readStat(pid)
	return err == nil && s.started == started && s.state != 'Z'
}

// process is a hold on one process that cannot come to mean another one.
type process struct {
	fd      int // pidfd
	pid     int
	started uint64
}

var errNotOurs = errors.New("no such process")

// openProcess takes hold of pid if it is still the process that started at that time; any start
// time will do when started is 0.
func openProcess(pid int, started uint64) (*process, error) {
	if pid <= 0 {
		return nil, errNotOurs
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, errNotOurs
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	// The check comes after the open: a pid that passes was this process when it was opened.
	s, err := readStat(pid)
	if err != nil || (started != 0 && s.started != started) || s.state == 'Z' {
		_ = unix.Close(fd)
		return nil, errNotOurs
	}
	return &process{fd: fd, pid: pid, started: s.started}, nil
}

func (p *process) signal(sig unix.Signal) error {
	err := unix.PidfdSendSignal(p.fd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return errNotOurs
	}
	if err != nil {
		return fmt.Errorf("signal %s to process %d: %w", unix.SignalName(sig), p.pid, err)
	}
	return nil
}

func (p *process) close() { _ = unix.Close(p.fd) }

// ended reports whether the process has ended, also if its parent does not know yet.
func (p *process) ended() bool {
	n, _ := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, 0) // after an error the caller asks again
	return n > 0
}

// wait returns once the process has ended, or with the context's error. A pidfd becomes readable when its process ends,
// under any parent.
func (p *process) wait(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 50)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for process %d: %w", p.pid, err)
		}
		if n > 0 {
			return nil
		}
	}
}

// strays returns the processes that run one of the cluster's configuration files but are not in
// known: halves that lost their `lofamo-agent run`. A process is the cluster's own when its
// program has one of our names and a path inside the cluster's directory is among its arguments.
func (c *Cluster) strays() []procStat {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []procStat
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if s, ok := c.own(pid); ok {
			out = append(out, s)
		}
	}
	return out
}

// own reads a process and reports whether it is one of the cluster's.
func (c *Cluster) own(pid int) (procStat, bool) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
	if err != nil || !c.ownArguments(args) {
		return procStat{}, false
	}
	s, err := readStat(pid)
	s.args = args
	return s, err == nil && s.state != 'Z'
}

// runs reports whether a process runs a program of ours with a command and a configuration file.
func (s procStat) runs(program, command, config string) bool {
	return programOf(s.args) == program && len(s.args) > 1 && s.args[1] == command &&
		slices.ContainsFunc(s.args[1:], func(a string) bool { return a == config || strings.HasSuffix(a, "="+config) })
}

// programOf returns the program of a command line, by its present name.
func programOf(args []string) string {
	name := filepath.Base(args[0])
	if name == formerSupervisor {
		return supervisorProgram
	}
	return name
}

// current returns the process of a member: the one in cluster.json, or the one that somebody else has started since with
// the member's configuration; 0: it does not run.
func (c *Cluster) current(pid int, started uint64, program, config string) (int, uint64) {
	if alive(pid, started) {
		return pid, started
	}
	for _, s := range c.strays() {
		if s.runs(program, "run", config) {
			return s.pid, s.started
		}
	}
	return 0, 0
}

// daemon returns the process of a node's daemon; 0: it does not run.
func (c *Cluster) daemon(n NodeInfo) (int, uint64) {
	return c.current(n.RunPID, n.Started, agentProgram, filepath.Join(c.nodeDir(n.ID), "agent.yaml"))
}

// running returns the process of a replica; 0: it does not run.
func (c *Cluster) running(s *SupervisorInfo) (int, uint64) {
	return c.current(s.PID, s.Started, supervisorProgram, c.supervisorConfig(s.ID))
}

func (c *Cluster) ownArguments(args []string) bool {
	if name := programOf(args); name != agentProgram && name != supervisorProgram {
		return false
	}
	for _, a := range args[1:] {
		if _, value, ok := strings.Cut(a, "="); ok && strings.HasPrefix(a, "-") { // a path may have the sign too
			a = value
		}
		if strings.HasPrefix(a, c.path("nodes")+"/") || strings.HasPrefix(a, c.path("supervisors")+"/") {
			return true
		}
	}
	return false
}

// monotonic returns CLOCK_MONOTONIC in nanoseconds: the clock for times of faults.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(fmt.Sprintf("cluster: no monotonic clock: %v", err))
	}
	return ts.Nano()
}

// Monotonic returns the time on the clock of the times that Inject returns, in nanoseconds.
func Monotonic() int64 { return monotonic() }

// endAll signals every process, waits up to grace for all to end, and kills the rest. It continues a stopped process
// first, so that it can obey. It returns the processes that did not end.
func endAll(ctx context.Context, procs []*process, grace time.Duration) []*process {
	for _, p := range procs {
		_ = p.signal(unix.SIGTERM)
		_ = p.signal(unix.SIGCONT)
	}
	left := waitAll(ctx, procs, grace)
	for _, p := range left {
		_ = p.signal(unix.SIGKILL)
	}
	return waitAll(context.WithoutCancel(ctx), left, time.Minute)
}

func waitAll(ctx context.Context, procs []*process, limit time.Duration) (left []*process) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, p := range procs {
		if p.wait(ctx) != nil {
			left = append(left, p)
		}
	}
	// Those whose turn came after the end of the time may have ended all the same.
	var still []*process
	for _, p := range left {
		if alive(p.pid, p.started) {
			still = append(still, p)
		}
	}
	return still
}

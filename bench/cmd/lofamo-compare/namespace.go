package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A cell runs in its own namespaces: network (a loopback interface that carries only its packets), processes (its
// end kills everything that the cell started) and mounts (for a /proc of these processes). Process 1 in there is this
// program with the argument "init"; its one child runs the cell.

// isolated returns the command that runs this program with args in new namespaces. Its end ends all processes in them.
func isolated(self string, args ...string) *exec.Cmd {
	cmd := exec.Command(self, append([]string{"init"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	return cmd
}

// beInit is process 1 of the namespaces: it prepares them, runs one child and reaps orphans until the child ends. It
// returns the exit status.
func beInit(args []string) (int, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return 1, fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return 1, fmt.Errorf("mount /proc of the namespace: %w", err)
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return 1, fmt.Errorf("bring up the loopback interface: %w: %s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT) // the child gets them from the terminal and ends
	child, err := os.StartProcess(self, append([]string{self}, args...), &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return 1, err
	}
	for {
		var st unix.WaitStatus
		pid, err := unix.Wait4(-1, &st, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 1, fmt.Errorf("wait for the cell: %w", err)
		case pid == child.Pid && st.Exited():
			return st.ExitStatus(), nil
		case pid == child.Pid:
			return 1, fmt.Errorf("the cell ended by %s", st.Signal())
		}
	}
}

// lose drops a percentage of all packets that arrive at the loopback interface of this namespace.
func lose(percent int) error {
	rules := fmt.Sprintf("table inet compare { chain in { type filter hook input priority 0; policy accept; "+
		"numgen random mod 100 < %d drop; }; }\n", percent)
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("lose %d %% of the packets: %w: %s", percent, err, out)
	}
	return nil
}

// session starts a program in a new session, with its output in log, and returns its process. The session's ID
// is the process' ID.
func session(log io.Writer, stdout io.Writer, program string, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = stdout, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return cmd, nil
}

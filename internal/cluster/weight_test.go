package cluster

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// sleeper starts a process in a session of its own, as a supervisor is.
func sleeper(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	return cmd.Process.Pid
}

// niceOf returns the nice value of a process, and that of its scheduling group, or "" if the kernel has none.
func niceOf(t *testing.T, pid int) (nice int, group string) {
	t.Helper()
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/autogroup")
	if f := strings.Fields(string(b)); len(f) == 3 {
		group = f[2]
	}
	return 20 - raw, group
}

func TestSupervisorGetsMoreWeightWhereAllowed(t *testing.T) {
	pid := sleeper(t)
	if err := raise(pid); errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		requirements.Missing(t, "CAP_SYS_NICE: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	nice, group := niceOf(t, pid)
	if nice != supervisorNice || group != "" && group != strconv.Itoa(supervisorNice) {
		t.Errorf("nice %d, of the scheduling group %q; want %d", nice, group, supervisorNice)
	}
}

// without calls do without a capability.
func without(capability int, do func() error) error {
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread, which loses a capability, ends with this goroutine
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		if err := unix.Capget(&head, &caps[0]); err != nil {
			failed <- err
			return
		}
		caps[0].Effective &^= 1 << capability
		if err := unix.Capset(&head, &caps[0]); err != nil {
			failed <- err
			return
		}
		failed <- do()
	}()
	return <-failed
}

// TestSupervisorsStartedTogetherGetTheirWeight: without CAP_SYS_ADMIN, the kernel lets a group be changed once in 100 ms.
func TestSupervisorsStartedTogetherGetTheirWeight(t *testing.T) {
	for range 3 {
		pid := sleeper(t)
		err := without(unix.CAP_SYS_ADMIN, func() error { return raise(pid) })
		nice, group := niceOf(t, pid)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			requirements.Missing(t, "CAP_SYS_NICE: %v", err)
		}
		if err != nil || nice != supervisorNice || group != "" && group != strconv.Itoa(supervisorNice) {
			t.Errorf("%v: nice %d, of the scheduling group %q; want %d", err, nice, group, supervisorNice)
		}
	}
}

// TestSupervisorKeepsItsWeightWithoutPrivilege: the refusal is an error that names the remedy, and changes nothing.
func TestSupervisorKeepsItsWeightWithoutPrivilege(t *testing.T) {
	pid := sleeper(t)
	before, groupBefore := niceOf(t, pid)
	err := without(unix.CAP_SYS_NICE, func() error { return raise(pid) })
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
		t.Fatalf("without CAP_SYS_NICE: %v, want a refusal", err)
	}
	if nice, group := niceOf(t, pid); nice != before || group != groupBefore {
		t.Errorf("nice %d, of the scheduling group %q; want %d and %q", nice, group, before, groupBefore)
	}
	no := errors.New("/sys/fs/cgroup gives its groups no cpu controller")
	c := Cluster{unweighted: err, ungrouped: no}
	if words := c.Unweighted().Error(); !strings.Contains(words, "CAP_SYS_NICE") || !strings.Contains(words, "ulimit -e 30") ||
		!strings.Contains(words, no.Error()) {
		t.Errorf("error %q names no remedy", words)
	}
	if words := (&Cluster{ungrouped: no}).Unweighted().Error(); !strings.Contains(words, "have nice -10, but no cgroup weight") {
		t.Errorf("without a group: %q", words)
	}
	if words := (&Cluster{unweighted: err}).Unweighted().Error(); !strings.Contains(words, "cgroup weight 1000, but not nice -10") {
		t.Errorf("without a nice value: %q", words)
	}
	if err := (&Cluster{}).Unweighted(); err != nil {
		t.Errorf("a cluster whose supervisors were raised: %v", err)
	}
}

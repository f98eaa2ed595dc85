package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestClusterTakenOverByAnotherProcess lets another process than the one that started the cluster inject faults and heal
// them. Meanwhile a daemon and the supervisor are killed, and started again by that process or by hand.
func TestClusterTakenOverByAnotherProcess(t *testing.T) {
	t.Parallel()
	l := startCluster(t, "2", 1)
	tr := begin(t, l)
	c, err := cluster.Load(l.Cluster.Dir())
	if err != nil {
		t.Fatal(err)
	}
	c.SetBinDir(binaries)
	node := c.Info().Nodes[0]
	name := string(node.ID)
	adopted := func(what string) {
		t.Helper()
		agenttest.Await(t, what, func() bool {
			s, err := c.Status(t.Context(), node)
			return err == nil && s.Half(fault.HalfHost).Running && s.Half(fault.HalfDNP).Running
		})
	}
	healed := func(k cluster.Kind, component string) {
		t.Helper()
		if _, err := c.Inject(t.Context(), name, cluster.Fault{Kind: k}); err != nil {
			t.Fatal(err)
		}
		tr.becomes(name, component, failed)
		if err := c.Heal(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), settling)
		defer cancel()
		if err := c.WaitNormal(ctx, nil); err != nil {
			t.Fatal(err)
		}
		tr.mark = l.Mark()
	}
	kill(t, node.RunPID)
	agenttest.Await(t, "the daemon's successor", func() bool { return c.StartRun(name) == nil })
	adopted("halves that the successor has adopted")
	healed(cluster.HangHost, "host")
	healed(cluster.KillDNP, "dnp")

	if node, err = c.Node(name); err != nil {
		t.Fatal(err)
	}
	kill(t, node.RunPID)
	byHand(t, "lofamo-agent", "run", "--restart=never", "--config", filepath.Join(filepath.Dir(node.StateDir), "agent.yaml"))
	adopted("halves that a daemon started by hand has adopted")
	healed(cluster.HangHost, "host")
	if err := c.StartRun(name); err == nil {
		t.Error("a second daemon was started")
	}

	sup := c.Info().Supervisors[0]
	kill(t, sup.PID)
	byHand(t, "lofamo-supervisor", "run", "--config", filepath.Join(c.Dir(), "supervisors", sup.ID, "supervisor.yaml"))
	healed(cluster.HangDNP, "dnp")
	if err := c.StartSupervisor(sup.ID); err == nil {
		t.Error("a second supervisor was started")
	}
	if err := c.KillSupervisor(t.Context(), sup.ID); err != nil {
		t.Fatal(err)
	}
	if err := c.StartSupervisor(sup.ID); err != nil {
		t.Fatal(err)
	}
	healed(cluster.HangDNP, "dnp")
}

// kill kills a process, and waits for its end: its successor needs the same locks and ports.
func kill(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	agenttest.Await(t, "the end of the process", func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n == 1
	})
}

// byHand starts a program of the cluster, which Cluster.Stop ends.
func byHand(t *testing.T, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(binaries, program), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // ended already, unless the test failed
		<-ended
	})
}

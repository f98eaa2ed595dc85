// Package slurmtest starts a real Slurm controller from Debian for tests.
package slurmtest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// Controller is a real slurmctld with nodes n1 to n20 and no slurmd: the controller alone decides whether a node is
// drained.
type Controller struct {
	Dir      string
	Scontrol string // a script that runs the real one
	Conf     string

	daemon *exec.Cmd
	ended  chan error
}

// Close stops the controller.
func (c *Controller) Close() {
	if c.daemon != nil && c.daemon.Process != nil {
		_ = c.daemon.Process.Kill()
		for range c.ended { // its error is that of the kill
		}
	}
	_ = os.RemoveAll(c.Dir)
}

// find returns the path of a program as Debian installs it.
func find(names ...string) (string, error) {
	for _, n := range names {
		if p, err := exec.LookPath(n); err == nil {
			return p, nil
		}
		if p, err := exec.LookPath("/usr/sbin/" + n); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("none of %v is installed", names)
}

// Script writes a program. It blocks forks meanwhile: a forked child would hold the file open for writing until its
// exec, and running the script would fail with "text file busy".
func Script(path, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o700)
}

// Start starts a controller. It skips the test if Slurm is not installed, or fails it in CI.
func Start(t testing.TB) *Controller {
	t.Helper()
	c, err := start(t)
	if err != nil {
		requirements.Missing(t, "no real Slurm: %v", err)
	}
	return c
}

func start(t testing.TB) (*Controller, error) {
	ctld, err := find("slurmctld", "slurmctld-wlm")
	if err != nil {
		return nil, err
	}
	real, err := find("scontrol")
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	host, _, _ = strings.Cut(host, ".")
	dir, err := os.MkdirTemp("", "lofamo-slurm")
	if err != nil {
		return nil, err
	}
	c := &Controller{Dir: dir, Conf: filepath.Join(dir, "slurm.conf"), Scontrol: filepath.Join(dir, "scontrol")}
	if err := c.start(t, ctld, real, host); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Controller) start(t testing.TB, ctld, real, host string) error {
	plugins := ""
	if root, rest, ok := strings.Cut(real, "/usr/bin/"); ok && root != "" && rest == "scontrol" {
		if dirs, _ := filepath.Glob(root + "/usr/lib/*/slurm-wlm"); len(dirs) == 1 {
			plugins = "PluginDir=" + dirs[0]
		}
	}
	port, err := everywhere()
	if err != nil {
		return err
	}
	addr := netip.AddrPortFrom(freeport.IP(), port)
	conf := strings.NewReplacer("HOST", host, "IP", addr.Addr().String(), "PORT", fmt.Sprint(port), "NODED",
		fmt.Sprint(freeport.Addr(t).Port()), "DIR", c.Dir, "PLUGINS", plugins).Replace(`
ClusterName=test
SlurmctldHost=HOST(IP)
SlurmctldPort=PORT
SlurmdPort=NODED
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation=DIR/state
SlurmctldPidFile=DIR/slurmctld.pid
SlurmdSpoolDir=DIR/spool
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SchedulerType=sched/builtin
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
SlurmdTimeout=0
PLUGINS
NodeName=n[1-20] NodeHostname=HOST NodeAddr=IP CPUs=1 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES State=UP
`)
	script := "#!/bin/sh\nLD_LIBRARY_PATH=" + os.Getenv("LD_LIBRARY_PATH") + " exec " + real + ` "$@"` + "\n"
	if err := errors.Join(os.Mkdir(filepath.Join(c.Dir, "state"), 0o700), os.WriteFile(c.Conf, []byte(conf), 0o600),
		Script(c.Scontrol, script)); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(c.Dir, "log"))
	if err != nil {
		return err
	}
	c.daemon = exec.Command(ctld, "-D", "-f", c.Conf)
	c.daemon.Stdout, c.daemon.Stderr = log, log
	c.daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.daemon.Start(); err != nil {
		return err
	}
	c.ended = make(chan error, 1)
	go func() { c.ended <- c.daemon.Wait(); close(c.ended) }()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		// Dial directly, because scontrol itself waits long for a closed port.
		conn, err := net.Dial("tcp", addr.String())
		if err == nil {
			return conn.Close()
		}
		select {
		case err = <-c.ended:
		default:
			if time.Now().Before(deadline) {
				continue
			}
		}
		said, _ := os.ReadFile(log.Name())
		return fmt.Errorf("slurmctld does not answer: %w: %s", err, said)
	}
}

// everywhere returns a port that is free on all addresses, because slurmctld listens on every address. It lies outside
// the ranges of freeport and of the kernel's ephemeral ports.
func everywhere() (uint16, error) {
	const first, count = 30000, 2700
	var err error
	for i := range 100 {
		port := uint16(first + (os.Getpid()+i*7)%count)
		var l net.Listener
		if l, err = net.Listen("tcp4", fmt.Sprintf(":%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}

// Run runs scontrol.
func (c *Controller) Run(args ...string) (string, error) {
	cmd := exec.Command(c.Scontrol, args...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+c.Conf)
	out, err := cmd.CombinedOutput()
	return string(bytes.TrimSpace(out)), err
}

// Operator changes a node as an operator would.
func (c *Controller) Operator(t testing.TB, args ...string) {
	t.Helper()
	if out, err := c.Run(append([]string{"update"}, args...)...); err != nil {
		t.Fatalf("scontrol update %v: %s: %v", args, out, err)
	}
}

// Idle makes a node accept work again. The node was down with the given reason, which Slurm 24 keeps until the node responds.
func (c *Controller) Idle(t testing.TB, name, reason string) {
	t.Helper()
	c.Operator(t, "NodeName="+name, "State=DOWN", "Reason="+reason)
	c.Operator(t, "NodeName="+name, "State=RESUME")
}

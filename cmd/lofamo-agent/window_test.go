package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// twoKernels returns the configurations of the two halves of one node with a window between them.
func twoKernels(t *testing.T) (host, dnp config.Agent) {
	t.Helper()
	host = node(t)
	dnp = host
	dnp.StateDir = filepath.Join(agenttest.Dir(t), "state")
	a, b := freeport.Addr(t).String(), freeport.Addr(t).String()
	host.Window, dnp.Window = config.WindowConfig{Listen: a, Peer: b}, config.WindowConfig{Listen: b, Peer: a}
	host.TLS.DNPCert, host.TLS.DNPKey, dnp.TLS.HostCert, dnp.TLS.HostKey = "", "", "", ""
	return host, dnp
}

// startApart starts one half as a process of its own, which ends with the test. With a boot ID it finds that one, as under
// another kernel.
func startApart(t *testing.T, cfg config.Agent, h fault.Half, bootID string) *exec.Cmd {
	t.Helper()
	cmd := agentCommand(t, h.String(), "--config", write(t, cfg, ""), "--scheduling", "default")
	if bootID != "" {
		file := filepath.Join(t.TempDir(), "boot_id")
		if err := os.WriteFile(file, []byte(bootID+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		const script = `mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"`
		cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", script, file, cmd.Path}, cmd.Args[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}
	cmd.Stdout, cmd.Stderr = agenttest.Writer{T: t}, agenttest.Writer{T: t}
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func awaitWindow(t *testing.T, cfg config.Agent, what string, fits func(local.Status) bool) {
	t.Helper()
	var last local.Status
	defer func() {
		if t.Failed() {
			t.Logf("DNP half %s, platform %s, window %+v", last.DNP.State, last.Platform, last.Window)
		}
	}()
	agenttest.Await(t, what, func() bool {
		s, err := local.AskStatus(context.Background(), cfg.StateDir)
		if err != nil {
			return false
		}
		last = s
		return s.Window != nil && fits(s)
	})
}

func sees(dnp, window string) func(local.Status) bool {
	return func(s local.Status) bool { return s.DNP.State == dnp && s.Window.State == window }
}

// TestHalvesOfTwoKernels: the host half tells a dead process beyond the window from one that does not answer at all.
func TestHalvesOfTwoKernels(t *testing.T) {
	host, dnp := twoKernels(t)
	startApart(t, host, fault.HalfHost, "")
	other := startApart(t, dnp, fault.HalfDNP, "")
	awaitWindow(t, host, "the halves find each other", sees("ALIVE", "alive"))
	signalTo(t, other.Process.Pid, syscall.SIGSTOP)
	awaitWindow(t, host, "a stopped process is silence", sees("STALE", "silent"))
	signalTo(t, other.Process.Pid, syscall.SIGCONT)
	awaitWindow(t, host, "it goes on", sees("ALIVE", "alive"))
	signalTo(t, other.Process.Pid, syscall.SIGKILL)
	awaitWindow(t, host, "a dead process is refused by its kernel", sees("STALE", "refused"))
	startApart(t, dnp, fault.HalfDNP, "")
	awaitWindow(t, host, "another process takes the window over", func(s local.Status) bool {
		return sees("ALIVE", "alive")(s) && s.Platform == config.PlatformSharedKernel && s.Window.SecondClaimant == 0
	})
}

// TestPlatformIsFound: the halves report two kernels because they find two, whatever the configuration says.
func TestPlatformIsFound(t *testing.T) {
	if os.Geteuid() != 0 {
		requirements.Missing(t, "root, to give one half another boot ID")
	}
	host, dnp := twoKernels(t)
	startApart(t, host, fault.HalfHost, "")
	startApart(t, dnp, fault.HalfDNP, "6b4cbd0e-7a35-4d3b-9a4f-0c8f6b1f2a11")
	awaitWindow(t, host, "two kernels", func(s local.Status) bool {
		return sees("ALIVE", "alive")(s) && s.Platform == config.PlatformDPU
	})
}

// TestDaemonsOfTwoKernels: each daemon restarts its own half, and the window carries on.
func TestDaemonsOfTwoKernels(t *testing.T) {
	host, dnp := twoKernels(t)
	refusal(t, 78, []string{"window", "--half host"}, "run", "--config", write(t, host, ""))
	refusal(t, 78, []string{"window", "certificate and key of the dnp half"}, "run", "--half", "dnp", "--config", write(t, host, ""))
	startDaemon(t, host, "--half", "host")
	startDaemon(t, dnp, "--half", "dnp")
	awaitWindow(t, host, "the halves find each other", sees("ALIVE", "alive"))
	out, err := agentCommand(t, "restart", "--config", write(t, dnp, "")).CombinedOutput()
	const passed = "the dnp half serves and has passed its self-test"
	if err != nil || !strings.Contains(string(out), passed) || strings.Contains(string(out), "host") {
		t.Errorf("restart of the half on this kernel: %v: %s", err, out)
	}
	was := awaitRecord(t, dnp, fault.HalfDNP, "it runs", runs)
	var before uint64
	awaitWindow(t, host, "a session", func(s local.Status) bool { before = s.Window.Sessions; return before > 0 })
	signalTo(t, was.PID, syscall.SIGKILL)
	awaitWindow(t, host, "the restarted half speaks", func(s local.Status) bool {
		return s.Window.Sessions > before && sees("ALIVE", "alive")(s)
	})
}

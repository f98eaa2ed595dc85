package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/sensor"

	"github.com/lofamo/lofamo/internal/config"
)

// withCheck is a node whose peripheral 0 has a check, run every 100 ms. Its argument is the directory returned.
func withCheck(t *testing.T, body string) (c config.Agent, dir string) {
	t.Helper()
	c = node(t)
	dir = filepath.Dir(c.StateDir)
	script := filepath.Join(dir, "check")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c.Sensors.Peripherals[0] = sensor.PeripheralConfig{
		Kind: sensor.PeripheralScript, Command: []string{script, dir}, Interval: sensor.Duration(100 * time.Millisecond),
	}
	return c, dir
}

// lines waits until the file has n lines of numbers and returns the newest n.
func lines(t *testing.T, file string, n int) []int {
	t.Helper()
	var b []byte
	for end := time.Now().Add(bound); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		b, _ = os.ReadFile(file) // not there yet
		whole := string(b[:1+strings.LastIndexByte(string(b), '\n')])
		words := strings.Fields(whole)
		if len(words) < n {
			continue
		}
		var out []int
		for _, w := range words[len(words)-n:] {
			v, err := strconv.Atoi(w)
			if err != nil {
				t.Fatalf("%s: %q", file, b)
			}
			out = append(out, v)
		}
		return out
	}
	t.Fatalf("not within %s: %d lines in %s: %q", bound, n, file, b)
	return nil
}

func awaitGone(t *testing.T, what string, pid int) {
	t.Helper()
	for end := time.Now().Add(bound); !dead(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s, process %d, still lives", what, pid)
		}
	}
}

// dead reports whether a process has ended, including one that no parent has reaped yet.
func dead(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// TestHalvesStartNoProcesses: the halves are real-time, and to start a process would hold them up for as long as a process
// of the ordinary class takes to run, on a loaded machine until they are called dead. The daemon starts the checks.
func TestHalvesStartNoProcesses(t *testing.T) {
	c, dir := withCheck(t, `echo $PPID >> "$1/parents"`)
	d := startDaemon(t, c)
	for _, parent := range lines(t, filepath.Join(dir, "parents"), 5) {
		if parent != d.cmd.Process.Pid {
			t.Errorf("a check was started by process %d, want the daemon, %d", parent, d.cmd.Process.Pid)
		}
	}
	host, dnp := d.await("both halves run", func(h, n halfState) bool { return h.Running && n.Running })
	for _, pid := range []int{host.PID, dnp.PID} {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && len(b) > 0 {
				t.Errorf("%s: %s: want none", f, b)
			}
		}
	}
}

// hangs is a check that hangs the first time, with a child.
const hangs = `test -e "$1/pids" && { echo $PPID >> "$1/again"; exit; }
sleep 1000 &
echo $! > "$1/pids.new"; echo $$ >> "$1/pids.new"; mv "$1/pids.new" "$1/pids"; wait`

// A host half that is killed leaves no check behind, and its successor has checks.
func TestNoCheckOutlivesItsHalf(t *testing.T) {
	c, dir := withCheck(t, hangs)
	c.Sensors.Peripherals[0].Interval, c.Sensors.Peripherals[0].Timeout = sensor.Duration(time.Hour), sensor.Duration(10*time.Minute)
	d := startDaemon(t, c)
	pids := lines(t, filepath.Join(dir, "pids"), 2)
	d.post("/kill", `{"half":"host","signal":"KILL"}`)
	for _, pid := range pids {
		awaitGone(t, "a check or its child", pid)
	}
	lines(t, filepath.Join(dir, "again"), 1)
}

// The daemon, killed, takes its check along. The halves live on, and have checks again as soon as somebody runs them.
func TestCheckStarterDies(t *testing.T) {
	c, dir := withCheck(t, hangs)
	often := c.Sensors.Peripherals[0]
	often.Command = []string{often.Command[0], filepath.Join(dir, "often")} // which does not hang
	file := func(name string) string { return filepath.Join(dir, "often", name) }
	if err := os.Mkdir(file(""), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file("pids"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c.Sensors.Peripherals[1] = often
	c.Sensors.Peripherals[0].Interval, c.Sensors.Peripherals[0].Timeout = sensor.Duration(time.Hour), sensor.Duration(10*time.Minute)
	d := startDaemon(t, c)
	host, dnp := d.await("both halves run", func(h, n halfState) bool { return h.Running && n.Running })
	pids := lines(t, filepath.Join(dir, "pids"), 2)
	child, check := pids[0], pids[1]
	t.Cleanup(func() { _ = syscall.Kill(child, syscall.SIGKILL) }) // the test must kill it: its parent is gone
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = d.cmd.Wait()
	t.Cleanup(func() {
		for _, pid := range []int{host.PID, dnp.PID} {
			_ = syscall.Kill(pid, syscall.SIGTERM)
			awaitGone(t, "a half", pid)
		}
	})
	awaitGone(t, "the check", check)
	cmd := agentCommand(t, "checks", "--config", filepath.Join(dir, "agent.yaml"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() })
	for parents := []int{0}; !slices.Contains(parents, cmd.Process.Pid); {
		parents = lines(t, file("again"), len(parents)+1)
	}
	// The check that was killed is run again now, not after its interval.
	if starter := lines(t, filepath.Join(dir, "again"), 1)[0]; starter != cmd.Process.Pid {
		t.Errorf("the check that was killed is run by process %d: want %d", starter, cmd.Process.Pid)
	}
	refusal(t, 1, []string{"checks.lock", "another lofamo-agent run or checks"}, "checks", "--config", filepath.Join(dir, "agent.yaml"))
	if dead(host.PID) || dead(dnp.PID) {
		t.Error("a half died with the daemon")
	}
}

package main

import (
	"bytes"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
)

// After an ordered restart both halves are new processes and have passed their self-tests. A refused configuration
// ends neither half.
func TestRestartCommandStartsBothHalvesAgain(t *testing.T) {
	c := node(t)
	file := write(t, c, "")
	run := func(args ...string) (int, string) {
		var out bytes.Buffer
		return execute(t.Context(), append([]string{"restart", "--config", file}, args...), nil, &out, &out), out.String()
	}
	if code, said := run(); code != 1 || !strings.Contains(said, "no recovery daemon runs") {
		t.Errorf("without a daemon: %d, %s", code, said)
	}
	if code, said := run("--half", "both"); code != 2 || !strings.Contains(said, "--half") {
		t.Errorf("of no half: %d, %s", code, said)
	}
	startDaemon(t, c)
	before := map[fault.Half]int{}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		before[h] = awaitRecord(t, c, h, "it runs", runs).PID
	}
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(bytes.Clone(good), "mtu: 1\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, said := run(); code != 2 || !strings.Contains(said, "mtu") {
		t.Errorf("with a bad configuration: %d, %s", code, said)
	}
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	for h, pid := range before {
		if got := awaitRecord(t, c, h, "it runs", runs).PID; got != pid {
			t.Errorf("the %s half was restarted for a bad configuration", h)
		}
	}
	if code, said := run(); code != 0 || strings.Count(said, "has passed its self-test") != 2 {
		t.Errorf("%d, %s", code, said)
	}
	for h, pid := range before {
		r := awaitRecord(t, c, h, "it runs", runs)
		if r.PID == pid || r.Restarts != 1 || r.State != halfcore.Running {
			t.Errorf("the %s half: %+v after process %d", h, r, pid)
		}
	}
}

// TestRestartRefusesHalfOfAnotherKernel: its daemon does not listen here.
func TestRestartRefusesHalfOfAnotherKernel(t *testing.T) {
	host, _ := twoKernels(t)
	var out bytes.Buffer
	code := execute(t.Context(), []string{"restart", "--config", write(t, host, ""), "--half", "dnp"}, nil, &out, &out)
	if code != 2 || !strings.Contains(out.String(), "another kernel") {
		t.Errorf("%d, %s", code, out.String())
	}
}

// The daemon runs the checks and allows the responses that a restarted half reads in its configuration, after a person's restart and after
// a crash.
func TestRestartedHalfBringsItsChecksAndResponses(t *testing.T) {
	c := node(t)
	script := func(said string, code string) sensor.PeripheralConfig {
		return sensor.PeripheralConfig{Kind: sensor.PeripheralScript, Command: []string{"/bin/sh", "-c", "echo " + said + "; exit " + code}}
	}
	c.Sensors.Peripherals[0], c.Responses.LimitFrequency = script("first", "0"), true
	startDaemon(t, c)
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		awaitRecord(t, c, h, "it runs", runs)
	}
	check := func(component fault.Component, state fault.State, said string) {
		t.Helper()
		await(t, "the check says "+said, 5*time.Millisecond, func() (any, bool) {
			r, err := half.CheckClient(c.StateDir)(t.Context(), component)
			return []any{r, err}, err == nil && r.State == state && r.Detail == said
		})
	}
	allows := func(want bool) {
		t.Helper()
		order := &actions.Order{Attempt: actions.Attempt{Response: "r1", Attempt: 1}, Kind: actions.KindLimitFrequency, Ask: true,
			TimeoutMS: 1000, Target: "n0-0-0/core"}
		s, err := half.TellAction(t.Context(), c.StateDir, order)
		if err != nil || slices.Contains(s.Allowed, actions.KindLimitFrequency) != want {
			t.Errorf("%+v, %v: want %s allowed: %t", s, err, actions.KindLimitFrequency, want)
		}
	}
	check(fault.ComponentPeripheral0, fault.Normal, "first")
	allows(true)
	c.Sensors.Peripherals[0], c.Responses = script("second", "2"), config.ResponsesConfig{RestartHalf: true}
	var out bytes.Buffer
	if code := execute(t.Context(), []string{"restart", "--config", write(t, c, "")}, nil, &out, &out); code != 0 {
		t.Fatal(out.String())
	}
	check(fault.ComponentPeripheral0, fault.Failed, "second")
	allows(false)
	c.Sensors.Peripherals[1], c.Responses.LimitFrequency = script("third", "0"), true
	write(t, c, "")
	pid := awaitRecord(t, c, fault.HalfHost, "it runs", runs).PID
	signalTo(t, pid, syscall.SIGKILL)
	awaitRecord(t, c, fault.HalfHost, "it runs again", func(r halfcore.RecoveryRecord) bool { return runs(r) && r.PID != pid })
	check(fault.ComponentPeripheral0, fault.Failed, "second")
	check(fault.ComponentPeripheral1, fault.Normal, "third")
	allows(true)
}

// Only a new daemon reads how often it may restart a half, so a restart of the halves refuses a change and says how to apply it.
func TestRestartCommandRefusesOtherRecovery(t *testing.T) {
	c := node(t)
	startDaemon(t, c)
	awaitRecord(t, c, fault.HalfHost, "it runs", runs)
	pid := awaitRecord(t, c, fault.HalfDNP, "it runs", runs).PID
	c.Recovery.Restarts++
	var out bytes.Buffer
	code := execute(t.Context(), []string{"restart", "--config", write(t, c, "")}, nil, &out, &out)
	if code != 1 || !strings.Contains(out.String(), "changed in recovery") || !strings.Contains(out.String(), "-s KILL") {
		t.Errorf("%d, %s", code, out.String())
	}
	if r := awaitRecord(t, c, fault.HalfDNP, "it runs", runs); r.PID != pid {
		t.Errorf("%+v after process %d", r, pid)
	}
}

// A restarted DNP half gets sockets on the interfaces in its configuration, after a person's restart and after a crash. The daemon does not
// keep the addresses in use with the former sockets.
func TestRestartedHalfGetsSocketsOfNewInterface(t *testing.T) {
	c := node(t)
	set := func(iface string) {
		for dir, l := range c.Links {
			l.Interface = iface
			c.Links[dir] = l
		}
	}
	startDaemon(t, c)
	awaitRecord(t, c, fault.HalfHost, "it runs", runs)
	pid := awaitRecord(t, c, fault.HalfDNP, "it runs", runs).PID
	bound := func(pid int, iface string) {
		t.Helper()
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil {
			t.Fatal(err)
		}
		_, passed, _ := strings.Cut(string(environ), half.LinksEnv+"=")
		passed, _, _ = strings.Cut(passed, "\x00")
		of, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(of) }()
		for dir, l := range c.Links {
			d, err := grid.ParseDirection(dir)
			if err != nil {
				t.Fatal(err)
			}
			fd, err := unix.PidfdGetfd(of, half.ParseLinks(passed)[d], 0)
			if err != nil {
				t.Fatalf("link %s in %q: %v", dir, passed, err)
			}
			if !half.BoundTo(fd, netip.MustParseAddrPort(l.Local), iface) {
				t.Errorf("link %s: the socket is not bound to interface %q", dir, iface)
			}
			_ = unix.Close(fd)
		}
	}
	bound(pid, "")
	set("lo")
	var out bytes.Buffer
	if code := execute(t.Context(), []string{"restart", "--config", write(t, c, "")}, nil, &out, &out); code != 0 {
		t.Fatal(out.String())
	}
	pid = awaitRecord(t, c, fault.HalfDNP, "it runs", runs).PID
	bound(pid, "lo")
	set("")
	write(t, c, "")
	signalTo(t, pid, syscall.SIGKILL)
	again := awaitRecord(t, c, fault.HalfDNP, "it runs again", func(r halfcore.RecoveryRecord) bool { return runs(r) && r.PID != pid })
	bound(again.PID, "")
	if again.Restarts != 2 {
		t.Errorf("%d restarts: want 2", again.Restarts)
	}
}

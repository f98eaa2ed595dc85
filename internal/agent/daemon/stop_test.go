package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/config"
)

// TestStopReasonFollowsSystemd: the files of systemd tell a reboot and a shutdown from a stop of the agent.
func TestStopReasonFollowsSystemd(t *testing.T) {
	for name, tc := range map[string]struct {
		scheduled string
		noLogin   bool
		want      fault.Stop
	}{
		"nothing":          {want: fault.StopDaemon},
		"reboot":           {scheduled: "USEC=1\nWARN_WALL=1\nMODE=reboot\n", want: fault.StopReboot},
		"soft reboot":      {scheduled: "MODE=soft-reboot\n", want: fault.StopReboot},
		"power off":        {scheduled: "USEC=1\nMODE=poweroff\n", noLogin: true, want: fault.StopShutdown},
		"rehearsal":        {scheduled: "MODE=dry-reboot\n", want: fault.StopDaemon},
		"no login":         {noLogin: true, want: fault.StopShutdown},
		"garbage":          {scheduled: "\x00\xff MODE=reboot", want: fault.StopDaemon},
		"garbage, closing": {scheduled: "\x00", noLogin: true, want: fault.StopShutdown},
	} {
		dir := t.TempDir()
		at := shutdownAt{scheduled: filepath.Join(dir, "scheduled"), noLogin: filepath.Join(dir, "nologin")}
		if tc.scheduled != "" {
			if err := os.WriteFile(at.scheduled, []byte(tc.scheduled), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if tc.noLogin {
			if err := os.WriteFile(at.noLogin, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := stopReason(t.Context(), at); got != tc.want {
			t.Errorf("%s: %s: want %s", name, got, tc.want)
		}
	}
}

// TestSystemdTellsOfShutdown: `systemctl reboot` ends the agent before any file shows the shutdown, so systemd's own state counts.
func TestSystemdTellsOfShutdown(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for state, want := range map[string]fault.Stop{
		"stopping": fault.StopShutdown, "running": fault.StopDaemon, "degraded": fault.StopDaemon, "offline": fault.StopDaemon,
	} {
		script := "#!/bin/sh\n[ \"$*\" = is-system-running ] && echo " + state + "\nexit 1\n"
		if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(script), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		if got := stopReason(t.Context(), shutdownAt{systemd: dir}); got != want {
			t.Errorf("systemd is %s: %s: want %s", state, got, want)
		}
		if got := stopReason(t.Context(), shutdownAt{}); got != fault.StopDaemon {
			t.Errorf("without systemd: %s: want %s", got, fault.StopDaemon)
		}
	}
}

// TestDaemonOfOneHalfStopsNodeOnlyWithTheOther: the end of one half's daemon is no stop of the node, unless the machine goes down
// or the other half's daemon ends too.
func TestDaemonOfOneHalfStopsNodeOnlyWithTheOther(t *testing.T) {
	dir := t.TempDir()
	of := func(h fault.Half) *daemon {
		return &daemon{cfg: RunConfig{Half: h, Agent: config.Agent{StateDir: dir}}, log: slog.New(slog.DiscardHandler)}
	}
	host, dnp := of(fault.HalfHost), of(fault.HalfDNP)
	if !of(0).nodeStops(t.Context(), fault.StopDaemon) || !dnp.nodeStops(t.Context(), fault.StopReboot) {
		t.Error("the daemon of both halves, or the machine, goes down: want a stop of the node")
	}
	if dnp.nodeStops(t.Context(), fault.StopDaemon) {
		t.Error("the DNP half's daemon stops alone: want no stop of the node")
	}
	if err := dnp.stopLock.Close(); err != nil { // the daemon ends, and another one starts
		t.Fatal(err)
	}
	both := make(chan bool)
	go func() { both <- dnp.nodeStops(t.Context(), fault.StopDaemon) }()
	if !host.nodeStops(t.Context(), fault.StopDaemon) || !<-both {
		t.Error("both daemons stop: want a stop of the node")
	}
	for _, d := range []*daemon{host, dnp} {
		_ = d.stopLock.Close()
	}
}

package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
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
		if got := stopReason(at); got != tc.want {
			t.Errorf("%s: %s: want %s", name, got, tc.want)
		}
	}
}

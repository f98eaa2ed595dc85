package executor

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// asService is the variable that makes a copy of the test's process run as the executor process with the drop-in of its documentation.
const asService = "LOFAMO_TEST_AS_SERVICE"

// TestProgramOfOtherUserHasNoCapabilities: a program that runs as another user gets none of the capabilities that allow the executor
// process to start it, since CAP_SETUID makes it any user. A program without a user keeps those of the process, also afterwards.
func TestProgramOfOtherUserHasNoCapabilities(t *testing.T) {
	s := Program{Path: "/bin/grep", Args: []string{"^Cap\\(Inh\\|Prm\\|Eff\\|Amb\\)", "/proc/self/status"}, MaxOutput: 1000}
	if os.Getenv(asService) == "" {
		if os.Getuid() != 0 {
			requirements.Missing(t, "only root may run as somebody else")
		}
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Dir, cmd.Env = "/", append(os.Environ(), asService+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: 65533},
			AmbientCaps: []uintptr{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL}}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	const none, some = "0000000000000000", "00000000000000e0"
	for range 20 { // the Go runtime must not use a thread without capabilities again
		for caps, as := range map[string]*ProgramUser{none: {UID: 65534, GID: 65534}, some: nil} {
			s.Credential = as
			e := RunProgram(t.Context(), s)
			if !e.OK() || strings.Count(string(e.Stdout), caps) != 4 {
				t.Fatalf("%+v: %s: want %s", as, e, caps)
			}
		}
	}
}

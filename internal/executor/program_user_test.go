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

// asService is the environment variable that tells a copy of the test's process to run as the executor process does with the drop-in from
// docs/executor-process.md.
const asService = "LOFAMO_TEST_AS_SERVICE"

// TestProgramOfOtherUserHasNoCapabilities: a program that runs as another user gets none of the executor process's capabilities, because
// CAP_SETUID would let it become any user. A program without a user inherits them, even if it starts after a program with a user.
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

package script

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/pkg/fault"
)

const asRealtime = "LOFAMO_TEST_REALTIME"

// TestChecksAreNeverRealtime runs this test again in a process whose threads all have a real-time class, like a half's,
// and checks the class of a check that it starts.
func TestChecksAreNeverRealtime(t *testing.T) {
	if os.Getenv(asRealtime) != "" {
		// Field 41 of /proc/PID/stat is the scheduling policy.
		src := check(t, 10*time.Second, `set -- $(cat /proc/$$/stat); shift 40; echo "policy $1"`)
		r, err := src.Read(t.Context())
		if err != nil || r.State != fault.Normal || r.Detail != "policy 0" {
			t.Errorf("%+v, %v; want a check of policy 0, the ordinary one", r, err)
		}
		return
	}
	started := make(chan error, 1)
	self := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	self.Env = append(os.Environ(), asRealtime+"=1")
	var out strings.Builder
	self.Stdout, self.Stderr = &out, &out
	go func() { // its thread, and its class, end with it
		runtime.LockOSThread()
		err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
		if err == nil {
			err = self.Start()
		}
		started <- err
	}()
	if err := <-started; errors.Is(err, unix.EPERM) {
		requirements.Missing(t, "SCHED_FIFO is not permitted here")
	} else if err != nil {
		t.Fatal(err)
	}
	if err := self.Wait(); err != nil || !strings.Contains(out.String(), "--- PASS") {
		t.Fatalf("%v\n%s", err, out.String())
	}
}

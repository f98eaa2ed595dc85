package regfile

import (
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestKernelConfirmsDeath checks that only the end of the very process counts: not a running or stopped one, nor one
// that this process cannot identify. A process that its parent has not reaped is gone.
func TestKernelConfirmsDeath(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waited := false
	defer func() {
		if !waited {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}()
	start, err := StartTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	h := Holder{PID: cmd.Process.Pid, Start: start, Space: PIDNamespace()}
	other := h
	other.Start-- // its PID belongs to the new process now
	for name, c := range map[string]struct {
		h    Holder
		gone bool
	}{
		"running":               {h, false},
		"an earlier one":        {other, true},
		"without start":         {Holder{PID: h.PID, Space: h.Space}, false},
		"without namespace":     {Holder{PID: h.PID, Start: h.Start}, false},
		"of another namespace":  {Holder{PID: h.PID, Start: h.Start - 1, Space: h.Space + 1}, false},
		"without PID":           {Holder{Start: h.Start, Space: h.Space}, false},
		"this process":          {self(), false},
		"a PID without process": {Holder{PID: 1 << 30, Start: 1, Space: h.Space}, true},
	} {
		if got := c.h.Gone(); got != c.gone {
			t.Errorf("%s: gone %t, want %t", name, got, c.gone)
		}
	}
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if h.Gone() {
		t.Error("a stopped process is gone")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); !h.Gone(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a killed process that nobody has reaped is not gone")
		}
	}
	_ = cmd.Wait()
	waited = true
	if !h.Gone() {
		t.Error("a reaped process is not gone")
	}
}

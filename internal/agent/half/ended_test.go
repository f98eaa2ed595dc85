package half

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// TestEndOfProcessIsConfirmed checks that the daemon's word about the end of a process counts only with the kernel's:
// no lie, and no late word about an earlier process, speaks against a half that runs.
func TestEndOfProcessIsConfirmed(t *testing.T) {
	path := filepath.Join(t.TempDir(), RegisterFile)
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := regfile.StartTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	process := halfcore.EndedProcess{PID: cmd.Process.Pid, Start: start, Space: regfile.PIDNamespace()}
	locked := func(p halfcore.EndedProcess) {
		t.Helper()
		entry := fmt.Sprintf("%d %d\n%d %d in %d\n", p.PID, p.Start, p.PID, p.Start, p.Space)
		if err := os.WriteFile(path+".dnp", []byte(entry), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	record := halfcore.RecoveryRecord{
		Half: fault.HalfDNP, State: halfcore.Stopped, Ended: &process,
		Last: &halfcore.Recovery{Cause: halfcore.Cause{Kind: halfcore.Killed, Code: 9}, At: Monotonic(), Attempt: 1},
	}
	confirm := func(r halfcore.RecoveryRecord) (string, time.Duration, bool) {
		t.Helper()
		b, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		var checks EndedChecks
		return checks.Confirm(mailbox.Message{Type: mailbox.Recovery, Payload: b}, path, fault.HalfDNP)
	}
	refused := func(what string, r halfcore.RecoveryRecord) {
		t.Helper()
		if how, _, ok := confirm(r); ok {
			t.Errorf("%s: confirmed, %q", what, how)
		}
	}
	refused("no process has taken the lock", record)
	locked(process)
	refused("a lie: the process runs", record)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	how, age, ok := confirm(record)
	if !ok || how != "ended by signal 9" || age < 0 || age > time.Minute {
		t.Errorf("the kernel confirms it: %q, %s, %t", how, age, ok)
	}
	later := process
	later.PID, later.Start = os.Getpid(), process.Start+1
	locked(later)
	refused("a late word: a new process has the lock", record)
	locked(process)
	restarted, host, silent, given := record, record, record, record
	restarted.State, host.Half, silent.Ended, given.State = halfcore.Restarting, fault.HalfHost, nil, halfcore.GivenUp
	refused("it is being restarted", restarted)
	refused("of the other half", host)
	refused("without a process", silent)
	if _, _, ok := confirm(given); !ok {
		t.Error("a half that was given up is not confirmed")
	}
	b, _ := record.Encode()
	var checks EndedChecks
	m, n := mailbox.Message{Type: mailbox.Recovery, Payload: b}, 0
	begun := time.Now()
	for range 1000 {
		if _, _, ok := checks.Confirm(m, path, fault.HalfDNP); ok {
			n++
		}
	}
	if most := 1 + int(time.Since(begun)/endedChecksEvery); n < 1 || n > most {
		t.Errorf("a flood of 1000 messages made %d questions to the kernel: want 1 to %d", n, most)
	}
}

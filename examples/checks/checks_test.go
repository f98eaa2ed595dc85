package checks

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/script"
	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// TestFilesystemCheckGivesVerdicts checks the program's verdicts as the process that runs checks interprets them.
func TestFilesystemCheckGivesVerdicts(t *testing.T) {
	program, err := filepath.Abs("check-filesystem")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, tc := range []struct {
		name string
		args []string
		want fault.State
		says string // beginning of the detail
	}{
		{"room", []string{dir, "101"}, fault.Normal, dir + ": "},
		{"little room", []string{dir, "0", "101"}, fault.Sick, dir + ": "},
		{"no room", []string{dir, "0", "0"}, fault.Failed, dir + ": "},
		{"no such path", []string{filepath.Join(dir, "none")}, fault.Unknown, "check ended with exit status 3"},
		{"no path", nil, fault.Unknown, "check ended with exit status 64"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := script.New(script.Config{
				Component: fault.ComponentPeripheral0, Command: append([]string{program}, tc.args...), Timeout: 30 * time.Second,
			})
			r, err := s.Read(t.Context())
			if r.State != tc.want || len(r.Detail) <= len(tc.says) || r.Detail[:len(tc.says)] != tc.says {
				t.Errorf("%s, %q, error %v: want %s, %q…", r.State, r.Detail, err, tc.want, tc.says)
			}
			if (err != nil) != (tc.want == fault.Unknown) {
				t.Errorf("error %v with the state %s", err, r.State)
			}
		})
	}
}

// TestSmartCheckReadsExitStatus checks the verdicts for the exit statuses of smartctl, whose place a program of this test takes.
func TestSmartCheckReadsExitStatus(t *testing.T) {
	const header, passed = "smartctl 7.4 2023-08-01 r5530", "SMART overall-health self-assessment test result: PASSED"
	smart := smartCheck(t)
	for _, tc := range []struct {
		status int
		prints string
		want   fault.State
		says   string
	}{
		{0, passed, fault.Normal, "/dev/nvme0 passes its own health check"},
		{8, "- NVM subsystem reliability has been degraded", fault.Failed, "/dev/nvme0 is failing: NVM subsystem reliability has been degraded;"},
		{8, "", fault.Failed, "/dev/nvme0 is failing: SMART status FAILED"},
		{16, "", fault.Sick, "/dev/nvme0: an attribute is below its threshold"},
		{32, "", fault.Normal, "/dev/nvme0 passes its own health check; an attribute was below its threshold in the past"},
		{128, header, fault.Sick, "/dev/nvme0: its last self-tests found errors"},
		{64, "", fault.Normal, "/dev/nvme0 passes its own health check; its log has errors"},
		{12, "", fault.Failed, "/dev/nvme0 is failing: SMART status FAILED; a command failed or a checksum is wrong"},
		{200, header, fault.Failed, "/dev/nvme0 is failing: SMART status FAILED; its log has errors"},
		{20, "", fault.Sick, "/dev/nvme0: an attribute is below its threshold; a command failed"},
		{4, passed, fault.Normal, "/dev/nvme0 passes its own health check; a command failed"},
		{4, "SMART Health Status: OK", fault.Normal, "/dev/nvme0 passes its own health check; a command failed"},
		{4, "", fault.Unknown, "check ended with exit status 3"},
		{1, "", fault.Unknown, "check ended with exit status 3"},
		{2, "Smartctl open device: /dev/nvme0 failed: Permission denied", fault.Unknown, "check ended with exit status 3"},
		// No program, and one that a signal killed: SIGHUP, SIGABRT, SIGFPE, SIGKILL, SIGTERM.
		{126, "", fault.Unknown, "check ended with exit status 3"},
		{127, "", fault.Unknown, "check ended with exit status 3"},
		{129, "", fault.Unknown, "check ended with exit status 3"},
		{134, "", fault.Unknown, "check ended with exit status 3"},
		{136, "", fault.Unknown, "check ended with exit status 3"},
		{137, "", fault.Unknown, "check ended with exit status 3"},
		{143, "", fault.Unknown, "check ended with exit status 3"},
	} {
		if r, err := smart(tc.status, tc.prints); r.State != tc.want || !strings.HasPrefix(r.Detail, tc.says) {
			t.Errorf("smartctl ends with %d: %s, %q, error %v: want %s, %q", tc.status, r.State, r.Detail, err, tc.want, tc.says)
		}
	}
}

// TestSmartCheckTakesWorstBit: the worst bit of each exit status of smartctl counts.
func TestSmartCheckTakesWorstBit(t *testing.T) {
	smart := smartCheck(t)
	for status := range 256 {
		want := fault.Normal
		switch {
		case status&1 != 0:
			want = fault.Unknown
		case status&8 != 0:
			want = fault.Failed
		case status&(16|128) != 0:
			want = fault.Sick
		case status&(2|4) != 0:
			want = fault.Unknown
		}
		if r, err := smart(status, "smartctl 7.4 2023-08-01 r5530"); r.State != want {
			t.Errorf("smartctl ends with %d: %s, %q, error %v: want %s", status, r.State, r.Detail, err, want)
		}
	}
}

// smartCheck returns a function that runs check-smart with a smartctl that prints a text and ends with a status.
func smartCheck(t *testing.T) func(status int, prints string) (source.Reading, error) {
	t.Helper()
	program, err := filepath.Abs("check-smart")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func(status int, prints string) (source.Reading, error) {
		stub := fmt.Sprintf("#!/bin/sh\necho '%s'\nexit %d\n", prints, status)
		if err := os.WriteFile(filepath.Join(dir, "smartctl"), []byte(stub), 0o700); err != nil {
			t.Fatal(err)
		}
		s := script.New(script.Config{Component: fault.ComponentPeripheral0, Command: []string{program, "/dev/nvme0"}, Timeout: 30 * time.Second})
		return s.Read(t.Context())
	}
}

package checks

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/script"
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

package hacktest

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// TestRacesFailsForReports: hack/races fails if a process has written a report of the race detector, even if the command succeeds.
func TestRacesFailsForReports(t *testing.T) {
	const report = `for option in $GORACE; do case $option in log_path=*) echo found >"${option#log_path=}.1";; esac; done; `
	for name, c := range map[string]struct {
		command string
		code    int
		says    string // empty: nothing
	}{
		"no report":         {"true", 0, ""},
		"a failed command":  {"exit 3", 3, ""},
		"a report":          {report, 1, "found"},
		"both":              {report + "exit 3", 3, "found"},
		"the options stand": {`echo "$GORACE" | grep -o atexit_sleep_ms=50`, 0, "atexit_sleep_ms=50"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GORACE", "atexit_sleep_ms=50")
			out, err := exec.CommandContext(t.Context(), "../../../hack/races", "bash", "-c", c.command).CombinedOutput()
			code := 0
			if failed, ok := errors.AsType[*exec.ExitError](err); ok {
				code = failed.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if code != c.code || !strings.Contains(string(out), c.says) || c.says == "" && len(out) > 0 {
				t.Errorf("exit code %d, want %d, and %q in the output:\n%s", code, c.code, c.says, out)
			}
		})
	}
}

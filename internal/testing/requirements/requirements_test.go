package requirements

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ended has how a test was ended.
type ended struct {
	testing.TB
	how, why string
}

func (e *ended) Helper() {}

func (e *ended) Fatal(args ...any) { e.how, e.why = "failed", fmt.Sprint(args...) }

func (e *ended) Skip(args ...any) { e.how, e.why = "skipped", fmt.Sprint(args...) }

// A missing requirement skips the test on a person's machine, and fails it where every requirement must be met.
func TestMissingRequirementSkipsOrFails(t *testing.T) {
	for ci, want := range map[string]string{"": "skipped", "1": "failed"} {
		t.Setenv("CI", ci)
		t.Setenv(List, "")
		e := &ended{TB: t}
		Missing(e, "no %s", "moon")
		if e.how != want || !strings.Contains(e.why, "no moon") {
			t.Errorf("CI=%q: %s: %s: want it %s", ci, e.how, e.why, want)
		}
		e = &ended{TB: t}
		if got := Program(e, "grow one", "no-such-program"); got != "" || e.how != want ||
			!strings.Contains(e.why, `["no-such-program"]: grow one`) {
			t.Errorf("CI=%q: %q, %s: %s: want it %s", ci, got, e.how, e.why, want)
		}
	}
	if got := Program(t, "every machine has it", "no-such-program", "sh"); !strings.HasSuffix(got, "/sh") {
		t.Errorf("%q", got)
	}
}

// TestSkippedTestsAreListed: whoever runs all tests learns which of them the machine could not run.
func TestSkippedTestsAreListed(t *testing.T) {
	list := filepath.Join(t.TempDir(), "skipped")
	t.Setenv("CI", "")
	t.Setenv(List, list)
	for _, name := range []string{"moon", "sun\nand stars"} {
		e := &ended{TB: t}
		if Missing(e, "no %s", name); e.how != "skipped" {
			t.Errorf("%s: %s", e.how, e.why)
		}
	}
	got, err := os.ReadFile(list)
	const want = "requirements/TestSkippedTestsAreListed: \"no moon\"\n" +
		"requirements/TestSkippedTestsAreListed: \"no sun\\nand stars\"\n"
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
	t.Setenv(List, filepath.Join(list, "below a file"))
	e := &ended{TB: t}
	if Missing(e, "no comet"); e.how != "failed" {
		t.Errorf("a skip that cannot be listed: %s", e.how)
	}
}

func TestSetNeedsExistingPath(t *testing.T) {
	t.Setenv("CI", "")
	t.Setenv(List, "")
	here := t.TempDir()
	for value, want := range map[string]string{"": "skipped", filepath.Join(here, "gone"): "skipped", here: ""} {
		t.Setenv("LOFAMO_NEEDED", value)
		e := &ended{TB: t}
		got := Set(e, "make builds it", "LOFAMO_NEEDED")
		if e.how != want || (want == "") != (got == here) {
			t.Errorf("%q: %q, %s %s, want %q", value, got, e.how, e.why, want)
		}
	}
}

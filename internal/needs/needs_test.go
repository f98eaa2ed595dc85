package needs

import (
	"strings"
	"testing"
)

// ended has how a test was ended.
type ended struct {
	testing.TB
	how, why string
}

func (e *ended) Helper() {}

func (e *ended) Fatal(args ...any) { e.how, e.why = "failed", args[0].(string) }

func (e *ended) Skip(args ...any) { e.how, e.why = "skipped", args[0].(string) }

// What is missing is passed over on a person's machine, and fails where everything has to be there.
func TestMissing(t *testing.T) {
	for ci, want := range map[string]string{"": "skipped", "1": "failed"} {
		t.Setenv("CI", ci)
		e := &ended{TB: t}
		Missing(e, "no %s", "moon")
		if e.how != want || !strings.Contains(e.why, "no moon") {
			t.Errorf("CI=%q: %s: %s: want it %s", ci, e.how, e.why, want)
		}
		e = &ended{TB: t}
		if got := Program(e, "grow one", "no-such-program"); got != "" || e.how != want || !strings.Contains(e.why, `["no-such-program"]: grow one`) {
			t.Errorf("CI=%q: %q, %s: %s: want it %s", ci, got, e.how, e.why, want)
		}
	}
	if got := Program(t, "every machine has it", "no-such-program", "sh"); !strings.HasSuffix(got, "/sh") {
		t.Errorf("%q", got)
	}
}

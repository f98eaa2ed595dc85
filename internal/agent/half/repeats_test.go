package half

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestRepeatedDoubtsAreCountedInLog plays three minutes of a half that is late 50 times a second, and a calm end.
func TestRepeatedDoubtsAreCountedInLog(t *testing.T) {
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, nil))
	var r Repeats
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for at := time.Duration(0); at < 3*time.Minute; at += 20 * time.Millisecond {
		r.Warn(log, start.Add(at), "late")
	}
	r.Warn(log, start.Add(3*time.Minute), "torn")
	for at := 3 * time.Minute; at < 10*time.Minute; at += 20 * time.Millisecond {
		r.Flush(log, start.Add(at))
	}
	r.Warn(log, start.Add(11*time.Minute), "late")
	var got []string
	for line := range strings.Lines(out.String()) {
		_, line, _ = strings.Cut(line, "level=WARN ")
		got = append(got, strings.TrimSpace(line))
	}
	want := []string{"msg=late", "msg=late times=2999 within=1m0s", "msg=late times=3000 within=1m0s", "msg=late times=3000 within=1m0s",
		"msg=torn", "msg=late"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

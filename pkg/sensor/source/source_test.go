package source

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/fault"
)

// TestGrowthAgainstAll compares Growth, which stores few values, with a version that stores all: the growth is that of
// the window, plus at most a slot and the time between two readings.
func TestGrowthAgainstAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const window = 64 * time.Second
		g := NewGrowth(window)
		now, value := time.Unix(0, 0), uint64(7)
		var all []sample
		var longest time.Duration
		base := func(start time.Time) uint64 { // the last value at or before start, or the first
			v := all[0].value
			for _, s := range all {
				if !s.at.After(start) {
					v = s.value
				}
			}
			return v
		}
		for range rapid.IntRange(1, 200).Draw(t, "readings") {
			step := time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond
			longest = max(longest, step)
			now = now.Add(step)
			value += uint64(rapid.IntRange(0, 3).Draw(t, "growth"))
			all = append(all, sample{now, value})
			got := g.Add(now, value)
			low := value - base(now.Add(-window))
			high := value - base(now.Add(-window-window/growthSamples-longest))
			if got < low || got > high {
				t.Fatalf("growth %d: want %d to %d", got, low, high)
			}
			if len(g.samples) > 2*growthSamples+2 {
				t.Fatalf("%d samples", len(g.samples))
			}
		}
	})
}

func TestDetailIsOnePrintableLine(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"  first line \nsecond", "first line "},
		{"\n\n", ""},
		{"bell\a and \x1b[31mred", "bell? and ?[31mred"},
		{"bad utf-8 \xff\xfe", "bad utf-8 ??"},
		{strings.Repeat("é", 200), strings.Repeat("é", fault.MaxDetail/2)},
	} {
		if got := Detail(tc.in); got != tc.want {
			t.Errorf("Detail(%q) = %q, want %q", tc.in, got, tc.want)
		}
	}
}

func TestMissingFileIsAbsence(t *testing.T) {
	if Missing(syscall.EIO) || Missing(errors.New("x")) || Missing(nil) {
		t.Error("an I/O error is no absence")
	}
	if _, err := Root(t.TempDir()).Text("nothing"); !Missing(err) {
		t.Errorf("%v: want an absence", err)
	}
	for _, e := range []error{syscall.ENODATA, syscall.ENXIO, &os.PathError{Err: syscall.EAGAIN}} {
		if !Missing(e) {
			t.Errorf("%v: want an absence", e)
		}
	}
}

func TestDurationReadsUnits(t *testing.T) {
	var d Duration
	if err := json.Unmarshal([]byte(`"25ms"`), &d); err != nil || d.D() != 25*time.Millisecond {
		t.Errorf("%v, %v", d, err)
	}
	if b, err := json.Marshal(d); err != nil || string(b) != `"25ms"` {
		t.Errorf("%s, %v", b, err)
	}
	for _, bad := range []string{`25`, `"25"`, `"soon"`, `true`, `""`} {
		if err := json.Unmarshal([]byte(bad), &d); err == nil || !strings.Contains(err.Error(), "25ms") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestJudgeKeepsGravestState(t *testing.T) {
	bad := errors.New("cannot read")
	for _, tc := range []struct {
		name string
		say  func(j *Judge)
		want fault.State
		text string
	}{
		{"nothing there", func(*Judge) {}, fault.Unknown, "absent"},
		{"normal", func(j *Judge) { j.Say(fault.Normal, 1, "", "fine") }, fault.Normal, "fine"},
		{"gravest counts", func(j *Judge) {
			j.Say(fault.Sick, 1, "", "sick")
			j.Say(fault.Failed, 1, "", "failed")
			j.Say(fault.Normal, 1, "", "fine")
		}, fault.Failed, "failed"},
		{"unreadable beside normal", func(j *Judge) { j.Say(fault.Normal, 1, "", "fine"); j.Fail(bad) }, fault.Normal, "fine; cannot read"},
		{"unreadable beside sick", func(j *Judge) { j.Fail(bad); j.Say(fault.Sick, 1, "", "sick") }, fault.Sick, "sick; cannot read"},
		{"a note is no sign", func(j *Judge) { j.Note("%d more", 2) }, fault.Unknown, "absent; 2 more"},
		{"a path below the root", func(j *Judge) { j.Say(fault.Normal, 1, "", "fine"); j.Fail(Root("/sys").Bad(bad, "a", "b")) }, fault.Normal,
			"fine; not read: a/b: cannot read"},
		{"unreadable alone", func(j *Judge) { j.Fail(bad) }, fault.Unknown, "cannot read"},
		{"no error", func(j *Judge) { j.Fail(nil) }, fault.Unknown, "absent"},
	} {
		j := NewJudge(fault.ComponentMemory, "x")
		tc.say(j)
		if r, _ := j.Reading("absent"); r.State != tc.want || r.Detail != tc.text {
			t.Errorf("%s: %+v, want %s %q", tc.name, r, tc.want, tc.text)
		}
	}
}

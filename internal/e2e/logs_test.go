package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// Lines that may come more often than once a minute.
var mayRepeat = []*regexp.Regexp{
	// Each is a change, and so news.
	regexp.MustCompile(` msg="[^"]* \(was [^"]*\)"`), // of a link or a network
	regexp.MustCompile(` msg="the (host|DNP) half is (alive|dead)`),
	regexp.MustCompile(` msg="reports go by [^"]* instead of `),
	regexp.MustCompile(` msg="[^"]* (fails|works again)"`),
	regexp.MustCompile(` msg=("leadership ended"|"candidacy ended"|leading)`),
	regexp.MustCompile(` msg="fault injection"`),
	// Each is another attempt while the store has no quorum.
	regexp.MustCompile(` msg="(orders wait|reading the copy of the map again|the store's watch ended|the store does not accept a commit)`),
	// Of libraries: each is another request or probe, and etcd's logger has a limit of its own.
	regexp.MustCompile(` part=etcd `),
	regexp.MustCompile(` msg="gossip: `),
}

// firstLines are the messages with which processes begin.
var firstLines = []string{"beginning cold", "continuing from the copy of an earlier process", "recovery daemon runs", "supervisor started"}

var (
	// attribute is one key and its value in a line of a log.
	attribute = regexp.MustCompile(`(?:^| )([A-Za-z_][\w.-]*)=("(?:[^"\\]|\\.)*"|\S*)`)
	// duration matches a duration in a line. Lines that differ only in durations are repetitions.
	duration = regexp.MustCompile(`\b[0-9.]+(ns|µs|ms|s|m|h)\b`)
)

// repeated returns the lines of a log that have a key twice, and those that a process says more than twice within a minute.
func repeated(log string) (out []string) {
	said := map[string][]time.Time{}
	for line := range strings.Lines(log) {
		line = strings.TrimSuffix(line, "\n")
		var keys []string
		var message string
		var at time.Time
		for _, kv := range attribute.FindAllStringSubmatch(line, -1) {
			if slices.Contains(keys, kv[1]) {
				out = append(out, fmt.Sprintf("%s twice: %s", kv[1], line))
			}
			keys = append(keys, kv[1])
			switch kv[1] {
			case "time":
				at, _ = time.Parse(time.RFC3339Nano, kv[2]) // another form is found below
			case "msg":
				message = strings.Trim(kv[2], `"`)
			}
		}
		if message == "" || at.IsZero() {
			out = append(out, "no time or no message: "+line)
			continue
		}
		if slices.Contains(firstLines, message) {
			clear(said)
		}
		if slices.ContainsFunc(mayRepeat, func(r *regexp.Regexp) bool { return r.MatchString(line) }) {
			continue
		}
		_, words, _ := strings.Cut(line, " ") // without the time
		words = duration.ReplaceAllString(words, "")
		before := said[words]
		if n := len(before); n >= 2 && at.Sub(before[n-2]) < time.Minute {
			out = append(out, fmt.Sprintf("for the third time within %s: %s", at.Sub(before[n-2]), line))
		}
		said[words] = append(before, at)
	}
	return out
}

// checkLogs checks that no log below a directory says a thing again and again.
func checkLogs(t *testing.T, dir string) {
	t.Helper()
	logs := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || e.Name() != "log" && filepath.Ext(path) != ".log" {
			return err
		}
		logs++
		b, err := os.ReadFile(path)
		for _, bad := range repeated(string(b)) {
			t.Errorf("%s: %s", path, bad)
		}
		return err
	})
	if err != nil || logs == 0 {
		t.Errorf("%d logs below %s, %v: want some", logs, dir, err)
	}
}

func TestRepeatedLinesAreFound(t *testing.T) {
	at := func(second int, rest string) string {
		return fmt.Sprintf("time=2026-11-23T12:%02d:%02d.5Z %s\n", second/60, second%60, rest)
	}
	every := func(seconds int, rest ...string) (log string) {
		for i, r := range rest {
			log += at(i*seconds, r)
		}
		return log
	}
	const line, other = `level=WARN msg="disk low" node=n0 free=1`, `level=WARN msg="disk low" node=n0 free=2`
	for _, tt := range []struct {
		name, log string
		want      int
	}{
		{"once a minute", every(30, line, line, line, line), 0},
		{"more often", every(29, line, line, line, line), 2},
		{"of two things", every(1, line, other, line, other), 0},
		{"with other durations", every(1, `level=INFO msg=late by=3ms`, `level=INFO msg=late by=1.5s`, `level=INFO msg=late by=7µs`), 1},
		{"of three processes", every(1, `msg="supervisor started"`, line, line, `msg="supervisor started"`, line, line, `msg="beginning cold"`,
			line), 0},
		{"changes", every(1, `msg="link X+: rx BROKEN (was rx NORMAL)" node=n0`, `msg="link X+: rx BROKEN (was rx NORMAL)" node=n0`,
			`msg="link X+: rx BROKEN (was rx NORMAL)" node=n0`), 0},
		{"a key twice", at(0, `level=INFO msg=leading supervisor=a supervisor=a`), 1},
		{"a key twice, in quotes", at(0, `level=INFO msg="a node=x node=y" node=x`), 0},
		{"no line of a logger", "panic: x\n", 1},
	} {
		if got := repeated(tt.log); len(got) != tt.want {
			t.Errorf("%s: %q: want %d", tt.name, got, tt.want)
		}
	}
}

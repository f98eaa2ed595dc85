// Package sourcetest runs sensor sources on recorded trees by scenarios in plain text, with a simulated
// clock. It is for tests only.
//
// A scenario is a file of lines:
//
//	# comment
//	set PATH VALUE       write a file below the root; "\n" in the value is a new line
//	unreadable PATH      from now on, reading the file fails with EIO
//	remove PATH          remove a file or directory
//	advance 10s          advance the clock
//	want STATE TEXT      read: the state, and text that the detail must contain
//	error STATE TEXT     the same, and the source must return an error, which may have the text
package sourcetest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// Run runs each scenario that matches the pattern against a new source. root is an empty directory for both /proc and
// /sys.
func Run(t *testing.T, pattern string, make func(name, root string, clock source.Clock) source.Source) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("scenarios %s: none, %v", pattern, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			r := &runner{root: t.TempDir(), now: time.Unix(1000, 0)}
			r.src = make(name, r.root, func() time.Time { return r.now })
			for i, line := range strings.Split(string(text), "\n") {
				if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
					r.step(t, i+1, line)
				}
			}
			if r.reads == 0 {
				t.Error("the scenario reads nothing")
			}
		})
	}
}

type runner struct {
	root  string
	now   time.Time
	src   source.Source
	reads int
}

func (r *runner) step(t *testing.T, n int, line string) {
	t.Helper()
	verb, rest, _ := strings.Cut(line, " ")
	first, second, _ := strings.Cut(strings.TrimSpace(rest), " ")
	second = strings.TrimSpace(second)
	switch verb {
	case "set":
		_ = os.Remove(filepath.Join(r.root, first)) // it may be unreadable
		Write(t, r.root, first, strings.ReplaceAll(second, `\n`, "\n"))
	case "remove":
		if err := os.RemoveAll(filepath.Join(r.root, first)); err != nil {
			t.Fatal(err)
		}
	case "unreadable":
		Write(t, r.root, first, "")
		path := filepath.Join(r.root, first)
		if err := errors.Join(os.Remove(path), os.Symlink("/proc/self/mem", path)); err != nil {
			t.Fatal(err)
		}
	case "advance":
		d, err := time.ParseDuration(first)
		if err != nil {
			t.Fatalf("line %d: %v", n, err)
		}
		r.now = r.now.Add(d)
	case "want", "error":
		r.read(t, n, verb == "error", first, second)
	default:
		t.Fatalf("line %d: %q is not a step", n, verb)
	}
}

func (r *runner) read(t *testing.T, n int, wantErr bool, state, text string) {
	t.Helper()
	r.reads++
	got, err := r.src.Read(t.Context())
	said := got.Detail
	if err != nil {
		said += " " + err.Error() // the detail may have been cut short
	}
	if got.State.String() != state || !strings.Contains(said, text) || (err != nil) != wantErr {
		t.Errorf("line %d: %s, %q, error %v; want %s, %q, error %t", n, got.State, got.Detail, err, state, text, wantErr)
	}
	Check(t, r.src, got)
}

// Check checks the invariants of every reading.
func Check(t *testing.T, src source.Source, r source.Reading) {
	t.Helper()
	if !r.State.Valid() || r.Component != src.Component() || r.Source != src.Name() {
		t.Errorf("reading %+v: state invalid, or component or source other than %s, %s", r, src.Component(), src.Name())
	}
	if len(r.Detail) > fault.MaxDetail || r.Detail == "" && r.State != fault.Normal {
		t.Errorf("reading %+v: detail of %d bytes: want 1 to %d", r, len(r.Detail), fault.MaxDetail)
	}
}

// Write writes a file below root as the kernel would show it.
func Write(t testing.TB, root, path, value string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(value+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

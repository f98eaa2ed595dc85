package golden

import (
	"os"
	"path/filepath"
	"testing"
)

// echo prints each of its arguments; "quiet" prints nothing.
func echo(args []string) ([]string, error) {
	if args[0] == "quiet" {
		return nil, nil
	}
	return args, nil
}

func TestLayouts(t *testing.T) {
	lines := func(text string) string { return Lines(t, text, "> ", echo) }
	blocks := func(text string) string { return Blocks(t, text, "----", echo) }
	for _, tc := range []struct {
		name       string
		play       func(string) string
		text, want string
	}{
		{"lines", lines, "# c\na b # d\n> old\n\nquiet\n> old\n", "# c\na b # d\n> a\n> b\n\nquiet\n"},
		{"blocks", blocks, "# c\na\nb\n----\nold\n\nquiet\n", "# c\na\nb\n----\na\nb\n\nquiet\n"},
		{"a block that expects nothing", blocks, "quiet\n----\n\nquiet\n----\n", "quiet\n----\n\nquiet\n----\n"},
		{"a block without its output", blocks, "quiet\n\na\n", "quiet\n\na\n----\na\n"},
	} {
		if got := tc.play(tc.text); got != tc.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tc.name, got, tc.want)
		}
		if again := tc.play(tc.want); again != tc.want {
			t.Errorf("%s: played again it is\n%s", tc.name, again)
		}
	}
}

func TestUpdate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.txt")
	if err := os.WriteFile(file, []byte("a\n> old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	was := *update
	t.Cleanup(func() { *update = was })
	for _, *update = range []bool{true, false} {
		Files(t, file, func(t *testing.T, text string) string { return Lines(t, text, "> ", echo) })
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "a\n> a\n" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestDiff(t *testing.T) {
	for _, tc := range []struct{ want, got, diff string }{
		{"a\nb\nc", "a\nx\nc", "   2 - b\n   3 + x\n"},
		{"a\nb", "b\nc", "   1 - a\n   3 + c\n"},
		{"a\na", "a\na", ""},
	} {
		if got := diff(tc.want, tc.got); got != tc.diff {
			t.Errorf("%q to %q: got\n%s", tc.want, tc.got, got)
		}
	}
}

func TestFirstDifferenceNamesItsLine(t *testing.T) {
	for _, tc := range []struct{ got, want, line string }{
		{"a\nb", "a\nb", ""},
		{"a\nx", "a\nb", `line 2 is "x": want "b"`},
		{"a", "a\nb", "line 2 is missing: b"},
		{"a\nb\nc", "a\nb", "line 3 is not printed: c"},
	} {
		if line := FirstDifference(tc.got, tc.want); line != tc.line {
			t.Errorf("%q, %q: %s: want %s", tc.got, tc.want, line, tc.line)
		}
	}
}

// Package golden is test support: it plays the scenarios of testdata, which hold commands with their
// output, and compares. "go test PACKAGE -update" writes the present output into the files instead;
// review the difference like code.
//
// It knows the layout of a scenario, not its content: the commands belong to the package under test.
// No program imports it.
package golden

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the present output of the scenarios into testdata; then review it")

// Command carries out one line of a scenario and returns the lines that it prints. args has at
// least one element.
type Command func(args []string) (printed []string, err error)

// Files plays every file that matches the pattern, each as a subtest. play takes a file and returns
// it with the present output of its commands.
func Files(t *testing.T, pattern string, play func(t *testing.T, text string) string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := string(b)
			got := play(t, want)
			switch {
			case got == want:
			case !*update:
				t.Errorf("%s: - is expected, + is printed (-update accepts it)\n%s", file, diff(want, got))
			default:
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// Lines plays a scenario in which a command's output follows the command, each line behind the mark.
// In every layout '#' begins a comment.
func Lines(t *testing.T, text, mark string, do Command) string {
	t.Helper()
	var out []string
	for i, line := range split(text) {
		if strings.HasPrefix(line, mark) {
			continue
		}
		out = append(out, line)
		for _, p := range play(t, i, line, do) {
			out = append(out, mark+p)
		}
	}
	return strings.Join(out, "\n") + "\n"
}

// Blocks plays a scenario of blocks: commands, a separator line, their output, an empty line. A block
// without output may omit the separator.
func Blocks(t *testing.T, text, separator string, do Command) string {
	t.Helper()
	var out, printed []string
	expects := false
	for i, line := range append(split(text), "") {
		switch {
		case line == "":
			if expects || printed != nil {
				out = append(append(out, separator), printed...)
			}
			out = append(out, "")
			expects, printed = false, nil
		case line == separator:
			expects = true
		case !expects:
			out = append(out, line)
			printed = append(printed, play(t, i, line, do)...)
		}
	}
	return strings.Join(out, "\n")
}

func split(text string) []string { return strings.Split(strings.TrimRight(text, "\n"), "\n") }

func play(t *testing.T, i int, line string, do Command) []string {
	t.Helper()
	command, _, _ := strings.Cut(line, "#")
	args := strings.Fields(command)
	if len(args) == 0 {
		return nil
	}
	done := false
	defer func() {
		if !done { // also when the command ended the test itself
			t.Logf("at line %d, %q", i+1, line)
		}
	}()
	printed, err := do(args)
	if err != nil {
		t.Fatal(err)
	}
	done = true
	return printed
}

// diff lists the lines that only one of the two has, by a longest common subsequence, with the number
// of the line in want where they stand or belong.
func diff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	common := make([][]int, len(w)+1) // [i][j]: how many lines w[i:] and g[j:] have in common
	for i := range common {
		common[i] = make([]int, len(g)+1)
	}
	for i := len(w) - 1; i >= 0; i-- {
		for j := len(g) - 1; j >= 0; j-- {
			common[i][j] = max(common[i+1][j], common[i][j+1])
			if w[i] == g[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	var out strings.Builder
	for i, j := 0, 0; i < len(w) || j < len(g); {
		switch {
		case i < len(w) && j < len(g) && w[i] == g[j]:
			i, j = i+1, j+1
		case j == len(g) || i < len(w) && common[i+1][j] >= common[i][j+1]:
			fmt.Fprintf(&out, "%4d - %s\n", i+1, w[i])
			i++
		default:
			fmt.Fprintf(&out, "%4d + %s\n", i+1, g[j])
			j++
		}
	}
	return out.String()
}

// Page compares a document with want, the output of its generator. With render it first writes the document. The error names
// the command that does so.
func Page(t *testing.T, path string, want []byte, render bool, command string) {
	t.Helper()
	if render {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if line := FirstDifference(string(got), string(want)); line != "" {
		t.Errorf("%s is not the output of its generator (%s): %s", path, command, line)
	}
}

// FirstDifference describes the first line in which a page differs from what its generator prints; "" if they are equal.
func FirstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		switch {
		case i >= len(g):
			return fmt.Sprintf("line %d is missing: %s", i+1, w[i])
		case i >= len(w):
			return fmt.Sprintf("line %d is not printed: %s", i+1, g[i])
		case g[i] != w[i]:
			return fmt.Sprintf("line %d is %q: want %q", i+1, g[i], w[i])
		}
	}
	return ""
}

package docstest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	program = regexp.MustCompile("(?m)^Program: commit `[0-9a-f]{7,40}(-dirty)?`")
	figure  = regexp.MustCompile(`(?m)^\| .*[0-9]`)
)

// TestFiguresNameTheirProgram: every table of docs/figures.md is in a section that names the measured commit, and every
// row of the summary names its own.
func TestFiguresNameTheirProgram(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(top, "docs", "figures.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range unnamedFigures(string(b)) {
		t.Errorf("docs/figures.md: %s", s)
	}
	const bad = "# F\n\n## A\n\n| x | 1 |\n\n## B\n\nProgram: commit `0123abc` of today.\n\n| x | 1 |\n\n## Targets\n\n| | asked | " +
		"measured | program |\n|---|---|---|---|\n| x | 1 | 2 |\n"
	if got := unnamedFigures(bad); len(got) != 2 {
		t.Errorf("of a page with two lapses %q are found", got)
	}
}

func unnamedFigures(text string) []string {
	var out []string
	for i, section := range regexp.MustCompile(`(?m)^##+ `).Split(text, -1) {
		name, _, _ := strings.Cut(section, "\n")
		switch {
		case i == 0 || !figure.MatchString(section):
		case name == "Targets":
			for _, row := range figure.FindAllString(section, -1) {
				if !regexp.MustCompile("`[0-9a-f]{7,40}` \\|$").MatchString(fullLine(section, row)) {
					out = append(out, "a row of the summary has no commit: "+row)
				}
			}
		case !program.MatchString(section):
			out = append(out, name+": no line \"Program: commit `…`\"")
		}
	}
	return out
}

// fullLine returns the line of text that begins with start.
func fullLine(text, start string) string {
	_, rest, _ := strings.Cut(text, start)
	rest, _, _ = strings.Cut(rest, "\n")
	return start + rest
}

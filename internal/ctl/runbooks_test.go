package ctl

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/ctl/command"
)

// The commands that runbooks have people type at three in the morning exist: commands, flags and number of arguments.
func TestRunbooks(t *testing.T) {
	pages, err := filepath.Glob("../../docs/runbooks/*.md")
	if err != nil || len(pages) < 10 {
		t.Fatalf("%d pages, error %v", len(pages), err)
	}
	typed := regexp.MustCompile("(?m)(?:^    |`)lofamoctl ([^`#\n]*)")
	n := 0
	for _, page := range pages {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range typed.FindAllStringSubmatch(string(b), -1) {
			n++
			line := strings.TrimSpace(m[1])
			cmd, args, err := newRoot(command.Env{}).Find(strings.Fields(line))
			if err != nil {
				t.Errorf("%s: lofamoctl %s: %v", page, line, err)
				continue
			}
			if !cmd.HasParent() {
				t.Errorf("%s: lofamoctl %s: no such command", page, line)
			}
			if err := cmd.ParseFlags(args); err != nil {
				t.Errorf("%s: lofamoctl %s: %v", page, line, err)
			} else if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil && !strings.Contains(line, "...") && len(cmd.Flags().Args()) > 0 {
				t.Errorf("%s: lofamoctl %s: %v", page, line, err)
			}
		}
	}
	if n < 60 {
		t.Errorf("%d command lines were found in the runbooks", n)
	}
}

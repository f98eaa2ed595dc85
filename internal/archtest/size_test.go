package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestProgramsKeepOnlyReachableMethods: a template calls methods by name, so a program that can execute one keeps every
// method of every type. gRPC's trace pages are such templates, unless the build leaves them out. Without them, the agent
// is 3 MB smaller, nearly all of which is resident on every node.
func TestProgramsKeepOnlyReachableMethods(t *testing.T) {
	const tag = "grpcnotrace"
	root := filepath.Join("..", "..")
	for name, build := range map[string]string{
		"Makefile":     `(?m)^.*\bgo build\b.*$`,
		"hack/release": `(?m)^.*\bgo build\b.*$`,
		".ko.yaml":     `(?m)^defaultFlags:.*$`,
	} {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		lines := regexp.MustCompile(build).FindAllString(string(b), -1)
		// Programs of other modules are no part of a node.
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, "\tcd ") })
		if len(lines) != 1 || !strings.Contains(lines[0], tag) {
			t.Errorf("%s: builds %q: want one build of the programs, with the tag %s", name, lines, tag)
		}
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", tag, "./cmd/lofamo-agent", "./cmd/lofamo-executor")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(strings.Fields(string(out)), "golang.org/x/net/trace") {
		t.Errorf("the agent or the executor imports golang.org/x/net/trace: its templates keep every method")
	}
}

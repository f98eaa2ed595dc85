// Package previous builds version N-1, from which a running cluster must be able to upgrade.
package previous

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// Commit is version N-1.
const Commit = "3e537d53f5f812b8a37c77e73b221da6661c6c3a"

// Build writes the source of version N-1 below dir and builds the given programs there. It returns the directories of the source and of the
// programs. root is the root directory of this version. Without the Git history (a shallow clone, an archive), Build skips the test, but
// never in CI. It fails the test if the build fails.
func Build(t testing.TB, root, dir string, programs ...string) (source, bin string) {
	t.Helper()
	root, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "git", "-C", root, "cat-file", "-e", Commit+"^{commit}").CombinedOutput(); err != nil {
		requirements.Missing(t, "version N-1, commit %s, is not in the history: %v %s", Commit, err, out)
	}
	source, bin = filepath.Join(dir, "source"), filepath.Join(dir, "bin")
	if err := os.MkdirAll(source, 0o755); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "source.tar")
	// Without the paths of the source in them, the programs are the same every time, and Go's cache has their parts.
	build := []string{"go", "build", "-trimpath", "-ldflags=-s -w", "-o", bin + "/"}
	for _, p := range programs {
		build = append(build, "./cmd/"+p)
	}
	for _, args := range [][]string{
		{"git", "-C", root, "archive", "-o", archive, Commit},
		{"tar", "-C", source, "-xf", archive},
		build,
	} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		if args[0] == "go" {
			cmd.Dir = source
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	return source, bin
}

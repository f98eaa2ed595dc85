// Package previous builds version N-1, from which a running cluster must be able to upgrade: the last release. No version has been
// released yet, so it is this source under another version number.
package previous

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Version is the number of version N-1.
const Version = "v0.0.0-previous"

// Build builds the given programs of version N-1 into dir/bin, and returns that directory. root is the root directory of this version. It
// fails the test if the build fails.
func Build(t testing.TB, root, dir string, programs ...string) (bin string) {
	t.Helper()
	bin, err := filepath.Abs(filepath.Join(dir, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"build", "-trimpath", "-ldflags=-s -w -X github.com/lofamo/lofamo/internal/program.version=" + Version, "-o", bin + "/"}
	for _, p := range programs {
		args = append(args, "./cmd/"+p)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return bin
}

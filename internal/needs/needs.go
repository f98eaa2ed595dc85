// Package needs is for tests of what a machine may not have: a program, a right, something of the kernel. Such a test is skipped there; where CI is
// set it fails, for nobody would see that nothing was tested.
package needs

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Missing ends a test that cannot be done here, and says why not.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	why := "SKIPPED: " + fmt.Sprintf(format, args...)
	if os.Getenv("CI") != "" {
		t.Fatal(why + ": but in CI nothing is to be skipped")
		return
	}
	t.Skip(why)
}

// Program returns the path of a program: the first of these names that is in the PATH. from says where one gets it.
func Program(t testing.TB, from string, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	Missing(t, "none of the programs %q: %s", names, from)
	return ""
}

// Set returns a variable of the environment that says where something is that the test does not make itself. from says what makes and sets it.
func Set(t testing.TB, from, variable string) string {
	t.Helper()
	value := os.Getenv(variable)
	if value == "" {
		Missing(t, "%s is not set: %s", variable, from)
	}
	return value
}

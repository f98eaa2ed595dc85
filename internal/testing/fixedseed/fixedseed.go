// Package fixedseed makes property tests repeatable: the same examples in every run, unless a seed is
// given with -rapid.seed. It is for TestMain of the packages that use rapid, and holds no tests itself.
package fixedseed

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// Main runs the tests and returns the exit code.
func Main(m *testing.M) int {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.seed" })
	if !given {
		if err := flag.Set("rapid.seed", "1"); err != nil {
			fmt.Fprintln(os.Stderr, "fix the seed of property tests:", err)
			return 2
		}
	}
	return m.Run()
}

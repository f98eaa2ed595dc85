package inject

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/machine"
)

// done holds the finished classes, in order, for the document.
var done struct {
	mu             sync.Mutex
	classes        []*class
	courses        []course // measured one at a time
	kept, replaced int      // reports, and their fates
	lost           int
	doubled        int
}

// runClass runs a class, and fails the test for missed or unhealed samples.
func runClass(t *testing.T, name string, run func(*class)) {
	t.Helper()
	c, begin := newClass(name, *seed), time.Now()
	run(c)
	c.took = time.Since(begin)
	finish(t, c)
}

// finish adds a class to the document.
func finish(t *testing.T, c *class) {
	t.Helper()
	t.Logf("%s: %d samples in %s: %v by %s; effective %d, covered %d, prober %d; not healed %d; lost %d, doubled %d",
		c.name, c.n, c.took.Round(time.Millisecond), c.outcomes, byWhom(c.by), c.effective, c.covered, c.proberOf, len(c.unhealed),
		c.lost, c.doubled)
	report(t, c)
	done.mu.Lock()
	defer done.mu.Unlock()
	done.classes = append(done.classes, c)
}

func TestMain(m *testing.M) {
	flag.Parse()
	c := conditions{began: time.Now(), load: machine.LoadAverages()}
	code := m.Run()
	if c.failed = code != 0; *out != "" {
		if err := c.write(*out, *recordOut); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if started {
		dir, _ := binaries()
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// tolerated reports whether the missed samples are within the promised coverage, which applies to the whole campaign
// and to classes that depend on the machine's load. Otherwise none may be missed.
func (c *class) tolerated() bool {
	return *full && c.chances && float64(c.covered) >= promisedCoverage*float64(c.effective)
}

// report fails a test for missed or unhealed samples.
func report(t *testing.T, c *class) {
	t.Helper()
	const most = 15
	for i, s := range c.missed {
		if c.apart || c.tolerated() {
			t.Logf("missed: %s", s)
		} else if i < most {
			t.Errorf("missed: %s", s)
		}
	}
	for i, s := range c.unhealed {
		if i < most {
			t.Errorf("not healed: %s", s)
		}
	}
}

package inject

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// done are the classes that were run, in their order, for the document.
var done struct {
	mu             sync.Mutex
	classes        []*class
	courses        []course // one after the other
	kept, replaced int      // reports, and what became of them
	lost           int
	doubled        int
}

// runClass runs a class, and fails the test for what was missed or is still wrong.
func runClass(t *testing.T, name string, run func(*class)) {
	t.Helper()
	c, begin := newClass(name, *seed), time.Now()
	run(c)
	c.took = time.Since(begin)
	finish(t, c)
}

// finish takes a class into the document.
func finish(t *testing.T, c *class) {
	t.Helper()
	t.Logf("%s: %d samples in %s: %v by %s; effective %d, covered %d, prober %d; not healed %d; lost %d, doubled %d",
		c.name, c.n, c.took.Round(time.Millisecond), c.outcomes, byWhom(c.by), c.effective, c.covered, c.proberOf, len(c.unhealed), c.lost, c.doubled)
	report(t, c)
	done.mu.Lock()
	defer done.mu.Unlock()
	done.classes = append(done.classes, c)
}

func TestMain(m *testing.M) {
	flag.Parse()
	c := conditions{began: time.Now(), load: loadavg()}
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

// tolerated says whether what is missed is within what is promised of the whole campaign: where a machine has its chances. Elsewhere
// nothing may be missed.
func (c *class) tolerated() bool {
	return *full && c.chances && float64(c.covered) >= promisedCoverage*float64(c.effective)
}

// report fails a test for what was missed or is still wrong.
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

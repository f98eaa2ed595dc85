package sensor

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// listEvery is the time between two listings of the chips. A chip, an input, a limit or a label that appears counts after at most this time
// and one reading. The first reading after a file has disappeared does without it, and the next one lists the chips again.
const listEvery = 5 * time.Second

// chip is a hardware monitoring chip, as listed.
type chip struct {
	dir, name string
	files     []string // sorted
	// labels has a function for each measuring point with a label: "temp1". Its first call reads the file, and may block in the driver.
	labels map[string]func() string
}

func (c *chip) has(file string) bool {
	_, ok := slices.BinarySearch(c.files, file)
	return ok
}

// inputs returns the files with a prefix, a number and a suffix.
func (c *chip) inputs(prefix, suffix string) (out []string) {
	first, _ := slices.BinarySearch(c.files, prefix)
	for _, f := range c.files[first:] {
		rest, ok := strings.CutPrefix(f, prefix)
		if !ok {
			break
		}
		if rest != "" && rest[0] >= '0' && rest[0] <= '9' && strings.HasSuffix(rest, suffix) {
			out = append(out, f)
		}
	}
	return out
}

// chips lists the kernel's hardware monitoring chips for the sources that share it. A listing is never changed. It reads no file of a
// driver but the chips' names, because one that blocks would stop all sources.
type chips struct {
	sys   source.Root
	every time.Duration // between two listings; 0: each use lists them
	clock source.Clock

	mu     sync.Mutex
	at     time.Time // of the last complete listing; zero: list at the next use
	listed []chip
}

// list returns the chips, and the errors of those that cannot be listed.
func (c *chips) list() ([]chip, []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock()
	if !c.at.IsZero() && now.Sub(c.at) < c.every {
		return c.listed, nil
	}
	c.at = time.Time{}
	dirs, err := c.sys.Glob(hwmonDir, "hwmon[0-9]*")
	if err != nil {
		return nil, []error{err}
	}
	c.listed = make([]chip, 0, len(dirs))
	var errs []error
	for _, d := range dirs {
		one, err := c.look(hwmonDir + "/" + d)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.listed = append(c.listed, one)
	}
	if len(errs) == 0 {
		c.at = now
	}
	return c.listed, errs
}

// forget makes the next reading list the chips again, because a listed file has disappeared.
func (c *chips) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = time.Time{}
}

func (c *chips) look(dir string) (chip, error) {
	name, err := c.sys.Text(dir, "name")
	if err != nil {
		return chip{}, err
	}
	files, err := c.sys.Glob(dir, "*")
	if err != nil {
		return chip{}, err
	}
	out := chip{dir: dir, name: name, files: files, labels: map[string]func() string{}}
	for _, f := range files {
		point, ok := strings.CutSuffix(f, "_label")
		if !ok {
			continue
		}
		out.labels[point] = sync.OnceValue(func() string {
			label, err := c.sys.Text(dir, f)
			if err != nil { // labels are optional
				return point
			}
			return label
		})
	}
	return out, nil
}

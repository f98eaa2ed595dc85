package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"
)

// logsUnless returns the ends of some logs, for an error that does not bring one along.
func (c *Cluster) logsUnless(err error, which string) string {
	var e Exit
	if errors.As(err, &e) || errors.Is(err, context.Canceled) {
		return ""
	}
	paths, _ := filepath.Glob(c.path(which, "*", "*log"))
	var b strings.Builder
	for _, path := range paths[:min(3, len(paths))] {
		fmt.Fprintf(&b, "\nthe end of %s:\n%s", path, tail(path, 5))
	}
	return b.String()
}

const (
	tailBytes = 64 << 10 // most that tail reads of a log
	tailLine  = 300      // most bytes that it shows of a line
)

// tail returns the last lines of a file, indented, for people: a log may quote other machines.
func tail(path string, lines int) string {
	b, err := readEnd(path)
	if err != nil {
		return "  " + err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	if len(all) == 1 && all[0] == "" {
		return "  (empty)"
	}
	for i, l := range all {
		if all[i] = fault.Clean(l, tailLine); len(l) > tailLine {
			all[i] += "…"
		}
	}
	return "  " + strings.Join(all, "\n  ")
}

// readEnd returns the last bytes of a file, at most tailBytes.
func readEnd(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := max(0, st.Size()-tailBytes)
	return io.ReadAll(io.NewSectionReader(f, from, tailBytes))
}
